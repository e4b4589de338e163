"""Calls across a trace: arguments taken apart, rebuilt inside, and what changed there brought back out.

A *reference* is anything with an identity: an object, a Variable, a JAX ref. A call of a transformed function goes
through four steps, of which the first and last are outside of the trace, the others inside:

    apart = take_apart((args, kwargs))              # 1. make (static), values (arrays), and the caller's own objects
    live = rebuild(apart.make, values)              # 2. the same tree of fresh objects, holding tracers
    out = f(*live.tree[0], **live.tree[1])
    changes, values = live.changes(out)             # 3. what happened (static), and the arrays of it
    out = apply_changes(apart, changes, values)     # 4. on the caller's own objects; returns the output

The *make* and the *changes* are hashable and hold no identities, so that they serve as keys of compiled functions and
travel as static outputs. Things are named by the numbers that they have in the make's structure; new things have
higher ones. Step 3 finds:

- Variables whose raw value is another object than before (for containers: whose leaves are);
- Variables whose metadata was replaced;
- objects whose attributes changed, with the new attributes: static values, leaves, references to what has a number,
  and descriptions of what is new;
- the output, in the same terms, so that what came in and is returned comes out as the very same object.

What did not change is in none of these, and never leaves the trace. Step 4 makes all checks and all new objects before
it writes anything; an error there, or inside of the function, leaves the caller's objects as they were.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax.core import Tracer
from weft.core.paths import Path
from weft.nnx.errors import StructureError
from weft.nnx.flattening import Flattener
from weft.nnx.graphdef import GraphDef, IndexMap, RefMap
from weft.nnx.metadata import Metadata
from weft.nnx.objects import OBJECT, attributes_of, fill_object
from weft.nnx.outline import Outline, Shape, gather, outline, spread, width
from weft.nnx.plan import Guard, Plan, guard_of, guards_hold, is_object, plan_of
from weft.nnx.refs import is_plain_array
from weft.nnx.state import State
from weft.nnx.unflattening import Unflattener
from weft.nnx.variable import VARIABLE_TYPES, Variable
from weft.nnx.versions import metadata_epoch

_store = object.__setattr__
# ---------------------------------------------------------------------- 1. taking apart


@dataclasses.dataclass(frozen=True)
class Make:
    """Everything of some arguments that is not an array.

    Attributes:
        outline: of the tree.
        graphdef: of its references, one after the other.
        shapes: of the values of the graph's leaves.
    """

    outline: Outline
    graphdef: GraphDef[Any]
    shapes: tuple[Shape, ...] | None


@dataclasses.dataclass(frozen=True)
class Apart:
    """Arguments taken apart.

    Attributes:
        make: the static part.
        values: all arrays: those of the graph's leaves in the plan's order, then those of the tree.
        plan: of the references, with their paths (each inside of its reference) and the objects by number.
        references: the references in the tree.
    """

    make: Make
    values: list[Any]
    plan: Plan
    references: list[Any]

    def paths(self) -> list[Path]:
        """The path of each leaf of the graph, from the tree's root."""
        above, starts = self.make.outline.reference_paths(), [*self.plan.starts, len(self.plan.paths)]
        return [(*root, *path) for i, root in enumerate(above) for path in self.plan.paths[starts[i] : starts[i + 1]]]


def take_apart(tree: Any) -> Apart:
    """Takes arguments apart; the plan of their references is found again while it is valid.

    Raises:
        StaticError: for a leaf that cannot cross, naming its path.
    """
    shape, references, arrays = outline(tree)
    plan = plan_of(references)
    shapes, values = spread(plan.read())
    return Apart(Make(shape, plan.graphdef, shapes), [*values, *arrays], plan, references)


# ---------------------------------------------------------------------- 2. inside: rebuilding


class Live:
    """Arguments rebuilt inside of a trace.

    Attributes:
        tree: the live arguments.
        by_number: the fresh objects and Variables.
    """

    def __init__(self, make: Make, values: Sequence[Any]):
        count = width(make.shapes, make.graphdef.num_leaves)
        self.by_number = IndexMap()
        reader = Unflattener(make.graphdef, gather(make.shapes, values[:count]), self.by_number, None, False, True)
        references = [reader.node() for mark in make.outline.references if mark]
        self.tree = make.outline.build(references, values[count:])
        self.variables = {n: v for n, v in self.by_number.items() if type(v) in VARIABLE_TYPES}
        self._before = {n: _identity(v._raw_value) for n, v in self.variables.items()}
        self._metadata = {n: v._var_metadata for n, v in self.variables.items()}
        self._epoch = metadata_epoch.now
        self._objects = {n: _Snapshot(v) for n, v in self.by_number.items() if is_object(v)}

    def written(self) -> list[int]:
        """The numbers of the Variables whose value is not the one that they came with."""
        return [n for n, v in self.variables.items() if _differs(self._before[n], v._raw_value)]

    def restructured(self) -> list[int]:
        """The numbers of the objects whose attributes changed."""
        return [n for n, snapshot in self._objects.items() if snapshot.changed()]

    def changes(self, out: Any, *, structural: bool = True) -> tuple[Changes, list[Any]]:
        """What happened since the arguments were rebuilt, with an output.

        Args:
            out: what the function returned.
            structural: whether changes of attributes and of metadata count; otherwise only values do.

        Returns:
            The static part, and the arrays.
        """
        written = self.written()
        objects = self.restructured() if structural else []
        metadata: list[tuple[int, Metadata]] = []
        if structural and metadata_epoch.now != self._epoch:
            metadata = [
                (n, v._var_metadata) for n, v in self.variables.items() if v._var_metadata is not self._metadata[n]
            ]
        walk = Flattener(RefMap.from_indexmap(self.by_number), RefMap(), True)
        for number in objects:
            walk.describe(self.by_number[number], OBJECT, (), number, number)
        shape, references, arrays = outline(out)
        for reference in references:
            walk.root(reference)
        new = [leaf._raw_value if isinstance(leaf, Variable) else leaf for leaf in walk.leaves]
        written_shapes, written_values = spread([self.variables[n]._raw_value for n in written])
        new_shapes, new_values = spread(new)
        changes = Changes(
            tuple(written), written_shapes, tuple(metadata), tuple(objects), walk.graphdef(), new_shapes, shape
        )
        return changes, [*written_values, *new_values, *arrays]


