"""scan: a function of one step, run over a sequence.

Its arguments are carried, scanned on an axis, or the same at each step. The loop is lifted inside an inlined `jax.jit`,
like those of `loops`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar, overload

import jax
from weft.core.edge.untyped import is_tuple, jnp, lax
from weft.core.edge.untyped import jax as untyped_jax
from weft.core.errors import AxisError
from weft.core.frames import open_frame
from weft.core.interpreter.boundary import Boundary, Call, Groups
from weft.core.interpreter.interpret import interpret
from weft.core.interpreter.rides import Carry, Ride, mapped_size
from weft.core.interpreter.rules import Body, Lift, Lifted, OutcomeNode, Rule
from weft.core.interpreter.values import VALUES
from weft.core.records.leaves import Leaf
from weft.core.threads.proxies import Transform
from weft.transforms._wrap import by_position, decorate, named_like, over_values, titled
from weft.transforms.carries import ALONG, agreement_of_carries, carried_updates, is_carry_or_axis
from weft.transforms.parts import scanned

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class ScanOptions:
    """The options of one `scan`."""

    in_axes: Any
    out_axes: Any
    length: int | None = None
    reverse: bool = False
    unroll: int | bool = 1
    # The ride of the function's own arrays: they are the same at every step, unless it is a stack of records.
    function: int | None = None


DEFAULT_AXES = (Carry, 0)


def _arrive_scan(options: ScanOptions, call: Call) -> Any:
    in_axes = options.in_axes if is_tuple(options.in_axes) else (options.in_axes,) * len(call[1])
    if len(in_axes) != len(call[1]):
        raise AxisError(
            f"in_axes has {len(in_axes)} entries for {len(call[1])} arguments",
            at=f"in_axes={in_axes!r}",
            fix="give one for each argument: Carry, an axis, or None",
        )
    return options.function, in_axes, None


def _check_scan(options: ScanOptions, call: Call, leaves: Sequence[Leaf], rides: Sequence[Ride]) -> None:
    if mapped_size(leaves, rides, given=options.length, what="scan") is None:
        raise AxisError(
            "scan has nothing to scan over: no argument rides on an axis, and there is no length",
            fix="give an argument an axis in in_axes, or give length",
        )


def _lift_scan(lift: Lift[ScanOptions]) -> Lifted:
    (body,), options = lift.bodies, lift.options
    lanes, out_lanes = lift.lanes, tuple(dict.fromkeys((*lift.out_lanes, ALONG)))
    scanned = [i for i, lane in enumerate(lanes) if isinstance(lane, int)]
    stacked = [i for i, lane in enumerate(out_lanes) if isinstance(lane, int)]
    carry_in, carry_out = lanes.index(Carry), out_lanes.index(Carry) if Carry in out_lanes else None

    def lifted(extra: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        slices = {i: _moved(groups[i], _axis(lanes[i]), 0) for i in scanned}
        length = next((leaf.shape[0] for leaf in jax.tree.leaves(slices)), options.length)
        with open_frame("scan", length=length):
            first = {i: jax.tree.map(_slice_type, leaves) for i, leaves in slices.items()}
            run, along = _carrying_along(body, tuple(first.get(i, group) for i, group in enumerate(groups)), out_lanes)

            def step(carry: Any, slices: dict[int, Any]) -> tuple[Any, tuple[dict[int, Any], OutcomeNode]]:
                carried, beside = carry
                given = [slices.get(i, group) for i, group in enumerate(groups)]
                given[carry_in] = carried
                for (lane, place), value in zip(places, beside, strict=True):
                    given[lane] = (*given[lane][:place], value, *given[lane][place + 1 :])
                out, outcome = run(tuple(given))
                carried = () if carry_out is None else out[carry_out]
                left = _left(body.boundary, outcome)
                # What was taken out of the arguments has no new value, and stays as it is.
                beside = tuple(
                    out[left[i][0]][left[i][1]] if i in left else old for i, old in zip(along, beside, strict=True)
                )
                return (carried, beside), ({i: out[i] for i in stacked}, outcome)

            places = [body.crossing.places[i] for i in along]
            start = (groups[carry_in], tuple(groups[lane][place] for lane, place in places))
            (carry, beside), (ys, outcome) = lax.scan(
                step, start, slices, length=length, reverse=options.reverse, unroll=options.unroll
            )
        out: list[tuple[Any, ...]] = [() for _ in out_lanes]
        for i in stacked:
            out[i] = _moved(ys[i], 0, _axis(out_lanes[i]))
        if carry_out is not None:
            out[carry_out] = carry
        left = _left(body.boundary, outcome)
        latest = sorted(
            ((left[i][1], value) for i, value in zip(along, beside, strict=True) if i in left), key=lambda pair: pair[0]
        )
        out[out_lanes.index(ALONG)] = tuple(value for _, value in latest)
        return tuple(out), outcome

    return untyped_jax.jit(titled(body.name, lifted), inline=True)


def _moved(leaves: tuple[Any, ...], source: int, target: int) -> tuple[Any, ...]:
    def move(leaf: Any) -> Any:
        return jnp.moveaxis(leaf, source, target)

    return untyped_jax.tree.map(move, leaves)


def _slice_type(leaf: Any) -> jax.ShapeDtypeStruct:
    # Not of `leaf[0]`: there may be no slice.
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


def _left(boundary: Boundary, outcome: OutcomeNode) -> dict[int, tuple[int, int]]:
    """Where the updates of the arguments' leaves left."""
    return {i: (lane, place) for i, lane, place in boundary.places_of_updates(outcome.value)}


