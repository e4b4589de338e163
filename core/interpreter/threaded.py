"""The boundary of threaded parts: `weft.scan(t.blocks)(x)` inside of a `thread` block.

Inside of a block the record is what references are in NNX: something that a call changes. So a part goes in and comes
out as there, on values:

- on the way in the records of the parts go in front of the call's leaves; where the rule has its functions' own arrays;
- inside, each is a block of its own (`Block.inside`), which the parts are called on, and in which successors meet;
- on the way out the leaves that changed there leave on their ride's update lane, as every rule provides for it;
- handing over puts the records with these leaves into the caller's block, which may be one inside of another transform.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from weft.core.interpreter.values import CallOfRecords, Outcome, Values, named_arguments
from weft.core.paths import Path, format_path
from weft.core.records.leaves import Leaf, is_array, iter_leaves
from weft.core.records.partition import assemble
from weft.core.records.statics import Make
from weft.core.threads.blocks import Block
from weft.core.threads.debugging import note_place
from weft.core.threads.functions import ThreadedFunction, value_of
from weft.core.threads.proxies import refuse_threaded, threaded_function


@dataclass(frozen=True)
class Parts:
    """A call's functions of which some are parts, with the records of these: a tree, in the place of the functions.

    Attributes:
        records: none of them inside of another.
        functions: all of them; the parts on no block, as what is kept of a call must not keep what is in one.
        places: of the records: what the block is called, and the path in it. Equal for what is called alike.
        owners: for each of the functions which record it is a part of; None: it is no part.
    """

    records: tuple[eqx.Module, ...]
    functions: tuple[Function, ...]
    places: tuple[tuple[str, Path], ...]
    owners: tuple[int | None, ...]

    def inside(self) -> tuple[tuple[Function, ...], tuple[Block, ...]]:
        """The functions, the parts among them on blocks inside of the transform, and these."""
        blocks = tuple(Block.inside(record, *place) for record, place in zip(self.records, self.places, strict=True))
        pairs = zip(self.functions, self.owners, strict=True)
        return tuple(f if owner is None else cast("Any", f).on(blocks[owner]) for f, owner in pairs), blocks

    def __getitem__(self, index: int) -> Function:
        return self.inside()[0][index]

    def held(self) -> list[tuple[Path, PyTree]]:
        """The records, by what they are called."""
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
        """The records, and what functions hold that are no parts."""
        plain = [f for f, owner in zip(functions.functions, functions.owners, strict=True) if owner is None]
        return [*functions.held(), *super().trees_of_functions(tuple(plain))]


# The call as it goes in, and for each of its records the block that it is put back into.
Entered = tuple[tuple[Parts, tuple[PyTree, ...], Mapping[str, PyTree]], tuple[Block, ...]]


class Threaded(Values):
    """The boundary of threaded parts. It has no state; `THREADED` is the one instance."""

    name = "threaded"
    has_updates = True

    def __reduce__(self) -> str:
        return "THREADED"

    def enter(self, call: Call) -> tuple[CallOfParts, list[Leaf], tuple[Any, ...]]:
        """Takes a call apart: its structure, its dynamic leaves, the records' first, and what it came from."""
        entered = _entered(call)
        parts: Any = entered[0][0]
        for (root, path), record in zip(parts.places, parts.records, strict=True):
            note_place(record, root, path)
        fields: list[object] = []
        leaves: list[Leaf] = []
        named = named_arguments((parts, *entered[0][1:]))
        for path, tree in [*parts.held(), (("<function>",), parts.functions), *named]:
            leaves += iter_leaves(tree, path, fields=fields)
        structure, dynamic = assemble(CallOfParts, Make(trees.structure(entered[0]), tuple(fields)), leaves)
        return structure, dynamic, (*entered, structure)

    def may_update(self, crossing: Crossing[CallOfRecords]) -> bool:
        """Parts may have successors."""
        return True

    def rides(
        self, prefix: Arrival, call: Call, entered: Any, leaves: Sequence[Leaf], read: Read, what: str
    ) -> list[Ride]:
        """The ride of each leaf; what changes of records that are the same at every step is carried along."""
        rides, parts = super().rides(prefix, entered[0], entered[2], leaves, read, what), entered[0][0]
        for i in range(sum(map(is_array, trees.flatten(parts.records)[0]))):
            ride = rides[i]
            rides[i] = replace(ride, along=True) if isinstance(ride, Step) and ride.axis is None else ride
        return rides

    def rebuild(self, crossing: Crossing[CallOfRecords], values: Sequence[PyTree]) -> tuple[Call, Any]:
        """The live call, whose parts are those of blocks inside of the transform."""
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
        """Takes an output apart into lanes, and the records for what changed in them."""
        lanes = OutLanes(departure)
        outcome = self.outcome(crossing, values, out, departure, lanes)
        updates: list[tuple[int, int, int]] = []
        after = [leaf for block in memory for leaf in trees.flatten(block.finish())[0] if is_array(leaf)]
        for position, value in enumerate(after):
            ride, changed = crossing.rides[position].update, value is not values[position]
            if departure.updated is not None and changed and position not in departure.updated:
                raise SuccessorError(
                    "a record changes where its successor has no way out: in the condition of a loop, or in the "
                    "forward function of a custom_vjp alone",
                    at=format_path(crossing.structure.path_of(position)),
                    fix="return no successor there, or change the same in the function itself",
                )
            # No ride: nothing of what is only looked at comes back.
            if ride is not None and (changed if departure.updated is None else position in departure.updated):
                where = lanes.update(ride, value, lambda i=position: format_path(crossing.structure.path_of(i)))
                updates.append((position, *where))
        return *lanes.finished(), replace(outcome, updates=tuple(updates))

    def hand_over(self, entered: Any, outcome: Outcome, values: Sequence[PyTree], groups: Groups) -> PyTree:
        """The output; and the records' changed leaves go into the caller's block."""
        _write(entered, outcome, groups)
        return super().hand_over(None, outcome, values, groups)

    def quick_way(self, crossing: Crossing[CallOfRecords], entered: Any, call: Call) -> QuickWay | None:
        """Generated code for calls of this make, as they go in."""
        quick = super().quick_way(crossing, None, entered[0])
        if quick is None:
            return None

        def extract(call: Call) -> tuple[Any, Sequence[PyTree], Groups] | None:
            # The memory is also that of the records that are called without a block.
            if not any(isinstance(function, ThreadedFunction) for function in call[0]):
                return None
            entered = _entered(call)
            found = quick.extract(cast(Any, entered[0]))
            return None if found is None else ((entered, found[0]), *found[1:])

        def hand_over(both: Any, outcome: Outcome, values: Sequence[PyTree], groups: Groups) -> PyTree:
            _write(both[0], outcome, groups)
            return quick.hand_over(both[1], outcome, values, groups)

        return QuickWay(extract, hand_over)


