"""The boundary of threaded parts: `weft.scan(t.blocks)(x)` inside of a `thread` block.

Inside of a block the record behaves as an NNX object does: a call changes it. So a part enters and leaves a transform
as NNX objects do, with records for objects:

- `enter` puts the records of the parts before the call's other leaves, where a rule expects the arrays of its
  functions;
- `rebuild` opens a block of its own for each record (`Block`), on which the parts are called, and which collects
  their successors;
- `leave` puts the leaves that changed in these blocks into the update lanes of their rides, as for any boundary;
- `hand_over` puts the records with the changed leaves into the caller's block, which may itself be inside of a
  transform.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import equinox as eqx
import jax.tree_util as jtu
from weft.core.edge import trees
from weft.core.edge.trees import PyTree
from weft.core.errors import SuccessorError
from weft.core.interpreter.boundary import (
    AnyBoundary,
    Arrival,
    Call,
    Crossing,
    Departure,
    Function,
    Groups,
    OutLanes,
    QuickWay,
)
from weft.core.interpreter.rides import Read, Ride, Step
from weft.core.interpreter.values import CallOfRecords, Outcome, Values, named_arguments, recognised
from weft.core.paths import Path, format_path
from weft.core.records.leaves import Leaf, is_array
from weft.core.threads.blocks import Block, ThreadedFunction, value_of
from weft.core.threads.calls import note_place
from weft.core.threads.handle import refuse_threaded, threaded_function


@dataclass(frozen=True)
class Parts:
    """The functions of a call, some of which are parts of threaded records, with these records: a pytree.

    Attributes:
        records: the records, none of which lies inside of another.
        functions: all functions. The parts among them are on no block, because a cached plan must not keep the arrays
            of a block alive.
        places: for each record the name of its block, and its path there. They are part of the cache key, so that two
            blocks of the same name share a plan.
        owners: for each function the index of the record that it is a part of; None if it is no part.
    """

    records: tuple[eqx.Module, ...]
    functions: tuple[Function, ...]
    places: tuple[tuple[str, Path], ...]
    owners: tuple[int | None, ...]

    def inside(self) -> tuple[tuple[Function, ...], tuple[Block, ...]]:
        """The functions, with the parts on new blocks inside of the transform; and these blocks."""
        blocks = tuple([Block(record, *place) for record, place in zip(self.records, self.places, strict=True)])
        pairs = zip(self.functions, self.owners, strict=True)
        return tuple([f if owner is None else cast("Any", f).on(blocks[owner]) for f, owner in pairs]), blocks

    def __getitem__(self, index: int) -> Function:
        return self.inside()[0][index]

    def named_records(self) -> list[tuple[Path, PyTree]]:
        """The records, each with the path that errors name it by."""
        return [((root, *path), record) for (root, path), record in zip(self.places, self.records, strict=True)]


trees.register_node_with_keys(
    Parts,
    lambda parts: (
        [(jtu.GetAttrKey("records"), parts.records), (jtu.GetAttrKey("functions"), parts.functions)],
        (parts.places, parts.owners),
    ),
    lambda data, children: Parts(*children, *data),
    lambda parts: ([parts.records, parts.functions], (parts.places, parts.owners)),
)


class CallOfParts(CallOfRecords):
    """A call of functions of which some are parts of threaded records."""

    def trees_of_functions(self, functions: Any) -> list[tuple[Path, PyTree]]:
        """The records of the parts, and the records that the other functions hold."""
        plain = [f for f, owner in zip(functions.functions, functions.owners, strict=True) if owner is None]
        return [*functions.named_records(), *super().trees_of_functions(tuple(plain))]


# The call with its records in front, and for each record the block that its successor goes into.
Entered = tuple[tuple[Parts, tuple[PyTree, ...], Mapping[str, PyTree]], tuple[Block, ...]]


class Threaded(Values):
    """The boundary of threaded parts. It has no state; `THREADED` is the one instance."""

    name = "threaded"
    has_updates = True
    structure = CallOfParts

    def __reduce__(self) -> str:
        return "THREADED"

    def enter(self, call: Call, known: Any = None) -> tuple[CallOfRecords, list[Leaf], tuple[Any, ...]]:
        """Flattens a call: its structure, its dynamic leaves (those of the records first), and its `Entered`."""
        # The places are in the treedef (see `Parts`), and the arrays of the records are leaves: a composite that opens
        # a new block at each call hits the cache.
        entered = _entered(call)
        structure, dynamic, _ = super().enter(cast(Any, entered[0]))
        return structure, dynamic, (*entered, structure)

    def roots(self, call: Any) -> list[tuple[Path, PyTree]]:
        """The trees of a call with its records in front."""
        return [*call[0].named_records(), (("<function>",), call[0].functions), *named_arguments(call)]

    def recognise(self, call: Call) -> tuple[Hashable, Sequence[PyTree], Any] | None:
        """As `Values.recognise`, of the call with its records."""
        entered = _entered(call)
        return recognised(entered[0], entered)

    def may_update(self, crossing: Crossing[CallOfRecords]) -> bool:
        """True: the call of a part may return a successor."""
        return True

    def rides(
        self, prefix: Arrival, call: Call, entered: Any, leaves: Sequence[Leaf], read: Read, option: str
    ) -> list[Ride]:
        """The ride of each leaf; a record that a loop does not slice becomes part of its carry if it changes."""
        rides, parts = super().rides(prefix, entered[0], entered[2], leaves, read, option), entered[0][0]
        for i in range(sum(map(is_array, trees.flatten(parts.records)[0]))):
            ride = rides[i]
            rides[i] = replace(ride, along=True) if isinstance(ride, Step) and ride.axis is None else ride
        return rides

    def rebuild(self, crossing: Crossing[CallOfRecords], values: Sequence[PyTree]) -> tuple[Call, Any]:
        """Builds the live call, with the parts on new blocks; these blocks are the memory for `leave`."""
        parts, args, kwargs = crossing.structure.build(values)
        functions, blocks = parts.inside()
        return (functions, args, kwargs), blocks

    def leave(
        self,
        crossing: Crossing[CallOfRecords],
        values: Sequence[PyTree],
        live: Call,
        memory: Any,
        out: PyTree,
        departure: Departure,
    ) -> tuple[Groups, Groups, Outcome]:
        """Flattens the output, and the changed leaves of the records, into lanes."""
        lanes = OutLanes(departure)
        outcome = self.outcome(crossing, values, out, departure, lanes)
        updates: list[tuple[int, int, int]] = []
        # In the order of `enter`, where the arrays of the records are the first dynamic leaves. A successor has the
        # structure of its record, so that the positions agree.
        after = [leaf for block in memory for leaf in trees.flatten(block.finish())[0] if is_array(leaf)]
        for position, value in enumerate(after):
            ride, changed = crossing.rides[position].update, value is not values[position]
            if departure.updated is not None and changed and position not in departure.updated:
                raise SuccessorError(
                    "a record changes where its successor cannot be returned: in the condition of a loop, or in the "
                    "forward function of a custom_vjp but not in the function itself",
                    at=format_path(crossing.structure.path_of(position)),
                    fix="return no successor there, or change the same leaves in the function itself",
                )
            # Without a ride (in `eval_shape`) nothing is computed, and so nothing comes back.
            if ride is not None and (changed if departure.updated is None else position in departure.updated):
                where = lanes.update(ride, value, lambda i=position: format_path(crossing.structure.path_of(i)))
                updates.append((position, *where))
        return *lanes.finished(), replace(outcome, updates=tuple(updates))

    def hand_over(self, entered: Any, outcome: Outcome, values: Sequence[PyTree], groups: Groups) -> PyTree:
        """Builds the output, and puts the records with their changed leaves into the caller's block."""
        new = {position: groups[lane][place] for position, lane, place in outcome.updates}
        parts, start = entered[0][0], 0
        by = parts.functions[0].suffix() if len(parts.functions) == 1 else "(...)"
        for block, (_, path), record in zip(entered[1], parts.places, parts.records, strict=True):
            leaves, structure = trees.flatten(record)
            places = [i for i, leaf in enumerate(leaves) if is_array(leaf)]
            changed = {i: new[start + n] for n, i in enumerate(places) if start + n in new}
            start += len(places)
            if changed:
                block.put(path, structure.unflatten([changed.get(i, leaf) for i, leaf in enumerate(leaves)]), by=by)
        return super().hand_over(entered, outcome, values, groups)

    def quick_way(self, crossing: Crossing[CallOfRecords], entered: Any, call: Call) -> QuickWay | None:
        """None: a compiled part is called from a block, whose own calls cost more than the generated code saves."""
        return None


