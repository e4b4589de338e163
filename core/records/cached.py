"""Cached properties of records: computed once for each record, and not copied to its successors.

`functools.cached_property` writes its value into the instance's `__dict__`, which holds a record's fields. So `replace`
copied the value to a successor for whose fields it was wrong, and reading the property changed the treedef, so that
`jit` retraced for the same record. Here the values are stored in a slot that neither JAX nor `replace` reads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
from jax.core import Tracer
from weft.core.edge.contexts import current_level

_UNREAD: Any = object()

# The slot of `Module` that holds the values.
SLOT = "_weft_cached"


class CachedProperty(functools.cached_property[Any]):
    """`functools.cached_property` for records, whose value belongs to one record alone."""

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
            # A tracer is dead after its trace, but the record may live longer: a compiled function may close over a
            # model, whose property then held the dead tracer. So the level of the trace is stored with it.
            traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value))
            values[cast(str, self.attrname)] = value, current_level() if traced else None
        return value


def use_own_cached_properties(cls: type[Any]) -> None:
    """Replaces the cached properties of a class of records, inherited ones too, by `CachedProperty`."""
    inherited = {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
    for name, value in inherited.items():
        # Not subclasses of `cached_property`, which may do something else when they are read.
        if type(value) is functools.cached_property:
            setattr(cls, name, CachedProperty(value.func, name))