def _entered(call: Call) -> Entered:
    """A call with the records of its parts in front, and where these are put back."""
    functions, args, kwargs = call
    found = {(id(f.block), f.path): (f.block, f.path) for f in functions if isinstance(f, ThreadedFunction)}.values()
    outermost = [one for one in found if not any(_holds(other, one) for other in found if other is not one)]
    owners = tuple(
        next(i for i, place in enumerate(outermost) if _holds(place, (f.block, f.path)))
        if isinstance(f, ThreadedFunction)
        else None
        for f in functions
    )
    records = tuple(block.get(path) for block, path in outermost)
    named = tuple(
        f.on(Block.inside(None, f.block.name, ())) if isinstance(f, ThreadedFunction) else f for f in functions
    )
    parts = Parts(records, named, tuple((block.name, path) for block, path in outermost), owners)
    args, kwargs = tuple(map(value_of, args)), {name: value_of(value) for name, value in kwargs.items()}
    return (parts, args, kwargs), tuple(block for block, _ in outermost)


def _holds(outer: tuple[Block, Path], inner: tuple[Block, Path]) -> bool:
    return outer[0] is inner[0] and inner[1][: len(outer[1])] == outer[1]


def _write(entered: tuple[Any, ...], outcome: Outcome, groups: Groups) -> None:
    """Puts the records with their changed leaves into the blocks that they come from."""
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


THREADED = Threaded()


def boundary_of(
    boundary: AnyBoundary, functions: tuple[Function, ...], name: str
) -> tuple[AnyBoundary, tuple[Function, ...]]:
    """The boundary for functions, that of threaded parts if there is one among them, and the functions as it has them.

    Raises:
        SuccessorError: for a part under a boundary that has no place for records.
    """
    found = [threaded_function(function) for function in functions]
    if not any(found):
        return boundary, functions
    if not isinstance(boundary, Values):
        refuse_threaded(functions, name, "its own objects are what it writes to")
    return THREADED, tuple(part or function for part, function in zip(found, functions, strict=True))
