"""Marks: how a program shows which values are successors, for `debug_successors` (see `lost`).

A *mark* is an equation `successor` in a jaxpr: the identity on a leaf that a record's method changed, which also reads
the leaf that was there before. A *touch* is one without a leaf before, on its tangent and on the cotangent that comes
back: who asks for a gradient alone uses the leaf where that depends on it. A *drop* is a mark of nothing, on what is
lost on purpose. They exist only in programs that are looked at: the switch is a `jax.make_user_context`, hence a part
of the key of JAX's trace caches.
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
        line: the user's, file and number.
        leaves: what changed.
        dropped: whether its loss is meant.
    """

    name: str
    line: str
    leaves: list[str] = field(default_factory=list[str])
    dropped: bool = False


mark_p = _jax.new_primitive("successor", multiple_results=True)


def bind_mark(mark: Mark | None, new: jax.Array, old: jax.Array) -> jax.Array:
    """Marks a new leaf, given the one that it follows; without a mark, as one that is lost on purpose."""
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
class Led:
    """What a mark leads to, and on what its old leaf depends: an input, or an array that the program closes over."""

    mark: Mark
    outputs: tuple[int, ...]
    old: int | jax.Array


@dataclass(frozen=True)
class Summary:
    """A program without marks, what these led to, and which of its inputs it drops.

    Of a mark that leads to no output there is an entry if it leads to no other mark either: the rest is carried on, and
    lost with what carries it. Of one that follows what depends on nothing from outside there is none.
    """

    program: ClosedJaxpr
    marks: set[Mark]
    led: list[Led]
    dropped: list[int]

    def lost(self) -> list[Mark]:
        """The marks that lead to nothing."""
        kept = {one.mark for one in self.led if one.outputs or one.mark.dropped}
        return list(dict.fromkeys(one.mark for one in self.led if one.mark not in kept))


def summarise(closed: ClosedJaxpr) -> Summary:
    """Says of a program where its marks lead, and takes them out."""
    graph = Graph(closed, _is_mark)
    # A NumPy array is a constant of the program, like a number.
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
    led, dead = list[Led](), dict[Node, Mark]()
    for eqn, ins, outs in graph.wanted:
        mark, new = eqn.params["mark"], outs[0]
        if mark is None or len(ins) == 1:
            continue
        mark.dropped |= new in dropped
        olds = [outside[node] for node in graph.before([ins[1]]) if node in outside]
        if olds:  # else it is fresh
            reached = graph.after([new, *starts[mark]])
            outputs = tuple(i for i, output in enumerate(graph.outputs) if output in reached)
            led.append(Led(mark, outputs, olds[0]))
            if not outputs:
                dead[new] = mark
    carried = _carried(graph, dead)
    program = without_identities(closed, _is_mark)
    led = [one for one in led if one.outputs or one.mark not in carried]
    marks = {eqn.params["mark"] for eqn, _, _ in graph.wanted} - {None}
    return Summary(program, marks, led, [i for i, node in enumerate(graph.inputs) if node in dropped])


def _carried(graph: Graph, dead: dict[Node, Mark]) -> set[Mark]:
    """Of marks that lead to no output, those that lead to another one; in a loop that goes round, all but the last."""
    marks, reached = list(dict.fromkeys(dead.values())), defaultdict[Mark, set[Mark]](set)
    for node, mark in dead.items():
        reached[mark] |= {dead[after] for after in graph.after([node]) if after in dead} - {mark}
    return {
        mark
        for i, mark in enumerate(marks)
        if any(mark not in reached[other] or other in marks[i:] for other in reached[mark])
    }
