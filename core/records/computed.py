"""Fields that a constructor computes (`field(init=False)`), in a copy with other values in other fields.

`dataclasses.replace` makes the copy by the constructor, so that such a field is computed anew. A record may have moved
on since it was made: what was computed as a first value may have been trained. So a field is computed twice here, from
the fields before and from those after, and the three values tell what it is:

| | the field |
|---|---|
| before and after are the same | has nothing to do with what was replaced: it stays as it is |
| the record holds what is computed from before | is derived: it becomes what is computed from after |
| anything else, tracers above all | may be either: refused |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from weft.core.caches import kept_with_class
from weft.core.edge import trees
from weft.core.edge.trees import PyTree
from weft.core.errors import StructureError


@kept_with_class
def computed_fields(cls: type[Any]) -> tuple[str, ...]:
    """The fields of a class of records that its constructor computes."""
    return tuple(field.name for field in dataclasses.fields(cls) if not field.init)


def computed_again(record: Any, changes: Mapping[str, Any]) -> dict[str, PyTree]:
    """What becomes of the fields that a record's constructor computes, where other fields are replaced.

    Args:
        record: the record as it is.
        changes: values for some of its fields. A computed field that is named among them is what it is said to be.

    Returns:
        The computed fields that change, with their values as the user sees them.

    Raises:
        StructureError: if nobody can tell what they are, or the constructor does not say: it takes what is no field.
    """
    cls = cast("type[Any]", type(record))
    computed = [name for name in computed_fields(cls) if name not in changes and hasattr(record, name)]
    fields = {field.name: getattr(record, field.name, None) for field in dataclasses.fields(cls) if field.init}
    if not computed or not any(name in fields for name in changes):
        return {}
    try:
        before = cls(**fields)
        after = cls(**{**fields, **{name: value for name, value in changes.items() if name in fields}})
    except Exception as error:
        raise _undecided(cls, computed, changes) from error
    moved = {name: getattr(after, name, None) for name in computed if not _same(getattr(before, name), after, name)}
    if unclear := [name for name in moved if not _same(getattr(before, name), record, name)]:
        raise _undecided(cls, unclear, changes)
    return moved


def _same(value: PyTree, record: Any, name: str) -> bool:
    """Whether a record's field holds a value, as far as that is known: of two tracers it is not."""
    (leaves, definition), (others, other) = trees.flatten(value), trees.flatten(getattr(record, name, None))
    return definition == other and all(map(_same_leaf, leaves, others))


def _same_leaf(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, Tracer) or isinstance(other, Tracer):
        return False
    if isinstance(one, jax.Array) and jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
        one, other = jax.random.key_data(one), jax.random.key_data(other)
    one, other = cast(Any, np.asarray(one)), cast(Any, np.asarray(other))
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    same: Any = (one == other) | ((one != one) & (other != other))
    return bool(same.all())


def _undecided(cls: type[Any], names: Iterable[str], changes: Iterable[str]) -> StructureError:
    names, changed = list(names), ", ".join(f"{name}=..." for name in changes)
    return StructureError(
        f"the constructor of {cls.__qualname__} computes {', '.join(names)}, and it cannot be told what "
        f"{'it is' if len(names) == 1 else 'they are'} where {', '.join(changes)} is another",
        at=[f"{cls.__qualname__}.{name}: field(init=False)" for name in names],
        fix=f"name {'it' if len(names) == 1 else 'them'} too, "
        f"replace({changed}, {', '.join(f'{name}=...' for name in names)}), or make a new {cls.__name__}",
    )
