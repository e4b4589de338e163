"""vmap and pmap: functions over one example, mapped over many.

The two have the same rule with different JAX calls: the ride of a leaf is its axis, and the axes of the lanes are the
`in_axes` and `out_axes` of the JAX transform.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast, overload

import jax
import numpy as np
from weft.core.edge.trees import is_tuple
from weft.core.edge.untyped import jax as untyped_jax
from weft.core.errors import AxisError
from weft.core.frames import open_frame
from weft.core.interpreter.boundary import Arrival, Call
from weft.core.interpreter.interpret import interpret
from weft.core.interpreter.prefixes import check_mapped, size_of_lanes
from weft.core.interpreter.rides import Ride, as_written, axis_of
from weft.core.interpreter.rules import Lift, Rule, titled
from weft.core.interpreter.values import VALUES
from weft.core.logical_axes import rules_in_force
from weft.core.memory import live
from weft.core.records.leaves import Leaf
from weft.core.tracebacks import cutting
from weft.transforms.keywords import PmapKeywords, VmapKeywords
from weft.transforms.transformed import Transformed, decorate, transform

if TYPE_CHECKING:
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


def _arrive(options: MapOptions, call: Call) -> Arrival:
    functions, args, kwargs = call
    in_axes = options.in_axes
    if isinstance(in_axes, dict):
        return (None, *_by_name(functions[0], cast("dict[str, Any]", in_axes), args, kwargs))
    if isinstance(in_axes, list):
        in_axes = tuple(cast("list[Any]", in_axes))
    # Checked here, because JAX would count lanes and not arguments in its error.
    if is_tuple(in_axes) and len(in_axes) != len(args):
        raise AxisError(
            f"in_axes has {len(in_axes)} entries for {len(args)} positional arguments",
            at=f"in_axes={in_axes!r}",
            fix="give one for each positional argument, or one for all; arguments passed by name are mapped over axis "
            "0, unless in_axes is a dict by name",
        )
    # The function's own arrays are not mapped; arguments passed by name are mapped over axis 0, as in `jax.vmap`.
    return None, in_axes, 0


def _by_name(
    function: Callable[..., Any], in_axes: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, Any]:
    # A misspelt name would be ignored, and its argument mapped over axis 0.
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
    """Adds the defaults of parameters that `in_axes` names and the call leaves out, so that they are mapped too."""
    if not isinstance(in_axes, dict):
        return args, kwargs
    named = cast("dict[str, Any]", in_axes)
    bound = inspect.signature(function).bind_partial(*args, **kwargs)
    omitted = ((name, p.default) for name, p in bound.signature.parameters.items() if name not in bound.arguments)
    return args, {**kwargs, **{name: value for name, value in omitted if name in named and value is not _NO_DEFAULT}}


_NO_DEFAULT = inspect.Parameter.empty


class MapFunction(Transformed[P, R]):
    """The result of `vmap`, and the base of that of `pmap`."""

    __weft_method__ = False

    def __init__(self, rule: Rule[MapOptions], function: Callable[P, R], options: MapOptions):
        self._interpreted = interpret(rule, VALUES)((function,), options)
        super().__init__(function)

    @cutting
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._interpreted(*self._complete(args, kwargs))

    def _complete(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        return _with_defaults(self._interpreted.user_functions[0], self._interpreted.options.in_axes, args, kwargs)


class PmapFunction(MapFunction[P, R]):
    """The result of `pmap`."""

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Stage:
        """Lowers the function for these arguments; see `jax.stages.Lowered`."""
        from weft.transforms.stages import Stage

        call = (self._interpreted.functions, *self._complete(args, kwargs))
        plan, values, _ = self._interpreted.plan(call)
        mapped = cast(_Mapped, plan.lifted)
        lowered = mapped.lower(*plan.crossing.group(values))
        return Stage(lowered, self._interpreted, plan.crossing, self._complete, mapped.before)


def _check(name: str, options: MapOptions, call: Call, leaves: Sequence[Leaf], rides: Sequence[Ride]) -> None:
    check_mapped(
        name, leaves, map(axis_of, rides), options.axis_size,
        problem="has nothing to map over: in_axes is None for every argument, and there is no axis_size",
        fix="map an argument over an axis, or give axis_size",
    )  # fmt: skip


class _Mapped:
    """A body over lanes, mapped by `jax.vmap` or `jax.pmap`."""

    def __init__(self, name: str, transform: Callable[..., Any], lift: Lift[MapOptions], *, needs_mapped: bool):
        body, options = lift.bodies[0], lift.options
        self.name, self.options, self.lanes = name, options, lift.lanes
        self.rides = frozenset(lift.crossing.rides)

        # `jax.pmap` needs a mapped argument even with an axis_size, so it gets an array that nobody reads.
        needs_array = needs_mapped and all(axis_of(lane) is None for lane in lift.lanes)
        self.before: tuple[Any, ...] = (np.zeros(options.axis_size or 0),) if needs_array else ()

        def run(*before_and_groups: Any) -> Any:
            return body(before_and_groups[len(self.before) :])

        # The last of `out_axes` is for the outcome, which has no leaves.
        self.mapped_over = functools.partial(
            transform,
            titled(body.name, run),
            in_axes=(*(0 for _ in self.before), *map(self._axis, lift.lanes)),
            out_axes=(as_written(lift.out_lanes), as_written(lift.update_lanes), None),
            axis_name=options.axis_name,
            axis_size=options.axis_size,
            **options.jax_options,
        )
        self.mapped = self.mapped_over()

    def _axis(self, lane: Ride) -> Any:
        # An empty lane gets axis 0: `jax.pmap` counts a None for an empty lane as a leaf, and then gives the following
        # lanes wrong axes.
        return lane.as_written if lane in self.rides else 0

    def __call__(self, extra: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        # The frame is opened here and not by the interpreter (`frame=None`), because `lower` needs it too.
        size = size_of_lanes(groups, self.lanes, self.options.axis_size)
        mapped, rules = self.mapped, rules_in_force()
        if rules is not None and self.name == "vmap" and "spmd_axis_name" not in self.options.jax_options:
            axes = rules.mapped(self.options.axis_name, size)
            mapped = self.mapped_over(spmd_axis_name=axes) if axes else mapped
        with open_frame(self.name, axis_name=self.options.axis_name, size=size):
            return mapped(*self.before, *groups)

    def lower(self, *groups: tuple[Any, ...]) -> Any:
        size = size_of_lanes(groups, self.lanes, self.options.axis_size)
        with open_frame(self.name, axis_name=self.options.axis_name, size=size):
            return self.mapped.lower(*self.before, *groups)


VMAP: Rule[MapOptions] = Rule(
    "vmap",
    functools.partial(_Mapped, "vmap", jax.vmap, needs_mapped=False),
    arrive=_arrive,
    depart=lambda options, index: options.out_axes,
    frame=None,
    check=functools.partial(_check, "vmap"),
    retraces=True,
)
PMAP: Rule[MapOptions] = Rule(
    "pmap",
    functools.partial(_Mapped, "pmap", untyped_jax.pmap, needs_mapped=True),
    arrive=_arrive,
    depart=lambda options, index: options.out_axes,
    frame=None,
    check=functools.partial(_check, "pmap"),
)


@overload
def vmap(function: Callable[P, R], /, **options: Unpack[VmapKeywords]) -> Callable[P, R]: ...
@overload
def vmap(**options: Unpack[VmapKeywords]) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@transform("in_axes", "out_axes")
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
        function: a function of one example. If it is a record, its own arrays are not mapped.
        in_axes: an axis (int, negative from the end) or None for all arguments, a tuple with one prefix for each
            positional argument, or a dict by name (also of parameters that have their defaults). A prefix may contain
            `axes({kind: axis})`.
        out_axes: an axis, or a prefix of the output.
        axis_name: a name for the axis, for collectives.
        axis_size: needed only if nothing is mapped.
        spmd_axis_name: mesh axes over which the mapped axis is sharded; by default those that the rules in force
            (`weft.axis_rules`) have for `axis_name`.

    Returns:
        A function with the same signature, over a batch.

    Raises:
        AxisError: if an argument lacks an axis or a kind, or sizes differ; with all paths.

    Source: `jax.vmap`.

    >>> import jax.numpy as jnp
    >>> f = vmap(lambda model, x: model["w"] * x, in_axes=(None, 0))
    >>> f({"w": jnp.array(2.0), "name": "scale"}, jnp.arange(3.0)).tolist()
    [0.0, 2.0, 4.0]
    """
    more = {} if spmd_axis_name is None else {"spmd_axis_name": spmd_axis_name}
    options = MapOptions(in_axes, out_axes, axis_name, axis_size, more)
    return decorate(function, lambda f: MapFunction(VMAP, f, options), VMAP, options)