def _entered(call: Call) -> Entered:
    """The call with the records of its parts in front, and the blocks that their successors go into."""
    functions, args, kwargs = call
    places = {(id(f.block), f.path): (f.block, f.path) for f in functions if isinstance(f, ThreadedFunction)}.values()
    # If two parts lie one in the other, only the outer record enters: as two records, each would miss the other's
    # change.
    outermost = [place for place in places if not any(_holds(outer, place) for outer in places if outer is not place)]

    def owner(part: ThreadedFunction) -> int:
        return next(i for i, place in enumerate(outermost) if _holds(place, (part.block, part.path)))

    owners = tuple([owner(f) if isinstance(f, ThreadedFunction) else None for f in functions])
    records = tuple([block.get(path) for block, path in outermost])
    for (block, path), record in zip(outermost, records, strict=True):
        note_place(record, block.name, path)
    named = tuple([f.named() if isinstance(f, ThreadedFunction) else f for f in functions])
    parts = Parts(records, named, tuple([(block.name, path) for block, path in outermost]), owners)
    args, kwargs = tuple(map(value_of, args)), {name: value_of(value) for name, value in kwargs.items()}
    return (parts, args, kwargs), tuple([block for block, _ in outermost])


def _holds(outer: tuple[Block, Path], inner: tuple[Block, Path]) -> bool:
    return outer[0] is inner[0] and inner[1][: len(outer[1])] == outer[1]


THREADED = Threaded()


def boundary_of(
    boundary: AnyBoundary, functions: tuple[Function, ...], name: str
) -> tuple[AnyBoundary, tuple[Function, ...]]:
    """The boundary of threaded parts if one of the functions is a part, else `boundary`; and the functions for it.

    Raises:
        SuccessorError: for a part in a transform of `nnx`, which writes updates to NNX objects only.
    """
    parts = [threaded_function(function) for function in functions]
    if not any(parts):
        return boundary, functions
    if not isinstance(boundary, Values):
        refuse_threaded(functions, name, "it writes updates to NNX objects only")
    return THREADED, tuple([part or function for part, function in zip(parts, functions, strict=True)])
