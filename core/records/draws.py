"""Draws under `debug_keys`: each draw is entered in a ledger, and the same draw twice is an error.

A draw is identified by the two arrays that it is made from, a stream's key and its count, and by the trace level at
which it is made. The same arrays at *another* level are no repetition: JAX may trace one function twice.

A transform traces its function once and is called often, and each call repeats the draws of the trace. So the draws
that a trace makes from its arguments, or from arrays that it closes over, are noted with the crossing (`noted_draws`).
Each call of the transform enters them for the arrays outside (`enter_draws`), at the level outside, where another
transform may note them in turn. A loop runs its body several times: a draw in it from arrays that no iteration replaces
is an error at once.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
from jax.core import Tracer
from weft.core.edge._tracers import is_of_program
from weft.core.edge.contexts import DEBUG_KEYS, EAGER, current_level, is_on, keys_context
from weft.core.errors import KeyReuseError
from weft.core.frames import calling_line
from weft.core.records.module import Given, watch_methods

Reference = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Draw:
    """A draw that was made: references to its arrays, the user's line, and the trace level."""

    name: str
    arrays: tuple[Reference, Reference]
    where: str
    level: object = None

    def made_from(self, key: Any, count: Any) -> bool:
        return self.arrays[0]() is key and self.arrays[1]() is count


class TracedDraw(NamedTuple):
    """A draw that a trace makes.

    Attributes:
        name: the stream.
        key, count: its arrays while the trace runs. When it has ended, where each call of the program finds them: the
            position of an argument's leaf, or a reference to an array in a closure.
        where: the user's line.
    """

    name: str
    key: Any
    count: Any
    where: str


# The draws of a trace from arrays outside. The key tells equal draws: by the stream, and by the positions of its arrays
# among the arguments, or else their ids.
TraceDraws = dict[tuple[str, int, int], TracedDraw]


@dataclass(frozen=True, slots=True)
class Ledger:
    """The draws of one debugging session, by the identity of the stream's arrays."""

    draws: dict[tuple[int, int], list[Draw]] = field(default_factory=dict[tuple[int, int], list[Draw]])

    def enter(self, name: str, key: Any, count: Any, where: str) -> None:
        """Enters a draw.

        Raises:
            KeyReuseError: if it was made before, or if the loop around it repeats it.
        """
        if _in_loop() and _outside(key) is not None and _outside(count) is not None:
            raise _reuse(name, count, "in each iteration of a loop", f"drawn at {where}")
        level, entry = current_level(), (id(key), id(count))
        # The arrays are compared too: an entry may outlive one of its arrays for a moment, and another array get its
        # id.
        earlier = [draw for draw in self.draws.get(entry, ()) if draw.made_from(key, count)]
        for draw in earlier:
            if draw.level in (level, EAGER):
                raise _reuse(name, count, "twice", f"first drawn at {draw.where}")

        # Python reuses the id of an array that is gone, and the draws of the old array must not count for the new one.
        def forget(_: Any) -> None:
            self.draws.pop(entry, None)

        arrays = (weakref.ref(key, forget), weakref.ref(count, forget))
        self.draws[entry] = [*earlier, Draw(name, arrays, where, level)]
        noted = _noted.get()
        if noted is not None:
            noted.append(TracedDraw(name, key, count, where))


def _reuse(name: str, count: Any, how: str, place: str) -> KeyReuseError:
    return KeyReuseError(
        f"the same key of stream {name!r} is drawn {how}",
        at=[f"Keys.streams[{name!r}].count: {'traced' if isinstance(count, Tracer) else count.tolist()}", place],
        fix="go on with the successor: key, keys = keys.next(...)"
        + ("; carry it, or scan over keys.fork(steps)" if "loop" in how else ""),
    )


