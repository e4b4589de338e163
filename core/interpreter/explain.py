"""Says which argument is to blame when JAX refuses a call because of one array.

JAX names the array's shape and the place of its birth, or a position among the arrays that weft passed to it
(`groups[0][3]`); the user needs its path in the arguments. This runs only once something has failed, so the good path
pays nothing.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from weft.core.callers import is_users, owner_of
from weft.core.edge import names
from weft.core.edge._tracers import is_dead_tracer, traced_from
from weft.core.edge.trees import PyTree
from weft.core.edge.untyped import jax as untyped_jax
from weft.core.errors import (
    AliasError,
    CheckError,
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
)
from weft.core.frames import current_frames
from weft.core.paths import Path, format_path
from weft.core.records.leaves import Leaf

AnyArray = np.ndarray[Any, Any]


def _is_told_elsewhere(record: logging.LogRecord) -> bool:
    """Whether a line of JAX's log repeats an error of `eqx.error_if`, which is raised with the same words."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is not None and kind.__name__ == names.CLASS_OF_EQUINOX and record.msg == names.LOGGED


# For good, where equinox adds its filter around each call: a program's callbacks run in threads of their own, after the
# call that started them may have ended.
logging.getLogger(names.LOGGER).addFilter(lambda record: not _is_told_elsewhere(record))


def explain(error: Exception, find_leaves: Callable[[], Sequence[Leaf]], layer: str = "weft") -> None:
    """Raises a better error in place of one of JAX's, if an argument explains it; else returns.

    Args:
        error: JAX's.
        find_leaves: gives the leaves of the call's arguments.
        layer: the package whose transform the user called.

    Raises:
        DonatedError: if arguments were donated to an earlier call.
        TraceLevelError: if arguments are tracers of a transform that has ended.
        AliasError: if one array was donated under two paths.
        MeshError: if arguments lie on an explicit mesh and others on none, or are divided as the transform cannot take
            them, or JAX cannot tell there where a result lies.
        StaticError: if arguments are NumPy arrays of what JAX has no dtype for.
        CheckError: if `weft.error_if` failed.
        EquinoxRuntimeError: if `eqx.error_if` failed.
        KeyboardInterrupt: if that is what JAX's error came of.
    """
    # An interrupt while JAX compares tree definitions comes out as an error about these, or as one about such an error.
    cause = error.__cause__
    while isinstance(cause, Exception):
        cause = cause.__cause__
    if cause is not None:
        raise cause from None
    if names.NOT_COMPARED in str(error) and names.OUTCOME in str(error):
        # JAX 0.11's caches keep the text alone of what a comparison raised, and outcomes compare without errors.
        raise KeyboardInterrupt from None
    if isinstance(error, (untyped_jax.errors.JaxRuntimeError, ValueError)) and names.OF_EQUINOX in str(error):
        # Equinox's message, without XLA's around it; `eqx.filter_jit` does so too.
        message = str(error).partition(names.OF_EQUINOX)[2].partition(names.END_OF_EQUINOX)[0].strip()
        if message.startswith(names.OF_ERROR_IF):
            raise CheckError(message.removeprefix(names.OF_ERROR_IF)) from None
        raise eqx.EquinoxRuntimeError(message) from None
    if isinstance(error, WeftError):
        return
    text = str(error)
    if type(error).__name__ == names.CLASS_OF_SHARDINGS:
        _raise_off_mesh(find_leaves(), error, layer)
        _raise_open(error)
    if not isinstance(error, ValueError | RuntimeError | TypeError):
        return
    if names.MAPPED_APART in text or names.SLICED_APART in text:
        _raise_divided(find_leaves(), error, layer)
    if isinstance(error, jax.errors.UnexpectedTracerError) or names.A_TRACER in text.lower():
        escaped = [leaf for leaf in find_leaves() if isinstance(leaf.value, Tracer)]
        escaped = [leaf for leaf in escaped if is_dead_tracer(leaf.value)]
        if escaped:
            raise TraceLevelError(
                "a tracer escaped from a transform that has ended, into these arguments",
                at=[f"{format_path(leaf.path)}: {leaf.value.aval}" for leaf in escaped],
                fix="return the value from the transformed function instead of storing it outside",
            ) from error
    if isinstance(error, TypeError) and (names.NOT_ABSTRACT in text or names.NOT_OF_JAX in text):
        arrays = [(leaf.path, cast("AnyArray", leaf.value)) for leaf in find_leaves() if type(leaf.value) is np.ndarray]
        foreign = [(path, array) for path, array in arrays if not _is_known(array)]
        if foreign:
            raise StaticError(
                "JAX has no arrays of these dtypes",
                at=[f"{format_path(path)}: {array.dtype}{list(array.shape)}" for path, array in foreign],
                fix="keep it as configuration (a tuple: array.tolist()), or compute with numbers that stand for it",
            ) from error
    if names.DELETED in text or names.DONATED_TWICE in text:
        leaves = find_leaves()
        gone = [leaf for leaf in leaves if isinstance(leaf.value, jax.Array) and _is_deleted(leaf.value)]
        if names.DONATED_TWICE in text:
            _raise_aliased(leaves, error)
        if gone:
            raise DonatedError(
                "these arguments were donated to an earlier call, and are gone",
                at=[format_path(leaf.path) for leaf in gone],
                fix=f"use the {'successor' if layer == 'weft' else 'array'} that the call returned, or do not donate",
            ) from error


