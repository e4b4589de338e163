"""Plans: a graph analysed once, valid until its structure changes.

A *plan* of some roots (the objects and Variables among a call's arguments) holds their joint structure, their leaves
in order, and what it takes to see whether any of that has changed since:

- the structural version of every object and the identity of every Variable's metadata, looked at only when any
  object's structure or any Variable's metadata has changed anywhere (see `versions`);
- a *guard*, the identities of the elements, for each plain list or dict and for each object whose `__dict__` was
  handed out: those can change without telling;
- a *snapshot* of each static value that has no hash, such as a dict or a dataclass of options, and the hash of each
  that has one and may change (see `stability`).

What cannot be watched that way (objects of foreign node types, static values that are mutable and compared by value,
JAX refs, hijax Variables) makes a plan *volatile*: right for the call that made it, and never found again.

A plan is kept by its first root and holds roots only weakly, so that it makes no cycle and keeps no root alive. What
it holds of a root's subtree lives as long as the root, or until the roots are planned again.

    plan = plan_of(roots)           # found, or made
    values = plan.read()            # raw values of Variables, and array attributes
    plan.check_writable()           # before anything is written into Variables (see `writes`)
"""

from __future__ import annotations

import dataclasses
import operator
import weakref
from collections.abc import Sequence
from typing import Any, cast

from weft.core.paths import Path, format_path
from weft.nnx.errors import TraceContextError
from weft.nnx.graphs.definitions import GraphDef, MutableStatic, RefMap, Static
from weft.nnx.graphs.flattening import Flattener
from weft.nnx.objects.objects import OBJECT, Slots, attributes_of
from weft.nnx.objects.stability import is_stable, is_watchable, snapshot, still_is
from weft.nnx.states.states import State
from weft.nnx.variable.refs import is_array_ref
from weft.nnx.variable.tracers import TraceState, current_trace_state
from weft.nnx.variable.variable import VARIABLE_TYPES
from weft.nnx.versions import structure_epoch

_store = object.__setattr__
_raw_value = operator.attrgetter("_raw_value")
_MOST_SELECTED = 64
_MOST_PLANS = 8  # an object is the first root of this many plans at most

Guard = tuple[Any, tuple[int, ...], tuple[Any, ...]]


def guard_of(container: Any) -> Guard:
    """A container with the identities of its keys and elements, and the elements, so that those stay their own."""
    values = tuple(container.values()) if isinstance(container, dict) else tuple(container)
    return container, _identities(container), values


def _identities(container: Any) -> tuple[int, ...]:
    if isinstance(container, dict):
        return (*map(id, container.values()), *map(hash, container))
    return tuple(map(id, container))


def guards_hold(guards: Sequence[Guard]) -> bool:
    """Whether no guarded container has changed."""
    return all(_identities(container) == identities for container, identities, _ in guards)


def _is_frozen(node: Any) -> bool:
    return dataclasses.is_dataclass(node) and cast(Any, type(node)).__dataclass_params__.frozen


class Recorder(Flattener):
    """A flattener that also records what a plan must watch."""

    def __init__(self, ref_index: RefMap, marks: Sequence[MutableStatic[Any]] = ()) -> None:
        super().__init__(ref_index, None, True)
        # Of an earlier walk over the same roots: one that still holds is the same mark, and equal without a question.
        self.earlier = {id(mark.value): mark for mark in marks}
        self.objects: list[Any] = []
        self.versions: list[int] = []
        self.guards: list[Guard] = []
        self.watched: dict[int, MutableStatic[Any]] = {}
        self.hashes: dict[int, tuple[Any, int]] = {}
        self.volatile = False

    def describe(self, node: Any, impl: Any, path: Path, number: int | None, outer: int | None) -> None:
        if impl is OBJECT:
            # The version is read before the attributes: a mutation in between shows as a newer version.
            self.objects.append(node)
            self.versions.append(node._pytree__version)
            if node._pytree__exposed:
                self.guards.append(guard_of(attributes_of(node)))
        elif isinstance(node, list | dict | State):
            self.guards.append(guard_of(node._mapping if isinstance(node, State) else node))
        elif not isinstance(node, tuple | None) and not _is_frozen(node):
            self.volatile = True
        super().describe(node, impl, path, number, outer)

    def static(self, value: Any) -> Static[Any]:
        if is_stable(value):
            return Static(value)
        met = self.watched.get(id(value))
        if met is not None:
            return met
        try:
            # Each once: a hash of the user's own may be slow.
            self.hashes[id(value)] = self.hashes.get(id(value)) or (value, hash(value))
        except TypeError:
            return self._marked(value)
        return Static(value)

    def _marked(self, value: Any) -> MutableStatic[Any]:
        mark = self.earlier.get(id(value))
        if mark is None or not still_is(value, mark.seen):
            mark = MutableStatic(value, snapshot(value))
        self.watched[id(value)] = mark
        if not is_watchable(value):
            self.volatile = True
        return mark

    def _variable(self, variable: Any, path: Path) -> None:
        # A ref changes where it is, without telling.
        if variable._nnx_metadata["ref"] or is_array_ref(variable._raw_value):
            self.volatile = True
        super()._variable(variable, path)

    def _hijax(self, variable: Any, path: Path) -> bool:
        self.volatile = True
        return super()._hijax(variable, path)

    def _ref_node(self, ref: Any, path: Path) -> bool:
        self.volatile = True
        return super()._ref_node(ref, path)