def _in_loop() -> bool:
    """Whether JAX is tracing the body of a loop. No public function says so, so this looks for JAX's frames."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and not frame.f_code.co_name.startswith("trace_to_jaxpr"):
        frame = frame.f_back
    while frame is not None and Path(frame.f_code.co_filename).name in _ON_THE_WAY:
        frame = frame.f_back
    return frame is not None and Path(frame.f_code.co_filename).name == "loops.py"


# JAX's files whose frames lie between the function that traces and the transform that asked for the trace.
_ON_THE_WAY = {"partial_eval.py", "common.py", "linear_util.py", "profiler.py", "util.py", "api_util.py"}

# The ledger of the debugging session, or None.
ledger: ContextVar[Ledger | None] = ContextVar("weft_key_ledger", default=Ledger() if is_on(DEBUG_KEYS) else None)
# The draws of the trace that is running, with their arrays, which are released when the trace ends.
_noted: ContextVar[list[TracedDraw] | None] = ContextVar("weft_noted_draws", default=None)


def draw(name: str, key: Any, count: Any) -> None:
    """Enters a draw, while debugging."""
    entered = ledger.get()
    if entered is not None:
        entered.enter(name, key, count, calling_line())


@contextlib.contextmanager
def noted_draws(draws: TraceDraws, values: Sequence[Any], carried: Sequence[bool]) -> Generator[Callable[[Any], None]]:
    """Notes the draws that a traced function makes from arrays outside. Gives a function to call with its output.

    Args:
        draws: takes the draws.
        values: the leaves of the function's arguments.
        carried: for each leaf, whether a loop carries it.
    """
    if ledger.get() is None:
        yield lambda out: None
        return
    drawn: list[TracedDraw] = []
    token = _noted.set(drawn)

    def returned(out: Any) -> None:
        # A carried count that the function returns unchanged is the same in the next iteration, which draws from it
        # again.
        outputs = set(map(id, jax.tree.leaves(out))) if drawn else set[int]()
        carried_values = {id(value) for value, is_carried in zip(values, carried, strict=True) if is_carried}
        for traced in drawn:
            if id(traced.count) in outputs & carried_values:
                raise _reuse(traced.name, traced.count, "in each iteration of a loop", f"drawn at {traced.where}")

    try:
        yield returned
    finally:
        _noted.reset(token)
    # A draw from arrays that the trace itself has made is not noted: each call of the program makes new ones.
    places = {id(value): i for i, value in enumerate(values)}
    for name, key, count, where in drawn:
        key_source, count_source = (places.get(id(array), _outside(array)) for array in (key, count))
        if key_source is not None and count_source is not None:
            key_id, count_id = (places.get(id(array), id(array)) for array in (key, count))
            draws[name, key_id, count_id] = TracedDraw(name, key_source, count_source, where)


def _outside(array: Any) -> Reference | None:
    """A reference to an array from outside of the running trace; None for an array that the trace has made."""
    is_inside = isinstance(array, Tracer) and is_of_program(cast("Tracer[Any]", array))
    return None if is_inside else weakref.ref(cast(Any, array))


def enter_draws(draws: TraceDraws, values: Sequence[Any]) -> None:
    """Enters the draws of a transform that was called; `values` are the leaves of its arguments."""
    entered = ledger.get()
    if entered is None:
        return
    for traced in draws.values():
        sources = (traced.key, traced.count)
        key, count = (values[source] if isinstance(source, int) else source() for source in sources)
        if key is not None and count is not None:
            entered.enter(traced.name, key, count, traced.where)


# Only so that somebody watches methods: without a watcher transforms do not look for a ledger.
def _proceed(record: Any, method: Callable[..., Any], arguments: Given, proceed: Callable[[], Any]) -> Any:
    return proceed()


@contextlib.contextmanager
def debug_keys(enabled: bool = True) -> Generator[None]:
    """A debugging mode in which drawing twice from the same `Keys` record, instead of from its successor, is an error.

    It counts eager draws and draws in weft's transforms: a compiled function that is called twice with the same keys
    draws twice, and so does a loop that draws in each iteration from keys that it closes over. Draws of a function
    under `jax.jit` are counted only when it is traced. Inside, `jax.debug_key_reuse` is on as well, which reports plain
    JAX keys that are used twice. `WEFT_DEBUG_KEYS=1` in the environment turns the mode on for the whole process, as
    `JAX_DEBUG_KEY_REUSE=1` does for JAX's.

    Args:
        enabled: `False` turns the mode off inside of the block.

    >>> from weft.core.records.keys import Keys
    >>> keys = Keys(0)
    >>> with debug_keys():
    ...     a, _ = keys.next()
    ...     b, _ = keys.next()
    Traceback (most recent call last):
    ...
    weft.core.errors.KeyReuseError: the same key of stream 'default' is drawn twice
    ...
    """
    token = ledger.set(Ledger() if enabled else None)
    watch_methods(_proceed, 1 if enabled else 0)
    try:
        with keys_context(enabled or None), jax.debug_key_reuse(enabled):
            yield
    finally:
        watch_methods(_proceed, -1 if enabled else 0)
        ledger.reset(token)


if is_on(DEBUG_KEYS):
    watch_methods(_proceed, 1)
