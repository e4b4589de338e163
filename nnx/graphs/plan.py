"""Plans: the analysis of a graph, remembered until the graph's structure changes.

A *plan* of some roots (the objects and Variables among a call's arguments) has their joint structure, their leaves in
order, and the means to check that none of it has changed since:

- the structural version of every object and the identity of every Variable's metadata, which are compared only after
  some object or metadata of the process has changed (see `versions`);
- a *guard* for each plain list or dict, and for each object whose `__dict__` the user has read: the identities of its
  elements, because those can be mutated without a new version;
- a *snapshot* of each unhashable static value, such as a dict of options, and the hash of each static value that is
  hashable but mutable (see `stability`).

Nothing watches objects of node types that users register, mutable static values that compare by value, JAX refs and
hijax Variables. A plan with such a value is *volatile*: it serves the call that made it, and is not stored.

The first root stores the plan, and the plan refers to roots weakly, so it is part of no reference cycle and keeps no
root alive. Its references below a root live as long as the root, or until the roots are planned again.

    plan = plan_of(roots)           # looked up, or made
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
_MOST_PLANS = 8  # plans stored at one object, as their first root

Guard = tuple[Any, tuple[int, ...], tuple[Any, ...]]


def guard_of(container: Any) -> Guard:
    """A container, the identities of its elements, and the elements: kept alive, their `id`s are not reused."""
    values = tuple(container.values()) if isinstance(container, dict) else tuple(container)
    return container, _identities(container), values


def _identities(container: Any) -> tuple[int, ...]:
    if isinstance(container, dict):
        # Keys by hash: an equal key may be another object, such as a string made at run time.
        return (*map(id, container.values()), *map(hash, container))
    return tuple(map(id, container))


def guards_hold(guards: Sequence[Guard]) -> bool:
    """Whether no guarded container has changed."""
    return all(_identities(container) == identities for container, identities, _ in guards)


def _is_frozen(node: Any) -> bool:
    return dataclasses.is_dataclass(node) and cast(Any, type(node)).__dataclass_params__.frozen


class Recorder(Flattener):
    """A flattener that also records what a plan has to check later."""

    def __init__(self, ref_index: RefMap, marks: Sequence[MutableStatic[Any]] = ()) -> None:
        # No outer indexes: a plan describes the objects as they are, and is used again for other calls.
        super().__init__(ref_index, None, with_paths=True)
        # Marks of the previous plan of these roots. A mark whose value is unmutated is used again, so that the old and
        # the new structure are equal by identity, and jit's cache need not compare the values.
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
        mark = self.watched.get(id(value))
        if mark is not None:
            return mark
        try:
            # Each value once: a `__hash__` of the user's may be slow.
            self.hashes[id(value)] = self.hashes.get(id(value)) or (value, hash(value))
        except TypeError:
            return self._marked(value)
        return Static(value)

    def _marked(self, value: Any) -> MutableStatic[Any]:
        mark = self.earlier.get(id(value))
        if mark is None or not still_is(value, mark.seen):
            mark = MutableStatic(value, snapshot(value))
        self.watched[id(value)] = mark
        # A snapshot does not show every change of such a value: a list of NumPy arrays, which are mutable themselves.
        if not is_watchable(value):
            self.volatile = True
        return mark

    def _variable(self, variable: Any, path: Path) -> None:
        # A ref is written in place by JAX, and has no version.
        if variable._nnx_metadata["ref"] or is_array_ref(variable._raw_value):
            self.volatile = True
        super()._variable(variable, path)

    def _hijax(self, variable: Any, path: Path) -> None:
        self.volatile = True
        super()._hijax(variable, path)

    def _ref_node(self, ref: Any, path: Path) -> None:
        self.volatile = True
        super()._ref_node(ref, path)


class Plan:
    """The analysis of some roots, valid until their structure changes.

    Attributes:
        graphdef: the joint structure of the roots; hashable, and equal for roots of equal structure.
        starts: for each root, the position of its first leaf.
        paths: the path of each leaf from its root.
        leaves: the Variables, and the arrays that are plain attributes, in the order of the walk.
        numbers: for each leaf its number in `graphdef`; None for an array.
        variables: the Variables among the leaves.
        by_number: objects and Variables by number; roots as weak references.
        repeats: (number, path from its root) for each further path to a node.
        repeat_starts: for each root, the position of its first repeat.
        volatile: whether the plan serves one call only.
    """

    __slots__ = (
        "__weakref__", "_epoch", "_guards", "_hashes", "_metadata", "_objects", "_roots", "_selected", "_settled",
        "_trace_states", "_versions", "_watched", "by_number", "graphdef", "leaves", "numbers", "paths",
        "repeat_starts", "repeats", "starts", "variables", "volatile",
    )  # fmt: skip

    def __init__(self, roots: Sequence[Any], earlier: Plan | None = None):
        # Read before the walk: if another thread mutates a root during it, the plan is found outdated at its first use.
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
        # Each trace level once: thousands of Variables mostly have the same one, and each write checks all of them.
        levels = {id(variable._trace_state): variable._trace_state for variable in self.variables}
        self._trace_states: list[TraceState] = list(levels.values())
        self._guards = walk.guards
        self._watched = list(walk.watched.values())
        self._hashes = list(walk.hashes.values())
        self._selected: dict[Any, list[Any]] = {}
        self._settled = False
        self._keep_objects(roots, walk, numbers)

    # Objects below the roots are referred to strongly: they live as long as a root does, and reading their versions
    # through weak references would take a call each.
    def _keep_objects(self, roots: Sequence[Any], walk: Recorder, numbers: RefMap) -> None:
        forget = weakref.WeakMethod(self._forget)
        # The weak reference owns this callback, and the plan owns the weak reference. A bound method in the callback
        # would close that circle, so it is weak too. Once the plan is gone `forget()` is None, and calling `int` does
        # nothing.
        weak = {id(root): weakref.ref(root, lambda _: (forget() or int)()) for root in roots if is_object(root)}
        versions = list(zip(walk.objects, walk.versions, strict=True))
        self._roots = [(weak[id(node)], version) for node, version in versions if id(node) in weak]
        self._objects = [node for node, _ in versions if id(node) not in weak]
        self._versions = [version for node, version in versions if id(node) not in weak]
        self.by_number = {number: weak.get(id(node), node) for node, number in numbers.items()}

    def _forget(self) -> None:
        """Drops all references when a root has died: the plan could not be used again, but would keep arrays alive."""
        self.volatile = True
        self.leaves, self.variables, self._objects, self._versions, self._guards = [], [], [], [], []
        self._watched, self._hashes = [], []
        self.by_number, self._selected = {}, {}

    def select(self, key: Any, places: Sequence[int]) -> list[Any]:
        """The leaves at `places`, remembered under `key` until a root dies."""
        selected = self._selected.get(key)
        if selected is None:
            selected = [self.leaves[i] for i in places]
            if len(self._selected) >= _MOST_SELECTED:
                # Only a program that retraces all the time fills it; selecting again costs little.
                self._selected.clear()
            self._selected[key] = selected
        return selected

    @property
    def by_versions(self) -> bool:
        """Whether versions alone detect every change of the roots."""
        return not (self.volatile or self._guards or self._watched or self._hashes)

    def is_valid(self, statics: bool = True) -> bool:
        """Whether the roots still have this structure; `statics=False` leaves static values unchecked."""
        if self.volatile:
            return False
        now = structure_epoch.now
        # While no structure in the process has changed, no object is checked. After a check the plan is valid up to
        # `now`, so that a mutation of an unrelated object costs one check, and not one at each call.
        if now != self._epoch:
            if not (self._versions_hold() and self._metadata_holds()):
                return False
            self._epoch = now
        # Most plans end here: their roots have neither plain containers nor mutable static values.
        if not (self._guards or self._watched or self._hashes):
            return True
        if not guards_hold(self._guards):
            return False
        return not statics or (
            all(still_is(mark.value, mark.seen) for mark in self._watched)
            and all(hash(value) == known for value, known in self._hashes)
        )

    def _versions_hold(self) -> bool:
        # One list comprehension and one comparison in C: this runs for every object of a model after any mutation.
        if [node._pytree__version for node in self._objects] != self._versions:
            return False
        for root, version in self._roots:
            node = root()
            if node is None or node._pytree__version != version:
                return False
        return True

    def _metadata_holds(self) -> bool:
        for variable, metadata in zip(self.variables, self._metadata, strict=True):
            # `set_metadata` stores a new record, so identity tells. Storing a ref as the value changes no metadata,
            # but the plan would have to be volatile for it.
            if variable._nnx_metadata is not metadata or is_array_ref(variable._raw_value):
                return False
        return True

    def node(self, number: int) -> Any:
        """Returns the object or Variable of a number."""
        node = self.by_number[number]
        return node() if isinstance(node, weakref.ref) else node

    def settle(self) -> None:
        """Marks the objects' attributes as sorted, because updates have rewritten them in order (see `in_order`)."""
        if not self._settled:
            for node in filter(is_object, map(self.node, self.by_number)):
                _store(node, "_pytree__sorted", len(attributes_of(node)))
            self._settled = True

    def read(self) -> list[Any]:
        """Returns the leaves' values: the raw values of Variables, and arrays."""
        if len(self.variables) == len(self.leaves):
            # The common case, without array attributes, is a loop in C: it runs at each call.
            return list(map(_raw_value, self.variables))
        return [leaf._raw_value if type(leaf) in VARIABLE_TYPES else leaf for leaf in self.leaves]

    def check_writable(self) -> None:
        """Refuses to write into Variables that were created at another trace level.

        Raises:
            TraceContextError: naming the Variables.
        """
        here = current_trace_state()
        for state in self._trace_states:  # no `all(...)`: a generator takes as long as the writes
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
    """The Variables of a graph, with their paths."""
    if type(node) in VARIABLE_TYPES:
        return [((), node)]
    walk = Flattener(RefMap(), None, with_paths=True)
    walk.root(node)
    return [
        (path, leaf) for path, leaf in zip(walk.paths or (), walk.leaves, strict=True) if type(leaf) in VARIABLE_TYPES
    ]


def is_object(value: Any) -> bool:
    """Whether a value is an object with a structural version."""
    return isinstance(value, Slots)


def plan_of(roots: Sequence[Any], key: Any = None) -> Plan:
    """Returns the stored plan of some roots if it is valid, or makes a new one.

    A plan with a Variable among its roots is not stored, because it would keep the Variable and its array alive.

    Args:
        roots: objects and Variables, in order.
        key: a hashable value that tells several plans of the same roots apart.
    """
    if not roots or not all(map(is_object, roots)):
        return Plan(roots)
    first = roots[0]
    name = (key, *map(id, roots))
    plans = first._pytree__plans
    plan = None if plans is None else plans.get(name)
    # `id`s of dead objects are reused, but a plan is valid only while its roots are alive.
    if plan is not None and plan.is_valid():
        return plan
    plan = Plan(roots, plan)
    if plans is None:
        plans = {}
        _store(first, "_pytree__plans", plans)
    # A program that calls with ever new combinations of roots would otherwise store a plan for each of them.
    elif name not in plans and len(plans) >= _MOST_PLANS:
        plans.clear()
    if plan.volatile:
        plans.pop(name, None)
    else:
        plans[name] = plan
    return plan
