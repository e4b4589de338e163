"""Explains retraces: which argument made `jit` trace a function again.

JAX compares treedefs and avals, and can only say that they differ; users know the paths of their records. So weft
remembers the cache key of each trace of a jitted function, without arrays: its crossing and the avals of its leaves.
Two keys show what changed: a static value, a shape, a dtype, a weak type, a sharding, or the treedef.

- At the third trace that differs from the others in the same statics alone, weft gives a `RetraceWarning`: most often
  the static is a counter or a schedule, which was meant to be an array.
- `explain_retraces` reports every trace while it is open, or the traces of one function.
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
from weft.core.edge.trees import PyTree
from weft.core.frames import is_users
from weft.core.interpreter.boundary import AnyBoundary, AnyCrossing
from weft.core.memory import Recent
from weft.core.paths import Path, format_path
from weft.core.records.agree import Fixed, TreeDescription, differences
from weft.core.records.leaves import NUMBERS, is_array
from weft.core.records.storage import same_static

# How many traces of a function the next one is compared with.
MOST_COMPARED = 16
# A warning is given at this many traces.
TOO_MANY = 3
# How many pairs of leaves that are the same array a line names.
_MOST_SHARED = 3


class RetraceWarning(UserWarning):
    """The category of the warning that a function is traced and compiled again for each value of a static argument."""


@dataclass(frozen=True)
class Trace:
    """The cache key of one trace of a function, and where the trace happened.

    Attributes:
        number: 1 for the first trace of the function.
        boundary, crossing, types: the cache key; `types` are the avals of the dynamic leaves.
        place: the user's line that called the function.
        made_anew: whether a function with the same code object was traced before.
    """

    number: int
    boundary: AnyBoundary
    crossing: AnyCrossing
    types: tuple[object, ...]
    place: str
    made_anew: bool = False

    @cached_property
    def described(self) -> TreeDescription:
        """The part of the cache key that is not avals."""
        return self.crossing.structure.described()

    @cached_property
    def statics(self) -> Mapping[Path, object]:
        """Static values by path."""
        return {path: leaf.value for path, leaf in self.described.leaves}

    @cached_property
    def arrays(self) -> Mapping[Path, object]:
        """The avals of the arrays by path."""
        return {self.crossing.structure.path_of(i): aval for i, aval in enumerate(self.types)}


def changes_between(before: Trace, after: Trace) -> list[str]:
    """The differences between two traces, as lines like `static: state.step: 0 -> 1`."""
    lines = [
        f"static: {format_path(path)}: {' -> '.join(_in_words([before.statics[path], after.statics[path]]))}"
        for path in _changed_statics(before, after)
    ]
    earlier, later = map(_all_leaves, (before, after))
    for path in dict.fromkeys((*earlier, *later)):
        was, now = earlier.get(path), later.get(path)
        if was is None or now is None or isinstance(was, Fixed) != isinstance(now, Fixed):
            lines.append(f"kind of tree: {format_path(path)}: {_named(was)} -> {_named(now)}")
        elif not isinstance(was, Fixed) and was != now:
            lines.append(f"{_aspect(was, now)}: {format_path(path)}: {_named(was)} -> {_named(now)}")
    if not lines and before.crossing.structure != after.crossing.structure:
        lines = [f"kind of tree: {line}" for line in differences(before.described, after.described)]
    if not lines and before.crossing.repeats != after.crossing.repeats:
        lines = [f"one array in two places: {' -> '.join(map(_shared, (before, after)))}"]
    if not lines and before.crossing.rides != after.crossing.rides:
        lines = ["placement: the sharding or the donation of an argument differs"]
    return lines or ["JAX: other settings (a context manager, a mesh), or its caches were cleared"]


def _shared(trace: Trace) -> str:
    path_of = trace.crossing.structure.path_of
    pairs = [(i, place) for i, place in enumerate(trace.crossing.repeats) if i != place]
    texts = [f"{format_path(path_of(i))} is {format_path(path_of(place))}" for i, place in pairs[:_MOST_SHARED]]
    return ", ".join([*texts, *(["..."] if pairs[_MOST_SHARED:] else [])]) or "none"


def abstract(value: PyTree) -> PyTree:
    """The aval of an array, or of the tree of arrays that an NNX Variable may hold."""
    return jax.typeof(value) if is_array(value) else jax.tree.map(jax.typeof, value)


def _changed_statics(before: Trace, after: Trace) -> list[Path]:
    both = (path for path in before.statics if path in after.statics)
    return [path for path in both if not same_static(before.statics[path], after.statics[path])]


def _all_leaves(trace: Trace) -> dict[Path, object]:
    """What lies at each path of the arguments: None, an aval, or a static value."""
    nones = {path: Fixed(None) for path, kind in trace.described.parts().items() if kind == "None"}
    return {**nones, **trace.arrays, **{path: Fixed(value) for path, value in trace.statics.items()}}


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
    # JAX marks a weak type with a tilde, which a reader who has never met it takes for a typing error.
    return f"{text.lstrip('~')} (weak)" if text.startswith("~") else text


def _in_words(values: Sequence[PyTree]) -> list[str]:
    """Static values as text; a value whose text occurred before is called `another ...`."""
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
        # The function's code object, by which a function that was defined again (in a loop) is recognised.
        self.code: object = None
        self.latest: deque[Trace] = deque(maxlen=MOST_COMPARED)
        self._count = 0
        self._warned: set[frozenset[Path]] = set()

    def record(self, name: str, boundary: AnyBoundary, crossing: AnyCrossing, values: Sequence[PyTree]) -> None:
        """Remembers a trace that begins, reports it to `explain_retraces`, and warns if a static keeps changing.

        Args:
            name: the function's name.
            boundary: the boundary of the call.
            crossing: the crossing of the call.
            values: the tracers of its leaves.
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
        # Not for NNX, whose programs were written for flax: those hear of retraces when they ask.
        if boundary.typed:
            self._warn(earlier, trace, level)

    def explained(self) -> list[str]:
        """For each of the latest traces, why it was needed."""
        traces = list(self.latest)
        return [self._explained(traces[:i], trace) for i, trace in enumerate(traces)]

    def _explained(self, earlier: Sequence[Trace], trace: Trace) -> str:
        if earlier:
            # Compared with the earlier trace that differs least; with the latest of several that differ equally.
            reasons = min((changes_between(before, trace) for before in reversed(earlier)), key=len)
        elif trace.number > 1:
            reasons = ["the earlier traces are not remembered any more"]
        else:
            reasons = [_MADE_ANEW if trace.made_anew else "the first trace of this function"]
        place = trace.place or "no line of yours"
        header = f"{trace.boundary.layer}.jit({self.name}), trace {trace.number}, called at {place}"
        return "\n  ".join([header, *reasons])

    def _warn(self, earlier: Sequence[Trace], trace: Trace, level: int) -> None:
        groups: dict[frozenset[Path], list[Trace]] = {}
        for before in earlier:
            paths = _differing_in_statics(before, trace)
            members = groups.setdefault(paths, [])
            # Only if every static differs between all members. Two values of `a`, each with two values of `b`, make
            # four traces that a program may mean, and no static has a third value.
            if paths and all(len(_changed_statics(member, before)) == len(paths) for member in members):
                members.append(before)
        for paths, members in groups.items():
            if len(members) + 1 < TOO_MANY or paths in self._warned:
                continue
            self._warned.add(paths)
            values = {path: [member.statics[path] for member in (*members, trace)] for path in paths}
            lines = [
                f"  at: {format_path(path)}: {', '.join(_in_words(values[path]))}" for path in sorted(paths, key=str)
            ]
            warnings.warn(
                f"{trace.boundary.layer}.jit({self.name}) is traced and compiled again for each value of a static: "
                f"{len(members) + 1} times so far\n"
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
    "the function was defined again by the same lines as one that was traced before: define it once, outside of the "
    "loop or function that is run repeatedly"
)


