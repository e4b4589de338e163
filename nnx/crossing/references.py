"""The references boundary: mutable objects go into a transform, and their mutations are written back after the call.

On the way in, one plan covers all objects and Variables of the arguments: a structure without identities, and one leaf
for each Variable, however many paths lead to it. Inside the trace, new objects are built around the traced values, and
the user's function mutates those. On the way out, a Variable counts as changed if its value is another Python object
than the one it was built with. Changed values leave the trace on their argument's ride; unchanged values do not leave.
The caller's own objects are written only when everything has been computed and checked.

There are three modes:

- *graph with updates*: the graphs of arguments and outputs are described again at the end, with the numbers that
  objects had on the way in, so that new, deleted, swapped and shared attributes reach the caller's objects;
- *graph without updates*: arguments may share Variables; only the Variables' values are written back;
- *tree*: Modules are ordinary pytrees, no two paths may lead to one Variable, and only values are written back.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from weft.core.interpreter.boundary import Arrival, Call, Crossing, Departure, Groups, QuickWay
from weft.core.interpreter.rides import Read, Ride
from weft.core.records.agree import TreeDescription
from weft.nnx.crossing.calls import Mode, RefCall
from weft.nnx.crossing.described import describe_outcome, describe_tree
from weft.nnx.crossing.flattening import (
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
from weft.nnx.crossing.leaving import CallExit
from weft.nnx.crossing.outcomes import RefOutcome, hand_over
from weft.nnx.crossing.prefixes import rides_of, without_functions
from weft.nnx.crossing.quick import quick_way, recognised
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
    # Two transforms of one function share no plan: the function may close over an object that has changed meanwhile,
    # and flax traces it again when it is transformed again.
    shares = False

    def __init__(self, graph: bool, updates: bool, function: str, copies: bool = False, supplies: int = 0):
        self.mode = Mode(graph, graph and updates and not copies, copies, function, supplies)
        self.graph = graph
        self.updates = self.mode.updates
        self.function = function
        self.copies = copies
        self.restructures = self.updates

    # ------------------------------------------------------------------ taking apart

    def enter(self, call: Call, known: Any = None) -> tuple[RefCall, list[RefLeaf], Tree]:
        """Flattens a call; see `Boundary`."""
        functions, args, kwargs = call
        # `recognise` has found the plan of these objects valid. To ask again may take long: static values of the
        # user's are compared. In tree mode its roots are others, the Variables.
        plan = known.plan if known is not None and self.graph else None
        tree = take_apart(self.graph, (args, dict(kwargs)), plan)
        names = self.mode.names(functions)
        # Errors show the parameters' names. Filters still get paths inside an argument, which is how users write
        # them.
        tree.leaves = [RefLeaf(named(leaf.path, names), leaf.value, leaf.holder) for leaf in tree.leaves]
        tree.bases = [named(path, names) for path in tree.bases]
        if not self.graph:
            self._refuse_sharing(tree)
        if self.updates:
            # With updates, objects are written too. Without, only Variables are, and each is checked when it is
            # written.
            check_levels([tree.plan.node(number) for number in tree.plan.by_number])
        structure = RefCall(**vars(tree.structure), functions=functions, mode=self.mode)
        return structure, tree.leaves, tree

    def recognise(self, call: Call) -> tuple[Hashable, Sequence[Any], Any] | None:
        """The key of a call on the same objects as an earlier one, if their structure has not changed since."""
        return recognised(self.mode, call)

    def _refuse_sharing(self, tree: Tree) -> None:
        for value in tree.flat:
            if is_graph_node(value):
                check_is_pytree(value, self.function)
        # The first repeat is enough for the error; a model that shares a layer would otherwise list each of its
        # Variables.
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
        option: str,
    ) -> list[Ride]:
        """The ride of each leaf; one Variable has one ride, however it is reached.

        Raises:
            AxisError: if the prefix does not fit.
            AliasError: if one Variable is reached under different rides, naming every path.
        """
        return rides_of(self.graph, without_functions(prefix), entered, read, option)

    # ------------------------------------------------------------------ inside

    def rebuild(self, crossing: Crossing[RefCall], values: Sequence[Any]) -> tuple[Call, Memory]:
        """Rebuilds the call inside the trace, of new objects around `values`."""
        (args, kwargs), memory = build(crossing.structure, values)
        return (crossing.structure.functions, args, kwargs), memory

    def may_update(self, crossing: Crossing[RefCall]) -> bool:
        """Whether objects or Variables are among the arguments."""
        return NODE in crossing.structure.items

    def describe(self, tree: Any, root: str) -> TreeDescription:
        """Describes the parts of a carry that a loop must not change."""
        carried = take_apart(self.graph, tree)
        return describe_tree(carried, self._fixed_nodes(carried), root)

    def _fixed_nodes(self, carried: Tree) -> list[Any]:
        """The nodes of a carry that each iteration must return: all Variables, and with graph updates all objects.

        With graph updates, a Variable that is carried bare, or in a State, is a value: a step may return a new one.
        """
        if not self.updates:
            return carried.plan.variables
        plan = carried.plan
        bare = {id(carried.flat[i]) for i in carried.nodes if isinstance(carried.flat[i], Variable)}
        within = {id(leaf) for leaf, path in zip(plan.leaves, plan.paths, strict=True) if path}
        nodes = map(plan.node, plan.by_number)
        return [node for node in nodes if id(node) not in bare or id(node) in within]

    def describe_outcome(self, crossing: Crossing[RefCall], outcome: RefOutcome, types: Groups) -> TreeDescription:
        """Describes the parts of an outcome that all branches must have in common."""
        return describe_outcome(crossing.structure, self.mode.names(crossing.structure.functions), outcome, types)

    def pack(self, tree: Any) -> tuple[RefStructure, tuple[Any, ...]]:
        """Flattens any tree into a hashable structure and arrays."""
        flattened = take_apart(self.graph, tree)
        return flattened.structure, tuple(leaf.value for leaf in flattened.leaves)

    def leave(
        self,
        crossing: Crossing[RefCall],
        values: Sequence[Any],
        live: Call,
        memory: Memory,
        out: Any,
        departure: Departure,
    ) -> tuple[Groups, Groups, RefOutcome]:
        """Sorts output and updates into lanes, inside the trace."""
        return CallExit(self.mode, crossing, values, live, memory, departure).outcome(out)

    # ------------------------------------------------------------------ outside again

    def hand_over(self, entered: Tree, outcome: RefOutcome, values: Sequence[Any], groups: Groups) -> Any:
        """Writes updates into the caller's objects, and returns the output."""
        out = hand_over(entered.plan, outcome, values, groups)
        if self.updates:
            entered.plan.settle()
        return out

    def quick_way(self, crossing: Crossing[RefCall], entered: Tree, call: Call) -> QuickWay | None:
        """Makes the fast path for further calls on the same objects, or None."""
        return quick_way(self.mode, crossing, entered, call)
