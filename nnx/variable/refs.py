"""JAX refs: arrays that are mutated in place; a Variable with `ref=True` keeps its value in one.

In the leaves of a flattened graph, a *mark* replaces the value of a ref that crosses by itself, or of a new ref.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeGuard

import jax
import jax.tree_util as jtu
from jax.core import Tracer
from weft.core.records.leaves import is_array
from weft.nnx.printing.reprlib import Attr, Object, Representable

# Array classes seen so far, none of which is a ref or container: `isinstance` with `jax.Array` is slow.
PLAIN_ARRAYS: set[type] = set()


def is_array_ref(value: Any) -> TypeGuard[jax.Ref]:
    """Whether a value is a JAX ref, or a tracer that stands for one.

    >>> import jax.numpy as jnp
    >>> is_array_ref(jax.new_ref(jnp.zeros(2))), is_array_ref(jnp.zeros(2))
    (True, False)
    """
    return type(value) not in PLAIN_ARRAYS and isinstance(value, jax.Ref)


def is_plain_array(value: Any) -> bool:
    """Whether a value is a concrete `jax.Array`: neither tracer, nor ref, nor container."""
    kind = type(value)
    if kind in PLAIN_ARRAYS:
        return True
    if isinstance(value, jax.Array) and not isinstance(value, Tracer | jax.Ref):
        PLAIN_ARRAYS.add(kind)
        return True
    return False


def copy_containers(value: Any) -> Any:
    """Copies the containers of a value (dicts, lists), not its arrays, so that mutating a copy leaves the original."""
    # A tracer is no container. Asked about first: where Variables are read in a trace, they hold tracers.
    return value if isinstance(value, Tracer) or is_plain_array(value) else jax.tree.map(lambda leaf: leaf, value)


def same_value(first: Any, second: Any) -> bool:
    """Whether two values are the same object, or containers of one structure with the same objects in them.

    >>> same_value({"a": 1}, {"a": 1}), same_value({}, {"a": 1})
    (True, False)
    """
    if first is second:
        return True
    # Two arrays of equal content are different values here: comparing them would wait for the device.
    if is_array(first) or is_array(second):
        return False
    leaves, structure = jax.tree.flatten(first)
    others, other_structure = jax.tree.flatten(second)
    return structure == other_structure and all(a is b for a, b in zip(leaves, others, strict=True))


def fits(value: Any, raw: Any) -> bool:
    """Whether `value` has the shape, dtype and sharding of `raw`, so that `x[...] = value` need not compute."""
    return (
        isinstance(value, jax.Array)
        and value.shape == raw.shape
        and value.dtype == raw.dtype
        and _sharding(value) == _sharding(raw)
    )


def _sharding(value: Any) -> Any:
    # A tracer raises for `.sharding`, after it has composed a long message.
    return None if isinstance(value, Tracer) else getattr(value, "sharding", None)


# ---------------------------------------------------------------------- marks


@jtu.register_static
@dataclasses.dataclass(frozen=True, slots=True)
class NoUpdate:
    """Replaces the value of the caller's own ref, which JAX has written in place."""


@jtu.register_static
@dataclasses.dataclass(frozen=True, slots=True)
class Repeated:
    """Replaces the value of a ref that has an earlier path in the graph."""


NO_UPDATE, REPEATED = NoUpdate(), Repeated()


@jtu.register_dataclass
@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class ArrayRefOutput(Representable):
    """The array of a ref that was created inside a transform; outside, a new ref is made for it."""

    value: jax.Array

    def __nnx_repr__(self):
        yield Object(type(self))
        yield Attr("value", self.value)


MARKS = (NoUpdate, Repeated, ArrayRefOutput)