# What moves values to a mesh, beside JAX's own.
_SHARD = {"weft": "weft.shard, ", "nnx": ""}


def _is_known(array: AnyArray) -> bool:
    """Whether JAX has arrays of the dtype: texts, dates, objects and structures it has not."""
    # bfloat16 and its like are of NumPy's sort of structures.
    return array.dtype.kind not in "USOmMV" or jnp.issubdtype(array.dtype, np.number)


def _is_deleted(value: jax.Array) -> bool:
    return not isinstance(value, Tracer) and value.is_deleted()


def _raise_off_mesh(leaves: Sequence[Leaf], error: Exception, layer: str) -> None:
    """Raises if the mesh is known from some arguments alone: from the others JAX cannot tell where results lie."""
    if not jax.sharding.get_abstract_mesh().empty:
        return
    meshes = [(leaf.path, jax.typeof(leaf.value).sharding.mesh) for leaf in leaves]
    off = [path for path, mesh in meshes if mesh.empty]
    on = [(path, mesh) for path, mesh in meshes if jax.sharding.AxisType.Explicit in mesh.axis_types]
    if off and on:
        path, mesh = on[0]
        axes = ", ".join(f"{name}={size}" for name, size in mesh.shape.items())
        more = [f"and {len(off) - _MOST_PATHS} more"] if off[_MOST_PATHS:] else []
        raise MeshError(
            f"{format_path(path)} lies on an explicit mesh ({axes}), and other arguments on none: JAX cannot tell "
            f"where results lie: {str(error).partition(chr(10))[0]}",
            at=[*map(format_path, off[:_MOST_PATHS]), *more],
            fix=f"call it inside `with jax.set_mesh(mesh):`, or place them there ({_SHARD[layer]}jax.device_put)",
        ) from error


def _raise_open(error: Exception) -> None:
    """Raises about an operation on an explicit mesh whose result could lie in several places, or whose operands differ.

    It may be in code of others, which nobody can give an `out_sharding`: in a loss or transformation of optax.
    """
    place, asking = _places(error.__traceback__)
    where = "out_sharding=" if asking is None else f"jax.sharding.auto_axes({asking}, out_sharding=...) around the call"
    rest = "" if asking is not None else ", or let the compiler choose in a function: jax.sharding.auto_axes"
    fix = f"say it by {where}, or move an operand (jax.sharding.reshard){rest}"
    if jax.sharding.get_abstract_mesh().empty:
        # Since JAX 0.11 derivatives of loops forget the mesh of their operands.
        fix = f"call it inside `with jax.set_mesh(mesh):`; if that does not help, {fix}"
    raise MeshError(
        f"JAX cannot tell where a result lies on an explicit mesh: {str(error).partition(chr(10))[0]}",
        at=place,
        fix=fix,
    ) from error


def _places(traceback: TracebackType | None) -> tuple[list[str], str | None]:
    """The user's line, and, below it, that of another package; and what the user called of that, by name."""
    own: list[str] = []
    below: list[str] = []
    asking = None
    for frame, line in _frames(traceback):
        owner, code = owner_of(frame.f_code.co_filename), frame.f_code
        place = [f"{code.co_filename}:{line} in {code.co_name}"]
        if owner in ("user", "generated"):
            own, below, asking = place, [], None
        elif owner == "installed":
            below, asking = place, asking or code.co_name
    return own + below, asking


