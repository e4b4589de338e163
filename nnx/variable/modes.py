"""The metaclass of Variables, which replaces a new Variable with `hijax=True` by its hijax box."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

# The functions that convert a Variable with a mode in its metadata, by the mode's name. `nnx/__init__.py` fills it with
# a function that imports `variable.hijax`: that file imports this one, so it cannot be imported from here.
MODES: dict[str, Callable[[Any], Any]] = {}


class VariableMeta(type):
    """Gives every Variable type `__slots__`, and replaces new instances with `hijax=True` by hijax boxes."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any):
        # Without slots, each Variable would have a `__dict__`, and transforms rebuild thousands of them in each trace.
        namespace.setdefault("__slots__", ())
        return super().__new__(cls, name, bases, namespace, **kwargs)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._variable_meta_call(*args, **kwargs)

    # A method of its own, because flax's metaclass has it under this name.
    def _variable_meta_call(cls, *args: Any, **kwargs: Any) -> Any:
        return as_its_mode(type.__call__(cls, *args, **kwargs))


def as_its_mode(variable: Any) -> Any:
    """Returns the Variable, or the hijax box of one with `hijax=True`."""
    if not variable._nnx_metadata["hijax"]:
        return variable
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(variable._raw_value)):
        return variable  # an abstract Variable has no arrays that a box could hold
    return MODES["hijax"](variable)
