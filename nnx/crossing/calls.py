"""A flattened call: the structure of its arguments together with the user's functions, as the key of its plan.

All parts of the references boundary read its options from one frozen record, a `Mode`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.core.interpreter.boundary import Call, parameter_names
from weft.core.paths import Path
from weft.core.records.agree import TreeDescription
from weft.nnx.crossing.described import describe_arguments
from weft.nnx.crossing.flattening import ARRAY, NODE, RefStructure, build, named, take_apart
from weft.nnx.states.states import from_flat_state


@dataclass(frozen=True)
class Mode:
    """The options of the references boundary, for one transform.

    Attributes:
        graph: whether objects are graphs, with sharing and cycles, or trees.
        updates: whether structural changes reach the caller's objects.
        copies: whether outputs are always new objects, also where they are arguments.
        function: what the transform is called, for errors.
        supplies: how many arguments the transform puts in front of the user's.
    """

    graph: bool
    updates: bool
    copies: bool
    function: str
    supplies: int = 0

    def names(self, functions: Sequence[Callable[..., Any]]) -> Sequence[str]:
        """The names of the user's arguments, with which paths in errors start."""
        return parameter_names(functions[0])[self.supplies :]


@dataclass(frozen=True)
class RefCall(RefStructure):
    """A call whose arguments contain graphs, without its arrays.

    Attributes:
        functions: the user's functions.
        mode: how graphs cross; the same for all calls of one boundary.
    """

    functions: tuple[Any, ...] = ()
    # Empty: objects have no static fields but those in their structure.
    fields: tuple[object, ...] = field(default=(), compare=False)
    # Not compared: plans are kept by boundary, and all calls of a boundary have the same mode.
    mode: Mode = field(default=Mode(graph=True, updates=True, copies=False, function=""), compare=False)

    # Written out, because a frozen dataclass generates a hash over every field.
    __hash__ = RefStructure.__hash__

    def path_of(self, position: int) -> Path:
        """The path of a leaf of the arguments, from its parameter's name on."""
        return named(self.full_paths[position], self.mode.names(self.functions))

    def described(self) -> TreeDescription:
        """Describes the static part of the cache key, for reports of why a call was traced again."""
        return describe_arguments(self, self.mode.names(self.functions))

    def meant(self) -> frozenset[Path]:
        """Returns the arguments that the user declared static: none, because NNX transforms have bound them before."""
        return frozenset()

    def sparse(self, values: Mapping[int, Any]) -> Call:
        """A call with (co)tangents in the place of the arguments, and without functions, which have none.

        In graph mode with updates each graph is a State, else there are objects like the arguments.

        Args:
            values: the (co)tangents, by the positions of leaves; leaves that were not differentiated are absent.
        """
        if self.mode.updates:
            return ((), *self._as_states(values))
        count = len(self.holders) + self.items.count(ARRAY)
        args, kwargs = build(self, [values.get(i) for i in range(count)])[0]
        return (), args, kwargs

    def read_sparse(self, call: Call) -> list[Any]:
        """For each leaf of the call its (co)tangent in trees like the arguments (objects, States, arrays), or None."""
        trees = take_apart(self.mode.graph, (tuple(call[1]), dict(call[2])))
        # By path and not by order: a State of tangents may lack Variables that are not differentiated.
        by_path = {leaf.path: leaf.value for leaf in trees.leaves}
        return [by_path.get(path) for path in self.full_paths]

    def _as_states(self, values: Mapping[int, Any]) -> tuple[Any, Any]:
        """(Co)tangents of the arguments, with each graph as a State of the leaves that have one."""
        flat: list[Any] = [None] * len(self.items)
        states: dict[int, list[tuple[Path, Any]]] = {i: [] for i, item in enumerate(self.items) if item is NODE}
        count = len(self.holders)
        for i, (item, path) in enumerate(self.paths):
            if i not in values:
                continue
            if i >= count:
                flat[item] = values[i]
            else:
                holder = self.holders[i]
                value = values[i] if holder.type is None else holder.type._new(values[i], holder.metadata.in_order())
                states[item].append((path, value))
        for item, pairs in states.items():
            # A Variable that is an argument itself has no path inside it, and is its own state.
            flat[item] = pairs[0][1] if len(pairs) == 1 and pairs[0][0] == () else from_flat_state(pairs)
        return self.treedef.unflatten(flat)
