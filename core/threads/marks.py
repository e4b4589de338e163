"""Marks: equations in a jaxpr that show which values are leaves of successors, for `debug_successors` (see `lost`).

A *mark* is an equation `successor`: the identity on a leaf that a record's method changed; it also reads the old leaf.
A *touch* is such an equation without the old leaf, on the tangent of a marked leaf and on its cotangent: a program that
returns only a gradient uses the leaf if the gradient depends on it. A *drop* has no `Mark`: its operand is lost on
purpose. They exist only while somebody debugs: the switch is a `jax.make_user_context`, and so part of the key of JAX's
trace caches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
from weft.core.edge import _jax
from weft.core.edge._jax import ClosedJaxpr
from weft.core.threads.dataflow import Graph, Node, without_identities


@dataclass(eq=False)
class Mark:
    """A successor that a call returned.

    Attributes:
        name: the call, `Net.bn(...)`.
        line: the file and line of the user's call.
        leaves: the paths of the leaves that changed.
        dropped: whether its loss is declared by `drop_successor`.
    """

    name: str
    line: str
    leaves: list[str] = field(default_factory=list[str])
    dropped: bool = False


mark_p = _jax.new_primitive("successor", multiple_results=True)


def bind_mark(mark: Mark | None, new: jax.Array, old: jax.Array) -> jax.Array:
    """Marks a new leaf, which follows an old one; without a mark, the leaf is dropped on purpose."""
    return mark_p.bind(new, old, mark=mark)[0]


def _batch(
    _: object, values: Sequence[jax.Array], dims: Sequence[int | None], **params: object
) -> tuple[Sequence[jax.Array], Sequence[int | None]]:
    return mark_p.bind(*values, **params), dims


def _touch(tangents: Sequence[jax.Array | None], *, mark: Mark | None) -> Sequence[jax.Array | None]:
    new, *old = tangents
    return tangents if mark is None or new is None else [*mark_p.bind(new, mark=mark), *old]


_jax.define_identity(mark_p, batch=_batch, on_tangents=_touch)


def _is_mark(primitive: object) -> bool:
    return primitive is mark_p


@dataclass(frozen=True)
class Trail:
    """The outputs that a mark leads to, and an input (or an array in a closure) that its old leaf depends on."""

    mark: Mark
    outputs: tuple[int, ...]
    old: int | jax.Array


@dataclass(frozen=True)
class Summary:
    """A program without marks, where its marks led, and which of its inputs it drops.

    Attributes:
        program: the jaxpr without its marks.
        marks: all marks in it.
        trails: a trail for each mark, with two exceptions. A mark that leads to no output but to another mark has none,
            because it is lost exactly if that mark is. A mark whose old leaf depends on nothing from outside has none,
            because its successor is fresh.
        dropped: the indices of the inputs that a `drop` depends on.
    """

    program: ClosedJaxpr
    marks: set[Mark]
    trails: list[Trail]
    dropped: list[int]

    def lost(self) -> list[Mark]:
        """The marks that lead to no output and are not dropped."""
        used = {trail.mark for trail in self.trails if trail.outputs or trail.mark.dropped}
        return list(dict.fromkeys(trail.mark for trail in self.trails if trail.mark not in used))


def summarise(closed: ClosedJaxpr) -> Summary:
    """Follows the marks of a program to its outputs, and takes the marks out."""
    graph = Graph(closed, _is_mark)
    # JAX arrays in closures come from outside of the program; a NumPy array is a constant in it, like a number.
    outside: dict[Node, int | jax.Array] = {n: value for n, value in graph.consts if isinstance(value, jax.Array)}
    outside |= {node: i for i, node in enumerate(graph.inputs)}
    starts, ends = defaultdict[Mark, list[Node]](list), list[Node]()
    for eqn, ins, outs in graph.wanted:
        mark = eqn.params["mark"]
        if mark is None:
            ends += ins
        elif len(ins) == 1:  # a touch
            starts[mark] += outs
    dropped = graph.before(ends)
    trails, dead = list[Trail](), dict[Node, Mark]()
    for eqn, ins, outs in graph.wanted:
        mark, new = eqn.params["mark"], outs[0]
        if mark is None or len(ins) == 1:
            continue
        # A drop may be anywhere in the program, so that it is searched backwards from all drops at once.
        mark.dropped |= new in dropped
        olds = [outside[node] for node in graph.before([ins[1]]) if node in outside]
        if olds:  # otherwise the successor is fresh
            reached = graph.after([new, *starts[mark]])
            outputs = tuple(i for i, output in enumerate(graph.outputs) if output in reached)
            trails.append(Trail(mark, outputs, olds[0]))
            if not outputs:
                dead[new] = mark
    carried = _carried(graph, dead)
    program = without_identities(closed, _is_mark)
    trails = [trail for trail in trails if trail.outputs or trail.mark not in carried]
    marks = {eqn.params["mark"] for eqn, _, _ in graph.wanted} - {None}
    return Summary(program, marks, trails, [i for i, node in enumerate(graph.inputs) if node in dropped])


def _carried(graph: Graph, dead: dict[Node, Mark]) -> set[Mark]:
    """The marks that lead to no output but to another such mark.

    In a loop two marks may lead to each other (each iteration's successor follows the last iteration's). Of such a
    cycle the last mark is left out, so that one of them is reported.
    """
    leads_to = defaultdict[Mark, set[Mark]](set)
    for node, mark in dead.items():
        leads_to[mark] |= {dead[after] for after in graph.after([node]) if after in dead} - {mark}
    order = {mark: i for i, mark in enumerate(dict.fromkeys(dead.values()))}

    def carries(mark: Mark, into: Mark) -> bool:
        is_cycle = mark in leads_to[into]
        return not is_cycle or order[mark] < order[into]

    return {mark for mark in order if any(carries(mark, into) for into in leads_to[mark])}
