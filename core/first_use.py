"""Lazy imports: a package imports some of its names when they are first used.

`import weft` loads records and the transforms over them. Layers, capture, debugging, exports and the like have their
names in the same package, but only programs that use them wait for their import. The package imports them under
`TYPE_CHECKING` for type checkers, and lists the module of each name in a table.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def first_use(
    namespace: dict[str, Any], homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package.

    Args:
        namespace: the `globals()` of the package.
        homes: from a module to the names that come from it; `origin=name` for a name that is `origin` in the module. A
            name that comes from the package itself is a submodule.

    >>> namespace = {"__name__": "weft.core.first_use"}
    >>> get, names = first_use(namespace, {"math": "tau=circle pi"})
    >>> get("circle"), "circle" in namespace, names()
    (6.283185307179586, True, ['__name__', 'circle', 'pi'])
    """
    entries = [(module, *entry.partition("=")) for module, names in homes.items() for entry in names.split()]
    origins = {name or origin: (module, origin) for module, origin, _, name in entries}
    package = namespace["__name__"]

    def get(name: str) -> Any:
        if name not in origins:
            from weft.core.former_names import absence

            raise AttributeError(absence(package, name))
        module, origin = origins[name]
        if module == package:
            return importlib.import_module(f"{package}.{origin}")
        # `__import__` with a name also imports a submodule, as `from module import name` does.
        namespace[name] = getattr(__import__(module, None, None, [origin]), origin)
        return namespace[name]

    return get, lambda: sorted({*namespace, *origins})
