"""Why a function was traced again, in the user's words.

JAX compares tree definitions and types, and can say that they differ; users know paths in their records. So each trace
of a jitted function is remembered by what JAX keys it on, without arrays: its crossing and the types of its leaves.
From two of them follows what changed: a static value, a shape, a dtype, a weak type, a sharding, or the kind of tree.

- At the third trace that differs in the same statics alone, a `RetraceWarning` says so: most often that is a counter or
  a schedule, which was meant to be an array.
- `explain_retraces` tells of every trace while it is open, or of those that one function has had.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import types
import warnings
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import TextIO, overload

import jax
from weft.core.callers import is_users
from weft.core.edge.trees import PyTree
from weft.core.interpreter.boundary import AnyBoundary, AnyCrossing
from weft.core.memory import Recent
from weft.core.paths import Path, format_path
from weft.core.records.agree import Described, Fixed, differences
from weft.core.records.leaves import NUMBERS, is_array
from weft.core.records.statics import same_static

# How many traces of a function the next one is compared with.
MOST_COMPARED = 16
# A warning is given at this many traces.
TOO_MANY = 3
# How many leaves that are one array a line names.
_MOST_SHARED = 3


class RetraceWarning(UserWarning):
    """A function is traced and compiled again for each value of a static."""


@dataclass(frozen=True)
class Trace:
    """One trace of a function, by what JAX tells traces apart by."""

    number: int
    boundary: AnyBoundary
    crossing: AnyCrossing
    types: tuple[object, ...]
    place: str
    made_anew: bool = False  # whether another function of the same text was traced before

    @cached_property
    def described(self) -> Described:
        """What it is told apart by, beside the types of arrays."""
        return self.crossing.structure.described()

    @cached_property
    def statics(self) -> Mapping[Path, object]:
        """Static values by path."""
        return {path: leaf.value for path, leaf in self.described.leaves}

    @cached_property
    def arrays(self) -> Mapping[Path, object]:
        """The types of the arrays by path."""
        return {self.crossing.structure.path_of(i): aval for i, aval in enumerate(self.types)}


def changes_between(before: Trace, after: Trace) -> list[str]:
    """What differs, as `static: state.step: 0 -> 1`."""
    found = [
        f"static: {format_path(path)}: {' -> '.join(_in_words([before.statics[path], after.statics[path]]))}"
        for path in _changed_statics(before, after)
    ]
    here, there = ({**_nones(trace), **trace.arrays, **_fixed(trace.statics)} for trace in (before, after))
    for path in dict.fromkeys((*here, *there)):
        was, now = here.get(path), there.get(path)
        if was is None or now is None or isinstance(was, Fixed) != isinstance(now, Fixed):
            found.append(f"kind of tree: {format_path(path)}: {_named(was)} -> {_named(now)}")
        elif not isinstance(was, Fixed) and was != now:
            found.append(f"{_aspect(was, now)}: {format_path(path)}: {_named(was)} -> {_named(now)}")
    if not found and before.crossing.structure != after.crossing.structure:
        found = [f"kind of tree: {line}" for line in differences(before.described, after.described)]
    if not found and before.crossing.repeats != after.crossing.repeats:
        found = [f"one array in two places: {' -> '.join(map(_shared, (before, after)))}"]
    if not found and before.crossing.rides != after.crossing.rides:
        found = ["placement: an argument is sharded or donated otherwise"]
    return found or ["JAX: other settings (a context manager, a mesh), or its caches were cleared"]


def _shared(trace: Trace) -> str:
    path_of = trace.crossing.structure.path_of
    pairs = [(i, place) for i, place in enumerate(trace.crossing.repeats) if i != place]
    texts = [f"{format_path(path_of(i))} is {format_path(path_of(place))}" for i, place in pairs[:_MOST_SHARED]]
    return ", ".join([*texts, *(["..."] if pairs[_MOST_SHARED:] else [])]) or "none"


def abstract(value: PyTree) -> PyTree:
    """The type of an array, or of the tree of arrays that a graph's Variable may hold."""
    return jax.typeof(value) if is_array(value) else jax.tree.map(jax.typeof, value)


def _changed_statics(before: Trace, after: Trace) -> list[Path]:
    both = (path for path in before.statics if path in after.statics)
    return [path for path in both if not same_static(before.statics[path], after.statics[path])]


def _nones(trace: Trace) -> dict[Path, Fixed]:
    return {path: Fixed(None) for path, kind in trace.described.parts().items() if kind == "None"}