class _Snapshot:
    """An object's attributes at one time."""

    __slots__ = ("_guards", "_node", "_values", "_version")

    def __init__(self, node: Any):
        self._node, self._version = node, node._pytree__version
        self._values = dict(attributes_of(node))
        self._guards = list(_guards_inside(self._values.values()))

    def changed(self) -> bool:
        now = attributes_of(self._node)
        if self._node._pytree__version == self._version and guards_hold(self._guards):
            return False
        same = now.keys() == self._values.keys() and all(now[name] is value for name, value in self._values.items())
        return not (same and guards_hold(self._guards))


def _guards_inside(values: Any) -> Any:
    """Guards for the plain containers among values, and for those inside of them."""
    for value in values:
        if isinstance(value, State):
            value = value._mapping
        if isinstance(value, list | dict):
            guard: Guard = guard_of(value)
            yield guard
            yield from _guards_inside(guard[2])
        elif isinstance(value, tuple):
            yield from _guards_inside(value)


def _identity(raw: Any) -> Any:
    """A raw value, or for a container its leaves and shape: what it takes to see whether it changed."""
    if is_plain_array(raw) or isinstance(raw, Tracer):
        return raw
    leaves, shape = jax.tree.flatten(raw)
    return _Leaves(leaves, shape) if not (len(leaves) == 1 and leaves[0] is raw) else raw


@dataclasses.dataclass(slots=True)
class _Leaves:
    leaves: list[Any]
    shape: Any


def _differs(before: Any, raw: Any) -> bool:
    if type(before) is not _Leaves:
        return raw is not before
    leaves, shape = jax.tree.flatten(raw)
    return shape != before.shape or any(now is not then for now, then in zip(leaves, before.leaves, strict=True))


def rebuild(make: Make, values: Sequence[Any]) -> Live:
    """Rebuilds arguments inside of a trace, around the values that the transform gives."""
    return Live(make, values)


# ---------------------------------------------------------------------- 3. what happened


@dataclasses.dataclass(frozen=True)
class Changes:
    """What happened inside of a trace, without the arrays.

    Attributes:
        written: numbers of the Variables that have another value.
        written_shapes: of those values.
        metadata: (number, metadata) of the Variables that have another.
        objects: numbers of the objects that have other attributes.
        graphdef: of those objects, then of the references in the output.
        new_shapes: of the leaves of all these that are not in the arguments.
        outline: of the output.
    """

    written: tuple[int, ...]
    written_shapes: tuple[Shape, ...] | None
    metadata: tuple[tuple[int, Metadata], ...]
    objects: tuple[int, ...]
    graphdef: GraphDef[Any]
    new_shapes: tuple[Shape, ...] | None
    outline: Outline

    @property
    def only_values(self) -> bool:
        """Whether nothing but values of Variables changed, and the output holds no references."""
        return not (self.metadata or self.objects or any(self.outline.references))


# ---------------------------------------------------------------------- 4. outside: applying


def apply_changes(apart: Apart, changes: Changes, values: Sequence[Any]) -> Any:
    """Applies changes to the objects that arguments were taken from, all of them or, on an error, none.

    Args:
        apart: the arguments.
        changes: what happened to them.
        values: the arrays of it.

    Returns:
        The output.

    Raises:
        TraceContextError: if the caller's Variables or objects are of another trace level.
    """
    plan = apart.plan
    end_written = width(changes.written_shapes, len(changes.written))
    written = gather(changes.written_shapes, values[:end_written])
    if changes.only_values:
        if written:
            plan.write(changes.written, written)
        return changes.outline.build((), values[end_written:])
    end_new = end_written + width(changes.new_shapes, changes.graphdef.num_leaves)
    known = IndexMap((number, plan.node(number)) for number in plan.by_number)
    reader = Unflattener(
        changes.graphdef, gather(changes.new_shapes, values[end_written:end_new]), known, None, False, True
    )
    patches = [(known[number], *reader.attributes_of_next()) for number in changes.objects]
    references = [reader.node() for mark in changes.outline.references if mark]
    out = changes.outline.build(references, values[end_new:])
    if written or changes.metadata:
        plan.check_writable()
    for node, *_ in patches:
        node._check_valid_context()
    # Nothing can fail from here on.
    plan.write(changes.written, written)
    for number, metadata in changes.metadata:
        _store(known[number], "_var_metadata", metadata)
    if changes.metadata:
        metadata_epoch.advance()
    for node, nodes, items in patches:
        attributes_of(node).clear()
        fill_object(node, items, nodes)
    return out


def check_same_make(expected: Make, found: Make) -> None:
    """Refuses arguments of another make.

    Raises:
        StructureError: saying what differs.
    """
    for part in ("outline", "graphdef", "shapes"):
        if getattr(expected, part) != getattr(found, part):
            raise StructureError(f"the arguments are of another make: their {part} differs")
