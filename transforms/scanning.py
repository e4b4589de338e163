"""scan: a function of one step, run over a sequence.

Its arguments are carried, scanned on an axis, or the same at each step. What changes in them leaves as they came: what
changes in a slice is stacked; what is carried comes back as the carry; and what is *carried along*, though the function
does not return it, goes from step to step in the carry beside it. Which leaves these are has to be known before the
loop begins, since JAX wants the same carry at each step: one abstract evaluation of a step tells.

The loop is staged, like those of `loops`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeGuard, TypeVar, Unpack, overload

import jax
from weft.core.edge import trees
from weft.core.edge.untyped import is_tuple, jnp, lax
from weft.core.edge.untyped import jax as untyped_jax
from weft.core.errors import AxisError
from weft.core.interpreter.boundary import Arrival, Call, Groups
from weft.core.interpreter.interpret import interpret
from weft.core.interpreter.prefixes import mapped_size
from weft.core.interpreter.rides import CARRIED, Along, Carried, Carry, Ride, axis_of, read_step, read_step_along
from weft.core.interpreter.rules import Exit, Lift, Lifted, Rule
from weft.core.interpreter.values import VALUES
from weft.core.records.leaves import Leaf
from weft.core.records.statics import Static
from weft.core.threads.functions import ThreadedFunction, Transform
from weft.core.threads.proxies import threaded_function
from weft.transforms._wrap import by_position, decorate, over_values
from weft.transforms.carries import agreement_of_carries, carrying_along, values_at, with_values
from weft.transforms.keywords import ScanKeywords
from weft.transforms.transformed import Transformed, transform

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


def _arrive_scan(options: ScanOptions, call: Call) -> Arrival:
    in_axes = options.in_axes if is_tuple(options.in_axes) else (options.in_axes,) * len(call[1])
    if len(in_axes) != len(call[1]):
        raise AxisError(
            f"in_axes has {len(in_axes)} entries for {len(call[1])} arguments",
            at=f"in_axes={in_axes!r}",
            fix="give one for each argument: Carry, an axis, or None",
        )
    return options.function, in_axes, None


def _check_scan(options: ScanOptions, call: Call, leaves: Sequence[Leaf], rides: Sequence[Ride]) -> None:
    if mapped_size(leaves, list(map(axis_of, rides)), size=options.length, name="scan") is None:
        raise AxisError(
            "scan has nothing to scan over: no argument rides on an axis, and there is no length",
            fix="give an argument an axis in in_axes, or give length",
        )


def _lift_scan(lift: Lift[ScanOptions]) -> Lifted:
    (body,), options, lanes = lift.bodies, lift.options, lift.lanes
    carry = lanes.index(CARRIED)
    scanned = {i: axis for i, lane in enumerate(lanes) if (axis := axis_of(lane)) is not None}

    def lifted(extra: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        # JAX scans leading axes alone, so slices are moved there, and what is stacked is moved from there afterwards.
        slices = {i: _moved(groups[i], axis, 0) for i, axis in scanned.items()}
        first = {i: jax.tree.map(_slice_type, leaves) for i, leaves in slices.items()}
        run, places = carrying_along(body, tuple(first.get(i, group) for i, group in enumerate(groups)))

        def step(carry_: tuple[Groups, Groups], slices: dict[int, Any]) -> tuple[tuple[Groups, Groups], Exit]:
            (carried, beside), given = carry_, [slices.get(i, group) for i, group in enumerate(groups)]
            # Where nothing returns to the carry there is none: what rode there would have been refused as a carry that
            # changes.
            given[carry] = carried[0] if carried else ()
            # The last step's values in place of the arguments': each goes where it came from, so the function cannot
            # tell.
            out, updates, outcome = run(with_values(tuple(given), places, beside[0] if beside else ()))
            on = _going_on(lift.out_lanes, out), _going_on(lift.update_lanes, updates)
            # The outcome is stacked beside them: it has no leaves, and comes out of the loop as it is.
            return on, (_stacked(lift.out_lanes, out), _stacked(lift.update_lanes, updates), outcome)

        beside = values_at(groups, places)
        # As JAX sees it, the carry is what the function returns as such, and beside it what is carried along.
        start = (
            tuple(groups[carry] for lane in lift.out_lanes if _goes_on(lane)),
            tuple(beside for lane in lift.update_lanes if _goes_on(lane)),
        )
        (carried, beside), (ys, changes, outcome) = lax.scan(
            step, start, slices, length=_length(lift, groups), reverse=options.reverse, unroll=options.unroll
        )
        return _joined(lift.out_lanes, carried, ys), _joined(lift.update_lanes, beside, changes), outcome

    return lifted


def _length(lift: Lift[ScanOptions], groups: Groups) -> int | None:
    """How many steps there are."""
    scanned = ((axis_of(lane), group) for lane, group in zip(lift.lanes, groups, strict=True))
    sizes = (leaf.shape[axis] for axis, group in scanned if axis is not None for leaf in jax.tree.leaves(group))
    return next(sizes, lift.options.length)


def _goes_on(lane: Ride) -> TypeGuard[Carried | Along]:
    """Whether what leaves so is given to the next step; the rest is stacked."""
    return isinstance(lane, Carried | Along)


def _going_on(lanes: Sequence[Ride], groups: Groups) -> Groups:
    return tuple(group for lane, group in zip(lanes, groups, strict=True) if _goes_on(lane))


def _stacked(lanes: Sequence[Ride], groups: Groups) -> Groups:
    return tuple(group for lane, group in zip(lanes, groups, strict=True) if not _goes_on(lane))


def _joined(lanes: Sequence[Ride], last: Groups, stacked: Groups) -> Groups:
    """The lanes again: what the last step gave, and what was stacked, on the axis that was asked for."""
    lasts, stacks = iter(last), iter(stacked)
    return tuple(next(lasts) if _goes_on(lane) else _moved(next(stacks), 0, axis_of(lane)) for lane in lanes)


def _moved(leaves: tuple[Any, ...], source: int, target: int | None) -> tuple[Any, ...]:
    if target is None:  # nothing leaves on None: it is forwarded, or refused
        return leaves

    def move(leaf: Any) -> Any:
        return jnp.moveaxis(leaf, source, target)

    return untyped_jax.tree.map(move, leaves)


def _slice_type(leaf: Any) -> jax.ShapeDtypeStruct:
    # Not of `leaf[0]`: there may be no slice.
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


SCAN: Rule[ScanOptions] = Rule(
    "scan",
    _lift_scan,
    arrive=_arrive_scan,
    depart=lambda options, index: options.out_axes,
    read=read_step,
    lanes=(CARRIED,),
    frame=lambda lift, extra, groups: {"length": _length(lift, groups)},
    staged=True,
    check=_check_scan,
    agree=lambda options, index: agreement_of_carries("scan", lambda live: _arrive_scan(options, live)),
)
# For arguments that change in place: what is the same at every step is carried along once it changes.
SCAN_ALONG: Rule[ScanOptions] = replace(SCAN, read=read_step_along)


@overload
def scan(function: Callable[P, R], /, **options: Unpack[ScanKeywords]) -> Callable[P, R]: ...
@overload
def scan(**options: Unpack[ScanKeywords]) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@transform(call="it returns a function of the first carry and the sequences, scan(step)(init, xs)")
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
        part = threaded_function(function)
        options = ScanOptions(in_axes, out_axes, length, reverse, unroll, None if part is None else 0)
        interpreted = interpret(SCAN, VALUES)((function,), options)

        def run(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            if kwargs:
                args, kwargs = by_position(function, args, dict(kwargs))
            return interpreted(args, kwargs) if part is None else _over_stack(part, options, args)

        return Transformed(function, run)

    return decorate(function, wrap, SCAN, in_axes, out_axes, length, reverse, unroll)


def _over_stack(part: ThreadedFunction, options: ScanOptions, args: tuple[Any, ...]) -> Any:
    """Calls a part, whose record is scanned over; what it returns alone is the carry."""
    if options.in_axes == DEFAULT_AXES and len(args) == 1:
        options = replace(options, in_axes=(Carry,))
    axes = options.in_axes
    carried = [i for i, axis in enumerate(axes) if axis is Carry] if is_tuple(axes) else []
    if options.out_axes != DEFAULT_AXES or len(carried) != 1:
        return over_values(SCAN, options)(part)(*args)
    pairing = Transform(functools.partial(_with_outputs, carried[0]), ("scan", carried[0]))
    carry, outputs = over_values(SCAN, options)(part.through(pairing))(*args)
    return carry if outputs == _NO_OUTPUTS else (carry, outputs)


_NO_OUTPUTS = Static("no outputs beside the carry")


def _with_outputs(carried: int, part: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        value = part(*args, **kwargs)
        # A carry may be a pair itself; what tells it from (carry, outputs) is that it is made like the first carry.
        alone = not (is_tuple(value) and len(value) == 2) or trees.structure(value) == trees.structure(args[carried])
        return (value, _NO_OUTPUTS) if alone else value

    return run