def _fixed(statics: Mapping[Path, object]) -> dict[Path, Fixed]:
    return {path: Fixed(value) for path, value in statics.items()}


def _aspect(was: object, now: object) -> str:
    for aspect in ("shape", "dtype", "weak_type", "sharding"):
        if getattr(was, aspect, None) != getattr(now, aspect, None):
            return aspect.replace("_", " ")
    return "type"


def _named(value: object) -> str:
    if value is None:
        return "nothing"
    text = "None" if value == Fixed(None) else str(value)
    if isinstance(value, Fixed):
        return text
    # JAX marks a weak type with a tilde, which says little to who has not met it.
    return f"{text.lstrip('~')} (weak)" if text.startswith("~") else text


def _in_words(values: Sequence[PyTree]) -> list[str]:
    """Static values, where those that look alike are told to be others."""
    texts = list(map(_shown, values))
    return [f"another {text}" if text in texts[:i] else text for i, text in enumerate(texts)]


def _shown(value: object) -> str:
    if isinstance(value, types.FunctionType):
        code = value.__code__
        return f"{value.__name__} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"
    return getattr(value, "__name__", None) or f"{value!r:.80}"


class Traces:
    """The traces of one function under one set of options."""

    def __init__(self) -> None:
        self.name = ""
        # The text that the function is compiled from, by which one that was made anew is recognised.
        self.code: object = None
        self.latest: deque[Trace] = deque(maxlen=MOST_COMPARED)
        self._count = 0
        self._warned: set[frozenset[Path]] = set()

    def record(self, name: str, boundary: AnyBoundary, crossing: AnyCrossing, values: Sequence[PyTree]) -> None:
        """Remembers a trace that begins, and tells of it.

        Args:
            name: what the function is called.
            boundary: what took its arguments apart.
            crossing: how they cross.
            values: the tracers of their leaves.
        """
        frame, level = _users_frame()
        place = "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        made_anew = self._count == 0 and self.code is not None and _codes.get(self.code) is not None
        if self.code is not None:
            _codes.add(self.code, True)
        trace = Trace(self._count + 1, boundary, crossing, tuple(map(abstract, values)), place, made_anew)
        earlier = list(self.latest)
        self.name = name
        self._count = trace.number
        self.latest.append(trace)
        for listener in _listeners.get():
            listener(self._explained(earlier, trace))
        # A program that was written for another library is told when it asks.
        if boundary.typed:
            self._warn(earlier, trace, level)

    def explained(self) -> list[str]:
        """Why each of the latest traces was made."""
        traces = list(self.latest)
        return [self._explained(traces[:i], trace) for i, trace in enumerate(traces)]

    def _explained(self, earlier: Sequence[Trace], trace: Trace) -> str:
        if earlier:
            # The nearest of them says most; of several that are as near, the latest.
            reasons = min((changes_between(other, trace) for other in reversed(earlier)), key=len)
        elif trace.number > 1:
            reasons = ["what was traced before is not remembered any more"]
        else:
            reasons = [_MADE_ANEW if trace.made_anew else "the first trace of this function"]
        place = trace.place or "no line of yours"
        header = f"{trace.boundary.layer}.jit({self.name}), trace {trace.number}, called at {place}"
        return "\n  ".join([header, *reasons])

    def _warn(self, earlier: Sequence[Trace], trace: Trace, level: int) -> None:
        groups: dict[frozenset[Path], list[Trace]] = {}
        for other in earlier:
            paths = _differing_in_statics(other, trace)
            members = groups.setdefault(paths, [])
            # Not two configurations of one kind, each with another of a second kind: each value is a new one.
            if paths and all(len(_changed_statics(member, other)) == len(paths) for member in members):
                members.append(other)
        for paths, others in groups.items():
            if len(others) + 1 < TOO_MANY or paths in self._warned:
                continue
            self._warned.add(paths)
            values = {path: [one.statics[path] for one in (*others, trace)] for path in paths}
            lines = [
                f"  at: {format_path(path)}: {', '.join(_in_words(values[path]))}" for path in sorted(paths, key=str)
            ]
            warnings.warn(
                f"{trace.boundary.layer}.jit({self.name}) is traced and compiled again for each value of a static: "
                f"{len(others) + 1} times so far\n"
                + "\n".join(lines)
                + f"\n  fix: {_fix([value for row in values.values() for value in row])}",
                RetraceWarning,
                stacklevel=level,
            )


