"""An array that a step takes: what it is for, and where it lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from weft.core.errors import MeshError


@dataclass(frozen=True)
class Argument:
    """An array that a step takes: its path, its role, its shape with where it lies, and whether it is a parameter's."""

    path: str
    role: str
    aval: jax.ShapeDtypeStruct

    @property
    def sharding(self) -> NamedSharding:
        sharding = self.aval.sharding
        assert isinstance(sharding, NamedSharding)
        return sharding

    @property
    def size(self) -> int:
        return int(np.prod(self.aval.shape, dtype=np.int64)) * self.aval.dtype.itemsize

    @property
    def local(self) -> int:
        """Bytes on one device."""
        return int(np.prod(self.sharding.shard_shape(self.aval.shape), dtype=np.int64)) * self.aval.dtype.itemsize


def fits(spec: PartitionSpec, mesh: Any) -> bool:
    """Whether a mesh has the axes that a spec names."""
    named = [axis for entry in spec if entry for axis in (entry if isinstance(entry, tuple) else (entry,))]
    return all(axis in mesh.shape for axis in named)


def on_mesh(value: Any, mesh: Any, batch: Any = None) -> jax.ShapeDtypeStruct:
    """A shape where it lies; without a place whole, or with its first axis over those of a batch.

    Raises:
        MeshError: if the first axis of a batch is not divided by them.
    """
    if getattr(value, "sharding", None) is not None:
        return value
    axes = (batch,) if isinstance(batch, str) else tuple(batch or ())
    parts = int(np.prod([mesh.shape[axis] for axis in axes], dtype=int))
    if axes and value.shape and value.shape[0] % parts:
        raise MeshError(
            f"a batch of {value.shape[0]} is not divided by {parts} devices of the axis {', '.join(axes)}",
            fix="give a batch that is a multiple, another mesh, or batch=None for one that is whole on every device",
        )
    spec = PartitionSpec(axes) if axes and value.shape else PartitionSpec()
    return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=NamedSharding(mesh, spec))
