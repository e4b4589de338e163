"""Calls of the public methods of a model's records, recorded while the model is traced once.

A record does not know its path, and transforms rebuild records. A call is attributed to the record in the nearest
running call that is the same object, or else to the first record there with an equal treedef that had no call yet.
Records with equal treedefs have equal rows for equal inputs, so a mistake among them does not show, unless a transform
calls one of them twice with different inputs: the second call gets the path of the next of them.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import jax
from weft.core.edge import trees
from weft.core.edge._jax import ClosedJaxpr
from weft.core.edge.contexts import tabulate_context
from weft.core.paths import Path, format_path
from weft.core.records.keys import Keys
from weft.core.records.module import Given, Module, watching_methods
from weft.core.records.successors import records_in
from weft.core.sowing.tags import take_arrays
from weft.modules.summary.costs import Cost, abstract, backward_cost, forward_cost
from weft.modules.summary.texts import as_text, described


@dataclass
class Call:
    """One call of a public method, a row of the table.

    Attributes:
        path: where the record is; None for one that was made on the way.
        place: that as text, with the method's name if it is not `__call__`.
        depth: how many records are around it.
        type: its class.
        inputs, outputs: as text, in rich's markup.
        forward, backward: what the call costs, and its derivative; None where that was not asked for, or is not there.
    """

    path: Path | None
    place: str
    depth: int
    type: type
    inputs: str
    outputs: str = ""
    forward: Cost | None = None
    backward: Cost | None = None


@dataclass
class Running:
    """A call that has not ended: its record, where that is, and the parts of it that had a call."""

    record: Any
    path: Path | None
    place: str
    had_calls: set[Path] = field(default_factory=set)


@dataclass
class Recording:
    """The calls of one run of a model."""

    costs: bool
    calls: list[Call] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)
    seen: set[Any] = field(default_factory=set)
    known: dict[Any, tuple[Cost, Cost | None]] = field(default_factory=dict)


_recording: ContextVar[Recording | None] = ContextVar("weft_tabulate_records", default=None)
_numbers = itertools.count(1)


def record_calls(model: Module, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], costs: bool) -> list[Call]:
    """Returns the calls that a method of a model makes, its own first, in the order in which they begin.

    Args:
        model: the record; nothing is computed.
        method: the method's name.
        args, kwargs: its arguments; arrays may be abstract (`jax.ShapeDtypeStruct`).
        costs: whether to estimate what each call costs.

    Raises:
        AttributeError: if there is no such method.
    """
    function = getattr(type(model), method)
    arrays, skeleton = take_arrays((model, args, kwargs))
    recording = Recording(costs)

    def run(*arrays: Any) -> list[Any]:
        record, args, kwargs = skeleton.fill(arrays)
        recording.running.append(Running(record, (), "model"))  # `place_of` looks for the first record in it
        return take_arrays(_recorded(recording, record, function, method, (args, kwargs)))[0]

    with watching_methods(_watch, _recording, recording):
        jax.make_jaxpr(run)(*map(abstract, arrays))
    return recording.calls


def _watch(record: Any, method: Callable[..., Any], arguments: Given, proceed: Callable[[], Any]) -> Any:
    __tracebackhide__ = True
    recording = _recording.get()
    # Draws of keys are no layers, and would be most of the rows.
    if recording is None or isinstance(record, Keys):
        return proceed()
    return _recorded(recording, record, method, method.__name__, arguments, proceed)


def _recorded(
    recording: Recording,
    record: Any,
    method: Callable[..., Any],
    name: str,
    arguments: Given,
    proceed: Callable[[], Any] | None = None,
) -> Any:
    __tracebackhide__ = True
    args, kwargs = arguments
    path, place = place_of(recording.running, record)
    inputs = described(args, {key: value for key, value in kwargs.items() if value is not None})
    running = Running(record, path, place)
    call = Call(path, place if name == "__call__" else f"{place}.{name}()", 0, type(record), inputs)
    # A layer that is called many times with the same shapes would fill the table with equal rows.
    is_new = (call.place, inputs) not in recording.seen
    if is_new:
        recording.seen.add((call.place, inputs))
        recording.calls.append(call)
        call.depth = len({place, *(outer.place for outer in recording.running)}) - 1
    recording.running.append(running)
    try:
        with tabulate_context(next(_numbers)):
            result = method(record, *args, **kwargs) if proceed is None else proceed()
    finally:
        recording.running.pop()
    if is_new:
        call.outputs = as_text(result)
        if recording.costs:
            call.forward, call.backward = _costs(recording, record, method, arguments)
    return result


def place_of(running: list[Running], record: Any) -> tuple[Path | None, str]:
    """Returns the path of a record in the model, or None if the call created the record, and the path as text."""
    for matches in (operator.is_, _is_alike):
        for owner in reversed(running):
            if owner.path is None:
                continue
            inside = [path for path, part in records_in(owner.record) if matches(part, record)]
            if inside:
                chosen = next((path for path in inside if path not in owner.had_calls), inside[0])
                owner.had_calls.add(chosen)
                return (*owner.path, *chosen), format_path((*owner.path, *chosen), "model")
    return None, f"{running[-1].place}.<{type(record).__name__}>"


def _is_alike(part: Any, record: Any) -> bool:
    return type(part) is type(record) and trees.structure(part) == trees.structure(record)


def _costs(recording: Recording, record: Any, method: Callable[..., Any], arguments: Given) -> tuple[Cost, Cost | None]:
    arrays, skeleton = take_arrays((record, *arguments))
    avals = list(map(abstract, arrays))
    # Equal layers have one cost: without the cache, each layer of a deep model would be traced and lowered for itself.
    key = (method, skeleton, tuple((aval.shape, aval.dtype) for aval in avals))
    try:
        known = recording.known.get(key)
    except TypeError:  # an argument that cannot be hashed: its cost is estimated at each call
        key, known = object(), None
    if known is None:
        program = _traced(method, skeleton, avals)
        known = recording.known[key] = forward_cost(program), backward_cost(program)
    return known


def _traced(method: Callable[..., Any], skeleton: Any, avals: list[Any]) -> ClosedJaxpr:
    def run(*arrays: Any) -> list[Any]:
        record, args, kwargs = skeleton.fill(arrays)
        return take_arrays(method(record, *args, **kwargs))[0]

    token = _recording.set(None)
    try:
        with tabulate_context(next(_numbers)):
            return jax.make_jaxpr(run)(*avals)
    finally:
        _recording.reset(token)
