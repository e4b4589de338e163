"""Dataflow: which values of a jaxpr depend on which others, through all the jaxprs inside of it.

A program becomes one graph. A *node* is a variable of a jaxpr at one place where that jaxpr is called; an edge goes
from an operand to a result. A loop's carry has edges from its outputs back to its inputs, so that a value that is only
used in later iterations counts as used. Questions are reachability: `Graph.after`, `Graph.before`.

An inner jaxpr that holds no wanted equation is not opened: each of its outputs counts as depending on each input.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, cast

from jax.extend.core import JaxprEqn
from weft.core.edge import _jax, equations
from weft.core.edge._jax import AnyJaxpr, Atom, ClosedJaxpr
from weft.core.edge.equations import inner_jaxprs, is_jaxpr, opened

Node = Hashable
Nodes = Sequence[Node | None]


class Graph:
    """The dataflow of a jaxpr.

    Args:
        jaxpr: the program.
        is_wanted: whether the caller wants the equations of a primitive.

    Attributes:
        inputs, outputs: the nodes of the program's inputs and outputs.
        consts: the nodes of constants, those of inner jaxprs too, with their values.
        wanted: the wanted equations, each with the nodes of its operands (None for a literal) and outputs.
    """

    def __init__(self, jaxpr: AnyJaxpr, is_wanted: Callable[[object], bool]):
        self._forward: dict[Node, list[Node]] = defaultdict(list)
        self._backward: dict[Node, list[Node]] = defaultdict(list)
        self._is_wanted = is_wanted
        self._holds: dict[int, bool] = {}
        self._places = 0
        self.consts: list[tuple[Node | None, object]] = []
        self.wanted: list[tuple[JaxprEqn, Nodes, Nodes]] = []
        self.inputs, self.outputs = self._open(jaxpr)

    def after(self, nodes: Iterable[Node | None]) -> set[Node]:
        """These nodes, and all nodes that depend on any of them."""
        return _reach(nodes, self._forward)

    def before(self, nodes: Iterable[Node | None]) -> set[Node]:
        """These nodes, and all nodes that any of them depends on."""
        return _reach(nodes, self._backward)

    def _link(self, source: Node | None, target: Node | None) -> None:
        # The node of a literal is None: it depends on nothing.
        if source is not None and target is not None:
            self._forward[source].append(target)
            self._backward[target].append(source)

    def _link_each(self, sources: Nodes, targets: Nodes) -> None:
        for source, target in zip(sources, targets, strict=True):
            self._link(source, target)

    def _link_all(self, sources: Nodes, targets: Nodes) -> None:
        # Through one node in the middle, so that n sources and m targets need n + m edges and not n * m.
        self._places += 1
        via = ("all", self._places)
        for source in sources:
            self._link(source, via)
        for target in targets:
            self._link(via, target)

    def _open(self, jaxpr: AnyJaxpr) -> tuple[Nodes, Nodes]:
        """Adds one call of a jaxpr to the graph, and returns the nodes of its inputs and outputs."""
        closed = _jax.close(jaxpr)
        self._places += 1
        place = self._places

        def nodes(atoms: Sequence[Atom]) -> list[Node | None]:
            return [None if _jax.is_literal(atom) else (place, atom) for atom in atoms]

        jaxpr = closed.jaxpr
        self.consts += zip(nodes(jaxpr.constvars), closed.consts, strict=False)
        for eqn in jaxpr.eqns:
            ins, outs = nodes(eqn.invars), nodes(eqn.outvars)
            if self._is_wanted(eqn.primitive):
                self.wanted.append((eqn, ins, outs))
            if self._holds_wanted(eqn):
                self._call(eqn, ins, outs)
            else:
                self._link_all(ins, outs)
        return nodes(jaxpr.invars), nodes(jaxpr.outvars)

    def _call(self, eqn: JaxprEqn, ins: Nodes, outs: Nodes) -> None:
        """Adds the call of an equation's inner jaxprs to the graph."""
        params, inner = eqn.params, inner_jaxprs(eqn.params)
        if eqn.primitive is _jax.scan_p:
            inputs, outputs = self._open(params["jaxpr"])
            start, count = equations.scan_counts(params)
            self._link_each(outputs[:count], inputs[start : start + count])
            self._link_each(ins, inputs)
            self._link_each(outputs, outs)
        elif eqn.primitive is _jax.while_p:
            num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
            consts, start = ins[:num_cond], ins[num_cond + num_body :]
            inputs, outputs = self._open(params["body_jaxpr"])
            self._link_each(outputs, inputs[num_body:])
            self._link_each(ins[num_cond:], inputs)
            # If the loop does not run, the carry comes out unchanged; and every output depends on the predicate, which
            # decides how often the loop runs.
            self._link_each(outputs, outs)
            self._link_each(start, outs)
            conditions, predicate = self._open(params["cond_jaxpr"])
            self._link_each([*consts, *start], conditions)
            self._link_each(outputs, conditions[num_cond:])
            self._link_all(predicate, outs)
        elif eqn.primitive is _jax.cond_p:
            for branch in params["branches"]:
                inputs, outputs = self._open(branch)
                self._link_each(ins[1:], inputs)
                self._link_each(outputs, outs)
            self._link_all(ins[:1], outs)
        else:
            for jaxpr in inner:
                inputs, outputs = self._open(jaxpr)
                alike = len(inner) == 1 and len(inputs) == len(ins) and len(outputs) == len(outs)
                link = self._link_each if alike else self._link_all
                link(ins, inputs)
                link(outputs, outs)

    def _holds_wanted(self, eqn: JaxprEqn) -> bool:
        return any(map(self._jaxpr_holds_wanted, inner_jaxprs(eqn.params)))

    def _jaxpr_holds_wanted(self, jaxpr: AnyJaxpr) -> bool:
        key = id(jaxpr)
        if key not in self._holds:
            self._holds[key] = any(
                self._is_wanted(eqn.primitive) or self._holds_wanted(eqn) for eqn in opened(jaxpr).eqns
            )
        return self._holds[key]


