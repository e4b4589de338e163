"""shard_map: a function of one shard, mapped over the shards of a mesh. The ride of a leaf is its spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, Unpack, overload

import jax
from jax.sharding import PartitionSpec
from weft.core.edge.trees import is_tuple
from weft.core.errors import AxisError
from weft.core.interpreter.boundary import Arrival, Call
from weft.core.interpreter.rides import Ride, read_spec
from weft.core.interpreter.rules import Lift, Lifted, Rule, of_lanes
from weft.transforms.keywords import ShardMapKeywords
from weft.transforms.transformed import decorate, over_values, transform

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class ShardMapOptions:
    """The options of one `shard_map`."""

    mesh: Any
    in_specs: Any
    out_specs: Any
    jax_options: Mapping[str, Any]


def _arrive_specs(options: ShardMapOptions, call: Call) -> Arrival:
    in_specs = options.in_specs
    if is_tuple(in_specs) and read_spec(in_specs) is None and len(in_specs) != len(call[1]):
        raise AxisError(
            f"in_specs has {len(in_specs)} entries for {len(call[1])} positional arguments",
            at=f"in_specs={in_specs!r}",
            fix="give one for each positional argument, or one for all",
        )
    # The function's own arrays, and arguments passed by name, are replicated.
    return PartitionSpec(), in_specs, PartitionSpec()


def _as_specs(lanes: Sequence[Ride]) -> tuple[Any, ...]:
    return tuple(PartitionSpec() if lane.as_written is None else lane.as_written for lane in lanes)


def _lift_shard_map(lift: Lift[ShardMapOptions]) -> Lifted:
    options = lift.options
    mapped = jax.shard_map(
        lift.bodies[0],
        mesh=options.mesh,
        in_specs=(_as_specs(lift.lanes),),
        out_specs=(_as_specs(lift.out_lanes), _as_specs(lift.update_lanes), PartitionSpec()),
        **options.jax_options,
    )

    return of_lanes(mapped)


SHARD_MAP: Rule[ShardMapOptions] = Rule(
    "shard_map",
    _lift_shard_map,
    arrive=_arrive_specs,
    depart=lambda options, index: options.out_specs,
    read=read_spec,
    # None: JAX uses the mesh of `jax.set_mesh`.
    frame=lambda lift, extra, groups: {"mesh": None if (mesh := lift.options.mesh) is None else dict(mesh.shape)},
    options=("in_specs", "out_specs"),
)


@overload
def shard_map(
    function: Callable[P, R],
    /,
    *,
    mesh: Any = None,
    in_specs: Any,
    out_specs: Any,
    **options: Unpack[ShardMapKeywords],
) -> Callable[P, R]: ...
@overload
def shard_map(
    *, mesh: Any = None, in_specs: Any, out_specs: Any, **options: Unpack[ShardMapKeywords]
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@transform()
def shard_map(
    function: Callable[..., Any] | None = None,
    /,
    *,
    mesh: Any = None,
    in_specs: Any,
    out_specs: Any,
    **jax_options: Any,
) -> Any:
    """Maps a function over the shards of its arguments on a mesh.

    Args:
        function: a function of one shard.
        mesh: a `jax.sharding.Mesh`, or None for the mesh of `jax.set_mesh`.
        in_specs: a `PartitionSpec` (or None: replicated) for all arguments, or a tuple with one prefix for each; a
            prefix may contain `axes({kind: spec})`.
        out_specs: likewise, a prefix of the output.
        jax_options: `axis_names`, `check_vma`, for `jax.shard_map`.

    Raises:
        AxisError: for specs that do not fit the arguments.

    >>> import jax, jax.numpy as jnp
    >>> from jax.sharding import PartitionSpec as P
    >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    >>> total = shard_map(lambda x: jax.lax.psum(x.sum(), "data"), mesh=mesh, in_specs=P("data"), out_specs=P())
    >>> total(jnp.ones(4)).item()
    4.0

    Source: `jax.shard_map`.
    """
    options = ShardMapOptions(mesh, in_specs, out_specs, jax_options)
    return decorate(function, over_values(SHARD_MAP, options), SHARD_MAP, options)
