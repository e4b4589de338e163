"""Marks: how a program shows which values are successors, for `debug_successors` (see `lost`).

A *mark* is an equation `successor` in a jaxpr: the identity on a leaf that a record's method changed, which also reads
the leaf that was there before. A *touch* is the identity on its tangent, and on the cotangent that comes back: who asks
for a gradient alone uses the leaf where that depends on it. A *drop* is the identity on what is lost on purpose. They
exist only while debugging: the switch is a `jax.make_user_context`, hence a part of the key of JAX's trace caches.

JAX's `grad` prunes what nobody reads from loops, branches and remat before anybody can look at it. So such an equation
is summarised **as it is bound** (`rewrite_binds`), before any transform sees it: its jaxprs go on without their marks,
and what these led to is marked outside of it. A mark inside that leads to no output is bound outside on nothing that is
read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from weft.core.contexts import marking
from weft.core.edge import _jax, equations
from weft.core.edge._jax import AnyJaxpr, ClosedJaxpr, Params, Primitive
from weft.core.threads.dataflow import Graph, Node, has_equations, without_identities


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
touch_p = _jax.new_primitive("successor_tangent")
drop_p = _jax.new_primitive("drop", multiple_results=True)


def bind_mark(mark: Mark, new: jax.Array, old: jax.Array) -> jax.Array:
    """Marks a new leaf, given the one that it follows."""
    return mark_p.bind(new, old, mark=mark)[0]


def bind_drop(leaves: Sequence[jax.Array]) -> None:
    """Says of leaves that they are lost on purpose."""
    if leaves:
        drop_p.bind(*leaves)


def _batch_alike(primitive: Primitive) -> _jax.Batch:
    def batch(
        _: object, values: Sequence[jax.Array], dims: Sequence[int | None], **params: object
    ) -> tuple[Sequence[jax.Array], Sequence[int | None]]:
        return primitive.bind(*values, **params), dims

    return batch


def _touch(tangents: Sequence[jax.Array | None], *, mark: Mark) -> list[jax.Array | None]:
    new, old = tangents
    return [None if new is None else touch_p.bind(new, mark=mark), old]


_jax.define_identity(mark_p, batch=_batch_alike(mark_p), on_tangents=_touch)
_jax.define_identity(drop_p, batch=_batch_alike(drop_p))
_jax.define_linear_identity(touch_p)


def is_marker(primitive: object) -> bool:
    """Whether a primitive is one of those that are told of outside of the equation that holds them."""
    return primitive is mark_p or primitive is drop_p


def is_told(primitive: object) -> bool:
    """Whether a primitive says something of a successor."""
    return is_marker(primitive) or primitive is touch_p


@dataclass(frozen=True)
class Found:
    """A mark in a program: where its new and its old leaf are in the graph."""

    mark: Mark
    new: Node | None
    old: Node | None


def marks_in(graph: Graph) -> list[Found]:
    """The marks of a program, in order."""
    return [Found(eqn.params["mark"], outs[0], ins[1]) for eqn, ins, outs in graph.wanted if eqn.primitive is mark_p]


def last_of(graph: Graph, lost: Sequence[Found]) -> list[Mark]:
    """Of marks that are lost, those that lead to no other: the rest is carried on, and lost with what carries it."""
    ends = {one.new: one.mark for one in lost}
    carried = {one.mark for one in lost for node in graph.after([one.new]) if ends.get(node, one.mark) is not one.mark}
    return [mark for mark in dict.fromkeys(one.mark for one in lost) if mark not in carried]


def touched_in(graph: Graph, used: set[Node]) -> set[Mark]:
    """The successors whose tangents or cotangents are used."""
    return {eqn.params["mark"] for eqn, _, outs in graph.wanted if eqn.primitive is touch_p and outs[0] in used}


def drops_in(graph: Graph) -> list[Node | None]:
    """What a program drops."""
    return [node for eqn, ins, _ in graph.wanted if eqn.primitive is drop_p for node in ins]


def comes_from_outside(graph: Graph) -> set[Node]:
    """What depends on a program's inputs, or on arrays that it closes over."""
    # A NumPy array is a constant of the program, like a number.
    consts = [node for node, value in graph.consts if isinstance(value, jax.Array)]
    return graph.after([*graph.inputs, *consts])


# --- out of loops, branches and remat --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Led:
    """What a mark inside of an equation leads to, and on what its old leaf depends: an operand, or a constant."""

    mark: Mark
    outputs: tuple[int, ...]
    old: int | jax.Array


@dataclass(frozen=True)
class Summary:
    """A jaxpr without marks, what these led to, and which of its inputs it drops."""

    jaxpr: AnyJaxpr
    led: tuple[Led, ...]
    dropped: tuple[int, ...]