def _reach(nodes: Iterable[Node | None], edges: dict[Node, list[Node]]) -> set[Node]:
    reached = {node for node in nodes if node is not None}
    pending = list(reached)
    while pending:
        for node in edges.get(pending.pop(), ()):
            if node not in reached:
                reached.add(node)
                pending.append(node)
    return reached


# --- jaxprs inside of jaxprs --------------------------------------------------------------------------------------


def without_identities(jaxpr: AnyJaxpr, is_identity: Callable[[object], bool]) -> AnyJaxpr:
    """A jaxpr, open or closed, without its equations of identity primitives, whose output is their first operand.

    They are removed from the jaxprs inside of it too.
    """
    before, env, eqns = opened(jaxpr), dict[Atom, Atom](), list[JaxprEqn]()

    def read(atom: Atom) -> Atom:
        return atom if _jax.is_literal(atom) else env.get(atom, atom)

    def without(value: Any) -> Any:
        if type(value) is tuple:
            return tuple(map(without, cast("tuple[Any, ...]", value)))
        return without_identities(value, is_identity) if is_jaxpr(value) else value

    for eqn in before.eqns:
        if is_identity(eqn.primitive):
            # Not strict: a mark has two operands and a touch one, each with an output.
            env.update(zip(eqn.outvars, map(read, eqn.invars), strict=False))
        else:
            params = {name: without(value) for name, value in eqn.params.items()}
            eqns.append(eqn.replace(invars=list(map(read, eqn.invars)), params=params))
    after = _jax.replaced(before, eqns=eqns, outvars=list(map(read, before.outvars)))
    return ClosedJaxpr(after, jaxpr.consts) if _jax.is_closed(jaxpr) else after
