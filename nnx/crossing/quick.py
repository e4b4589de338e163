"""The fast path of a call on the same objects as before, if their structure has not changed since.

On the way in, generated code checks the identity of each object among the arguments and reads the plain arrays; if the
objects' plan is still valid, the Variables' values are one list comprehension. On the way out, the Variables to write
are looked up once per outcome and remembered.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
from weft.core.edge.contexts import EAGER, current_level
from weft.core.interpreter.boundary import Call, Crossing, Groups, QuickWay
from weft.core.interpreter.building import FORWARDED, as_array
from weft.core.interpreter.extracting import SameObject, make_extractor
from weft.core.interpreter.values import told_by
from weft.core.records.agree import Fixed
from weft.core.records.leaves import NUMBERS, is_array
from weft.core.records.partition import Structure
from weft.nnx.crossing.calls import Mode, RefCall
from weft.nnx.crossing.flattening import NODE, PLAIN_NODES, Tree
from weft.nnx.crossing.outcomes import RefOutcome, hand_over, to_place
from weft.nnx.graphs.nodes import is_graph_node
from weft.nnx.graphs.plan import Plan, is_object, plan_of
from weft.nnx.graphs.writes import write_all
from weft.nnx.objects.attributes import GRAPH_TYPES
from weft.nnx.objects.objects import picker
from weft.nnx.variable.refs import PLAIN_ARRAYS

_MOST_OUTCOMES = 16
HandOver = Callable[[Sequence[Any], Groups], Any]


class QuickEntry:
    """The plan of the objects of a call, with a prepared writer for each outcome that has come out of it.

    Args:
        plan: the plan of the objects among the arguments.
        order: for each leaf of the call that is in an object, its position in the plan.
    """

    def __init__(self, plan: Plan, order: Sequence[int]):
        self.plan = plan
        self.order = order
        self._known: dict[int, tuple[RefOutcome, HandOver]] = {}

    def hand_over(self, outcome: RefOutcome, values: Sequence[Any], groups: Groups) -> Any:
        """Writes updates into the caller's objects, and returns the output; see `outcomes.hand_over`."""
        # By identity: JAX returns the same outcome object for the same trace, and comparing two grows with the model.
        known = self._known.get(id(outcome)) or self._learn(outcome)
        return known[1](values, groups)

    def _learn(self, outcome: RefOutcome) -> tuple[RefOutcome, HandOver]:
        if len(self._known) >= _MOST_OUTCOMES:
            # A program with more outcomes retraces all the time. Preparing a writer costs little compared with a
            # retrace.
            self._known.clear()
        plan, order = self.plan, self.order
        if outcome.arguments is not None or outcome.metadata or outcome.carried or outcome.graphdef.nodes:
            apply: HandOver = lambda values, groups: hand_over(  # noqa: E731
                plan, outcome, values, groups, [plan.leaves[i] for i in order]
            )
        else:
            apply = self._writer(outcome, _output(outcome))
        # The entry keeps the outcome alive: a later object at the same address would be taken for it.
        known = self._known[id(outcome)] = (outcome, apply)
        return known

    def _writer(self, outcome: RefOutcome, build: HandOver) -> HandOver:
        """Makes a function that writes an outcome's updates into the Variables and returns the output."""
        if not (outcome.updates or outcome.placed):
            return build
        # Grouped by lane, because `operator.itemgetter` picks all values of a lane in one step of C.
        lanes: dict[int, list[tuple[int, int]]] = {}
        for i, lane, place in outcome.updates:
            lanes.setdefault(lane, []).append((place, i))
        plan = self.plan
        parts = [(lane, picker(sorted(place for place, _ in pairs))) for lane, pairs in lanes.items()]
        order = [self.order[i] for pairs in lanes.values() for _, i in sorted(pairs)]
        # The plan keeps the list of Variables under `key`, because it drops its lists when the objects die; a list in
        # this closure would keep the model alive.
        key = object()
        placed, shardings = [self.order[i] for i, _ in outcome.placed], [sharding for _, sharding in outcome.placed]
        placed_key = object()

        if len(parts) == 1 and not placed:
            ((lane, get),) = parts
            # The usual case, all updates on one ride. `jit` comes here at every training step, so it has no loop.

            def write_one_lane(values: Sequence[Any], groups: Groups) -> Any:
                plan.check_writable()
                write_all(plan.select(key, order), get(groups[lane]))
                return None if build is _nothing else build(values, groups)

            return write_one_lane

        def write(values: Sequence[Any], groups: Groups) -> Any:
            plan.check_writable()
            moved = to_place(plan.select(placed_key, placed), shardings)
            written = [value for lane, get in parts for value in get(groups[lane])]
            written += [value for _, value in moved]
            write_all([*plan.select(key, order), *(variable for variable, _ in moved)], written)
            return build(values, groups)

        return write


def _output(outcome: RefOutcome) -> HandOver:
    """Makes a function that builds an output without objects from the arguments' leaves and the lanes."""
    if not outcome.items and outcome.treedef == _NOTHING:
        return _nothing
    rest = iter(outcome.sources)
    picks = [(item.value, None, 0) if isinstance(item, Fixed) else (None, *next(rest)) for item in outcome.items]

    def build(values: Sequence[Any], groups: Groups) -> Any:
        return outcome.treedef.unflatten(
            [
                static if lane is None else as_array(values[place]) if lane == FORWARDED else groups[lane][place]
                for static, lane, place in picks
            ]
        )

    return build


