"""Objects of the real flax.nnx: how they are told, and refused where objects of this package are meant.

The real library's objects are pytrees to JAX, so without a check they would pass through everything here as containers
of arrays, and what a function changes in them would be lost without a word. This package never imports flax: as long
as nobody has, nothing can be foreign.
"""

from __future__ import annotations

import sys
from typing import Any

from weft.core.errors import ForeignObjectError

# Types that were looked at while the real flax.nnx was loaded, and are none of its own.
_not_foreign: set[type] = set()


def real_nnx() -> Any:
    """The real flax.nnx, if it has been imported."""
    module = sys.modules.get("flax.nnx")
    return module if module is not None and module.__name__ == "flax.nnx" else None


def is_foreign_type(kind: type) -> bool:
    """Whether a type is one of the real flax.nnx's object, Variable or state types, or derived from one."""
    if kind in _not_foreign:
        return False
    real = real_nnx()
    if real is None:
        return False
    # Not while flax.nnx is being imported itself.
    bases = tuple(base for name in ("Pytree", "Variable", "State", "GraphDef") if (base := getattr(real, name, None)))
    if issubclass(kind, bases):
        return True
    _not_foreign.add(kind)
    return False


def refuse_foreign(value: Any) -> None:
    """Refuses an object of the real flax.nnx.

    Raises:
        TypeError: saying how to move it over.
    """
    kind = type(value)
    # Asked of every leaf: nothing is foreign in a program that has not imported flax.
    if kind not in _not_foreign and "flax.nnx" in sys.modules and is_foreign_type(kind):
        raise ForeignObjectError(
            f"this {kind.__name__} is an object of the real flax.nnx, not of weft.nnx",
            fix="move it over with its state: nnx.convert(obj); or let the whole program use weft.nnx: call "
            "weft.nnx.install() before flax.nnx is imported, or start it by python -m weft.nnx",
        )
