"""The edge to JAX's running traces: which trace a tracer belongs to, and from which values it was computed.

As in `_jax.py`, each use of a private name says why.
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
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType
from typing import Any, cast

import jax
from jax.core import Tracer
from weft.core.edge import names
from weft.core.edge.moved import Names
from weft.core.edge.patches import patched

# The innermost running trace. JAX has no public function that says whether a tracer is still alive.
trace_ctx: Any = Names("jax._src.core", "weft", "trace_ctx").trace_ctx
_core = Names("jax._src.core", "what depends on the axes of a `vmap` (`axis_rules`, costs in tables)", "get_axis_env")

# Sets how tracebacks are filtered in one thread; JAX exports the setting of the whole process only.
_SPEED = "the speed of `weft check`"
_config = Names("jax._src.config", _SPEED, "traceback_filtering")

# A jaxpr under `vmap` does not show which axis of a value is the mapped one; the trace knows it.
_NONFINITE = "the examples and lines in errors of `weft.debug.nonfinite`"
_batching = Names("jax._src.interpreters.batching", _NONFINITE, "BatchTrace")
_source_info = Names("jax.extend.source_info_util", _NONFINITE, "current_name_stack", "user_context")

# Looks for keys that are used twice; JAX's error has neither the equations nor their lines.
reuse = Names("jax.experimental.key_reuse._core", "the lines in errors of `debug_keys`", "jaxpr_type_signature")

# The functions by which JAX traces its own compiled functions, and those that derive one jaxpr from another.
_calls = Names("jax._src.pjit", _SPEED, "_infer_params")
_derivations = (
    Names("jax._src.pjit", _SPEED, "_dce_jaxpr_pjit", "_transpose_jaxpr_fancy"),
    Names("jax._src.interpreters.batching", _SPEED, "_batch_jaxpr2", "_batch_jaxpr_axes"),
    Names("jax._src.interpreters.ad", _SPEED, "_jvp_jaxpr", "_linearize_jaxpr"),
    # floor: the second is its name since JAX 0.11.
    Names(
        "jax._src.interpreters.partial_eval", _SPEED,
        "_prune_closed_jaxpr_outputs", "_prune_jaxpr_outputs_cached", optional=True,
    ),
)  # fmt: skip


def _running_traces() -> Iterator[Any]:
    """The traces that the running code is inside of, innermost first: a trace refers to the trace around it."""
    trace = trace_ctx.trace
    while trace is not None:
        yield trace
        trace = getattr(trace, "parent_trace", None)


def _stages(trace: object) -> bool:
    """Whether a trace stages a program: of JAX's traces only these have a `frame`, which collects the equations."""
    return hasattr(trace, "frame")


def is_mapped(value: object) -> bool:
    """Whether an array differs along the axis of the `vmap` that is being traced; False inside other transforms.

    JAX's own error about a mapped output under None names a position among weft's lanes, not the path of a leaf.
    """
    batch_info = getattr(trace_ctx.trace, "to_batch_info", None)
    return batch_info is not None and batch_info(value)[1] is not None


def is_dead_tracer(tracer: Tracer[Any]) -> bool:
    """Whether a tracer belongs to no trace that the running code is inside of.

    JAX has no public function for it; it raises, in most cases, when the tracer is used.
    """
    return all(trace is not tracer._trace for trace in _running_traces())


def is_of_running_trace(tracer: Tracer[Any]) -> bool:
    """Whether a tracer belongs to the innermost running trace, and so is dead when that ends."""
    return trace_ctx.trace is tracer._trace


def is_of_program(tracer: Tracer[Any]) -> bool:
    """Whether a tracer belongs to the innermost program that is being staged, or to a trace inside of that."""
    # The search ends at the trace that stages a program, because what is further out belongs to another program.
    ends = (trace for trace in _running_traces() if trace is tracer._trace or _stages(trace))
    return next(ends, None) is tracer._trace


def running_trace() -> object:
    """A token of the innermost running trace: the same object as long as that runs.

    JAX's public `get_opaque_trace_state` returns a new wrapper at each call, which takes three times as long to create
    and compare, and this is called for every Variable that is constructed.
    """
    return trace_ctx.trace._weakref


def is_outermost_trace() -> bool:
    """Whether the running trace stages a program, and lies inside of no other trace."""
    outer = list(_running_traces())[1:]
    # Outermost of all is the eager trace, which stages nothing.
    return len(outer) == 1 and not _stages(outer[0])


def is_staged() -> bool:
    """Whether the running code is traced into a program, and not computed at once, as by `jax.grad` alone."""
    return any(map(_stages, _running_traces()))


def mapped_mesh_axes() -> Sequence[str]:
    """The axes of a mesh that divide what the `vmap`s around map: by `spmd_axis_name`, or by types."""
    axes = _core.get_axis_env()
    return (*axes.spmd_axis_names, *axes.explicit_mesh_axis_names)


