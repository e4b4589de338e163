"""Replaces JAX's error about one array of a call by an error that names the array's path in the arguments.

JAX names the array's shape and the line where it was made, or a position among the arrays that weft passed to it
(`groups[0][3]`); the user needs its path in the arguments. This runs only after a call has failed, so that calls that
succeed pay nothing.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from traceback import walk_tb
from types import TracebackType
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from weft.core.donations import FIX, PROBLEM, deleted_among
from weft.core.edge import names
from weft.core.edge._tracers import is_dead_tracer, traced_from
from weft.core.edge.trees import PyTree
from weft.core.edge.untyped import jax as untyped_jax
from weft.core.errors import (
    AliasError,
    DifferentiationError,
    DonatedError,
    MeshError,
    StaticError,
    TracedArrayError,
    TracedBoolError,
    TracedIntegerError,
    TracedMaskError,
    TracedValueError,
    TraceLevelError,
    WeftError,
    raised_by,
)
from weft.core.frames import current_frames, is_users, owner_of
from weft.core.interpreter.rides import Ride
from weft.core.paths import Path, first_places, format_path
from weft.core.records.leaves import Leaf, type_of


def _repeats_error(record: logging.LogRecord) -> bool:
    """Whether a line of JAX's log repeats the text of an `eqx.error_if`, which is raised as an error too."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is not None and kind.__name__ == names.CLASS_OF_EQUINOX and record.msg == names.LOGGED


# Added once and never removed, while equinox adds its filter around each call: callbacks run in threads of their own,
# and may log after the call that started them has ended, so that the user read the error twice.
logging.getLogger(names.LOGGER).addFilter(lambda record: not _repeats_error(record))


def explain(error: Exception, find_leaves: Callable[[], Sequence[Leaf]], layer: str = "weft") -> None:
    """Raises an error that names an argument in place of JAX's error, if an argument explains that; else returns.

    Args:
        error: JAX's error.
        find_leaves: returns the leaves of the call's arguments.
        layer: the package whose transform the user called.

    Raises:
        WeftError: the error that `_ANSWERS` has for the text of JAX's error.
        CheckError: if `weft.error_if` failed.
        EquinoxRuntimeError: if `eqx.error_if` failed.
        KeyboardInterrupt: if an interrupt caused JAX's error.
    """
    # JAX turns any exception that is raised while it compares treedefs into its own error about the comparison. So an
    # interrupt at that moment arrived here as a ValueError, and a program that catches ValueError could not be stopped.
    # An interrupt is a BaseException and no Exception, by which it is found among the causes.
    cause = error.__cause__
    while isinstance(cause, Exception):
        cause = cause.__cause__
    if cause is not None:
        raise cause from None
    if names.NOT_COMPARED in str(error) and names.OUTCOME in str(error):
        # JAX 0.11's caches drop the cause and keep its text. Outcomes compare without raising, so a comparison of them
        # that failed was interrupted.
        raise KeyboardInterrupt from None
    if isinstance(error, (untyped_jax.errors.JaxRuntimeError, ValueError)) and names.OF_EQUINOX in str(error):
        # Equinox's message without the text that XLA puts around it, as `eqx.filter_jit` shows it.
        message = str(error).partition(names.OF_EQUINOX)[2].partition(names.END_OF_EQUINOX)[0].strip()
        if message.startswith(names.OF_ERROR_IF):
            raise raised_by(message.removeprefix(names.OF_ERROR_IF)) from None
        raise eqx.EquinoxRuntimeError(message) from None
    if type(error).__name__ == names.CLASS_OF_SHARDINGS:
        raise _off_mesh(find_leaves(), error, layer) or _ambiguous_sharding(error) from error
    if isinstance(error, WeftError) or not isinstance(error, ValueError | RuntimeError | TypeError):
        return
    for words, kind, places, problem, fix in _ANSWERS:
        at = places(find_leaves(), error) if words.lower() in str(error).lower() else None
        if at is not None:
            raise kind(problem, at=at, fix=fix.format(**_WORDS[layer], layer=layer)) from error


# From the leaves of the arguments and JAX's error to the `at` of weft's; None if the arguments do not explain the
# error.
Places = Callable[[Sequence[Leaf], Exception], "list[str] | None"]


