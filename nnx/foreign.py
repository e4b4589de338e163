"""Recognises objects of the real flax.nnx, and refuses them where objects of this package are expected.

To JAX, the real library's objects are pytrees. Without a check they would pass through everything here as containers of
arrays, and mutations of them would be lost without an error. This package never imports flax, so objects can be foreign
only if other code has imported it.
"""

from __future__ import annotations

import sys
from typing import Any

from weft.core.errors import ForeignObjectError

# Types that were checked after the real flax.nnx was imported, and are not its own.
_not_foreign: set[type] = set()


def real_nnx() -> Any:
    """Returns the real flax.nnx if it has been imported, else None."""
    module = sys.modules.get("flax.nnx")
    # After `install`, `sys.modules["flax.nnx"]` is `weft.nnx`, whose name differs.
    return module if module is not None and module.__name__ == "flax.nnx" else None


def is_foreign_type(kind: type) -> bool:
    """Whether a type is an object, Variable or State type of the real flax.nnx, or derived from one."""
    if kind in _not_foreign:
        return False
    real = real_nnx()
    # Not remembered: the program may import flax.nnx later.
    if real is None:
        return False
    # While flax.nnx is being imported, it may lack some of these names.
    bases = tuple(base for name in ("Pytree", "Variable", "State", "GraphDef") if (base := getattr(real, name, None)))
    if issubclass(kind, bases):
        return True
    _not_foreign.add(kind)
    return False


def refuse_foreign(value: Any) -> None:
    """Refuses an object of the real flax.nnx.

    Raises:
        TypeError: naming `nnx.convert` and `install`.
    """
    kind = type(value)
    # This runs for every leaf, so the look-up in `sys.modules` comes first: it settles programs without flax.
    if kind not in _not_foreign and "flax.nnx" in sys.modules and is_foreign_type(kind):
        raise ForeignObjectError(
            f"this {kind.__name__} is an object of the real flax.nnx, not of weft.nnx",
            fix="convert it with its state: nnx.convert(obj); or let the whole program use weft.nnx: call "
            "weft.nnx.install() before flax.nnx is imported, or start it by python -m weft.nnx",
        )
