"""The modes of Variables: one that asks for hijax becomes a value of JAX's own, as soon as it is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

# What a Variable becomes that asks for a mode in its metadata, by that name: a value of another class, which stands on
# Variables itself and so is put in from outside (the package does, and loads `hijax` when the first one is made).
MODES: dict[str, Callable[[Any], Any]] = {}


class VariableMeta(type):
    """Makes Variable types slotted, and hijax Variables of those that ask for it."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any):
        namespace.setdefault("__slots__", ())
        return super().__new__(cls, name, bases, namespace, **kwargs)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._variable_meta_call(*args, **kwargs)

    def _variable_meta_call(cls, *args: Any, **kwargs: Any) -> Any:
        return as_its_mode(type.__call__(cls, *args, **kwargs))


def as_its_mode(variable: Any) -> Any:
    """The Variable, or the hijax value that stands for it."""
    if not variable._nnx_metadata["hijax"]:
        return variable
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(variable._raw_value)):
        return variable  # there is no value yet
    return MODES["hijax"](variable)
