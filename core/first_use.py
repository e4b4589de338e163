"""Names that a package offers and imports when they are first asked for.

`import weft` is for records and the transforms over them. Layers, capture, debugging, exports and the like are there
under the same names, and cost whoever uses them. Their imports stand in the package for type checkers alone; beside
them is a table of where each name comes from.
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
        homes: modules, each with the names that come from it; `origin=name` where it has another name there. A name
            that comes from the package itself is a module in it.

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
        # As the statement would do it: what is imported may be a module of another package.
        namespace[name] = getattr(__import__(module, None, None, [origin]), origin)
        return namespace[name]

    return get, lambda: sorted({*namespace, *origins})