@overload
def pmap(function: Callable[P, R], /, **options: Unpack[PmapKeywords]) -> PmapFunction[P, R]: ...
@overload
def pmap(**options: Unpack[PmapKeywords]) -> Callable[[Callable[P, R]], PmapFunction[P, R]]: ...
@transform("axis_name", "in_axes", "out_axes")
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
        function: a function of one device's shard.
        in_axes: as in `vmap`.
        out_axes: as in `vmap`.
        axis_name: a name for the axis, for collectives.
        axis_size: the number of devices, if no argument is mapped.
        devices: the devices; by default all.
        backend: `cpu`, `gpu` or `tpu`; by default JAX's choice.

    Returns:
        A function with the same signature, over all shards, with `lower`.

    Raises:
        AxisError: as in `vmap`.

    >>> import jax.numpy as jnp
    >>> pmap(lambda x: x + 1)(jnp.ones((1, 2))).tolist()
    [[2.0, 2.0]]

    Source: `jax.pmap`.
    """
    # No other options of `jax.pmap`: its argument numbers count lanes, so that `donate_argnums` would donate the wrong
    # buffers.
    more: dict[str, Any] = {"devices": devices, "backend": backend}
    options = MapOptions(in_axes, out_axes, axis_name, axis_size, more)
    return decorate(function, lambda f: PmapFunction(PMAP, f, options), PMAP, options)
