"""JAX refs: arrays that are mutated in place, which a Variable may keep its value in (`ref=True`).

Where a graph is taken apart, a *mark* stands for a ref's value that does not travel, or that leaves with a new ref.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeGuard

import jax
import jax.tree_util as jtu
from jax.core import Tracer
from weft.core.records.leaves import is_array
from weft.nnx.printing.reprlib import Attr, Object, Representable

# Types whose values are certainly no refs and no containers; learned from the first value of each.
_plain_arrays: set[type] = set()


def is_array_ref(value: Any) -> TypeGuard[jax.Ref]:
    """Whether a value is a JAX ref, or a tracer that stands for one.

    >>> import jax.numpy as jnp
    >>> is_array_ref(jax.new_ref(jnp.zeros(2))), is_array_ref(jnp.zeros(2))
    (True, False)
    """
    return type(value) not in _plain_arrays and isinstance(value, jax.Ref)


def is_plain_array(value: Any) -> bool:
    """Whether a value is a concrete `jax.Array`: neither tracer, nor ref, nor container."""
    kind = type(value)
    if kind in _plain_arrays:
        return True
    if isinstance(value, jax.Array) and not isinstance(value, Tracer | jax.Ref):
        _plain_arrays.add(kind)
        return True
    return False


def copy_containers(value: Any) -> Any:
    """A value whose containers are new, so that changing one copy's containers leaves the other's alone."""
    return value if is_plain_array(value) else jax.tree.map(lambda leaf: leaf, value)


def same_value(one: Any, other: Any) -> bool:
    """Whether two values are the same object, or containers of one structure with the same objects in them.

    >>> same_value({"a": 1}, {"a": 1}), same_value({}, {"a": 1})
    (True, False)
    """
    if one is other:
        return True
    if is_array(one) or is_array(other):
        return False
    leaves, structure = jax.tree.flatten(one)
    others, other_structure = jax.tree.flatten(other)
    return structure == other_structure and all(a is b for a, b in zip(leaves, others, strict=True))


def fits(value: Any, raw: Any) -> bool:
    """Whether a value may take the place of an array as it is, without a cast, a broadcast or a move."""
    return (
        isinstance(value, jax.Array)
        and value.shape == raw.shape
        and value.dtype == raw.dtype
        and _sharding(value) == _sharding(raw)
    )


def _sharding(value: Any) -> Any:
    # A tracer has none, and composes a long message to say so.
    return None if isinstance(value, Tracer) else getattr(value, "sharding", None)


# ---------------------------------------------------------------------- marks


@jtu.register_static
@dataclasses.dataclass(frozen=True, slots=True)
class NoUpdate:
    """In place of a ref's value that need not travel, since the ref is shared with the outside."""


@jtu.register_static
@dataclasses.dataclass(frozen=True, slots=True)
class Repeated:
    """In place of a ref's value that was met before."""


NO_UPDATE, REPEATED = NoUpdate(), Repeated()


@jtu.register_dataclass
@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class ArrayRefOutput(Representable):
    """The value of a ref that was made inside of a transform, on its way out."""

    value: jax.Array

    def __nnx_repr__(self):
        yield Object(type(self))
        yield Attr("value", self.value)


MARKS = (NoUpdate, Repeated, ArrayRefOutput)
