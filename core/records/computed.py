"""What `replace` does with fields that the constructor computes (`field(init=False)`).

`dataclasses.replace` calls the constructor, which computes such a field again. But a record may have changed since it
was constructed: a field that the constructor initialised may have been trained, and its value would be lost. So the
field is computed twice here, from the old fields and from the new ones, and the results are compared:

| | the field |
|---|---|
| both results are equal | does not depend on the replaced fields: it keeps its value |
| the record holds the first result | is derived from the replaced fields: it gets the second result |
| anything else, tracers above all | may be either: an error |
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
    """The new values of a record's computed fields, when other fields are replaced.

    Args:
        record: the record before.
        changes: values for some of its fields. A computed field that is named here gets the value here.

    Returns:
        The computed fields that change, with their values as the user sees them.

    Raises:
        StructureError: if a field may be either (see the module), or the constructor cannot be called with the fields.
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
    """Whether a record's field surely holds a value; False for two tracers, whose values are unknown."""
    (leaves, treedef), (field_leaves, field_treedef) = map(trees.flatten, (value, getattr(record, name, None)))
    return treedef == field_treedef and all(map(_same_leaf, leaves, field_leaves))


def _same_leaf(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, Tracer) or isinstance(b, Tracer):
        return False
    if isinstance(a, jax.Array) and jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    a, b = cast(Any, np.asarray(a)), cast(Any, np.asarray(b))
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    same: Any = (a == b) | ((a != a) & (b != b))
    return bool(same.all())


def _undecided(cls: type[Any], names: Iterable[str], changes: Iterable[str]) -> StructureError:
    names, changed = list(names), ", ".join(f"{name}=..." for name in changes)
    return StructureError(
        f"the constructor of {cls.__qualname__} computes {', '.join(names)}, and it is unknown whether "
        f"{'its value depends' if len(names) == 1 else 'their values depend'} on {', '.join(changes)}",
        at=[f"{cls.__qualname__}.{name}: field(init=False)" for name in names],
        fix=f"name {'it' if len(names) == 1 else 'them'} too, "
        f"replace({changed}, {', '.join(f'{name}=...' for name in names)}), or make a new {cls.__name__}",
    )