def _may_be_unmeant(was: object, now: object) -> bool:
    # A user who passes two functions means two programs, unless one `def` was run twice.
    if isinstance(was, types.FunctionType) and isinstance(now, types.FunctionType):
        return was.__code__ is now.__code__
    return not (callable(was) or callable(now))


def _fix(values: Sequence[PyTree]) -> str:
    """The advice for statics that keep changing, by the values that they had."""
    if any(isinstance(value, types.FunctionType) for value in values):
        return "define the function once, outside of the loop or function that is run repeatedly"
    if all(type(value) in NUMBERS for value in values):
        return (
            "make it an array (jnp.asarray), and it is traced once; if each value is meant to be compiled for, "
            "pass it as an argument of its own, named in static_argnames"
        )
    return "pass the same value at each call; if each value is meant, name the argument in static_argnames"


def _users_frame() -> tuple[types.FrameType | None, int]:
    """The user's frame that made this call, and how far up it is, as `warnings.warn` counts from `Traces._warn`."""
    # `warnings.warn` counts from `_warn`, which `record` calls as it calls this function: both are at the same depth.
    frame, level = inspect.currentframe(), 1
    while frame is not None and not is_users(frame):
        frame, level = frame.f_back, level + 1
    return frame, level


# ---- explain_retraces ------------------------------------------------------------------------------------------------

# The code objects of the functions that were traced.
_codes: Recent[object, bool] = Recent(listed=("weft.core.interpreter.retraces", "code"))
_listeners: ContextVar[tuple[Callable[[str], None], ...]] = ContextVar("weft_retraces", default=())


@overload
def explain_retraces(*, file: TextIO | None = None) -> AbstractContextManager[list[str]]: ...
@overload
def explain_retraces(function: object, /, *, file: TextIO | None = None) -> list[str]: ...
def explain_retraces(
    function: object = None, /, *, file: TextIO | None = None
) -> AbstractContextManager[list[str]] | list[str]:
    """Prints why `weft.jit` or `nnx.jit` traces a function: what differs from the most similar earlier trace.

    Without a function it is a context manager, which prints an explanation for each trace inside; with a function it
    prints the explanations of its last sixteen traces.

    Args:
        function: a function that `weft.jit` or `nnx.jit` returned.
        file: where to print; `sys.stdout` by default.

    Returns:
        The explanations, one for each trace: a list that grows while the context is open.

    Raises:
        TypeError: if neither `weft.jit` nor `nnx.jit` returned the function.

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
