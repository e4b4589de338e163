"""scan: a function of one step, run over a sequence.

Its arguments are carried, scanned on an axis, or the same at each step. Updates leave accordingly: an updated leaf of a
slice is stacked, a carry is returned, and a leaf that is *carried along* (the function updates it but does not return
it) is added to JAX's carry by weft. JAX needs the same carry at each step, so an abstract evaluation of one step learns
before the loop which leaves these are.

The loop is staged, like those of `loops`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeGuard, TypeVar, Unpack, overload

from weft.core.edge import trees
from weft.core.edge.trees import is_tuple
from weft.core.edge.untyped import jax as untyped_jax
from weft.core.edge.untyped import jnp, lax
from weft.core.errors import AxisError
from weft.core.interpreter.boundary import Arrival, Call, Groups
from weft.core.interpreter.interpret import interpret
from weft.core.interpreter.prefixes import check_mapped, size_of_lanes
from weft.core.interpreter.rides import CARRIED, Along, Carried, Carry, Ride, axis_of, read_step, read_step_along
from weft.core.interpreter.rules import Exit, Lift, Lifted, Rule
from weft.core.interpreter.values import VALUES
from weft.core.records.storage import Static
from weft.core.threads.blocks import ThreadedFunction, Transform
from weft.core.threads.handle import threaded_function
from weft.transforms.arguments import by_axes, by_position
from weft.transforms.carries import agreement_of_carries, carrying_along, types_of_slices, values_at, with_values
from weft.transforms.keywords import ScanKeywords
from weft.transforms.transformed import Transformed, decorate, transform

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
    # The ride of the function's own arrays: None, the same at every step, or 0 for a stack of records.
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


def _lift_scan(lift: Lift[ScanOptions]) -> Lifted:
    (body,), options, lanes = lift.bodies, lift.options, lift.lanes
    # The lane of the carry exists even if nothing is carried, since the rule lists it.
    carry = lanes.index(CARRIED)
    scanned = {i: axis for i, lane in enumerate(lanes) if (axis := axis_of(lane)) is not None}

    def lifted(extra: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        # `lax.scan` scans leading axes only, so scanned axes are moved to the front, and stacked ones back afterwards.
        slices = {i: _moved(groups[i], axis, 0) for i, axis in scanned.items()}
        first = {i: types_of_slices(leaves) for i, leaves in slices.items()}
        run, places = carrying_along(body, tuple(first.get(i, group) for i, group in enumerate(groups)))

        def step(carry_: tuple[Groups, Groups], slices: dict[int, Any]) -> tuple[tuple[Groups, Groups], Exit]:
            (carried, along), lanes = carry_, [slices.get(i, group) for i, group in enumerate(groups)]
            # If no output is a carry, no argument is: the check of carries has refused it.
            lanes[carry] = carried[0] if carried else ()
            # The function finds the values of the last step in its arguments, in the places of the first values.
            out, updates, outcome = run(with_values(tuple(lanes), places, along[0] if along else ()))
            next_carry = _lanes(lift.out_lanes, out, carried=True), _lanes(lift.update_lanes, updates, carried=True)
            # The outcome has no leaves, so that it passes through the stacking of `lax.scan` unchanged.
            return next_carry, (
                _lanes(lift.out_lanes, out, carried=False),
                _lanes(lift.update_lanes, updates, carried=False),
                outcome,
            )

        along = values_at(groups, places)
        # JAX's carry: the user's carry, and the leaves that are carried along.
        start = (
            tuple(groups[carry] for lane in lift.out_lanes if _is_carried(lane)),
            tuple(along for lane in lift.update_lanes if _is_carried(lane)),
        )
        length = size_of_lanes(groups, lanes, options.length)
        (carried, along), (ys, changes, outcome) = lax.scan(
            step, start, slices, length=length, reverse=options.reverse, unroll=options.unroll
        )
        return _joined(lift.out_lanes, carried, ys), _joined(lift.update_lanes, along, changes), outcome

    return lifted


def _is_carried(lane: Ride) -> TypeGuard[Carried | Along]:
    """Whether leaves on this ride go to the next step; others are stacked."""
    return isinstance(lane, Carried | Along)


def _lanes(lanes: Sequence[Ride], groups: Groups, *, carried: bool) -> Groups:
    """The lanes that are carried, or those that are stacked."""
    return tuple(group for lane, group in zip(lanes, groups, strict=True) if _is_carried(lane) == carried)


def _joined(lanes: Sequence[Ride], carried: Groups, stacked: Groups) -> Groups:
    """All lanes in order, from those that were carried and those that were stacked; stacked axes are moved in place."""
    carries, stacks = iter(carried), iter(stacked)
    return tuple(next(carries) if _is_carried(lane) else _moved(next(stacks), 0, axis_of(lane)) for lane in lanes)


def _moved(leaves: tuple[Any, ...], source: int, target: int | None) -> tuple[Any, ...]:
    if target is None:  # a lane on None is empty: its leaves were forwarded or refused
        return leaves

    def move(leaf: Any) -> Any:
        return jnp.moveaxis(leaf, source, target)

    return untyped_jax.tree.map(move, leaves)


SCAN: Rule[ScanOptions] = Rule(
    "scan",
    _lift_scan,
    arrive=_arrive_scan,
    depart=lambda options, index: options.out_axes,
    read=read_step,
    lanes=(CARRIED,),
    frame=lambda lift, extra, groups: {"length": size_of_lanes(groups, lift.lanes, lift.options.length)},
    staged=True,
    check=lambda options, call, leaves, rides: check_mapped(
        "scan",
        leaves,
        map(axis_of, rides),
        options.length,
        problem="has nothing to scan over: no argument has an axis in in_axes, and there is no length",
        fix="give an argument an axis in in_axes, or give length",
    ),
    agree=lambda options, index: agreement_of_carries("scan", lambda live: _arrive_scan(options, live)),
)
# For NNX, whose functions mutate arguments: a Variable under None that changes is carried along.
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
        function: a function of one step.
        in_axes: for each argument `Carry`, the axis that it is scanned over, or None (the same at every step); a
            prefix, which may contain `Carry` and `axes({kind: axis})` at any place.
        out_axes: likewise for the output: `Carry`, or the axis that it is stacked on. None is for an argument that is
            returned unchanged.
        length: the number of steps, needed only if nothing is scanned.
        reverse: whether to run from the last slice to the first.
        unroll: the number of steps in one iteration of the compiled loop; True for all.

    Returns:
        A function from the first carry and whole sequences to the last carry and stacked outputs.

    Raises:
        CarryError: if the carry's structure, shapes, dtypes or static leaves change, with each path, before and after.
        AxisError: if an argument lacks an axis, or sizes differ.

    Source: `jax.lax.scan`.

    >>> import jax.numpy as jnp
    >>> total, sums = scan(lambda carry, x: (carry + x, carry + x))(jnp.array(0.0), jnp.arange(4.0))
    >>> float(total), sums.tolist()
    (6.0, [0.0, 1.0, 3.0, 6.0])
    """

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        part = threaded_function(function)
        options = ScanOptions(in_axes, out_axes, length, reverse, unroll, None if part is None else 0)
        if part is not None:
            return functools.partial(_over_stack, part, options)
        interpreted = interpret(SCAN, VALUES)((function,), options)

        def run(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            return interpreted(*by_axes(function, args, dict(kwargs), in_axes))

        return Transformed(function, run)

    return decorate(function, wrap, SCAN, in_axes, out_axes, length, reverse, unroll)


def _over_stack(part: ThreadedFunction, options: ScanOptions, *args: Any, **kwargs: Any) -> Any:
    """Scans a part over its record, which is a stack; a part that returns one value returns the carry."""
    if kwargs:
        args, kwargs = by_position(part, args, kwargs)
    if options.in_axes == DEFAULT_AXES and len(args) == 1:
        options = replace(options, in_axes=(Carry,))
    axes: Any = options.in_axes
    carried = [i for i, axis in enumerate(axes) if axis is Carry] if isinstance(options.in_axes, tuple) else []
    if options.out_axes != DEFAULT_AXES or len(carried) != 1:
        return interpret(SCAN, VALUES)((part,), options)(args, kwargs)
    # `scan` needs a pair from its function. The pairing is a transform of the part with a key, so that the second call
    # finds the compiled loop.
    pairing = Transform(functools.partial(_with_outputs, carried[0]), ("scan", carried[0]))
    carry, outputs = interpret(SCAN, VALUES)((part.through(pairing),), options)(args, kwargs)
    return carry if outputs == _NO_OUTPUTS else (carry, outputs)


_NO_OUTPUTS = Static("no outputs beside the carry")


def _with_outputs(carried: int, part: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        value = part(*args, **kwargs)
        # A carry may be a pair itself, which differs from (carry, outputs) by having the structure of the first carry.
        alone = not (is_tuple(value) and len(value) == 2) or trees.structure(value) == trees.structure(args[carried])
        return (value, _NO_OUTPUTS) if alone else value

    return run