def _differing_in_statics(before: Trace, after: Trace) -> frozenset[Path]:
    """The paths of the statics in which two traces differ, if they differ in nothing else."""
    if before.types != after.types or before.crossing.rides != after.crossing.rides:
        return frozenset()
    if before.statics.keys() != after.statics.keys() or before.described.parts() != after.described.parts():
        return frozenset()
    paths = frozenset(_changed_statics(before, after))
    meant = after.crossing.structure.meant()
    ours = all(_may_be_unmeant(before.statics[path], after.statics[path]) for path in paths)
    return paths if ours and not meant & paths else frozenset()


_MADE_ANEW = (
    "the function was made anew, from the same lines as one that was traced before: define it once, outside of what "
    "is called again"
)


def _may_be_unmeant(was: object, now: object) -> bool:
    # Two functions are two programs, unless they are one that was made twice.
    if isinstance(was, types.FunctionType) and isinstance(now, types.FunctionType):
        return was.__code__ is now.__code__
    return not (callable(was) or callable(now))


def _fix(values: Sequence[PyTree]) -> str:
    if any(isinstance(value, types.FunctionType) for value in values):
        return "define the function once, outside of what is called again"
    if all(type(value) in NUMBERS for value in values):
        return (
            "make it an array (jnp.asarray), and it is traced once; if each value is meant to be compiled for, "
            "pass it as an argument of its own, named in static_argnames"
        )
    return "keep it as it is from call to call; if each value is meant, name the argument in static_argnames"


def _users_frame() -> tuple[types.FrameType | None, int]:
    """The user's frame that made this call, and how far up it is, as `warnings.warn` counts from `Traces._warn`."""
    # `_warn` is called from `record`, as this function is: both count from one frame.
    frame, level = inspect.currentframe(), 1
    while frame is not None and not is_users(frame):
        frame, level = frame.f_back, level + 1
    return frame, level


# ---- telling ---------------------------------------------------------------------------------------------------------

# Texts from which a function was compiled that was traced.
_codes: Recent[object, bool] = Recent(listed=("weft.core.interpreter.retraces", "code"))
_listeners: ContextVar[tuple[Callable[[str], None], ...]] = ContextVar("weft_retraces", default=())


@overload
def explain_retraces(*, file: TextIO | None = None) -> AbstractContextManager[list[str]]: ...
@overload
def explain_retraces(function: object, /, *, file: TextIO | None = None) -> list[str]: ...
def explain_retraces(
    function: object = None, /, *, file: TextIO | None = None
) -> AbstractContextManager[list[str]] | list[str]:
    """Prints why `weft.jit` or `nnx.jit` traces functions: what differs from the trace before that is nearest.

    Without a function it is a context manager, that tells of each trace made inside; with one, it tells of the traces
    that this function has had (the last sixteen).

    Args:
        function: what `weft.jit` or `nnx.jit` returned.
        file: where to print; `sys.stdout` by default.

    Returns:
        The explanations, one for each trace: a list that grows while the context is open.

    Raises:
        TypeError: if the function is another.

    >>> import jax.numpy as jnp, weft
    >>> step = weft.jit(lambda x, name: x + len(name))
    >>> with explain_retraces() as told:  # doctest: +ELLIPSIS
    ...     _ = step(1.0, "one"), step(1.0, "three"), step(2.0, "one"), step(jnp.ones(2), "one")
    weft.jit(<lambda>), trace 1, called at ...
      the first trace of this function
    weft.jit(<lambda>), trace 2, called at ...
      static: name: 'one' -> 'three'
    weft.jit(<lambda>), trace 3, called at ...
      shape: x: float32[] (weak) -> float32[2]
    """
    if function is None:
        return _telling(file)
    traces = getattr(getattr(getattr(function, "_interpreted", None), "memory", None), "traces", None)
    if not isinstance(traces, Traces):
        raise TypeError(f"expected a function that weft.jit or nnx.jit returned, got {function!r}")
    told = traces.explained()
    for text in told:
        print(text, file=file)
    return told


@contextlib.contextmanager
def _telling(file: TextIO | None) -> Generator[list[str]]:
    told: list[str] = []

    def listen(text: str) -> None:
        told.append(text)
        print(text, file=file)

    token = _listeners.set((*_listeners.get(), listen))
    try:
        yield told
    finally:
        _listeners.reset(token)
