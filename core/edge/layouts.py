"""Where arrays lie: JAX's formats (a sharding with a layout in memory), and an array that lies as another one does."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.sharding import AxisType, NamedSharding
from weft.core.edge.moved import Names
from weft.core.edge.untyped import lax

_layouts = Names("jax.experimental.layout", "an array with a layout of its own", "Format")
# The class `Format`; none in a JAX without formats.
FORMATS: tuple[type, ...] = (_layouts.Format,) if _layouts.has("Format") else ()


def format_of(layout: Any, sharding: Any) -> Any:
    """A `Format` of a layout and a sharding."""
    return _layouts.Format(layout, sharding)


# ---- automatic meshes -----------------------------------------------------------------------------------------------

_ALIKE = "a successor that lies as its record does"
_dialect = Names("jaxlib.mlir.dialects.sdy", _ALIKE, "sharding_group")
_mlir = Names("jax.interpreters.mlir", _ALIKE, "register_lowering")


def lying_alike(new: Any, old: Any) -> Any:
    """An array with the sharding of another one of its shape, where that one lies on an automatic mesh.

    A tracer does not say how it is divided there, and `with_sharding_constraint` has to be told. So the compiler is
    told that both are divided alike, as JAX's `shard_alike` did until 0.11.
    """
    if not isinstance(old, Tracer):
        lies: Any = getattr(old, "sharding", None)
        is_divided = isinstance(lies, NamedSharding) and lies.num_devices > 1 and new.shape == old.shape
        return lax.with_sharding_constraint(new, lies) if is_divided else new
    mesh = jax.typeof(old).sharding.mesh
    # Inside of a `shard_map` nothing is left to the compiler.
    if mesh.empty or AxisType.Auto not in mesh.axis_types or mesh.manual_axes or new.shape != old.shape:
        return new
    return _alike().bind(new, old)[0]


@functools.cache
def _alike() -> Any:
    from weft.core.edge import _jax

    alike: Any = Primitive("lying_alike")
    alike.multiple_results = True

    def batch(axis: _jax.Axis, values: Sequence[jax.Array], dims: Sequence[int | None]) -> Any:
        if all(dim is None for dim in dims):
            return alike.bind(*values), dims
        return alike.bind(*map(functools.partial(_jax.batched_at_front, axis), values, dims)), [0, 0]

    def lower(context: Any, *values: Any) -> Sequence[Any]:
        # Two groups of one program need two numbers, which depend on the program alone: they are in the key of JAX's
        # cache on disk. A jitted function that is called twice is lowered once, so all arrays of both calls lie alike.
        group = context.module_context.new_channel()
        for value in values if jax.config.jax_use_shardy_partitioner else ():
            _dialect.sharding_group(value, group)
        return values

    _jax.define_identity(alike, batch=batch)
    # JAX would use the operations of one equation for the next of the same types, and all in one group.
    _mlir.register_lowering(alike, lower, cacheable=False)
    return alike