def bound_axes() -> Mapping[str, int]:
    """The sizes of the axes that a collective of the running code may name."""
    return _core.get_axis_env().axis_sizes


def truth_of_tracers(decide: Callable[[FrameType], bool | None]) -> AbstractContextManager[None]:
    """While open, `decide` decides the truth of traced numbers; it gets the frame that asks.

    If it returns None, JAX decides, which raises. JAX has no hook for this, so `Tracer.__bool__` is replaced.
    """

    def truth(original: Callable[[Tracer[Any]], bool], tracer: Tracer[Any]) -> bool:
        decided = decide(sys._getframe(2)) if tracer.size == 1 else None  # between them runs the dispatcher
        return original(tracer) if decided is None else decided

    return patched((Tracer, "__bool__", truth))


def own_functions_traced(within: Callable[[], AbstractContextManager[Any]]) -> AbstractContextManager[None]:
    """While open, JAX's own compiled functions (`jnp.add`, `jax.random.normal`) are traced in another context.

    A proof gives each of its trials a context of its own, so that no trial is a cache hit of another one. Without this,
    each trial would trace JAX's own functions again, and spend most of its time on it. Trials can share these traces:
    they contain nothing of the user's, unless the function takes a function; and JAX attributes their equations to the
    function, so that nothing of the first caller is in them.

    Jaxprs that `vmap` and derivatives derive from such a trace, which calls no code of the user's, are made in that
    context too: under a `vmap` of `grad` that took most of the remaining time.

    Args:
        within: opens a context that is part of JAX's cache keys.
    """
    from weft.core.edge._jax import ClosedJaxpr

    def infer(original: Callable[..., Any], fun: Any, info: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Traces a compiled function: in the context, if it is JAX's own and takes no function that is not."""
        if not _is_own(fun) or not all(map(_is_plain, (*args, *kwargs.values()))):
            return original(fun, info, args, kwargs)
        with within():
            inferred_params = original(fun, info, args, kwargs)
        _own_jaxprs.add(inferred_params[0].params["jaxpr"])
        return inferred_params

    def derive(original: Callable[..., Any], jaxpr: Any, *how: Any) -> Any:
        """Derives jaxprs from one; those derived from JAX's own are made in the context, and are JAX's own too."""
        if jaxpr not in _own_jaxprs:
            return original(jaxpr, *how)
        with within():
            result = original(jaxpr, *how)
        results = result if isinstance(result, tuple) else (result,)
        _own_jaxprs.update(part for part in results if isinstance(part, ClosedJaxpr))
        return result

    # If this JAX lacks a name, the functions are traced again each time: slower, with the same result.
    replacements = [(_calls, infer), *((module, derive) for module in _derivations)]
    return patched(*((module.module, name, run) for module, run in replacements for name in module.present))


# The jaxprs of JAX's own functions, and those derived from them; each lives as long as JAX's caches hold it.
_own_jaxprs: weakref.WeakSet[Any] = weakref.WeakSet()


_FOLDER = f"{Path(jax.__file__).parent}/"


def _is_own(function: object) -> bool:
    """Whether a function is defined at the top level of one of JAX's modules: it has no closure, and wraps nothing."""
    if not isinstance(function, FunctionType) or function.__closure__ is not None or hasattr(function, "__wrapped__"):
        return False
    return function.__code__.co_filename.startswith(_FOLDER)


def _is_plain(value: object) -> bool:
    """Whether an argument neither is nor holds a function that is not JAX's own."""
    if isinstance(value, functools.partial | MethodType) or (callable(value) and not isinstance(value, type)):
        return isinstance(value, BuiltinFunctionType) or _is_own(value)
    return not isinstance(value, tuple | list | dict) or all(map(_is_plain, jax.tree.leaves(value)))


# How the name scope of a branch begins in a program, where `vmap` makes all branches of a `cond` run.
BRANCH = "weft-branch:"


def traced_to_explain(note: Callable[[Any, int, int], None]) -> AbstractContextManager[None]:
    """A `with` block in which traces have facts that JAX leaves out, for errors about their equations.

    A batched program does not show which of its axes is the mapped one: `note` is called with each variable that `vmap`
    traces, the size of the mapped axis and its position; for nested maps, with the outermost first. The equations of a
    branch get a scope with the number of the branch. The equations of the backward rule of a `custom_vjp` get their own
    lines; JAX would give them the line of the call.
    """

    def batch(process: Callable[..., Any], trace: Any, primitive: Any, tracers: Any, params: Any, /) -> Any:
        if primitive.name == "cond" and trace.to_batch_info(tracers[0])[1] is not None:
            params = {**params, "branches": tuple(map(_scoped, params["branches"], itertools.count()))}
        outs = process(trace, primitive, tracers, params)
        for out in outs if primitive.multiple_results else [outs]:
            _note_axis(trace, out, note)
        return outs

    def call_custom(call: Callable[..., Any], function: Any, /, *args: Any, **kwargs: Any) -> Any:
        if backward := getattr(function, "bwd", None):
            # JAX reads `bwd` from the function during the call. It is replaced in a copy, which no other thread sees.
            # floor: Python 3.11 cannot make it by `copy.copy`.
            copy = object.__new__(type(function))
            vars(copy).update(vars(function))
            copy.bwd = functools.wraps(backward)(functools.partial(_with_own_lines, backward))
            function = copy
        return call(function, *args, **kwargs)

    return patched((_batching.BatchTrace, "process_primitive", batch), (jax.custom_vjp, "__call__", call_custom))


def _note_axis(trace: Any, out: Any, note: Callable[[Any, int, int], None]) -> None:
    """Notes the program's variable of a value that `vmap` has computed, with the position of the mapped axis in it."""
    value, axis = trace.to_batch_info(out)
    # Tracers of outer maps and derivatives lie around the variable. The variable has the axes of outer maps too, and
    # each of them that lies at this position or before it moves the axis by one.
    while isinstance(axis, int) and value is not None and not _stages(getattr(value, "_trace", None)):
        outer = getattr(value, "batch_dim", None)
        axis += isinstance(outer, int) and outer <= axis
        value = getattr(value, "val", getattr(value, "primal", None))
    if isinstance(axis, int) and value is not None:
        note(value.val, trace.axis_data.size, axis)


def _scoped(branch: Any, number: int) -> Any:
    """A branch of a `cond` in which the name scope of each equation begins with the branch's number."""

    def scoped(eqn: Any) -> Any:
        # `stack[:0]` is an empty stack of JAX's class: the branch's scope goes around those of the equation.
        stack = eqn.source_info.name_stack
        return eqn.replace(
            source_info=eqn.source_info.replace(name_stack=stack[:0].extend(f"{BRANCH}{number}") + stack)
        )

    opened = getattr(branch, "jaxpr", branch)
    replaced = opened.replace(eqns=list(map(scoped, opened.eqns)))
    return branch.replace(jaxpr=replaced) if opened is not branch else replaced


def _with_own_lines(function: Callable[..., Any], *args: Any) -> Any:
    # JAX takes an equation's traceback from its context, and from the stack if the one in the context is false.
    stack, errors = _source_info.current_name_stack(), list[Exception]()
    with _source_info.user_context(cast(Any, False), name_stack=stack):
        try:
            return function(*args)
        except Exception as error:  # raised outside of the block: JAX would give it the traceback of the context
            errors.append(error)
    raise errors[0]


def asks_for_one_integer(error: Exception) -> bool:
    """Whether JAX needed an integer (a number of segments, say) and got an array with axes, which no value would make
    one.

    The text of the error says only that the array is traced; the locals of the frame that raised it say what JAX
    needed.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code.co_name != names.ASKS_FOR_VALUES:
        return False
    scope = trace.tb_frame.f_locals
    return scope.get(names.ASKED_BY) is operator.index and getattr(scope.get(names.ASKED_OF), "shape", ()) != ()


def traced_from(tracer: Tracer[Any], values: Sequence[object]) -> list[int]:
    """The positions, in `values`, of the arguments of a trace that a tracer was computed from.

    JAX says it only in the text of its errors, by the names of the arguments of weft's own function.
    """
    same = [i for i, value in enumerate(values) if value is tracer]
    if same:
        return same
    innermost, inner = _innermost(tracer), [_innermost(value) for value in values]
    frame = getattr(getattr(innermost, "_trace", None), "frame", None)
    if frame is None:
        return []
    positions, _ = frame.find_progenitors(innermost)
    variables = [frame.invars[position] for position in positions or ()]
    of_trace = {i: v.val for i, v in enumerate(inner) if getattr(v, "_trace", None) is innermost._trace}
    return [i for i, variable in of_trace.items() if any(variable is progenitor for progenitor in variables)]


def _innermost(value: object) -> Any:
    """The tracer of the staged trace inside of a tracer of `vmap` or of a derivative; other values as they are."""
    while (trace := getattr(value, "_trace", None)) is not None and not _stages(trace):
        value = getattr(value, "val", getattr(value, "primal", None))
    return value


def whole_tracebacks() -> AbstractContextManager[None]:
    """While open, neither JAX nor weft removes frames from tracebacks in this thread.

    JAX removes its own frames, for which it reads the file system. A proof, which raises thousands of errors and shows
    none of them, spent half of its time there.
    """
    return _config.traceback_filtering("off") if _config.present else contextlib.nullcontext()
