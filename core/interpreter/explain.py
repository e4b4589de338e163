"""Says which argument is to blame when JAX refuses a call because of one array.

JAX names the array's shape and the place of its birth, or a position among the arrays that weft passed to it
(`groups[0][3]`); the user needs its path in the arguments. This runs only once something has failed, so the good path
pays nothing.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from traceback import walk_tb
from types import TracebackType
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
)
from weft.core.frames import current_frames
from weft.core.interpreter.donations import donors_of
from weft.core.paths import Path, format_path
from weft.core.records.leaves import Leaf, type_of

_MOST_PATHS = 5


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
        WeftError: as the table of answers has it.
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
    if type(error).__name__ == names.CLASS_OF_SHARDINGS:
        raise _off_mesh(find_leaves(), error, layer) or _open(error) from error
    if isinstance(error, WeftError) or not isinstance(error, ValueError | RuntimeError | TypeError):
        return
    for words, kind, places, what, fix in _ANSWERS:
        at = places(find_leaves(), error) if words.lower() in str(error).lower() else None
        if at is not None:
            raise kind(what, at=at, fix=fix.format(**_WORDS[layer], layer=layer)) from error


# Where an error is, or None if the arguments do not explain it.
Places = Callable[[Sequence[Leaf], Exception], "list[str] | None"]


def _blamed(is_blamed: Callable[[Any], bool], leaves: Sequence[Leaf], error: Exception) -> list[str] | None:
    """The places of the arguments that are to blame."""
    blamed = [f"{format_path(leaf.path)}: {type_of(leaf.value)}" for leaf in leaves if is_blamed(leaf.value)]
    return _first(blamed) or None


def _first(places: Sequence[str]) -> list[str]:
    more = [f"and {len(places) - _MOST_PATHS} more"] if places[_MOST_PATHS:] else []
    return [*places[:_MOST_PATHS], *more]


def _is_escaped(value: Any) -> bool:
    return isinstance(value, Tracer) and is_dead_tracer(cast("Tracer[Any]", value))


def _is_foreign(value: Any) -> bool:
    """Whether JAX has no arrays of the dtype: texts, dates, objects and structures."""
    # bfloat16 and its like are of NumPy's sort of structures.
    return type(value) is np.ndarray and value.dtype.kind in "USOmMV" and not jnp.issubdtype(value.dtype, np.number)


def _is_deleted(value: Any) -> bool:
    return isinstance(value, jax.Array) and not isinstance(value, Tracer) and value.is_deleted()


def _deleted(leaves: Sequence[Leaf], error: Exception) -> list[str] | None:
    places = _blamed(_is_deleted, leaves, error)
    return places and [*places, *donors_of(leaf.value for leaf in leaves if _is_deleted(leaf.value))]


def _aliased(leaves: Sequence[Leaf], error: Exception) -> list[str]:
    paths: dict[int, list[str]] = {}
    for leaf in leaves:
        paths.setdefault(id(leaf.value), []).append(format_path(leaf.path))
    return [" and ".join(group) for group in paths.values() if len(group) > 1]


def _loop(leaves: Sequence[Leaf], error: Exception) -> list[str]:
    # JAX says there where the loop was written.
    return [] if error.__cause__ is None else _places(error.__cause__.__traceback__)[0][-1:]


def _off_mesh(leaves: Sequence[Leaf], error: Exception, layer: str) -> MeshError | None:
    """If the mesh is known from some arguments alone: from the others JAX cannot tell where results lie."""
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
        at=_first(off),
        fix=f"call it inside `with jax.set_mesh(mesh):`, or place them there ({_WORDS[layer]['shard']}jax.device_put)",
    )


def _open(error: Exception) -> MeshError:
    """About an operation on an explicit mesh whose result could lie in several places, or whose operands differ.

    It may be in code of others, which nobody can give an `out_sharding`: in a loss or transformation of optax.
    """
    place, asking = _places(error.__traceback__)
    where = "out_sharding=" if asking is None else f"jax.sharding.auto_axes({asking}, out_sharding=...) around the call"
    rest = "" if asking is not None else ", or let the compiler choose in a function: jax.sharding.auto_axes"
    fix = f"say it by {where}, or move an operand (jax.sharding.reshard){rest}"
    if jax.sharding.get_abstract_mesh().empty:
        # Since JAX 0.11 derivatives of loops forget the mesh of their operands.
        fix = f"call it inside `with jax.set_mesh(mesh):`; if that does not help, {fix}"
    what = f"JAX cannot tell where a result lies on an explicit mesh: {str(error).partition(chr(10))[0]}"
    return MeshError(what, at=place, fix=fix)


def _places(traceback: TracebackType | None) -> tuple[list[str], str | None]:
    """The user's line, and, below it, that of another package; and what the user called of that, by name."""
    own: list[str] = []
    below: list[str] = []
    asking = None
    for frame, line in walk_tb(traceback):
        owner, code = owner_of(frame.f_code.co_filename), frame.f_code
        place = [f"{code.co_filename}:{line} in {code.co_name}"]
        if owner in ("user", "generated"):
            own, below, asking = place, [], None
        elif owner == "installed":
            below, asking = place, asking or code.co_name
    return own + below, asking


