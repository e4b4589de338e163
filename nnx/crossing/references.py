"""The references boundary: graphs of mutable objects in, the same objects out, with what changed written back.

On the way in, objects and Variables among the arguments are planned together (`plan`): one structure without
identities, and one leaf for each Variable however often it is reached. Inside the trace fresh objects are made around
the traced values, and the user's function mutates those. On the way out, a Variable has changed if its value is not the
very object that it was given; changed values leave the trace on their argument's ride, unchanged ones do not leave at
all. Only when everything has been computed and checked are the caller's own objects written, by identity.

There are three modes:

- *graph with updates*: what is reachable from arguments and outputs is described again, with the numbers things had
  on the way in, so that new, deleted, swapped and shared attributes reach the caller's objects;
- *graph without updates*: sharing among arguments is kept, only Variables' values come back;
- *tree*: Modules are the pytrees that they are, only Variables' values come back, nothing may be shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core.interpreter.boundary import Arrival, Call, Crossing, Departure, Groups, QuickWay
from weft.core.interpreter.rides import Read, Ride
from weft.core.records.agree import Described
from weft.nnx.crossing.apart import (
    NODE,
    Memory,
    RefLeaf,
    RefStructure,
    Tree,
    build,
    check_levels,
    named,
    repeats_of,
    take_apart,
)
from weft.nnx.crossing.calls import RefCall
from weft.nnx.crossing.described import describe_outcome, describe_tree
from weft.nnx.crossing.leaving import Leaving
from weft.nnx.crossing.modes import Mode
from weft.nnx.crossing.outcomes import RefOutcome, hand_over
from weft.nnx.crossing.prefixes import rides_of, without_functions
from weft.nnx.crossing.quick import quick_way
from weft.nnx.graphs.nodes import is_graph_node
from weft.nnx.graphs.trees import check_is_pytree, duplicate
from weft.nnx.variable.variable import Variable


class References:
    """The boundary of NNX graphs, in one of its modes.

    Args:
        graph: whether objects are graphs, with sharing and cycles, or trees.
        updates: whether structural changes reach the caller's objects.
        function: what the transform is called, for errors.
        copies: whether outputs are always new objects, also where they are arguments.
        supplies: how many arguments the transform puts in front of the user's.
    """

    name = "references"
    layer = "nnx"
    has_updates = True
    has_identity = True
    typed = False
    # A function may close over objects that have changed: flax traces it again when it is transformed again.
    shares = False

    def __init__(self, graph: bool, updates: bool, function: str, copies: bool = False, supplies: int = 0):
        self.mode = Mode(graph, graph and updates and not copies, copies, function, supplies)
        self.graph = graph
        self.updates = self.mode.updates
        self.function = function
        self.copies = copies
        self.restructures = self.updates

    # ------------------------------------------------------------------ taking apart

    def enter(self, call: Call) -> tuple[RefCall, list[RefLeaf], Tree]:
        """Takes a call apart; see `Boundary`."""
        functions, args, kwargs = call
        tree = take_apart(self.graph, (args, dict(kwargs)))
        names = self.mode.names(functions)
        # Errors go by the parameters' names. The rides' paths stay inside of an argument, as users write filters.
        tree.leaves = [RefLeaf(named(leaf.path, names), leaf.value, leaf.holder) for leaf in tree.leaves]
        tree.bases = [named(path, names) for path in tree.bases]
        if not self.graph:
            self._refuse_sharing(tree)
        if self.updates:
            # Objects are written too, then; without, only Variables are, which are asked when it comes to that.
            check_levels([tree.plan.node(number) for number in tree.plan.by_number])
        structure = RefCall(**vars(tree.structure), functions=functions, mode=self.mode)
        return structure, tree.leaves, tree

    def _refuse_sharing(self, tree: Tree) -> None:
        for value in tree.flat:
            if is_graph_node(value):
                check_is_pytree(value, self.function)
        for number, path, root in repeats_of(tree.plan):
            first = next(i for i, n in enumerate(tree.plan.numbers) if n == number)
            second = (*tree.bases[tree.nodes[root]], *path)
            raise duplicate(tree.plan.node(number), tree.leaves[first].path, second, self.function)

    # ------------------------------------------------------------------ rides

    def rides(
        self,
        prefix: Arrival,
        call: Call,
        entered: Tree,
        leaves: Sequence[RefLeaf],
        read: Read,
        what: str,
    ) -> list[Ride]:
        """The ride of each leaf; one Variable has one ride, however it is reached.

        Raises:
            AxisError: if the prefix does not fit.
            AliasError: if one Variable is reached under different rides, naming every path.
        """
        return rides_of(self.graph, without_functions(prefix), entered, read, what)

    # ------------------------------------------------------------------ inside

    def rebuild(self, crossing: Crossing[RefCall], values: Sequence[Any]) -> tuple[Call, Memory]:
        """The live call, of fresh objects around these values."""
        (args, kwargs), memory = build(crossing.structure, values)
        return (crossing.structure.functions, args, kwargs), memory

    def may_update(self, crossing: Crossing[RefCall]) -> bool:
        """Whether objects or Variables are among the arguments."""
        return NODE in crossing.structure.items

    def describe(self, tree: Any, root: str) -> Described:
        """What must not change of a tree that is carried."""
        apart = take_apart(self.graph, tree)
        return describe_tree(apart, self._carried_things(apart), root)

    def _carried_things(self, apart: Tree) -> list[Any]:
        """What must stay the same in a carry: Variables, or if updates reach the caller's objects, those and theirs.

        Variables that are carried on their own, or in a State, are values then, and each iteration may return others.
        """
        if not self.updates:
            return apart.plan.variables
        plan = apart.plan
        alone = {id(apart.flat[i]) for i in apart.nodes if isinstance(apart.flat[i], Variable)}
        within = {id(leaf) for leaf, path in zip(plan.leaves, plan.paths, strict=True) if path}
        nodes = map(plan.node, plan.by_number)
        return [node for node in nodes if id(node) not in alone or id(node) in within]

    def describe_outcome(self, crossing: Crossing[RefCall], outcome: RefOutcome, groups: Groups) -> Described:
        """What must not differ between the outputs of branches."""
        return describe_outcome(crossing.structure, self.mode.names(crossing.structure.functions), outcome, groups)

    def pack(self, tree: Any) -> tuple[RefStructure, tuple[Any, ...]]:
        """Any tree as a structure and arrays."""
        apart = take_apart(self.graph, tree)
        return apart.structure, tuple(leaf.value for leaf in apart.leaves)

    def leave(
        self,
        crossing: Crossing[RefCall],
        values: Sequence[Any],
        live: Call,
        memory: Memory,
        out: Any,
        departure: Departure,
    ) -> tuple[Groups, Groups, RefOutcome]:
        """Takes output and changes apart into lanes."""
        return Leaving(self.mode, crossing, values, live, memory, departure).outcome(out)

    # ------------------------------------------------------------------ outside again

    def hand_over(self, entered: Tree, outcome: RefOutcome, values: Sequence[Any], groups: Groups) -> Any:
        """Writes what changed into the caller's objects, and gives the output."""
        out = hand_over(entered.plan, outcome, values, groups)
        if self.updates:
            entered.plan.settle()
        return out

    def quick_way(self, crossing: Crossing[RefCall], entered: Tree, call: Call) -> QuickWay | None:
        """Reads and writes the Variables of the same objects again, as long as their plan is valid."""
        return quick_way(self.mode, crossing, entered, call)
