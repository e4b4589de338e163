"""Calls of the methods of a model's objects, recorded while the model is traced once.

For as long as a model is recorded, the public methods of its objects' classes are replaced by ones that look for the
recording of their own thread. A recorded call is traced as a function of its arrays, those of its object included,
which tells its cost; what is around then runs the result of that trace, so that no method runs twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from weft.core.edge import _jax
from weft.core.edge._jax import ClosedJaxpr
from weft.core.paths import Path
from weft.core.sowing.tags import Skeleton, take_arrays
from weft.modules.summary.costs import abstract, estimate_program
from weft.modules.summary.texts import as_text, described
from weft.nnx.graphs.nodes import is_graph_node
from weft.nnx.graphs.splitting import clone, merge, split
from weft.nnx.graphs.updating import update
from weft.nnx.graphs.walk import iter_graph
from weft.nnx.modules.methods import methods_of, wrapped_methods
from weft.nnx.modules.pytree import Pytree
from weft.nnx.objects.attributes import is_array_leaf
from weft.nnx.objects.objects import attributes_of
from weft.nnx.streams.rngs import Rngs

# The number of a copied object, which stays with it when a transform rebuilds it.
_ID = "_nnx_tabulate_id"
_recording: ContextVar[Recording | None] = ContextVar("weft_tabulate", default=None)


@dataclass
class CallInfo:
    """One call of a method.

    Attributes:
        call_order: how many calls began before.
        object_id: the object's number in the model.
        type: its class.
        path: where it is, and the method's name if that is not `__call__`.
        inputs_repr: the arguments, as text.
        outputs: what it returned, as text.
        flops: floating point operations of the call, if they were asked for.
        vjp_flops: those of the call and its derivative.
    """

    call_order: int
    object_id: int
    type: type
    path: Path
    inputs_repr: str
    outputs: str
    flops: int | None
    vjp_flops: int | None


@dataclass
class Recording:
    """The calls of one run of a model."""

    paths: list[Path]
    flops: bool
    vjp_flops: bool
    calls: list[CallInfo] = field(default_factory=list)
    seen: set[Any] = field(default_factory=set)


def record(
    obj: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, flops: bool, vjp_flops: bool
) -> list[CallInfo]:
    """The calls that a method of an object makes, the method's own first, in the order in which they begin.

    Args:
        obj: the object; it stays as it is.
        method: the method's name.
        args, kwargs: its arguments; arrays may be abstract (`jax.ShapeDtypeStruct`).
        flops, vjp_flops: whether to estimate the cost of each call, and of its derivative.

    Raises:
        AttributeError: if there is no such method.
    """
    copy = clone(obj, graph=True)
    nodes = recorded_nodes(copy)
    for number, (_, node) in enumerate(nodes):
        setattr(node, _ID, number)
    function = getattr(type(obj), method)
    recording = Recording([path for path, _ in nodes], flops, vjp_flops)
    with wrapped_methods({type(node) for _, node in nodes}, _recorder):
        token = _recording.set(recording)
        try:
            _recorded(recording, function, method, copy, args, kwargs)
        finally:
            _recording.reset(token)
    return recording.calls


def recorded_nodes(obj: Any) -> list[tuple[Path, Any]]:
    """The objects whose calls are recorded, with their paths; an object's number is its place here."""
    return [(path, node) for path, node in iter_graph(obj, graph=True) if node is obj or _is_recorded(node)]


def _is_recorded(node: Any) -> bool:
    is_ours = isinstance(node, Pytree) and not isinstance(node, Rngs)
    return is_ours and bool(methods_of(type(node)))


def _recorder(kind: type, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        recording = _recording.get()
        # Of another class: a method that was called by `super()`, and is a part of the call that did so.
        if recording is None or type(self) is not kind or _ID not in attributes_of(self):
            return method(self, *args, **kwargs)
        return _recorded(recording, method, name, self, args, kwargs)

    return wrapper


def _recorded(
    recording: Recording,
    method: Callable[..., Any],
    name: str,
    node: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    number = attributes_of(node)[_ID]
    inputs = described(args, kwargs, is_graph_node)
    key = (number, name, inputs)
    # The same call again has the same row, and so have those that it makes.
    if key in recording.seen:
        return method(node, *args, **kwargs)
    is_outermost = not recording.seen
    recording.seen.add(key)
    path = recording.paths[number] + (() if name == "__call__" else (name,))
    call = CallInfo(len(recording.calls), number, type(node), path, inputs, "", None, None)
    recording.calls.append(call)
    program, out, after, objects, before = _traced(method, node, args, kwargs)
    count = out.count
    avals: Any = program.out_avals[:count]
    shapes = out.fill(avals)
    call.outputs = "" if shapes is None else as_text(shapes, is_graph_node)
    for_output = ClosedJaxpr(_jax.replaced(program.jaxpr, outvars=program.jaxpr.outvars[:count]), program.consts)
    if recording.flops:
        call.flops = estimate_program(for_output).flops
    if recording.vjp_flops:
        call.vjp_flops = estimate_program(_with_derivative(for_output)).flops
    if is_outermost:  # whose arrays may be shapes
        return None
    results = _jax.run(program, before)
    update(objects, after.fill(results[count:]))
    return out.fill(results[:count])


def _traced(
    method: Callable[..., Any], node: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[ClosedJaxpr, Skeleton, Skeleton, list[Any], list[Any]]:
    """A call of a method as a program from arrays to arrays: those of the output, then its objects' after the call."""
    given, arguments = take_arrays((args, kwargs), lambda leaf: is_graph_node(leaf) or _is_array(leaf), is_graph_node)
    objects, skeletons = [node, *given], list[Skeleton]()
    graphdef, state = split(objects, graph=True)
    before, rest = take_arrays(state, _is_array)

    def pure(*arrays: Any) -> list[Any]:
        objects = merge(graphdef, rest.fill(arrays))
        args, kwargs = arguments.fill(objects[1:])
        out, shape = take_arrays(method(objects[0], *args, **kwargs), _is_array)
        after, state = take_arrays(split(objects, graph=True)[1], _is_array)
        skeletons[:] = shape, state
        return [*out, *after]

    program = _jax.make_jaxpr(pure)(*map(abstract, before))
    shape, state = skeletons
    return program, shape, state, objects, before


def _with_derivative(program: ClosedJaxpr) -> ClosedJaxpr:
    """A program that gives its output, and its derivative by all that it depends on."""

    def derivative(consts: Any, *arrays: Any) -> Any:
        def outputs(consts: Any, *arrays: Any) -> list[Any]:
            out = _jax.run(ClosedJaxpr(program.jaxpr, consts), arrays)
            return [one for one in out if jnp.issubdtype(one.dtype, jnp.inexact)]

        out, pullback = jax.vjp(outputs, consts, *arrays)
        cotangents = pullback([jnp.ones_like(one) for one in out])
        return out, [one for one in jax.tree.leaves(cotangents) if one.dtype != jax.dtypes.float0]

    # Constants may be of the trace around: arrays that a function among the arguments closes over.
    return jax.make_jaxpr(derivative)(list(map(jax.typeof, program.consts)), *map(abstract, program.in_avals))


def _is_array(value: Any) -> bool:
    return is_array_leaf(value) or isinstance(value, jax.ShapeDtypeStruct)