def _blamed(is_blamed: Callable[[Any], bool], leaves: Sequence[Leaf], error: Exception) -> list[str] | None:
    """The paths and types of the arguments that are to blame; None if there are none."""
    blamed = [f"{format_path(leaf.path)}: {type_of(leaf.value)}" for leaf in leaves if is_blamed(leaf.value)]
    return first_places(blamed) or None


def _is_escaped(value: Any) -> bool:
    return isinstance(value, Tracer) and is_dead_tracer(cast("Tracer[Any]", value))


def _is_foreign(value: Any) -> bool:
    """Whether a NumPy array has a dtype that JAX has not: text, dates, objects, structures."""
    # NumPy gives bfloat16 and the float8 dtypes the kind "V", which is that of structures.
    return type(value) is np.ndarray and value.dtype.kind in "USOmMV" and not jnp.issubdtype(value.dtype, np.number)


def _deleted(leaves: Sequence[Leaf], error: Exception) -> list[str] | None:
    return deleted_among((format_path(leaf.path), leaf.value) for leaf in leaves) or None


def refuse_donated_twice(leaves: Sequence[Leaf], rides: Sequence[Ride], repeats: Sequence[int]) -> None:
    """Refuses a call that donates an array which it uses twice, before XLA does, which writes to the log, too."""
    for leaf, ride, first in zip(leaves, rides, repeats, strict=True):
        away = ride.gives_away or rides[first].gives_away
        if leaf is not leaves[first] and away and not isinstance(leaf.value, np.ndarray | Tracer):
            raise AliasError(_TWICE, at=_aliased(leaves, None), fix=_COPY)


def _aliased(leaves: Sequence[Leaf], error: Exception | None) -> list[str]:
    paths: dict[int, list[str]] = {}
    for leaf in (leaf for leaf in leaves if isinstance(leaf.value, jax.Array)):
        paths.setdefault(id(leaf.value), []).append(format_path(leaf.path))
    return [" and ".join(group) for group in paths.values() if len(group) > 1]


def _loop(leaves: Sequence[Leaf], error: Exception) -> list[str]:
    # JAX raises its error from another error, whose traceback shows the line that wrote the loop.
    return [] if error.__cause__ is None else _line_of(error.__cause__.__traceback__).lines[-1:]


def _off_mesh(leaves: Sequence[Leaf], error: Exception, layer: str) -> MeshError | None:
    """The error for a call in which some arguments lie on an explicit mesh and others on none; None if it is not so."""
    if not jax.sharding.get_abstract_mesh().empty:
        return None
    meshes = [(format_path(leaf.path), jax.typeof(leaf.value).sharding.mesh) for leaf in leaves]
    off = [path for path, mesh in meshes if mesh.empty]
    on = [(path, mesh) for path, mesh in meshes if jax.sharding.AxisType.Explicit in mesh.axis_types]
    if not off or not on:
        return None
    path, mesh = on[0]
    axes = ", ".join(f"{name}={size}" for name, size in mesh.shape.items())
    return MeshError(
        f"{path} lies on an explicit mesh ({axes}), and other arguments on none: JAX cannot tell "
        f"where results lie: {str(error).partition(chr(10))[0]}",
        at=first_places(off),
        fix=f"call it inside `with jax.set_mesh(mesh):`, or place them there ({_WORDS[layer]['shard']}jax.device_put)",
    )


def _ambiguous_sharding(error: Exception) -> MeshError:
    """The error for an operation on an explicit mesh whose result could have several shardings, or whose operands
    differ.

    If the operation is in another package (a loss of optax), the user cannot give it an `out_sharding`, so that the fix
    names the call of that package.
    """
    lines, called = _line_of(error.__traceback__)
    if called is None:
        where, rest = "out_sharding=", ", or let the compiler choose in a function: jax.sharding.auto_axes"
    else:
        where, rest = f"jax.sharding.auto_axes({called}, out_sharding=...) around the call", ""
    fix = f"say it by {where}, or move an operand (jax.sharding.reshard){rest}"
    if jax.sharding.get_abstract_mesh().empty:
        # Since JAX 0.11 derivatives of loops forget the mesh of their operands.
        fix = f"call it inside `with jax.set_mesh(mesh):`; if that does not help, {fix}"
    problem = f"JAX cannot tell where a result lies on an explicit mesh: {str(error).partition(chr(10))[0]}"
    return MeshError(problem, at=lines, fix=fix)


