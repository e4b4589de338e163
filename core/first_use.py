"""Names that a package offers and imports when they are first asked for.

`import weft` is for records and the transforms over them. Layers, capture, debugging, exports and the like are there
under the same names, and cost whoever uses them. The imports stand in the package as they always would, where a type
checker reads them:

    with on_first_use(globals()):
        from weft.core.sowing.capturing import capture
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
from collections.abc import Generator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any


@contextlib.contextmanager
def on_first_use(namespace: dict[str, Any]) -> Generator[None]:
    """Notes the imports `from module import name` that stand inside, and gives the package a `__getattr__` for them.

    Args:
        namespace: the `globals()` of the package.

    >>> namespace = {"__name__": "weft.core.first_use"}
    >>> with on_first_use(namespace):
    ...     exec("from math import tau as circle", namespace)
    >>> "circle" in namespace, namespace["__getattr__"]("circle")
    (False, 6.283185307179586)
    """
    package, before, import_now = namespace["__name__"], set(namespace), builtins.__import__

    def note(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        if globals is not namespace:  # another thread's
            return import_now(name, globals, locals, fromlist or (), level)
        return SimpleNamespace(**{origin: (name, origin) for origin in fromlist or ()})

    builtins.__import__ = note
    try:
        yield
    finally:
        builtins.__import__ = import_now
    homes: dict[str, tuple[str, str]] = {name: namespace.pop(name) for name in set(namespace) - before}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, origin = homes[name]
        if module == package:
            return importlib.import_module(f"{package}.{origin}")
        # As the statement would do it: what is imported may be a module of another package.
        namespace[name] = getattr(builtins.__import__(module, None, None, [origin]), origin)
        return namespace[name]

    namespace["__getattr__"] = get
    namespace["__dir__"] = lambda: sorted({*namespace, *homes})