def _summarise(jaxpr: AnyJaxpr, loops: Sequence[tuple[int, int]]) -> Summary:
    graph = Graph(jaxpr, is_marker)
    dropped = graph.before(drops_in(graph))
    places = {node: i for i, node in enumerate(graph.inputs)}
    constants = {node: value for node, value in graph.consts if isinstance(value, jax.Array)}
    led: list[Led] = []
    dead: list[Found] = []
    for one in marks_in(graph):
        if one.new in dropped:
            one.mark.dropped = True
        sources = graph.before([one.old])
        operand = next((places[node] for node in sources if node in places), None)
        old = next((constants[node] for node in sources if node in constants), None) if operand is None else operand
        if old is not None:  # else it is fresh
            outputs = tuple(sorted(_reached(graph, one.new, loops)))
            led.append(Led(one.mark, outputs, old))
            dead += () if outputs else (one,)
    last = last_of(graph, dead)
    led = [one for one in led if one.outputs or one.mark in last]
    return Summary(
        without_identities(jaxpr, is_marker), tuple(led), tuple(i for n, i in places.items() if n in dropped)
    )


def _reached(graph: Graph, node: Node | None, loops: Sequence[tuple[int, int]]) -> set[int]:
    """Which outputs depend on a node, in this iteration of a loop or in a later one."""
    rest, seen = graph.after([node]), set[int]()
    while True:
        new = {i for i, output in enumerate(graph.outputs) if output in rest} - seen
        if not new:
            return seen
        seen |= new
        rest = graph.after(graph.inputs[into] for out, into in loops if out in new)


Summaries = dict[tuple[tuple[int, int], ...], Summary]


@_jax.remember_per_jaxpr
def _summaries(_: AnyJaxpr) -> Summaries:
    return {}


def summarise(jaxpr: AnyJaxpr, loops: Iterable[tuple[int, int]] = ()) -> Summary:
    """The summary of a jaxpr; `loops` are the outputs that come back as inputs."""
    kept, key = _summaries(jaxpr), tuple(loops)
    if key not in kept:
        kept[key] = _summarise(jaxpr, key)
    return kept[key]


# For each primitive its jaxprs without marks, with where their inputs start among the operands.
def _jit(params: Params) -> Iterator[tuple[str, int, Summary]]:
    yield "jaxpr", 0, summarise(params["jaxpr"])


def _scan(params: Params) -> Iterator[tuple[str, int, Summary]]:
    start, count = equations.scan_counts(params)
    yield "jaxpr", 0, summarise(params["jaxpr"], ((i, start + i) for i in range(count)))


def _while(params: Params) -> Iterator[tuple[str, int, Summary]]:
    start, carry = params["body_nconsts"], len(params["body_jaxpr"].jaxpr.outvars)
    yield "body_jaxpr", params["cond_nconsts"], summarise(params["body_jaxpr"], ((i, start + i) for i in range(carry)))


def _cond(params: Params) -> Iterator[tuple[str, int, Summary]]:
    for branch in params["branches"]:
        yield "branches", 1, summarise(branch)


_RULES: dict[Primitive, Callable[[Params], Iterator[tuple[str, int, Summary]]]] = {
    _jax.jit_p: _jit,
    _jax.remat_p: _jit,
    _jax.scan_p: _scan,
    _jax.while_p: _while,
    _jax.cond_p: _cond,
}


def _bind_marked_outside(primitive: Primitive) -> Callable[..., Sequence[jax.Array]]:
    def bind(original: Callable[..., Sequence[jax.Array]], *args: jax.Array, **params: Any) -> Sequence[jax.Array]:
        if not marking() or not has_equations(params, is_marker):
            return original(*args, **params)
        summaries = list(_RULES[primitive](params))
        changed: Params = {}
        for name, _, summary in summaries:
            changed[name] = (*changed.get(name, ()), summary.jaxpr) if name == "branches" else summary.jaxpr
        outs = list(original(*args, **{**params, **changed}))
        for _, start, summary in summaries:
            for led in summary.led:
                old = args[start + led.old] if isinstance(led.old, int) else led.old
                for i in led.outputs:
                    outs[i] = bind_mark(led.mark, outs[i], old)
                if not led.outputs:
                    bind_mark(led.mark, old, old)
            bind_drop([args[start + i] for i in summary.dropped])
        return outs

    return bind


_install_lock = threading.Lock()
_installed = threading.Event()


def watch_programs(look: Callable[[ClosedJaxpr, str], None]) -> None:
    """From the first use on, summarises what is bound and calls `look` on programs; until then JAX is left as it is."""
    with _install_lock:
        if not _installed.is_set():
            for primitive in _RULES:
                _jax.rewrite_binds(primitive, _bind_marked_outside(primitive))
            _jax.watch_jitted_calls(look)
            _installed.set()
