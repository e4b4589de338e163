"""The edge to JAX's running traces: what a tracer belongs to and was computed from, and whose functions are traced.

As in `_jax.py`, each use of what JAX keeps to itself says why.
"""

# JAX annotates in part; see `_jax.py`.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType
from typing import Any, cast

import jax
from jax.core import Tracer
from weft.core.edge import names
from weft.core.edge.moved import Names

# The innermost running trace; JAX exports nothing that tells whether a tracer is still alive.
trace_ctx: Any = Names("jax._src.core", "weft", "trace_ctx").trace_ctx

# Sets how tracebacks are filtered in one thread; JAX exports the setting of the whole process only.
_SPEED = "the speed of `weft check`"
_config = Names("jax._src.config", _SPEED, "traceback_filtering")

# What a batched program does not say: which axis of a value is the mapped one.
_NONFINITE = "the examples and lines in errors of `weft.debug.nonfinite`"
_batching = Names("jax._src.interpreters.batching", _NONFINITE, "BatchTrace")
_source_info = Names("jax.extend.source_info_util", _NONFINITE, "current_name_stack", "user_context")

# Where JAX traces its own functions, and where it makes one jaxpr of another.
_calls = Names("jax._src.pjit", _SPEED, "_infer_params")
_derivations = (
    Names("jax._src.pjit", _SPEED, "_dce_jaxpr_pjit", "_transpose_jaxpr_fancy"),
    Names("jax._src.interpreters.batching", _SPEED, "_batch_jaxpr2", "_batch_jaxpr_axes"),
    Names("jax._src.interpreters.ad", _SPEED, "_jvp_jaxpr", "_linearize_jaxpr"),
    # The second is its name since JAX 0.11.
    Names(
        "jax._src.interpreters.partial_eval", _SPEED,
        "_prune_closed_jaxpr_outputs", "_prune_jaxpr_outputs_cached", optional=True,
    ),
)  # fmt: skip


def is_mapped(value: object) -> bool:
    """Whether an array differs along the axis of the `vmap` that is being traced; False inside other transforms.

    JAX's own error about a mapped output under None says where that is in the output as JAX sees it.
    """
    batch_info = getattr(trace_ctx.trace, "to_batch_info", None)
    return batch_info is not None and batch_info(value)[1] is not None


def is_dead_tracer(tracer: Tracer[Any]) -> bool:
    """Whether a tracer belongs to no trace that the running code is inside of.

    JAX has no public way to ask; it only raises, often, once the tracer is used. Traces know the one around them.
    """
    trace = trace_ctx.trace
    while trace is not None:
        if trace is tracer._trace:
            return False
        trace = getattr(trace, "parent_trace", None)
    return True


def is_of_running_trace(tracer: Tracer[Any]) -> bool:
    """Whether a tracer is dead as soon as the innermost running trace ends."""
    return trace_ctx.trace is tracer._trace


def is_of_program(tracer: Tracer[Any]) -> bool:
    """Whether a tracer belongs to the innermost program that is being staged, or to a trace inside of that."""
    trace = trace_ctx.trace
    while trace is not None and trace is not tracer._trace and not hasattr(trace, "frame"):
        trace = getattr(trace, "parent_trace", None)
    return trace is tracer._trace


def running_trace() -> object:
    """A token of the innermost running trace: the same object as long as that runs.

    What JAX exports, `get_opaque_trace_state`, wraps it anew each time, which takes three times as long to make and to
    compare; every Variable that is made asks.
    """
    return trace_ctx.trace._weakref


def is_outermost_trace() -> bool:
    """Whether the running trace is staged, and inside of no other one: what runs in it would run on arrays, too."""
    outer = getattr(trace_ctx.trace, "parent_trace", None)
    return outer is not None and getattr(outer, "parent_trace", None) is None and not hasattr(outer, "frame")


@contextlib.contextmanager
def truth_of_tracers(decide: Callable[[FrameType], bool | None]) -> Generator[None]:
    """Asks `decide`, with the frame that wants to know, whether a traced number of this thread is true.

    None leaves it to JAX, which raises; it has no hook there. Everybody's tracers are asked while this lasts, so what
    other threads trace goes by JAX alone.
    """
    cls, thread = cast(Any, Tracer), threading.get_ident()
    original = cls.__bool__

    def truth(tracer: Tracer[Any]) -> bool:
        ours = threading.get_ident() == thread and tracer.size == 1
        found = decide(sys._getframe(1)) if ours else None
        return original(tracer) if found is None else found

    cls.__bool__ = truth
    try:
        yield
    finally:
        cls.__bool__ = original