class _Line(NamedTuple):
    """Where an error arose, for its `at`.

    Attributes:
        lines: the user's line and, below it, the line in another package (a loss of optax), if there are any.
        called: the name of the function of that package that the user called.
    """

    lines: list[str]
    called: str | None


def _line_of(traceback: TracebackType | None) -> _Line:
    own: list[str] = []
    below: list[str] = []
    called = None
    for frame, number in walk_tb(traceback):
        owner, code = owner_of(frame.f_code.co_filename), frame.f_code
        line = [f"{code.co_filename}:{number} in {code.co_name}"]
        if owner in ("user", "generated"):
            own, below, called = line, [], None
        elif owner == "installed":
            below, called = line, called or code.co_name
    return _Line(own + below, called)


# The words of each layer's users, for the texts below.
_WORDS = {"weft": {"shard": "weft.shard, ", "successor": "successor"}, "nnx": {"shard": "", "successor": "array"}}
_DIVIDED = "({shard}jax.sharding.reshard), or call it under jax.sharding.auto_axes"
_TWICE = "one array is reached under two paths, so it cannot be donated"
_COPY = "copy it (jnp.copy) at one of them, or donate neither"
_NO_DTYPE = (
    StaticError, partial(_blamed, _is_foreign), "JAX has no arrays of these dtypes",
    "keep it as configuration (a tuple: array.tolist()), or compute with numbers that stand for it",
)  # fmt: skip
# A part of JAX's text, and the error in its place: its class, its places, the problem, and the fix. The first entry
# whose text occurs and that finds a place counts.
_ANSWERS: tuple[tuple[str, type[WeftError], Places, str, str], ...] = (
    (names.MAPPED_APART, MeshError, partial(_blamed, lambda value: True),
        "a mapped axis is divided over the mesh differently in different arguments",
        f"divide it alike in all {_DIVIDED}"),
    (names.SLICED_APART, MeshError, partial(_blamed, lambda value: True),
        "an axis of which a scan takes slices is divided over the mesh",
        f"have it whole on each device {_DIVIDED}"),
    (names.A_TRACER, TraceLevelError, partial(_blamed, _is_escaped),
        "a tracer escaped from a transform that has ended, into these arguments",
        "return the value from the transformed function instead of storing it outside"),
    (names.NOT_ABSTRACT, *_NO_DTYPE),
    (names.NOT_OF_JAX, *_NO_DTYPE),
    (names.NO_VALUE, TraceLevelError, partial(_blamed, lambda value: isinstance(value, jax.ShapeDtypeStruct)),
        "a ShapeDtypeStruct has a shape and no values, so nothing can be computed with it",
        "pass arrays; or only trace it: {layer}.eval_shape(f, ...), {layer}.jit(f).lower(...)"),
    (names.UNFIT_SHARDING, MeshError, lambda leaves, error: [str(error).rpartition(names.UNFIT_SHARDING)[2]],
        "an array cannot lie as in_shardings or out_shardings say",
        "give a sharding that fits the axes of each array, or None"),
    (names.DONATED_TWICE, AliasError, _aliased,
        _TWICE, _COPY),
    (names.DELETED, DonatedError, _deleted,
        PROBLEM, FIX),
    (names.NO_REVERSE, DifferentiationError, _loop,
        "a loop whose number of steps is known only when it runs has no derivative in reverse",
        "bound it: weft.while_loop(cond, body, init, max_steps=...); or give fori_loop Python ints; or use "
        "{layer}.scan"),
)  # fmt: skip


# ---- a value that Python needs and that is traced ------------------------------------------------------------------