class Plan:
    """What is known of some roots, until their structure changes.

    Attributes:
        graphdef: the structure of the roots, one after the other; hashable, and equal for roots of equal make.
        starts: for each root, the place of its first leaf.
        paths: the path of each leaf inside of its root.
        leaves: Variables, and arrays that are attributes, in order.
        numbers: of each leaf that is a Variable, its number in `graphdef`; `None` for an array.
        variables: the Variables among the leaves, in order, each once.
        by_number: objects (weakly, if they are roots) and Variables by their number.
        repeats: what was met again, as (number, path inside of its root).
        repeat_starts: for each root, the place of its first repeat.
        volatile: whether the plan is good for one call only.
    """

    __slots__ = (
        "__weakref__", "_epoch", "_guards", "_hashes", "_metadata", "_objects", "_roots", "_selected", "_settled",
        "_trace_states", "_versions", "_watched", "by_number", "graphdef", "leaves", "numbers", "paths",
        "repeat_starts", "repeats", "starts", "variables", "volatile",
    )  # fmt: skip

    def __init__(self, roots: Sequence[Any], earlier: Plan | None = None):
        # Read before the walk: what is mutated while it goes on has a newer number, and the plan is looked at again.
        self._epoch = structure_epoch.now
        numbers = RefMap()
        walk = Recorder(numbers, earlier._watched if earlier is not None else ())
        self.starts: list[int] = []
        self.repeat_starts: list[int] = []
        for root in roots:
            self.starts.append(len(walk.leaves))
            self.repeat_starts.append(len(walk.repeats))
            walk.root(root)
        self.repeats = walk.repeats
        self.graphdef: GraphDef[Any] = walk.graphdef()
        self.paths: tuple[Path, ...] = tuple(walk.paths or ())
        self.leaves: list[Any] = walk.leaves
        self.volatile = walk.volatile
        self.variables = [leaf for leaf in walk.leaves if type(leaf) in VARIABLE_TYPES]
        self.numbers = [numbers.get(leaf) for leaf in walk.leaves]
        self._metadata = [variable._nnx_metadata for variable in self.variables]
        # Each once: thousands of Variables are mostly of one trace level, and all levels are asked at each write.
        levels = {id(variable._trace_state): variable._trace_state for variable in self.variables}
        self._trace_states: list[TraceState] = list(levels.values())
        self._guards = walk.guards
        self._watched = list(walk.watched.values())
        self._hashes = list(walk.hashes.values())
        self._selected: dict[Any, list[Any]] = {}
        self._settled = False
        self._keep_objects(roots, walk, numbers)

    def _keep_objects(self, roots: Sequence[Any], walk: Recorder, numbers: RefMap) -> None:
        forget = weakref.WeakMethod(self._forget)
        # The callback is held by the reference, and so by the plan, of which it knows weakly: after the plan is gone
        # `forget()` is None, and `int` does nothing.
        weak = {id(root): weakref.ref(root, lambda _: (forget() or int)()) for root in roots if is_object(root)}
        versions = list(zip(walk.objects, walk.versions, strict=True))
        self._roots = [(weak[id(node)], version) for node, version in versions if id(node) in weak]
        self._objects = [node for node, _ in versions if id(node) not in weak]
        self._versions = [version for node, version in versions if id(node) not in weak]
        self.by_number = {number: weak.get(id(node), node) for node, number in numbers.items()}

    def _forget(self) -> None:
        """Lets go of everything, when a root has died."""
        self.volatile = True
        self.leaves, self.variables, self._objects, self._versions, self._guards = [], [], [], [], []
        self._watched, self._hashes = [], []
        self.by_number, self._selected = {}, {}

    def select(self, key: Any, places: Sequence[int]) -> list[Any]:
        """Some of the leaves, remembered under a key, and let go of with the objects."""
        found = self._selected.get(key)
        if found is None:
            found = [self.leaves[i] for i in places]
            if len(self._selected) >= _MOST_SELECTED:
                # Full only with many outcomes that come and go; what is needed is selected again.
                self._selected.clear()
            self._selected[key] = found
        return found

    @property
    def by_versions(self) -> bool:
        """Whether versions tell all that can change in the roots."""
        return not (self.volatile or self._guards or self._watched or self._hashes)

    def is_valid(self, statics: bool = True) -> bool:
        """Whether the roots still have this structure; without `statics`, static values are not asked for theirs."""
        if self.volatile:
            return False
        now = structure_epoch.now
        # As long as nothing was mutated anywhere, no object is looked at. Afterwards the plan is good up to now, so
        # that one mutation elsewhere is paid for once.
        if now != self._epoch:
            if not (self._versions_hold() and self._metadata_holds()):
                return False
            self._epoch = now
        # Most plans watch nothing, and are asked at each call.
        if not (self._guards or self._watched or self._hashes):
            return True
        if not guards_hold(self._guards):
            return False
        return not statics or (
            all(still_is(mark.value, mark.seen) for mark in self._watched)
            and all(hash(value) == known for value, known in self._hashes)
        )

    def _versions_hold(self) -> bool:
        if [node._pytree__version for node in self._objects] != self._versions:
            return False
        for root, version in self._roots:
            node = root()
            if node is None or node._pytree__version != version:
                return False
        return True

    def _metadata_holds(self) -> bool:
        for variable, metadata in zip(self.variables, self._metadata, strict=True):
            # Metadata is replaced as a whole, so its identity tells. A ref that was put into a Variable is no metadata,
            # and cannot be watched.
            if variable._nnx_metadata is not metadata or is_array_ref(variable._raw_value):
                return False
        return True

    def node(self, number: int) -> Any:
        """The object or Variable that has a number."""
        node = self.by_number[number]
        return node() if isinstance(node, weakref.ref) else node

    def settle(self) -> None:
        """Says that the objects have been described anew with their updates: what they have is sorted (`in_order`)."""
        if not self._settled:
            for node in filter(is_object, map(self.node, self.by_number)):
                _store(node, "_pytree__sorted", len(attributes_of(node)))
            self._settled = True

    def read(self) -> list[Any]:
        """The leaves' values: raw values of Variables, arrays as they are."""
        if len(self.variables) == len(self.leaves):
            # In C, for the common case that no array is an attribute.
            return list(map(_raw_value, self.variables))
        return [leaf._raw_value if type(leaf) in VARIABLE_TYPES else leaf for leaf in self.leaves]

    def check_writable(self) -> None:
        """Refuses to write from another trace level than that of the Variables.

        Raises:
            TraceContextError: naming the Variables.
        """
        here = current_trace_state()
        for state in self._trace_states:  # no generator: it is asked at each call, and takes as long as writing does
            if state is not here and not state.is_valid():
                break
        else:
            return
        places = [
            f"{format_path(path)}: {type(leaf).__name__}"
            for path, leaf in zip(self.paths, self.leaves, strict=True)
            if type(leaf) in VARIABLE_TYPES and not leaf._can_update
        ]
        raise TraceContextError(
            "Cannot mutate Variables from a different trace level",
            at=places,
            fix="pass them to the transform as arguments instead of closing over them",
        )