def _frames(traceback: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next


def _raise_divided(leaves: Sequence[Leaf], error: Exception, layer: str) -> None:
    """Raises about the arguments of a transform whose axis is divided over an explicit mesh."""
    types = [f"{format_path(leaf.path)}: {jax.typeof(leaf.value)}" for leaf in leaves]
    more = [f"and {len(types) - _MOST_PATHS} more"] if types[_MOST_PATHS:] else []
    what, fix = (
        ("a mapped axis is divided over the mesh in some arguments and otherwise in others", "divide it alike in all")
        if names.MAPPED_APART in str(error)
        else ("an axis of which a scan takes slices is divided over the mesh", "have it whole on each device")
    )
    raise MeshError(
        what,
        at=[*types[:_MOST_PATHS], *more],
        fix=f"{fix} ({_SHARD[layer]}jax.sharding.reshard), or call it under jax.sharding.auto_axes",
    ) from error


def _raise_aliased(leaves: Sequence[Leaf], error: Exception) -> None:
    paths: dict[int, list[Path]] = {}
    for leaf in leaves:
        paths.setdefault(id(leaf.value), []).append(leaf.path)
    shared = [" and ".join(map(format_path, group)) for group in paths.values() if len(group) > 1]
    raise AliasError(
        "one array is reached under two paths, so it cannot be donated",
        at=shared,
        fix="copy it (jnp.copy) at one of them, or donate neither",
    ) from error


# ---- a value that Python needs and a trace does not have -----------------------------------------------------------

_BY_VALUE = "choose by value with jnp.where or {layer}.cond"
# JAX's error, weft's, and what to do if the value may not be static. Subclasses come before their bases.
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
_MOST_PATHS = 5


def explain_traced(
    error: Exception, values: Sequence[PyTree], path_of: Callable[[int], Path], layer: str = "weft"
) -> None:
    """Raises a better error in place of one of JAX's about a value that is traced, if an argument explains it.

    Args:
        error: what came out of the user's function.
        values: the leaves that the function was given.
        path_of: the path of leaf `i` in the arguments.
        layer: the package whose transform the user called.

    Raises:
        TracedValueError: naming the arguments that the value comes from.
    """
    known = next(((ours, advice) for theirs, ours, advice in _TRACED if isinstance(error, theirs)), None)
    if known is None and type(error) is TypeError and str(error).startswith(names.TRACED_SHAPE):
        known = TracedIntegerError, "read it off the shape of an argument"
    if known is None or isinstance(error, WeftError):
        return
    kind, advice = known[0], known[1].format(layer=layer)
    for tracer in _tracers_in(error.__traceback__, kind is TracedMaskError):
        found = traced_from(tracer, values)
        if found:
            paths = [path_of(i) for i in found]
            blamed = ", ".join(f"`{format_path(path)}`" for path in paths)
            first = str(error).partition("\n")[0].rstrip(".")
            at = [f"{format_path(path)}: {jax.typeof(values[i])}" for i, path in zip(found, paths, strict=True)]
            raise kind(
                f"Python needs a value that depends on {blamed}, and that is traced: {first}",
                at=[*at, *_place(error.__traceback__)],
                fix=_make_static(paths) + advice,
            ) from error


def _make_static(paths: Sequence[Path]) -> str:
    """How an argument becomes static in the transform that is being traced, if it can."""
    transform = current_frames()[-1].transform if current_frames() else ""
    if len(paths) != 1 or transform not in ("jit", "remat"):
        return ""
    name, *below = paths[0]
    if below:
        return f"if few values are meant, make {format_path(paths[0])} an argument of its own, and that static; else "
    option = f'static_argnames="{name}"' if transform == "jit" else "static_argnums"
    return f"if few values are meant, make it static ({transform} with {option}); else "


def _tracers_in(traceback: TracebackType | None, mask: bool) -> list[Tracer[Any]]:
    """The tracers that JAX had in hand when it raised."""
    frames = [frame for frame, _ in _frames(traceback)]
    for frame in reversed(frames[-_MOST_FRAMES:]):
        values: Iterator[object] = itertools.chain.from_iterable(map(_elements, frame.f_locals.values()))
        tracers: list[Tracer[Any]] = [one for one in values if isinstance(one, Tracer)]
        found = [one for one in tracers if not mask or one.dtype == bool]
        # What it is about is in the frame that raised, others are only nearby.
        if found or is_users(frame):
            return found
    return []


def _elements(value: object) -> Sequence[object]:
    return cast("Sequence[Any]", value) if isinstance(value, tuple | list) else (value,)


def _place(traceback: TracebackType | None) -> list[str]:
    """The line of the user's code, as one line of an error."""
    found: list[str] = []
    for frame, line in _frames(traceback):
        if is_users(frame):
            found = [f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"]
    return found
