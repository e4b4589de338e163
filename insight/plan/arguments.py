"""An input array of a step, with its role and its sharding on a mesh."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from weft.core.errors import MeshError


@dataclass(frozen=True)
class Argument:
    """One input array of a step.

    Attributes:
        path: its path, with the number of the step's argument in front: `args[0].layers[0].kernel`.
        role: `params`, `optimizer`, `state` or `batch`.
        aval: its shape and dtype, with its sharding.
    """

    path: str
    role: str
    aval: jax.ShapeDtypeStruct

    @property
    def owner(self) -> str:
        """The path of the module that holds it, without the step's argument."""
        return self.path.rpartition(".")[0].partition(".")[2]

    @property
    def batch_axis(self) -> int:
        """The axis of an array of the batch that counts examples: the first one that is divided, or else the first."""
        spec: Any = getattr(self.aval.sharding, "spec", ())
        return next((axis for axis, entry in enumerate(spec) if entry), 0)

    @property
    def size(self) -> int:
        """Bytes of the whole array."""
        return math.prod(self.aval.shape) * self.aval.dtype.itemsize

    @property
    def local(self) -> int:
        """Bytes on one device."""
        assert self.aval.sharding is not None
        return math.prod(self.aval.sharding.shard_shape(self.aval.shape)) * self.aval.dtype.itemsize

    @property
    def parts(self) -> int:
        """The number of different parts over all devices: 1 if each device has the whole array."""
        # An empty array has no bytes on any device.
        return self.size // max(self.local, 1)


@dataclass(frozen=True)
class Batch:
    """The examples of a step.

    Attributes:
        size: how many there are.
        parts: over how many devices they are divided.
        axes: the axes of the mesh that divide them.
        tokens: the elements of the batch's largest array if these are ids, integers of more than 8 bits; or 0.
    """

    size: int = 0
    parts: int = 1
    axes: tuple[str, ...] = ()
    tokens: int = 0


@dataclass(frozen=True)
class Inputs:
    """A group of arguments of a step, flattened to arrays.

    Attributes:
        arguments: the arrays.
        rebuilt: rebuilds the step's arguments from such arrays.
        changed: returns the new arrays of rebuilt objects that the step has updated in place.
    """

    arguments: list[Argument]
    rebuilt: Callable[[Sequence[Any]], list[Any]]
    changed: Callable[[list[Any]], list[Any]]


def batch_of(arguments: Iterable[Argument]) -> Batch:
    """Returns the batch: the largest array among a step's arguments that is no part of a model or an optimizer."""
    arrays = [argument for argument in arguments if argument.role == "batch" and argument.aval.shape]
    if not arrays:
        return Batch()
    is_whole = {argument.path: jnp.issubdtype(argument.aval.dtype, jnp.integer) for argument in arrays}
    largest = max(arrays, key=lambda argument: (argument.aval.size, is_whole[argument.path]))
    shape, sharding = largest.aval.shape, largest.aval.sharding
    entry: Any = (*getattr(sharding, "spec", ()), *[None] * len(shape))[largest.batch_axis]
    axes = (entry,) if isinstance(entry, str) else tuple(entry or ())
    size = shape[largest.batch_axis]
    assert sharding is not None
    parts = size // max(sharding.shard_shape(shape)[largest.batch_axis], 1)
    # Integers of 8 bits are the pixels of an image.
    is_tokens = len(shape) > 1 and is_whole[largest.path] and largest.aval.dtype.itemsize > 1
    return Batch(size, parts, axes, largest.aval.size if is_tokens else 0)


def enlarged(arguments: list[Argument], times: int) -> list[Argument]:
    """Returns the arguments of a step for a batch that is `times` as large."""
    size = batch_of(arguments).size

    def larger(argument: Argument) -> Argument:
        axis, shape = argument.batch_axis, argument.aval.shape
        # An array of another length, such as a table of positions, is no part of the batch.
        if argument.role != "batch" or not shape or shape[axis] != size:
            return argument
        shape = (*shape[:axis], times * size, *shape[axis + 1 :])
        aval = jax.ShapeDtypeStruct(shape, argument.aval.dtype, sharding=argument.aval.sharding)
        return replace(argument, aval=aval)

    return [larger(argument) for argument in arguments]


def shape_on(value: Any, mesh: Any) -> jax.ShapeDtypeStruct:
    """Returns the shape of an array or number, with its own sharding if the mesh has all of the sharding's axes."""
    if not hasattr(value, "dtype"):
        return jax.ShapeDtypeStruct(np.shape(value), jnp.result_type(value))
    sharding = getattr(value, "sharding", None)
    # An entry of a spec is an axis, a tuple of axes or None.
    if isinstance(sharding, NamedSharding) and set(jax.tree.leaves(tuple(sharding.spec))) <= set(mesh.shape):
        return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=NamedSharding(mesh, sharding.spec))
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def whole_or_divided(shape: jax.ShapeDtypeStruct, mesh: Any, axes: Any) -> jax.ShapeDtypeStruct:
    """Returns a shape with a sharding: its own, or the first axis divided over `axes`, or whole on every device.

    Raises:
        MeshError: if the axes do not divide the first axis.
    """
    if shape.sharding is not None:
        return shape
    over = (axes,) if isinstance(axes, str) else tuple(axes or ())
    parts = math.prod(mesh.shape[axis] for axis in over)
    if over and shape.shape and shape.shape[0] % parts:
        raise MeshError(
            f"a batch of {shape.shape[0]} is not divisible by the {parts} devices of the axis {', '.join(over)}",
            fix="give a batch of a multiple of these, another mesh, or batch=None for the whole batch on every device",
        )
    spec = PartitionSpec(over) if over and shape.shape else PartitionSpec()
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=NamedSharding(mesh, spec))