def _nothing(values: Sequence[Any], groups: Groups) -> None:
    """Builds the output None, which most functions that mutate objects return."""


_NOTHING = jax.tree.structure(None)


def recognised(mode: Mode, call: Call) -> tuple[Hashable, Sequence[Any], QuickEntry] | None:
    """`References.recognise`: by the plan of the objects, and the static values, shapes and dtypes of the rest."""
    # Only outside of every trace: inside, objects are new at each call, and `enter` has to check their trace levels.
    if current_level() != EAGER:
        return None
    roots: list[Any] = []
    boxes: list[Any] = []

    def stops(value: Any) -> bool:
        kind = type(value)
        if kind in PLAIN_NODES or kind in PLAIN_ARRAYS:
            return False
        if kind in GRAPH_TYPES:
            roots.append(value)
        elif is_graph_node(value):
            boxes.append(value)
        else:
            return False
        return True

    try:
        flat, treedef = jax.tree.flatten((call[1], dict(call[2])), is_leaf=stops)
    except (TypeError, ValueError):
        return None  # a dict with keys that cannot be sorted, which `enter` names
    # Without objects, or with Variables and refs that are arguments themselves, there is no stored plan.
    if boxes or not roots or (plan := plan_of(roots)).volatile:
        return None
    values = plan.read()
    # In tree mode the leaves may be in another order than in the plan. The interpreter stores the key only if both have
    # the same values in the same order, compared by identity, so that no value may be there twice.
    if not mode.graph and len({*map(id, values)}) < len(values):
        return None
    told = told_by(values + [NODE if type(value) in GRAPH_TYPES else value for value in flat])
    # A weak reference, which equals no later one, because the key must not keep the objects alive. The entry has no
    # order of leaves, because `References` reads only its plan.
    return None if told is None else ((treedef, weakref.ref(plan), told[0]), told[1], QuickEntry(plan, ()))


def quick_way(mode: Mode, crossing: Crossing[RefCall], entered: Tree, call: Call) -> QuickWay | None:
    """Makes the fast path for further calls on the objects of this call.

    Returns:
        None if there are no objects, or if the objects hold something without a version (a list that may be mutated).
    """
    flat, treedef = jax.tree.flatten((call[1], dict(call[2])), is_leaf=is_graph_node)
    nodes = {i for i, value in enumerate(flat) if is_graph_node(value)}
    roots = [flat[i] for i in sorted(nodes)]
    # A bare Variable among the arguments has no version that a plan could check, and its plan is not stored.
    if not roots or not all(map(is_object, roots)):
        return None
    plan = plan_of(roots)
    order = _order(plan, entered.plan)
    # Tree mode refuses sharing; the slow path raises the error, because it knows both paths.
    if plan.volatile or order is None or (plan.repeats and not mode.graph):
        return None
    # The generated code treats an object as a static value that must be the same object, or it leaves the call to the
    # slow path.
    statics = tuple(
        (i, type(value), SameObject(value) if i in nodes else value)
        for i, value in enumerate(flat)
        if i in nodes or not (is_array(value) or type(value) in NUMBERS)
    )
    # Arrays and numbers are extracted by generated code; objects and other values only have to be the same.
    plain = len(flat) - len(statics)
    structure = Structure(treedef, statics, tuple((i,) for i in range(len(flat))))
    repeats = tuple(place - len(order) for place in crossing.repeats[len(order) :])
    read = make_extractor(structure, [(0, i) for i in range(plain)], 1, repeats)
    if read is None or plain + len(order) != len(crossing.rides):
        return None
    return QuickWay(_extract(plan, order, read, _grouper(crossing)), QuickEntry.hand_over)


def _extract(
    plan: Plan, order: Sequence[int], read: Callable[[Any], Any], group: Callable[[Any], Groups] | None
) -> Callable[[Call], tuple[QuickEntry, Sequence[Any], Groups] | None]:
    entry = QuickEntry(plan, order)
    # Usually the plan lists the leaves in the order of the call, and no call has to reorder them.
    in_order = list(order) == list(range(len(plan.leaves)))

    def extract(call: Call) -> tuple[QuickEntry, Sequence[Any], Groups] | None:
        leaves_read = read(call[1:])
        # The objects are the same, but an attribute may have been added since.
        if leaves_read is None or not plan.is_valid():
            return None
        read_now = plan.read()
        # Leaves of graphs first, then plain arrays: the order of `take_apart`.
        values = (*(read_now if in_order else [read_now[i] for i in order]), *leaves_read[1])
        return entry, values, (values,) if group is None else group(values)

    return extract


def _order(plan: Plan, call_plan: Plan) -> list[int] | None:
    """For each leaf of `call_plan` its position in `plan`; None if the two do not have the same leaves."""
    places = {id(leaf): i for i, leaf in enumerate(plan.leaves)}
    order = [places.get(id(leaf)) for leaf in call_plan.leaves]
    if len(plan.leaves) != len(order) or any(place is None for place in order):
        return None
    return [place for place in order if place is not None]


def _grouper(crossing: Crossing[RefCall]) -> Callable[[tuple[Any, ...]], Groups] | None:
    """Makes a function that sorts leaves into lanes; None if there is only one lane."""
    if len(crossing.lanes) == 1:
        return None
    members: list[list[int]] = [[] for _ in crossing.lanes]
    for i, (lane, _) in enumerate(crossing.places):
        members[lane].append(i)
    getters = [picker(places) for places in members]
    return lambda values: tuple(tuple(get(values)) for get in getters)
