"""scan, while_loop, fori_loop, map and associative_scan.

A loop carries some leaves from one iteration to the next, and those must keep their structure, shapes, dtypes and
static parts; `_carried` checks it before JAX does, and says where they drift. Each loop is lifted inside an inlined
`jax.jit`: inside another trace it disappears, and a loop called again from Python is not compiled again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, overload

import jax
from weft.core.agree import differences, subtrees
from weft.core.errors import AxisError, CarryError
from weft.core.frames import open_frame
from weft.core.interpret import (
    NOT_UPDATED,
    Agreement,
    Body,
    Boundary,
    Call,
    Departure,
    Groups,
    Lift,
    Lifted,
    Rule,
    interpret,
)
from weft.core.leaves import Leaf
from weft.core.rides import Carry, Ride, is_axis, mapped_size
from weft.core.statics import Static
from weft.core.untyped import is_tuple, jnp, lax
from weft.core.untyped import jax as untyped_jax
from weft.core.values import VALUES
from weft.transforms._wrap import call_over_values, decorate, named_like, titled

P = ParamSpec("P")
R = TypeVar("R")


def is_carry_or_axis(node: Any) -> bool:
    """Whether a prefix node is `Carry`, an axis, or None."""
    return node is Carry or is_axis(node)


def carried_updates(ride: Ride) -> Ride:
    """What is carried comes back as the carry, updates of what is broadcast do not, and the rest as it rode in."""
    return NOT_UPDATED if ride is Carry or ride is None else ride


def _carried(name: str, arrives: Callable[[Call], Any], *, shapes: bool = True) -> Agreement:
    """The agreement of a loop: what is carried out is made like what was carried in."""

    def agreement(boundary: Boundary, live: Call, departure: Departure) -> Callable[[Any], None]:
        before = boundary.describe(_alone(subtrees(arrives(live), live, is_carry_or_axis, Carry)))

        def check(out: Any) -> None:
            after = boundary.describe(_alone(subtrees(departure.prefix, out, is_carry_or_axis, Carry)))
            found = differences(before, after, root="carry", shapes=shapes, promotes=shapes)
            if found:
                raise CarryError(
                    f"the carry of {name} changes from one iteration to the next",
                    at=found,
                    fix="return a carry of the same structure, shapes and dtypes; make a changing number an array",
                )

        return check

    return agreement


def _alone(parts: list[Any]) -> Any:
    # A single carry is described as itself, so that its paths start at `carry`.
    return parts[0] if len(parts) == 1 else tuple(parts)


@dataclass(frozen=True)
class ScanOptions:
    """The options of one `scan`."""

    in_axes: Any
    out_axes: Any
    length: int | None = None
    reverse: bool = False
    unroll: int | bool = 1


def _arrive_scan(options: ScanOptions, call: Call) -> Any:
    in_axes = options.in_axes if is_tuple(options.in_axes) else (options.in_axes,) * len(call[1])
    if len(in_axes) != len(call[1]):
        raise AxisError(
            f"in_axes has {len(in_axes)} entries for {len(call[1])} arguments",
            at=f"in_axes={in_axes!r}",
            fix="give one for each argument: Carry, an axis, or None",
        )
    return None, in_axes, None


def _check_scan(options: ScanOptions, call: Call, leaves: Sequence[Leaf], rides: Sequence[Ride]) -> None:
    if mapped_size(leaves, rides, given=options.length, what="scan") is None:
        raise AxisError(
            "scan has nothing to scan over: no argument rides on an axis, and there is no length",
            fix="give an argument an axis in in_axes, or give length",
        )


# The ride of what is carried without being returned: leaves that a filter says to carry, and, where the boundary wants
# it, what a scan broadcasts but its function updates.
ALONG = "carried along"


def _lift_scan(lift: Lift[ScanOptions]) -> Lifted:
    (body,), options = lift.bodies, lift.options
    lanes, out_lanes = lift.lanes, tuple(dict.fromkeys((*lift.out_lanes, ALONG)))
    scanned = [i for i, lane in enumerate(lanes) if isinstance(lane, int)]
    stacked = [i for i, lane in enumerate(out_lanes) if isinstance(lane, int)]
    carry_in, carry_out = lanes.index(Carry), out_lanes.index(Carry) if Carry in out_lanes else None

    def lifted(extra: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        slices = {i: tuple(jnp.moveaxis(leaf, _axis(lanes[i]), 0) for leaf in groups[i]) for i in scanned}
        length = next((leaves[0].shape[0] for leaves in slices.values() if leaves), options.length)
        with open_frame("scan", length=length):
            first = {i: tuple(_slice_type(leaf) for leaf in leaves) for i, leaves in slices.items()}
            run, along = _carrying_along(body, tuple(first.get(i, group) for i, group in enumerate(groups)), out_lanes)

            def step(carry: Any, slices: dict[int, Any]) -> tuple[Any, tuple[dict[int, Any], Static]]:
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
            out[i] = tuple(jnp.moveaxis(leaf, 0, _axis(out_lanes[i])) for leaf in ys[i])
        if carry_out is not None:
            out[carry_out] = carry
        left = _left(body.boundary, outcome)
        latest = sorted(
            ((left[i][1], value) for i, value in zip(along, beside, strict=True) if i in left), key=lambda pair: pair[0]
        )
        out[out_lanes.index(ALONG)] = tuple(value for _, value in latest)
        return tuple(out), outcome

    return untyped_jax.jit(titled(body.user_function, lifted), inline=True)


def _slice_type(leaf: Any) -> jax.ShapeDtypeStruct:
    # Not of `leaf[0]`: there may be no slice.
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


def _left(boundary: Boundary, outcome: Static) -> dict[int, tuple[int, int]]:
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
    agree=lambda options, index: _carried("scan", lambda live: _arrive_scan(options, live)),
    refused={None: "carry it (Carry), or stack it (an axis)"},
)


@overload
def scan(
    function: Callable[P, R],
    /,
    *,
    in_axes: Any = (Carry, 0),
    out_axes: Any = (Carry, 0),
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> Callable[P, R]: ...
@overload
def scan(
    *,
    in_axes: Any = (Carry, 0),
    out_axes: Any = (Carry, 0),
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def scan(
    function: Callable[..., Any] | None = None,
    /,
    *,
    in_axes: Any = (Carry, 0),
    out_axes: Any = (Carry, 0),
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

    return decorate(function, wrap)


def by_position(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments passed by name, in their positions, where the signature tells them."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    return bound.args, bound.kwargs


@dataclass(frozen=True)
class WhileOptions:
    """`while_loop` has no options."""


PREDICATE = "predicate"


def _lift_while(lift: Lift[WhileOptions]) -> Lifted:
    condition, body = lift.bodies
    carry, predicate = lift.out_lanes.index(Carry), lift.out_lanes.index(PREDICATE)

    def lifted(extra: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        outcomes: list[Static] = []

        def go_on(carried: Any) -> Any:
            out, _ = condition(_with_carry(carried))
            if len(out[predicate]) != 1 or jnp.shape(out[predicate][0]) != ():
                shapes = ", ".join(str(jax.typeof(leaf)) for leaf in out[predicate])
                raise CarryError(
                    f"the condition of while_loop must be one boolean scalar, not {shapes or 'no array'}",
                    fix="reduce it (jnp.any, jnp.all)",
                )
            return out[predicate][0]

        def step(carried: Any) -> Any:
            out, outcome = body(_with_carry(carried))
            outcomes.append(outcome)
            return out[carry]

        def _with_carry(carried: Any) -> Groups:
            return (carried, *groups[1:])

        with open_frame("while_loop"):
            carried = lax.while_loop(go_on, step, groups[0])
        out: list[tuple[Any, ...]] = [() for _ in lift.out_lanes]
        out[carry] = carried
        return tuple(out), outcomes[-1]

    return untyped_jax.jit(titled(body.user_function, lifted), inline=True)


def _everything_carried(call: Call) -> Any:
    return None, (Carry,), None


WHILE: Rule[WhileOptions] = Rule(
    "while_loop",
    _lift_while,
    arrive=lambda options, call: _everything_carried(call),
    depart=lambda options, index: (PREDICATE, Carry)[index],
    is_ride=lambda node: node == PREDICATE or is_carry_or_axis(node),
    lanes=(Carry,),
    forwards=None,
    updates=carried_updates,
    agree=lambda options, index: _carried("while_loop", _everything_carried) if index == 1 else None,
    options=("init", "output"),
)


def while_loop(cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init: Any) -> Any:
    """Repeats a function on a carry while a condition holds.

    Args:
        cond_fun: from the carry to one boolean scalar.
        body_fun: from the carry to the next one.
        init: the first carry: any pytree of records; its static leaves must stay as they are.

    Raises:
        CarryError: if the carry changes its make, with each path, before and after.

    Source: `jax.lax.while_loop`.

    >>> while_loop(lambda c: c["n"] < 10, lambda c: {**c, "n": c["n"] * 2}, {"n": 1, "name": "double"})["n"].item()
    16
    """
    return call_over_values(WHILE, (cond_fun, body_fun), WhileOptions(), init)


@dataclass(frozen=True)
class ForiOptions:
    """The options of one `fori_loop`: bounds that are Python ints, so that JAX can tell the trip count."""

    bounds: tuple[int, int] | None
    unroll: int | bool | None


def _lift_fori(lift: Lift[ForiOptions]) -> Lifted:
    (body,), options = lift.bodies, lift.options
    carry = lift.out_lanes.index(Carry)

    def lifted(bounds: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        outcomes: list[Static] = []

        def step(i: Any, carried: Any) -> Any:
            out, outcome = body((carried, *groups[1:]), i)
            outcomes.append(outcome)
            return out[carry]

        lower, upper = options.bounds or bounds
        trips = upper - lower if options.bounds else None
        with open_frame("fori_loop", length=trips):
            carried = lax.fori_loop(lower, upper, step, groups[0], unroll=options.unroll)
        if not outcomes:  # no iteration, and known not to be one: the carry is what it was, made as it would be
            step(jnp.asarray(lower), groups[0])
        out: list[tuple[Any, ...]] = [() for _ in lift.out_lanes]
        out[carry] = carried
        return tuple(out), outcomes[-1]

    return untyped_jax.jit(titled(body.user_function, lifted), inline=True)


FORI: Rule[ForiOptions] = Rule(
    "fori_loop",
    _lift_fori,
    arrive=lambda options, call: _everything_carried(call),
    depart=lambda options, index: Carry,
    is_ride=is_carry_or_axis,
    lanes=(Carry,),
    forwards=None,
    updates=carried_updates,
    agree=lambda options, index: _carried("fori_loop", _everything_carried),
    options=("init", "output"),
)


def fori_loop(
    lower: Any, upper: Any, body_fun: Callable[[Any, Any], Any], init: Any, *, unroll: int | bool | None = None
) -> Any:
    """Repeats a function on a carry, for a counter from `lower` up to `upper`.

    Args:
        lower: the first counter, an int or an integer scalar.
        upper: the end, not included. With two Python ints the loop can be differentiated in reverse.
        body_fun: from the counter and the carry to the next carry.
        init: the first carry, as in `while_loop`.
        unroll: as in `jax.lax.fori_loop`.

    Raises:
        CarryError: if the carry changes its make, with each path, before and after.

    Source: `jax.lax.fori_loop`.

    >>> fori_loop(0, 4, lambda i, c: c + i, 0).item()
    6
    """
    known = type(lower) is int and type(upper) is int
    options = ForiOptions((lower, upper) if known else None, unroll)
    return call_over_values(FORI, (body_fun,), options, init, extra=() if known else (lower, upper))


@dataclass(frozen=True)
class MapOverOptions:
    """The options of one `map`."""

    batch_size: int | None


def _lift_map(lift: Lift[MapOverOptions]) -> Lifted:
    (body,), options = lift.bodies, lift.options

    def lifted(extra: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        slices, rest = groups[0], groups[1:]

        def on_one(one: Any) -> Any:
            return body((one, *rest))

        with open_frame("map", length=slices[0].shape[0]):
            return lax.map(on_one, slices, batch_size=options.batch_size)

    return untyped_jax.jit(titled(body.user_function, lifted), inline=True)


def _check_map(options: MapOverOptions, call: Call, leaves: Sequence[Leaf], rides: Sequence[Ride]) -> None:
    if mapped_size(leaves, rides, given=None, what="map") is None:
        raise AxisError("map has nothing to map over", fix="pass a tree with at least one array")


MAP: Rule[MapOverOptions] = Rule(
    "map",
    _lift_map,
    arrive=lambda options, call: (None, 0, None),
    depart=lambda options, index: 0,
    lanes=(0,),
    forwards=None,
    updates=carried_updates,
    check=_check_map,
    options=("xs", "output"),
)


def map(function: Callable[[Any], Any], xs: Any, *, batch_size: int | None = None) -> Any:
    """Applies a function to one slice after another, along the leading axis, and stacks the results.

    Args:
        function: of one slice.
        xs: a pytree of records whose arrays share their leading axis.
        batch_size: how many slices to run at once, by vmap.

    Source: `jax.lax.map`.

    >>> import jax.numpy as jnp
    >>> map(lambda x: x["a"] + 1, {"a": jnp.arange(3), "name": "xs"}).tolist()
    [1, 2, 3]
    """
    return call_over_values(MAP, (function,), MapOverOptions(batch_size), xs)


@dataclass(frozen=True)
class AssociativeOptions:
    """The options of one `associative_scan`."""

    reverse: bool
    axis: int


def _lift_associative(lift: Lift[AssociativeOptions]) -> Lifted:
    (body,), options = lift.bodies, lift.options

    def lifted(extra: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        elements, rest = groups[0], groups[1:]
        outcomes: list[Static] = []

        def combine(a: Any, b: Any) -> Any:
            first = body.boundary.rebuild(body.crossing, body.crossing.ungroup((a, *rest)))[0][1][0]
            out, outcome = body((b, *rest), first)
            outcomes.append(outcome)
            return out[0]

        # JAX cannot reverse along an axis counted from the end.
        axis = options.axis % elements[0].ndim
        with open_frame("associative_scan", length=elements[0].shape[axis]):
            out = lax.associative_scan(combine, elements, reverse=options.reverse, axis=axis)
        if not outcomes:  # a single element is combined with nothing; learn the output's make all the same
            untyped_jax.eval_shape(combine, elements, elements)
        return (out, *(() for _ in lift.out_lanes[1:])), outcomes[-1]

    return untyped_jax.jit(titled(body.user_function, lifted), inline=True)


ASSOCIATIVE_SCAN: Rule[AssociativeOptions] = Rule(
    "associative_scan",
    _lift_associative,
    arrive=lambda options, call: _everything_carried(call),
    depart=lambda options, index: Carry,
    is_ride=is_carry_or_axis,
    lanes=(Carry,),
    forwards=None,
    updates=carried_updates,
    agree=lambda options, index: _carried("associative_scan", _everything_carried, shapes=False),
    check=lambda options, call, leaves, rides: _check_associative(options, leaves),
    options=("elems", "output"),
)


def _check_associative(options: AssociativeOptions, leaves: Sequence[Leaf]) -> None:
    size = mapped_size(leaves, [options.axis] * len(leaves), given=None, what="associative_scan")
    if size is None:
        raise AxisError("associative_scan has no elements", fix="pass a tree with at least one array")


def associative_scan(function: Callable[[Any, Any], Any], elems: Any, *, reverse: bool = False, axis: int = 0) -> Any:
    """All prefixes of an associative operation, in logarithmic depth.

    Args:
        function: combines two slices (several at once, along `axis`) into one of the same make.
        elems: a pytree of records whose arrays share their size on `axis`.
        reverse: whether to combine from the end.
        axis: the axis to scan along.

    Raises:
        CarryError: if the function returns something of another make than its arguments.

    Source: `jax.lax.associative_scan`.

    >>> import jax.numpy as jnp
    >>> associative_scan(lambda a, b: {"x": a["x"] + b["x"]}, {"x": jnp.arange(4)})["x"].tolist()
    [0, 1, 3, 6]
    """
    return call_over_values(ASSOCIATIVE_SCAN, (function,), AssociativeOptions(reverse, axis), elems)