def variables_below(node: Any) -> list[tuple[Path, Any]]:
    """The Variables in a graph, with their paths."""
    if type(node) in VARIABLE_TYPES:
        return [((), node)]
    walk = Flattener(RefMap(), None, True)
    walk.root(node)
    return [
        (path, leaf) for path, leaf in zip(walk.paths or (), walk.leaves, strict=True) if type(leaf) in VARIABLE_TYPES
    ]


def is_object(value: Any) -> bool:
    """Whether a value is an object with a structural version."""
    return isinstance(value, Slots)


def plan_of(roots: Sequence[Any], key: Any = None) -> Plan:
    """The plan of some roots, found again as long as it is valid.

    Only a plan whose roots are all objects is kept: it would keep a bare Variable, and its array, alive.

    Args:
        roots: objects and Variables, in order.
        key: anything hashable that tells plans of the same roots apart.
    """
    if not roots or not all(map(is_object, roots)):
        return Plan(roots)
    first = roots[0]
    name = (key, *map(id, roots))
    plans = first._pytree__plans
    plan = None if plans is None else plans.get(name)
    # The roots of a valid plan are alive, so that the identities in its name are still theirs.
    if plan is not None and plan.is_valid():
        return plan
    plan = Plan(roots, plan)
    if plans is None:
        plans = {}
        _store(first, "_pytree__plans", plans)
    elif name not in plans and len(plans) >= _MOST_PLANS:
        plans.clear()
    if plan.volatile:
        plans.pop(name, None)
    else:
        plans[name] = plan
    return plan
