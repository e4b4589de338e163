"""vmap, pmap and shard_map: functions over one example or one shard, mapped over many.

The three are one rule with three JAX calls: a leaf rides on its axis (or spec), and the transform takes the rides of
the lanes as its `in_axes` and `out_axes` as they are.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, ParamSpec, TypeVar, Unpack, cast, overload

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from weft.core.edge.untyped import is_tuple
from weft.core.edge.untyped import jax as untyped_jax
from weft.core.errors import AxisError
from weft.core.frames import open_frame
from weft.core.interpreter.boundary import Arrival, Call, Groups
from weft.core.interpreter.interpret import interpret
from weft.core.interpreter.prefixes import mapped_size
from weft.core.interpreter.rides import Ride, as_written, axis_of, is_spec, read_spec
from weft.core.interpreter.rules import Lift, Lifted, Rule
from weft.core.interpreter.values import VALUES
from weft.core.memory import live
from weft.core.records.leaves import Leaf
from weft.core.threads.functions import Returned
from weft.transforms._wrap import decorate, named_like, of_parts, options_by_name, over_values, titled
from weft.transforms.keywords import PmapKeywords, ShardMapKeywords, VmapKeywords
from weft.transforms.stages import Arguments, Stage

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class MapOptions:
    """The options of one `vmap` or `pmap`."""

    in_axes: Any
    out_axes: Any
    axis_name: Any
    axis_size: int | None
    jax_options: Mapping[str, Any]


def _with_successor(options: MapOptions) -> MapOptions:
    # A threaded record is not mapped, and so its successor is not either.
    return replace(options, out_axes=Returned(options.out_axes, None))


def _arrive(options: MapOptions, call: Call) -> Arrival:
    functions, args, kwargs = call
    in_axes = options.in_axes
    if isinstance(in_axes, dict):
        return (None, *_by_name(functions[0], cast("dict[str, Any]", in_axes), args, kwargs))
    if isinstance(in_axes, list):
        in_axes = tuple(cast("list[Any]", in_axes))
    # Before JAX, to which the arguments are lanes.
    if is_tuple(in_axes) and len(in_axes) != len(args):
        raise AxisError(
            f"in_axes has {len(in_axes)} entries for {len(args)} positional arguments",
            at=f"in_axes={in_axes!r}",
            fix="give one for each positional argument, or one for all; arguments passed by name ride on axis 0, "
            "unless in_axes is a dict by name",
        )
    # The function's own arrays are not mapped; what is passed by name rides on axis 0, as in `jax.vmap`.
    return None, in_axes, 0


def _by_name(
    function: Callable[..., Any], in_axes: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, Any]:
    parameters = list(inspect.signature(live(function)).parameters)
    unknown = [name for name in in_axes if name not in parameters and name not in kwargs]
    if unknown:
        raise AxisError(
            f"in_axes names arguments that are not there: {', '.join(unknown)}",
            at=[f"parameters: {', '.join(parameters)}"],
            fix="correct the names",
        )
    return (
        tuple(in_axes.get(parameters[min(i, len(parameters) - 1)], 0) for i in range(len(args))),
        {name: in_axes.get(name, 0) for name in kwargs},
    )


def _with_defaults(
    function: Callable[..., Any], in_axes: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Arguments:
    """Arguments with those that were left to their defaults, where `in_axes` names them: they ride on what it says."""
    if not isinstance(in_axes, dict):
        return args, kwargs
    named = cast("dict[str, Any]", in_axes)
    bound = inspect.signature(function).bind_partial(*args, **kwargs)
    left = ((name, p.default) for name, p in bound.signature.parameters.items() if name not in bound.arguments)
    return args, {**kwargs, **{name: value for name, value in left if name in named and value is not _NO_DEFAULT}}


_NO_DEFAULT = inspect.Parameter.empty


class MapFunction(Generic[P, R]):
    """A function over many examples, or many devices. Made by `vmap` and `pmap`."""

    def __init__(self, rule: Rule[MapOptions], function: Callable[P, R], options: MapOptions):
        self._interpreted = interpret(rule, VALUES)((function,), options)
        named_like(function, self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._interpreted(*self._complete(args, kwargs))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def _complete(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        return _with_defaults(self._interpreted.held[0], self._interpreted.options.in_axes, args, kwargs)


class PmapFunction(MapFunction[P, R]):
    """A function over many devices. Made by `pmap`."""

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Stage:
        """Lowers the function for these arguments; see `jax.stages.Lowered`."""
        call = (self._interpreted.functions, *self._complete(args, kwargs))
        plan, values, _ = self._interpreted.plan(call)
        mapped = cast(_Mapped, plan.lifted)
        lowered = mapped.lower(*plan.crossing.group(values))
        return Stage(lowered, self._interpreted, plan.crossing, self._complete, mapped.before)


def _check(name: str, options: MapOptions, call: Call, leaves: Sequence[Leaf], rides: Sequence[Ride]) -> None:
    size = mapped_size(leaves, list(map(axis_of, rides)), given=options.axis_size, what=name)
    if size is None:
        raise AxisError(
            f"{name} has nothing to map over: every argument rides on None, and there is no axis_size",
            fix="map an argument over an axis, or give axis_size",
        )


def _size(groups: Sequence[Sequence[Any]], lanes: Sequence[Ride], given: int | None) -> int | None:
    pairs = ((group, axis_of(lane)) for group, lane in zip(groups, lanes, strict=True))
    mapped = ((group, axis) for group, axis in pairs if axis is not None)
    sizes = (leaf.shape[axis] for group, axis in mapped for leaf in jax.tree.leaves(group))
    return next(sizes, given)


class _Mapped:
    """A body over lanes, mapped by `jax.vmap` or `jax.pmap`."""

    def __init__(self, name: str, transform: Callable[..., Any], needs_mapped: bool, lift: Lift[MapOptions]):
        body, options = lift.bodies[0], lift.options
        self.name, self.options, self.lanes = name, options, lift.lanes
        self.rides = frozenset(lift.crossing.rides)

        # pmap wants something that is mapped, whatever is said of the size.
        beside = needs_mapped and all(axis_of(lane) is None for lane in lift.lanes)
        self.before: tuple[Any, ...] = (np.zeros(options.axis_size or 0),) if beside else ()

        def run(*given: Any) -> Any:
            return body(given[len(self.before) :])

        # The outcome has no leaves, so that any axis does for it.
        self.mapped = transform(
            titled(body.name, run),
            in_axes=(*(0 for _ in self.before), *map(self._axis, lift.lanes)),
            out_axes=(as_written(lift.out_lanes), as_written(lift.update_lanes), None),
            axis_name=options.axis_name,
            axis_size=options.axis_size,
            **options.jax_options,
        )

    def _axis(self, lane: Ride) -> Any:
        # JAX's pmap counts None as a leaf, also where it stands for nothing, and mistakes the axes of what follows.
        return lane.as_written if lane in self.rides else 0

    def __call__(self, extra: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        size = _size(groups, self.lanes, self.options.axis_size)
        with open_frame(self.name, axis_name=self.options.axis_name, size=size):
            return self.mapped(*self.before, *groups)

    def lower(self, *groups: tuple[Any, ...]) -> Any:
        size = _size(groups, self.lanes, self.options.axis_size)
        with open_frame(self.name, axis_name=self.options.axis_name, size=size):
            return self.mapped.lower(*self.before, *groups)


VMAP: Rule[MapOptions] = Rule(
    "vmap",
    functools.partial(_Mapped, "vmap", jax.vmap, False),
    arrive=_arrive,
    depart=lambda options, index: options.out_axes,
    frame=None,
    check=functools.partial(_check, "vmap"),
)
PMAP: Rule[MapOptions] = Rule(
    "pmap",
    functools.partial(_Mapped, "pmap", untyped_jax.pmap, True),
    arrive=_arrive,
    depart=lambda options, index: options.out_axes,
    frame=None,
    check=functools.partial(_check, "pmap"),
)


@overload
def vmap(function: Callable[P, R], /, **options: Unpack[VmapKeywords]) -> Callable[P, R]: ...
@overload
def vmap(**options: Unpack[VmapKeywords]) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@options_by_name("in_axes", "out_axes")
def vmap(
    function: Callable[..., Any] | None = None,
    /,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Any = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
) -> Any:
    """Maps a function of one example over a batch.

    Args:
        function: of one example. If it is a record, its own arrays are not mapped.
        in_axes: an axis (int, negative from the end) or None for all arguments, a tuple with one prefix for each
            positional argument, or a dict by name (of parameters that are left to their defaults too). A prefix may
            hold `axes({kind: axis})`.
        out_axes: an axis, or a prefix of the output.
        axis_name: a name for the axis, for collectives.
        axis_size: needed only if nothing is mapped.
        spmd_axis_name: mesh axes over which the mapped axis is sharded.

    Returns:
        A function with the same signature, over a batch.

    Raises:
        AxisError: for axes that are not there, a kind that is not there, or sizes that differ, with all paths.

    Source: `jax.vmap`.

    >>> import jax.numpy as jnp
    >>> f = vmap(lambda model, x: model["w"] * x, in_axes=(None, 0))
    >>> f({"w": jnp.array(2.0), "name": "scale"}, jnp.arange(3.0)).tolist()
    [0.0, 2.0, 4.0]
    """
    more = {} if spmd_axis_name is None else {"spmd_axis_name": spmd_axis_name}
    options = MapOptions(in_axes, out_axes, axis_name, axis_size, more)
    return decorate(function, lambda f: MapFunction(VMAP, f, options), of_parts(VMAP, _with_successor(options)))


@overload
def pmap(function: Callable[P, R], /, **options: Unpack[PmapKeywords]) -> PmapFunction[P, R]: ...
@overload
def pmap(**options: Unpack[PmapKeywords]) -> Callable[[Callable[P, R]], PmapFunction[P, R]]: ...
def pmap(
    function: Callable[..., Any] | None = None,
    /,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Any = None,
    axis_size: int | None = None,
    devices: Any = None,
    backend: str | None = None,
) -> Any:
    """Maps a function over devices, one shard each. `shard_map` is the newer way.

    Args:
        function: of one device's shard.
        in_axes: as in `vmap`.
        out_axes: as in `vmap`.
        axis_name: a name for the axis, for collectives.
        axis_size: the number of devices, where it cannot be read off the arguments.
        devices: which, if not all.
        backend: `cpu`, `gpu` or `tpu`, if not JAX's own choice.

    Returns:
        A function with the same signature, over all shards, with `lower`.

    Raises:
        AxisError: as in `vmap`.

    >>> import jax.numpy as jnp
    >>> pmap(lambda x: x + 1)(jnp.ones((1, 2))).tolist()
    [[2.0, 2.0]]

    Source: `jax.pmap`.
    """
    # JAX's others number its own arguments, which are lanes here: a buffer that no one named would be donated.
    more: dict[str, Any] = {"devices": devices, "backend": backend}
    options = MapOptions(in_axes, out_axes, axis_name, axis_size, more)
    return decorate(function, lambda f: PmapFunction(PMAP, f, options), of_parts(PMAP, _with_successor(options)))


@dataclass(frozen=True)
class ShardMapOptions:
    """The options of one `shard_map`."""

    mesh: Any
    in_specs: Any
    out_specs: Any
    jax_options: Mapping[str, Any]


def _arrive_specs(options: ShardMapOptions, call: Call) -> Arrival:
    in_specs = options.in_specs
    if is_tuple(in_specs) and not is_spec(in_specs) and len(in_specs) != len(call[1]):
        raise AxisError(
            f"in_specs has {len(in_specs)} entries for {len(call[1])} positional arguments",
            at=f"in_specs={in_specs!r}",
            fix="give one for each positional argument, or one for all",
        )
    # The function's own arrays, and what is passed by name, are replicated.
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

    def lifted(extra: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        return mapped(groups)

    return lifted


def _mesh(lift: Lift[ShardMapOptions], extra: Any, groups: Groups) -> dict[str, object]:
    # None: the mesh that is in context, of which JAX knows.
    mesh: Mesh | None = lift.options.mesh
    return {"mesh": None if mesh is None else dict(mesh.shape)}


SHARD_MAP: Rule[ShardMapOptions] = Rule(
    "shard_map",
    _lift_shard_map,
    arrive=_arrive_specs,
    depart=lambda options, index: options.out_specs,
    read=read_spec,
    frame=_mesh,
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
        function: of one shard.
        mesh: a `jax.sharding.Mesh`, or None for the one in context.
        in_specs: a `PartitionSpec` (or None: replicated) for all arguments, or a tuple with one prefix for each; a
            prefix may hold `axes({kind: spec})`.
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
    with_successor = replace(options, out_specs=Returned(out_specs, PartitionSpec()))
    return decorate(function, over_values(SHARD_MAP, options), of_parts(SHARD_MAP, with_successor))
