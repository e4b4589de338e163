"""Calls of the methods of a model's objects, recorded while the model is traced once.

For as long as a model is recorded, the public methods of its objects' classes are replaced by ones that look for the
recording of their own thread. A recorded call is traced as a function of its arrays, those of its object included,
which tells its cost; what is around then runs the result of that trace, so that no method runs twice.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from weft.core.edge import _jax
from weft.core.edge._jax import ClosedJaxpr
from weft.core.paths import Path
from weft.modules.summary.costs import abstract, estimate
from weft.nnx.graphs.nodes import is_graph_node
from weft.nnx.graphs.splitting import clone, merge, split
from weft.nnx.graphs.updating import update
from weft.nnx.graphs.walk import iter_graph
from weft.nnx.modules.pytree import Pytree
from weft.nnx.objects.attributes import is_array_leaf
from weft.nnx.objects.objects import attributes_of
from weft.nnx.streams.rngs import Rngs
from weft.nnx.summary.texts import as_text, described

# The number of a copied object, which stays with it when a transform rebuilds it.
_ID = "_nnx_tabulate_id"
# Methods of these are no part of a model's computation.
_NOT_RECORDED = ("weft.nnx.modules.", "weft.nnx.printing.")
_recording: ContextVar[Recording | None] = ContextVar("weft_tabulate", default=None)
_patching = threading.RLock()


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
    running: list[Any] = field(default_factory=list)


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
    with _patched({type(node) for _, node in nodes}):
        token = _recording.set(recording)
        try:
            _recorded(recording, function, method, copy, args, kwargs)
        finally:
            _recording.reset(token)
    return sorted(recording.calls, key=lambda call: call.call_order)


def recorded_nodes(obj: Any) -> list[tuple[Path, Any]]:
    """The objects whose calls are recorded, with their paths; an object's number is its place here."""
    return [(path, node) for path, node in iter_graph(obj, graph=True) if node is obj or _is_recorded(node)]


def _is_recorded(node: Any) -> bool:
    is_ours = isinstance(node, Pytree) and not isinstance(node, Rngs)
    return is_ours and bool(_methods(type(node)))


def _methods(kind: type) -> dict[str, Callable[..., Any]]:
    """The methods of a class to record: public ones and `__call__`, those of NNX's own bases left out."""
    found = {}
    for name in dir(kind):
        function = inspect.getattr_static(kind, name)
        is_public = name == "__call__" or not name.startswith("_")
        if is_public and inspect.isfunction(function) and not (function.__module__ or "").startswith(_NOT_RECORDED):
            found[name] = function
    return found


@contextlib.contextmanager
def _patched(kinds: set[type]) -> Iterator[None]:
    # One at a time, so that each puts back what was there before all of them.
    with _patching:
        before = [
            (kind, name, vars(kind).get(name), method) for kind in kinds for name, method in _methods(kind).items()
        ]
        try:
            for kind, name, _, method in before:
                setattr(kind, name, _recorder(kind, name, method))
            yield
        finally:
            for kind, name, own, _ in before:
                if own is not None:
                    setattr(kind, name, own)
                elif name in vars(kind):
                    delattr(kind, name)


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
    inputs = described(args, kwargs)
    key = (number, name, inputs)
    # The same call again has the same row, and so have those that it makes.
    if key in recording.seen and recording.running:
        return method(node, *args, **kwargs)
    recording.seen.add(key)
    path = recording.paths[number] + (() if name == "__call__" else (name,))
    call = CallInfo(len(recording.calls), number, type(node), path, inputs, "", None, None)
    recording.calls.append(call)
    recording.running.append(key)
    try:
        traced = _Traced(method, node, args, kwargs)
    finally:
        recording.running.pop()
    call.outputs = "" if traced.shapes is None else as_text(traced.shapes)
    if recording.flops:
        call.flops = traced.flops()
    if recording.vjp_flops:
        call.vjp_flops = traced.vjp_flops()
    return traced.finish() if recording.running else None


class _Arrays:
    """The leaves of a tree: arrays (and objects, whole), which a trace may replace, and what stays as it is."""

    def __init__(self, tree: Any, is_object: Callable[[Any], bool] = lambda leaf: False):
        self.leaves, self.treedef = jax.tree.flatten(tree, is_leaf=is_object)
        self.places = [i for i, leaf in enumerate(self.leaves) if is_object(leaf) or _is_array(leaf)]

    @property
    def values(self) -> list[Any]:
        return [self.leaves[place] for place in self.places]

    def rebuilt(self, values: Any) -> Any:
        """The tree with other arrays."""
        leaves = list(self.leaves)
        for place, value in zip(self.places, values, strict=True):
            leaves[place] = value
        return self.treedef.unflatten(leaves)


class _Traced:
    """One call of a method as a jaxpr from arrays to arrays: those of the output, then its objects' after the call."""

    out: _Arrays
    after: _Arrays

    def __init__(self, method: Callable[..., Any], node: Any, args: tuple[Any, ...], kwargs: dict[str, Any]):
        given = _Arrays((args, kwargs), is_graph_node)
        self.objects = [node, *given.values]
        graphdef, state = split(self.objects, graph=True)
        self.before = _Arrays(state)

        def pure(*arrays: Any) -> Any:
            objects = merge(graphdef, self.before.rebuilt(arrays))
            own_args, own_kwargs = given.rebuilt(objects[1:])
            self.out = _Arrays(method(objects[0], *own_args, **own_kwargs))
            self.after = _Arrays(split(objects, graph=True)[1])
            return self.out.values, self.after.values

        self.jaxpr = jax.make_jaxpr(pure)(*map(abstract, self.before.values))
        self.count = len(self.out.places)
        self.shapes = self.out.rebuilt(self.jaxpr.out_avals[: self.count])

    def finish(self) -> Any:
        """Runs the jaxpr, writes what changed into the objects, and gives the output."""
        results = _jax.run(self.jaxpr, self.before.values)
        update(self.objects, self.after.rebuilt(results[self.count :]))
        return self.out.rebuilt(results[: self.count])

    def _output(self, *arrays: Any) -> list[Any]:
        consts, given = arrays[: len(self.jaxpr.consts)], arrays[len(self.jaxpr.consts) :]
        return _jax.run(ClosedJaxpr(self.jaxpr.jaxpr, consts), given)[: self.count]

    def _avals(self) -> list[Any]:
        # Constants may be of the trace around: arrays that a function among the arguments closes over.
        return [*map(jax.typeof, self.jaxpr.consts), *self.jaxpr.in_avals]

    def flops(self) -> int:
        """The operations that the output takes."""
        return estimate(self._output, self._avals()).flops

    def vjp_flops(self) -> int:
        """The operations of the output and its derivative by all that it depends on."""
        avals = self._avals()
        differentiated = [i for i, aval in enumerate(avals) if jnp.issubdtype(aval.dtype, jnp.inexact)]

        def derivative(*arrays: Any) -> Any:
            def of_inexact(*values: Any) -> list[Any]:
                given = list(arrays)
                for place, value in zip(differentiated, values, strict=True):
                    given[place] = value
                return [one for one in self._output(*given) if jnp.issubdtype(one.dtype, jnp.inexact)]

            out, pullback = jax.vjp(of_inexact, *(arrays[i] for i in differentiated))
            return out, pullback([jnp.ones_like(one) for one in out])

        return estimate(derivative, avals).flops


def _is_array(value: Any) -> bool:
    return is_array_leaf(value) or isinstance(value, jax.ShapeDtypeStruct)
