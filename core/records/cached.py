"""Cached properties of records: computed once for each record, and for no other.

`functools.cached_property` writes its value into the instance's `__dict__`, and that is what a record is made of: the
value would be handed on to successors, of whose fields it may be untrue, and reading the property would change the
tree's definition, so that one record before and after were two structures to `jit`. So the values stand beside, in a
slot that neither JAX nor `replace` looks at.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
from jax.core import Tracer
from weft.core.edge.levels import current_level

_UNREAD: Any = object()

# Where the values of a record stand: a slot of `Module`.
SLOT = "_weft_cached"


class CachedProperty(functools.cached_property[Any]):
    """`functools.cached_property` for a record, whose value is never another record's."""

    def __init__(self, function: Callable[[Any], Any], name: str):
        super().__init__(function)
        self.attrname = name

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        if instance is None:
            return self
        values = cast("dict[str, tuple[Any, object]] | None", getattr(instance, SLOT, None))
        if values is None:
            values = {}
            object.__setattr__(instance, SLOT, values)
        value, level = values.get(cast(str, self.attrname), (_UNREAD, None))
        if value is _UNREAD or (level is not None and level != current_level()):
            value = self.func(instance)
            # A tracer ends with its trace, and the record may outlive it: a model that a compiled function closes over.
            traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value))
            values[cast(str, self.attrname)] = value, current_level() if traced else None
        return value


def keep_beside(cls: type[Any]) -> None:
    """Has the cached properties that a class of records defines keep their values beside the records."""
    for name, value in list(vars(cls).items()):
        # Exactly this class: what a subclass does when it is read is its own affair.
        if type(value) is functools.cached_property:
            setattr(cls, name, CachedProperty(value.func, name))
