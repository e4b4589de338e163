"""lax_map and associative_scan: functions of slices of a sequence, applied to each slice, or combining pairs of slices.

Both are staged, like the loops of `loops`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.core.edge.untyped import jax as untyped_jax
from weft.core.edge.untyped import lax
from weft.core.errors import SuccessorError
from weft.core.interpreter.boundary import Call, Groups
from weft.core.interpreter.prefixes import check_mapped
from weft.core.interpreter.rides import Along, Ride, Step, axis_of, read_step
from weft.core.interpreter.rules import Lift, Lifted, OutcomeNode, Rule
from weft.core.paths import format_path
from weft.core.records.leaves import Leaf
from weft.core.threads.handle import refuse_threaded
from weft.core.tracebacks import cutting
from weft.transforms.carries import carrying_along, rule_of_a_carry, types_of_slices, values_at, with_values
from weft.transforms.transformed import call_over_values


@dataclass(frozen=True)
class MapOverOptions:
    """The options of one `lax_map`."""

    batch_size: int | None


def _lift_map(lift: Lift[MapOverOptions]) -> Lifted:
    (body,), options = lift.bodies, lift.options

    def lifted(extra: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        slices, rest = groups[0], groups[1:]

        def on_slice(leaves: Any) -> Any:
            return body((leaves, *rest))

        run, places = carrying_along(body, (types_of_slices(slices), *rest))
        if not places:
            return lax.map(on_slice, slices, batch_size=options.batch_size)
        # With a batch each slice of it would change the record from the same value, and all changes but one be lost.
        if options.batch_size is not None:
            raise SuccessorError(
                "lax_map with batch_size runs several slices at once, so that one record would have several successors",
                at=format_path(body.crossing.structure.path_of(0)),
                fix="leave out batch_size; or use vmap, in which the record reduces its changes over a named axis",
            )

        # A threaded record changes from slice to slice, so that its leaves are the carry of a scan.
        def step(carried: tuple[Any, ...], leaves: Any) -> tuple[Any, Any]:
            out, updates, outcome = run(with_values((leaves, *rest), places, carried))
            return updates[along], (out, outcome)

        along = lift.update_lanes.index(Along())
        last, (out, outcome) = lax.scan(step, values_at(groups, places), slices)
        return out, tuple(last if i == along else () for i in range(len(lift.update_lanes))), outcome

    return lifted


MAP: Rule[MapOverOptions] = Rule(
    "lax_map",
    _lift_map,
    arrive=lambda options, call: (None, 0, None),
    depart=lambda options, index: 0,
    read=read_step,
    lanes=(Step(0),),
    frame=lambda lift, extra, groups: {"length": groups[0][0].shape[0]},
    staged=True,
    check=lambda options, call, leaves, rides: check_mapped(
        "lax_map",
        leaves,
        map(axis_of, rides),
        None,
        problem="has nothing to map over",
        fix="pass a tree with at least one array",
    ),
    options=("xs", "output"),
)


@cutting
def lax_map(function: Callable[[Any], Any], xs: Any, /, *, batch_size: int | None = None) -> Any:
    """Applies a function to one slice after another, along the leading axis, and stacks the results.

    Args:
        function: a function of one slice.
        xs: a pytree of records whose arrays have leading axes of one size.
        batch_size: the number of slices that run at once, by vmap.

    Raises:
        AxisError: if an array has no axes, or the sizes of the leading axes differ.

    Source: `jax.lax.map`.

    >>> import jax.numpy as jnp
    >>> lax_map(lambda x: x["a"] + 1, {"a": jnp.arange(3), "name": "xs"}).tolist()
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
        outcomes: list[OutcomeNode] = []

        def combine(a: Any, b: Any) -> Any:
            # JAX passes two elements, but the lanes of the body hold one call. So the first element is built here and
            # put before the user's arguments, and the second is the call.
            first = body.boundary.rebuild(body.crossing, body.crossing.ungroup((a, *rest)))[0][1][0]
            out, _, outcome = body((b, *rest), first)
            outcomes.append(outcome)
            return out[0]

        # `lax.associative_scan` does not accept a negative axis together with `reverse`.
        axis = options.axis % elements[0].ndim
        out = lax.associative_scan(combine, elements, reverse=options.reverse, axis=axis)
        if not outcomes:  # a single element is not combined, but an outcome is needed to build the result
            untyped_jax.eval_shape(combine, elements, elements)
        return (out, *(() for _ in lift.out_lanes[1:])), (), outcomes[-1]

    return lifted


def _check_associative(options: AssociativeOptions, call: Call, leaves: Sequence[Leaf], rides: Sequence[Ride]) -> None:
    axes = [options.axis] * len(leaves)
    check_mapped("associative_scan", leaves, axes, None, "has no elements", "pass a tree with at least one array")


def _elements(lift: Lift[AssociativeOptions], extra: Any, groups: Groups) -> dict[str, object]:
    return {"length": groups[0][0].shape[lift.options.axis]}


ASSOCIATIVE_SCAN: Rule[AssociativeOptions] = replace(
    rule_of_a_carry("associative_scan", _lift_associative, shapes=False),
    check=_check_associative,
    options=("elems", "output"),
    frame=_elements,
)


@cutting
def associative_scan(
    function: Callable[[Any, Any], Any], elems: Any, /, *, reverse: bool = False, axis: int = 0
) -> Any:
    """All prefixes of an associative operation, in logarithmic depth.

    Args:
        function: combines two slices (several pairs at once, along `axis`) into one of the same structure.
        elems: a pytree of records whose arrays have the same size on `axis`.
        reverse: whether to combine from the end.
        axis: the axis to scan along.

    Raises:
        CarryError: if the structure of the function's output differs from that of its arguments.

    Source: `jax.lax.associative_scan`.

    >>> import jax.numpy as jnp
    >>> associative_scan(lambda a, b: {"x": a["x"] + b["x"]}, {"x": jnp.arange(4)})["x"].tolist()
    [0, 1, 3, 6]
    """
    refuse_threaded((function,), "associative_scan", "it combines elements in no order, so that no record is the last")
    return call_over_values(ASSOCIATIVE_SCAN, (function,), AssociativeOptions(reverse, axis), elems)