def _carrying_along(body: Body, groups: Groups, out_lanes: tuple[Ride, ...]) -> tuple[Body, tuple[int, ...]]:
    """A body that also returns what it updates of what is carried along, and which leaves these are.

    They are found by one abstract evaluation.
    """
    along: set[Ride] = {ALONG, None} if body.boundary.carries_along else {ALONG}
    rides = body.crossing.rides

    def updates(ride: Ride) -> Ride:
        return ALONG if ride in along else carried_updates(ride)

    departing = body.departing(lanes=out_lanes, updates=updates)
    if along.isdisjoint(rides):
        return departing, ()
    updated = departing.learn_updates(groups)
    return departing.departing(updated=updated), tuple(i for i in sorted(updated) if rides[i] in along)


def _axis(ride: Ride) -> int:
    assert isinstance(ride, int)
    return ride


SCAN: Rule[ScanOptions] = Rule(
    "scan",
    _lift_scan,
    arrive=_arrive_scan,
    depart=lambda options, index: options.out_axes,
    is_ride=is_carry_or_axis,
    lanes=(Carry,),
    forwards=lambda arrived, departs: arrived is None and departs is None,
    updates=carried_updates,
    check=_check_scan,
    agree=lambda options, index: agreement_of_carries("scan", lambda live: _arrive_scan(options, live)),
    refused={None: "carry it (Carry), or stack it (an axis)"},
)


@overload
def scan(
    function: Callable[P, R],
    /,
    *,
    in_axes: Any = DEFAULT_AXES,
    out_axes: Any = DEFAULT_AXES,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> Callable[P, R]: ...
@overload
def scan(
    *,
    in_axes: Any = DEFAULT_AXES,
    out_axes: Any = DEFAULT_AXES,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def scan(
    function: Callable[..., Any] | None = None,
    /,
    *,
    in_axes: Any = DEFAULT_AXES,
    out_axes: Any = DEFAULT_AXES,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> Any:
    """Runs a function of one step over a sequence, carrying state from step to step.

    Args:
        function: of one step.
        in_axes: for each argument `Carry`, the axis that it is scanned over, or None (the same at every step); a
            prefix, so `Carry` may stand anywhere, and `axes({kind: axis})` too.
        out_axes: likewise for the output: `Carry`, or the axis that it is stacked on. None is for a leaf that is
            returned as it was given.
        length: the number of steps, needed only if nothing is scanned.
        reverse: whether to run from the last slice to the first.
        unroll: how many steps to lay out in one iteration of the compiled loop; True for all.

    Returns:
        A function from the first carry and whole sequences to the last carry and stacked outputs.

    Raises:
        CarryError: if the carry's structure, shapes, dtypes or static leaves change, with each path, before and after.
        AxisError: if axes are not there, or sizes differ.

    Source: `jax.lax.scan`.

    >>> import jax.numpy as jnp
    >>> total, sums = scan(lambda carry, x: (carry + x, carry + x))(jnp.array(0.0), jnp.arange(4.0))
    >>> float(total), sums.tolist()
    (6.0, [0.0, 1.0, 3.0, 6.0])
    """

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        options = ScanOptions(in_axes, out_axes, length, reverse, unroll)
        interpreted = interpret(SCAN, VALUES)((function,), options)

        def transformed(*args: Any, **kwargs: Any) -> Any:
            if kwargs:
                args, kwargs = by_position(function, args, kwargs)
            return interpreted(args, kwargs)

        return named_like(function, transformed)

    options = ScanOptions(in_axes, out_axes, length, reverse, unroll, function=0)

    def over_stack(in_axes: Any, out_axes: Any) -> Callable[..., Any]:
        return over_values(SCAN, replace(options, in_axes=in_axes, out_axes=out_axes))

    over_parts = scanned(over_stack, in_axes, out_axes, DEFAULT_AXES)
    return decorate(function, wrap, Transform(over_parts, (SCAN, options)))