_BY_VALUE = "choose by value with jnp.where or {layer}.cond"
# JAX's error, weft's, and the advice if the value cannot be static. Subclasses come before their bases.
_TRACED: tuple[tuple[type[Exception], type[TracedValueError], str], ...] = (
    (jax.errors.TracerBoolConversionError, TracedBoolError, _BY_VALUE),
    (jax.errors.TracerIntegerConversionError, TracedIntegerError, "read it off a shape, or index with jnp.take"),
    (jax.errors.TracerArrayConversionError, TracedArrayError, "use jax.numpy where NumPy is called"),
    (
        jax.errors.NonConcreteBooleanIndexError,
        TracedMaskError,
        "choose with jnp.where(mask, x, 0), or say how many there are at most: jnp.nonzero(mask, size=...)",
    ),
    (jax.errors.ConcretizationTypeError, TracedValueError, "read it off a shape, or compute with jax.numpy"),
)
_MOST_FRAMES = 40


def explain_traced(
    error: Exception,
    values: Sequence[PyTree],
    path_of: Callable[[int], Path],
    names_of: Callable[[], Sequence[str]],
    layer: str = "weft",
) -> None:
    """Raises an error that names the arguments in place of JAX's error about a traced value, if it depends on
    arguments.

    Args:
        error: the exception that the user's function raised.
        values: the leaves that the function was called with.
        path_of: the path of leaf `i` in the arguments.
        names_of: returns the names of the function's positional parameters.
        layer: the package whose transform the user called.

    Raises:
        TracedValueError: naming the arguments that the value depends on.
    """
    answer = next(((ours, advice) for theirs, ours, advice in _TRACED if isinstance(error, theirs)), None)
    if answer is None and type(error) is TypeError and str(error).startswith(names.TRACED_SHAPE):
        answer = TracedIntegerError, "read it off the shape of an argument"
    if answer is None or isinstance(error, WeftError):
        return
    kind, advice = answer[0], answer[1].format(layer=layer)
    for tracer in _tracers_in(error.__traceback__, kind is TracedMaskError):
        positions = traced_from(tracer, values)
        if positions:
            paths = [path_of(i) for i in positions]
            blamed = ", ".join(f"`{format_path(path)}`" for path in paths)
            first = str(error).partition("\n")[0].rstrip(".")
            at = [f"{format_path(path)}: {jax.typeof(values[i])}" for i, path in zip(positions, paths, strict=True)]
            raise kind(
                f"Python needs a value that depends on {blamed}, and that is traced: {first}",
                at=[*at, *_line_of(error.__traceback__).lines[-1:]],
                fix=_make_static(paths, names_of()) + advice,
            ) from error


def _make_static(paths: Sequence[Path], positional: Sequence[str]) -> str:
    """The part of the fix that says how to make an argument static in the innermost transform; empty if it cannot
    be."""
    transform = current_frames()[-1].transform if current_frames() else ""
    if len(paths) != 1 or transform not in ("jit", "remat"):
        return ""
    name, *below = paths[0]
    if below:
        return f"if few values are meant, make {format_path(paths[0])} an argument of its own, and that static; else "
    option = f'static_argnames="{name}"'
    if transform == "remat":  # `jax.checkpoint` has no static_argnames
        places: dict[Any, int] = {parameter: place for place, parameter in enumerate(positional)}
        option = (
            f"static_argnums={places[name]}" if name in places else f"static_argnums, once {name} may be positional"
        )
    return f"if few values are meant, make it static ({transform} with {option}); else "


def _tracers_in(traceback: TracebackType | None, mask: bool) -> list[Tracer[Any]]:
    """The tracers among the local variables of the frame that raised, or of the nearest frame above that has any.

    The user's own frame is the last that is searched. With `mask` only boolean tracers count: the error is about a
    mask.
    """
    frames = [frame for frame, _ in walk_tb(traceback)]
    for frame in reversed(frames[-_MOST_FRAMES:]):
        values: Iterator[object] = itertools.chain.from_iterable(map(_elements, frame.f_locals.values()))
        tracers: list[Tracer[Any]] = [value for value in values if isinstance(value, Tracer)]
        candidates = [tracer for tracer in tracers if not mask or tracer.dtype == bool]
        # Not further up: the tracer that the error is about is in the nearest frame with one, and frames above the
        # user's hold tracers that have nothing to do with it.
        if candidates or is_users(frame):
            return candidates
    return []


def _elements(value: object) -> Sequence[object]:
    return cast("Sequence[Any]", value) if isinstance(value, tuple | list) else (value,)
