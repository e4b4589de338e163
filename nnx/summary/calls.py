"""Records the method calls of a model's objects while the model is traced once.

During the recording, the public methods of the objects' classes are replaced, for this thread or task alone. A recorded
call is traced to a jaxpr, as a function of its arrays and its object's arrays; the jaxpr gives the call's cost. The
caller then evaluates this jaxpr, so that no method runs twice.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
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

# An attribute with the number of a copied object. Transforms inside the model copy attributes, so the number survives.
_ID = "_nnx_tabulate_id"
# Runs a call of a method in place of the method: `watcher(number, method, name, node, args, kwargs)`.
Watcher = Callable[[int, Callable[..., Any], str, Any, tuple[Any, ...], dict[str, Any]], Any]
# The innermost recording: within another one, whose objects have numbers of their own, the methods are replaced twice.
_watcher: ContextVar[Watcher | None] = ContextVar("weft_watch_calls", default=None)


@dataclass
class CallInfo:
    """A row of the table: a call of a method.

    Attributes:
        call_order: the number of calls that began before.
        object_id: the object's number in the model.
        type: the object's class.
        path: the object's path, with the method's name if it is not `__call__`.
        inputs_repr: the arguments, as text.
        outputs: the output, as text.
        flops: floating point operations of the call, if requested.
        vjp_flops: floating point operations of the call and its derivative, if requested.
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
    """The calls of a model during one trace, and the options of the recording."""

    paths: list[Path]
    flops: bool
    vjp_flops: bool
    calls: list[CallInfo] = field(default_factory=list)
    seen: set[Any] = field(default_factory=set)


def record(
    obj: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, flops: bool, vjp_flops: bool
) -> list[CallInfo]:
    """Records the calls that a method of an object makes, in the order in which they begin; the method's own first.

    Args:
        obj: the object, which is not changed.
        method: the method's name.
        args, kwargs: its arguments; arrays may be abstract (`jax.ShapeDtypeStruct`).
        flops, vjp_flops: whether to estimate the cost of each call, and of its derivative.

    Raises:
        AttributeError: if there is no such method.
    """
    # A copy, because the numbers are stored as attributes, and the traced call may change the object.
    copy = clone(obj, graph=True)
    nodes = recorded_nodes(copy)
    # Unbound, to be called with the copy.
    function = getattr(type(obj), method)
    recording = Recording([path for path, _ in nodes], flops, vjp_flops)
    watcher = functools.partial(_recorded, recording)
    with watch_calls([node for _, node in nodes], watcher):
        watcher(attributes_of(copy)[_ID], function, method, copy, args, kwargs)
    return recording.calls


@contextlib.contextmanager
def watch_calls(nodes: list[Any], watcher: Watcher) -> Iterator[None]:
    """A `with` block in which a watcher runs the public methods of objects, in this thread.

    An object's number is its place among `nodes`. It becomes an attribute, because a transform rebuilds objects and
    keeps their attributes.
    """
    for number, node in enumerate(nodes):
        setattr(node, _ID, number)
    with wrapped_methods({type(node) for node in nodes}, _seen):
        token = _watcher.set(watcher)
        try:
            yield
        finally:
            _watcher.reset(token)


def recorded_nodes(obj: Any) -> list[tuple[Path, Any]]:
    """Returns the objects whose calls are recorded, with their paths; an object's number is its index in this list."""
    return [
        (path, node)
        for path, node in iter_graph(obj, graph=True)
        if node is obj or (isinstance(node, Pytree) and not isinstance(node, Rngs) and methods_of(type(node)))
    ]


def _seen(name: str, method: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    watcher = _watcher.get()
    if watcher is None or _ID not in attributes_of(self):
        return method(self, *args, **kwargs)
    return watcher(attributes_of(self)[_ID], method, name, self, args, kwargs)


def _recorded(
    recording: Recording,
    number: int,
    method: Callable[..., Any],
    name: str,
    node: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    inputs = described(args, kwargs, is_graph_node)
    key = (number, name, inputs)
    # A call with the same object, method and input shapes is recorded once, with the calls that it makes.
    if key in recording.seen:
        return method(node, *args, **kwargs)
    is_outermost = not recording.seen
    recording.seen.add(key)
    path = recording.paths[number] + (() if name == "__call__" else (name,))
    call = CallInfo(len(recording.calls), number, type(node), path, inputs, "", None, None)
    # Before the call is traced, so that its row is above those of the calls that it makes.
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
    if is_outermost:  # its arguments may be abstract, so there is nothing to evaluate
        return None
    results = _jax.run(program, before)
    # The caller of this method must see the updates that the traced call made.
    update(objects, after.fill(results[count:]))
    return out.fill(results[:count])


def _traced(
    method: Callable[..., Any], node: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[ClosedJaxpr, Skeleton, Skeleton, list[Any], list[Any]]:
    """Traces a call to a jaxpr from arrays to the arrays of the output and of the objects after the call."""
    nodes, arguments = take_arrays((args, kwargs), lambda leaf: is_graph_node(leaf) or _is_array(leaf), is_graph_node)
    objects, skeletons = [node, *nodes], list[Skeleton]()
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
    """Extends a jaxpr by the derivative with respect to all of its inputs and constants."""

    def derivative(consts: Any, *arrays: Any) -> Any:
        def outputs(consts: Any, *arrays: Any) -> list[Any]:
            out = _jax.run(ClosedJaxpr(program.jaxpr, consts), arrays)
            # Integers have no derivative: their cotangents would be float0, for which `ones_like` makes none.
            return [array for array in out if jnp.issubdtype(array.dtype, jnp.inexact)]

        out, pullback = jax.vjp(outputs, consts, *arrays)
        cotangents = pullback([jnp.ones_like(array) for array in out])
        return out, [array for array in jax.tree.leaves(cotangents) if array.dtype != jax.dtypes.float0]

    # Constants are passed as arguments: they may be tracers of the trace around, which a function among the arguments
    # closes over.
    return jax.make_jaxpr(derivative)(list(map(jax.typeof, program.consts)), *map(abstract, program.in_avals))


def _is_array(value: Any) -> bool:
    return is_array_leaf(value) or isinstance(value, jax.ShapeDtypeStruct)