@contextlib.contextmanager
def own_functions_traced(within: Callable[[], AbstractContextManager[Any]]) -> Generator[None]:
    """While this lasts, this thread traces JAX's own compiled functions (`jnp.add`, `jax.random.normal`) in a context.

    Who gives each trace a context of its own, so that none is answered from another's, pays for these again each time,
    which is most of the time; and there is nothing of the user's in them, but for functions that they are given. JAX
    roots the metadata of what it traces in the function, so that nothing of the first caller is in it.

    What `vmap` and derivatives make of such a trace (a jaxpr from a jaxpr, with no call of anybody's) is made in that
    context, too: under a `vmap` of `grad` that is most of the time that is left.

    Args:
        within: makes the context, of those that are part of the key of a trace.
    """
    from weft.core.edge._jax import ClosedJaxpr

    thread = threading.get_ident()

    def inferring(infer: Callable[..., Any]) -> Callable[..., Any]:
        def inferred(fun: Any, info: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            ours = threading.get_ident() == thread and _is_own(fun)
            if not ours or not all(map(_is_plain, (*args, *kwargs.values()))):
                return infer(fun, info, args, kwargs)
            with within():
                found = infer(fun, info, args, kwargs)
            _own_jaxprs.add(found[0].params["jaxpr"])
            return found

        return inferred

    def deriving(derive: Callable[..., Any]) -> Callable[..., Any]:
        def derived(jaxpr: Any, *how: Any) -> Any:
            if threading.get_ident() != thread or jaxpr not in _own_jaxprs:
                return derive(jaxpr, *how)
            with within():
                found = derive(jaxpr, *how)
            several = found if isinstance(found, tuple) else (found,)
            _own_jaxprs.update(one for one in several if isinstance(one, ClosedJaxpr))
            return found

        return derived

    with contextlib.ExitStack() as stack:
        # Without a name, what it makes is made again each time: slower, and the same.
        for name in _calls.present:
            stack.callback(_calls.wrap(name, inferring))
        for module in _derivations:
            for name in module.present:
                stack.callback(module.wrap(name, deriving))
        yield


# The traces of JAX's own functions, and what was derived from them; each lives as long as JAX's caches keep it.
_own_jaxprs: weakref.WeakSet[Any] = weakref.WeakSet()


_FOLDER = f"{Path(jax.__file__).parent}/"


def _is_own(function: object) -> bool:
    """Whether a function is one of JAX's own, at the top of a module: it closes over nothing, and wraps nothing."""
    if not isinstance(function, FunctionType) or function.__closure__ is not None or hasattr(function, "__wrapped__"):
        return False
    return function.__code__.co_filename.startswith(_FOLDER)


def _is_plain(value: object) -> bool:
    """Whether an argument is no function, or holds none, of somebody else's."""
    if isinstance(value, functools.partial | MethodType) or (callable(value) and not isinstance(value, type)):
        return isinstance(value, BuiltinFunctionType) or _is_own(value)
    return not isinstance(value, tuple | list | dict) or all(map(_is_plain, jax.tree.leaves(value)))


# How the name scope of a branch begins in a program, where `vmap` makes all branches of a `cond` run.
BRANCH = "weft-branch:"


@contextlib.contextmanager
def traced_to_explain(note: Callable[[Any, int, int], None]) -> Generator[None]:
    """A `with` block in which this thread traces what JAX leaves out of programs, for errors about their equations.

    Nothing of a batched program says which of its axes is the mapped one: `note` is told of each variable that `vmap`
    traces, the size of its axis, and where it is; of nested maps the outermost comes first. The equations of a branch
    are in a scope with its number. Those of the backward rule of a `custom_vjp` have their own lines, where JAX gives
    them the line of the call.
    """
    cls, custom, thread = _batching.BatchTrace, jax.custom_vjp, threading.get_ident()
    process, call = cls.process_primitive, custom.__call__

    def batch(trace: Any, primitive: Any, tracers: Any, params: Any, /) -> Any:
        if threading.get_ident() != thread:
            return process(trace, primitive, tracers, params)
        if primitive.name == "cond" and trace.to_batch_info(tracers[0])[1] is not None:
            params = {**params, "branches": tuple(map(_scoped, params["branches"], itertools.count()))}
        outs = process(trace, primitive, tracers, params)
        for out in outs if primitive.multiple_results else [outs]:
            _note_axis(trace, out, note)
        return outs

    def call_custom(function: Any, /, *args: Any, **kwargs: Any) -> Any:
        backward = getattr(function, "bwd", None)
        if threading.get_ident() != thread or backward is None:
            return call(function, *args, **kwargs)
        # For the length of the call, in which JAX takes the rule from here: in Python 3.11 there is no copy of it.
        function.bwd = functools.wraps(backward)(functools.partial(_with_own_lines, backward))
        try:
            return call(function, *args, **kwargs)
        finally:
            function.bwd = backward

    cls.process_primitive, custom.__call__ = batch, call_custom
    try:
        yield
    finally:
        cls.process_primitive, custom.__call__ = process, call


def _note_axis(trace: Any, out: Any, note: Callable[[Any, int, int], None]) -> None:
    value, axis = trace.to_batch_info(out)
    while isinstance(axis, int) and not hasattr(getattr(value, "_trace", None), "frame"):
        outer = getattr(value, "batch_dim", None)
        axis += isinstance(outer, int) and outer <= axis
        value = getattr(value, "val", getattr(value, "primal", None))
        if value is None:
            return
    if isinstance(axis, int) and value is not None:
        note(value.val, trace.axis_data.size, axis)


def _scoped(branch: Any, number: int) -> Any:
    def scoped(eqn: Any) -> Any:
        stack = eqn.source_info.name_stack
        return eqn.replace(
            source_info=eqn.source_info.replace(name_stack=stack[:0].extend(f"{BRANCH}{number}") + stack)
        )

    opened = getattr(branch, "jaxpr", branch)
    replaced = opened.replace(eqns=list(map(scoped, opened.eqns)))
    return branch.replace(jaxpr=replaced) if opened is not branch else replaced


def _with_own_lines(function: Callable[..., Any], *args: Any) -> Any:
    # JAX reads the traceback of an equation off the stack where its context has none that is true.
    stack, errors = _source_info.current_name_stack(), list[Exception]()
    with _source_info.user_context(cast(Any, False), name_stack=stack):
        try:
            return function(*args)
        except Exception as error:  # which JAX would give the traceback of the context
            errors.append(error)
    raise errors[0]


def asks_for_one_integer(error: Exception) -> bool:
    """Whether JAX wanted an integer, such as a number of segments, of an array that has axes: no numbers would do.

    The error says only that it was traced. What was asked for, the frame that raised it knows.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code.co_name != names.ASKS_FOR_VALUES:
        return False
    given = trace.tb_frame.f_locals
    return given.get(names.ASKED_BY) is operator.index and getattr(given.get(names.ASKED_OF), "shape", ()) != ()


def traced_from(tracer: Tracer[Any], values: Sequence[object]) -> list[int]:
    """The positions of the values that a tracer was computed from, among arguments of the trace that it belongs to.

    JAX tells it in the text of its errors alone, by the names that its own caller's arguments have.
    """
    found = [i for i, value in enumerate(values) if value is tracer]
    if found:
        return found
    innermost, inner = _innermost(tracer), [_innermost(value) for value in values]
    frame = getattr(getattr(innermost, "_trace", None), "frame", None)
    if frame is None:
        return []
    positions, _ = frame.find_progenitors(innermost)
    variables = [frame.invars[position] for position in positions or ()]
    of_trace = {i: v.val for i, v in enumerate(inner) if getattr(v, "_trace", None) is innermost._trace}
    return [i for i, variable in of_trace.items() if any(variable is other for other in variables)]


def _innermost(value: object) -> Any:
    """What a tracer of `vmap` or of a derivative stands for in the trace that is being staged, if there is one."""
    while (trace := getattr(value, "_trace", None)) is not None and not hasattr(trace, "frame"):
        value = getattr(value, "val", getattr(value, "primal", None))
    return value


def whole_tracebacks() -> AbstractContextManager[None]:
    """JAX's errors keep their tracebacks as they are, in this thread.

    JAX takes its own frames out, with a look at the file system for each one. Who raises thousands of errors and shows
    none of them spends half of the time there.
    """
    return _config.traceback_filtering("off") if _config.present else contextlib.nullcontext()