# What users of a layer call things.
_WORDS = {"weft": {"shard": "weft.shard, ", "successor": "successor"}, "nnx": {"shard": "", "successor": "array"}}
_DIVIDED = "({shard}jax.sharding.reshard), or call it under jax.sharding.auto_axes"
_NO_DTYPE = (
    StaticError, partial(_blamed, _is_foreign), "JAX has no arrays of these dtypes",
    "keep it as configuration (a tuple: array.tolist()), or compute with numbers that stand for it",
)  # fmt: skip
# JAX's words, and what is said in their place: the error, where, what, and what to do. The first with a place counts.
_ANSWERS: tuple[tuple[str, type[WeftError], Places, str, str], ...] = (
    (names.MAPPED_APART, MeshError, partial(_blamed, lambda value: True),
        "a mapped axis is divided over the mesh in some arguments and otherwise in others",
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
        "a mere shape is computed with, which has no values",
        "pass arrays; or only trace it: {layer}.eval_shape(f, ...), {layer}.jit(f).lower(...)"),
    (names.UNFIT_SHARDING, MeshError, lambda leaves, error: [str(error).rpartition(names.UNFIT_SHARDING)[2]],
        "an array cannot lie as in_shardings or out_shardings say",
        "give a sharding that fits the axes of each array, or None"),
    (names.DONATED_TWICE, AliasError, _aliased,
        "one array is reached under two paths, so it cannot be donated",
        "copy it (jnp.copy) at one of them, or donate neither"),
    (names.DELETED, DonatedError, _deleted,
        "these arguments were donated to an earlier call, and are gone",
        "use the {successor} that the call returned, or do not donate"),
    (names.NO_REVERSE, DifferentiationError, _loop,
        "a loop whose number of steps is known only when it runs has no derivative in reverse",
        "bound it: weft.while_loop(cond, body, init, max_steps=...); or give fori_loop Python ints; or use "
        "{layer}.scan"),
)  # fmt: skip


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


def explain_traced(
    error: Exception,
    values: Sequence[PyTree],
    path_of: Callable[[int], Path],
    names_of: Callable[[], Sequence[str]],
    layer: str = "weft",
) -> None:
    """Raises a better error in place of one of JAX's about a value that is traced, if an argument explains it.

    Args:
        error: what came out of the user's function.
        values: the leaves that the function was given.
        path_of: the path of leaf `i` in the arguments.
        names_of: gives the names of the function's positional parameters.
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
                at=[*at, *_places(error.__traceback__)[0][-1:]],
                fix=_make_static(paths, names_of()) + advice,
            ) from error


def _make_static(paths: Sequence[Path], positional: Sequence[str]) -> str:
    """How an argument becomes static in the transform that is being traced, if it can."""
    transform = current_frames()[-1].transform if current_frames() else ""
    if len(paths) != 1 or transform not in ("jit", "remat"):
        return ""
    name, *below = paths[0]
    if below:
        return f"if few values are meant, make {format_path(paths[0])} an argument of its own, and that static; else "
    option = f'static_argnames="{name}"'
    if transform == "remat":  # it has no static_argnames
        known: dict[Any, int] = {parameter: place for place, parameter in enumerate(positional)}
        option = f"static_argnums={known[name]}" if name in known else f"static_argnums, once {name} may be positional"
    return f"if few values are meant, make it static ({transform} with {option}); else "


def _tracers_in(traceback: TracebackType | None, mask: bool) -> list[Tracer[Any]]:
    """The tracers that JAX had in hand when it raised."""
    frames = [frame for frame, _ in walk_tb(traceback)]
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
