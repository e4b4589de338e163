"""Draws under `debug_keys`: each is entered in a ledger, and the same draw twice is an error.

A draw is known by the identity of the two arrays that it is made from, a stream's key and its count, and by the trace
level that it is made at. The same arrays at *another* level are no repetition: JAX may trace one function twice.

A transform traces its function once and is called often, so what is drawn while it traces is drawn at each call. What
a trace draws from its arguments, or from arrays that it closes over, is kept with the crossing (`noted_draws`). Where
the transform is called it is entered for the arrays outside (`enter_draws`), at the level outside, where another
transform may note it in turn. A loop runs what it traces several times: what is drawn there from arrays that no
iteration replaces is an error at once.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import jax
from jax.core import Tracer
from weft.core.callers import calling_line
from weft.core.contexts import DEBUG_KEYS, keys_context
from weft.core.edge._tracers import is_of_program
from weft.core.edge.levels import EAGER, current_level
from weft.core.errors import KeyReuseError
from weft.core.records.module import Given, watch_methods
from weft.core.switches import is_on

Reference = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Draw:
    """A draw that was made: what gives its arrays, by which line, and at which level."""

    name: str
    arrays: tuple[Reference, Reference]
    where: str
    level: object = None

    def made_from(self, key: Any, count: Any) -> bool:
        return self.arrays[0]() is key and self.arrays[1]() is count


# What a trace has drawn from outside, by name and by what it drew from: positions of leaves, or the arrays' identities.
Kept = dict[tuple[str, Any, Any], tuple[str, Any, Any, str]]


@dataclass(frozen=True, slots=True)
class Ledger:
    """The draws of one debugging session, by the identity of the stream's arrays."""

    draws: dict[tuple[int, int], list[Draw]] = field(default_factory=dict[tuple[int, int], list[Draw]])

    def enter(self, name: str, key: Any, count: Any, where: str) -> None:
        """Enters a draw.

        Raises:
            KeyReuseError: if it was made before, or is made again by the loop that it is traced in.
        """
        if _in_loop() and _outside(key) is not None and _outside(count) is not None:
            raise _reuse(name, count, "in each iteration of a loop", f"drawn at {where}")
        level, entry = current_level(), (id(key), id(count))
        # Asked again by the arrays themselves, as an entry may outlive one of its two for a moment.
        earlier = [draw for draw in self.draws.get(entry, ()) if draw.made_from(key, count)]
        for draw in earlier:
            if draw.level in (level, EAGER):
                raise _reuse(name, count, "twice", f"first drawn at {draw.where}")

        # An identity is given out anew once its array is gone, and its draws are no longer about it.
        def forget(_: Any) -> None:
            self.draws.pop(entry, None)

        arrays = (weakref.ref(key, forget), weakref.ref(count, forget))
        self.draws[entry] = [*earlier, Draw(name, arrays, where, level)]
        noting = _noting.get()
        if noting is not None:
            noting.append((name, key, count, where))


def _reuse(name: str, count: Any, how: str, place: str) -> KeyReuseError:
    return KeyReuseError(
        f"the same key of stream {name!r} is drawn {how}",
        at=[f"Keys.streams[{name!r}].count: {'traced' if isinstance(count, Tracer) else count.tolist()}", place],
        fix="go on with the successor: key, keys = keys.next(...)"
        + ("; carry it, or scan over keys.fork(steps)" if "loop" in how else ""),
    )


def _in_loop() -> bool:
    """Whether the innermost program that JAX traces is the body of a loop: its public ways do not say."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and not frame.f_code.co_name.startswith("trace_to_jaxpr"):
        frame = frame.f_back
    while frame is not None and Path(frame.f_code.co_filename).name in _ON_THE_WAY:
        frame = frame.f_back
    return frame is not None and Path(frame.f_code.co_filename).name == "loops.py"


# JAX's files between the one that traces and the one whose function is traced.
_ON_THE_WAY = {"partial_eval.py", "common.py", "linear_util.py", "profiler.py", "util.py", "api_util.py"}

_ledger: ContextVar[Ledger | None] = ContextVar("weft_key_ledger", default=Ledger() if is_on(DEBUG_KEYS) else None)
# What the transform that is traced now has drawn, with its arrays; they are let go with the trace.
_noting: ContextVar[list[tuple[str, Any, Any, str]] | None] = ContextVar("weft_noted_draws", default=None)


def ledger() -> Ledger | None:
    """The ledger of the debugging session, or None."""
    return _ledger.get()


def draw(name: str, key: Any, count: Any) -> None:
    """Enters a draw, while debugging."""
    entered = _ledger.get()
    if entered is not None:
        entered.enter(name, key, count, calling_line())


@contextlib.contextmanager
def noted_draws(kept: Kept, values: Sequence[Any], carried: Sequence[bool]) -> Generator[Callable[[Any], None]]:
    """Keeps what a function that is traced draws from outside; it is given what the function returned.

    Args:
        kept: where to keep it.
        values: the leaves of its arguments.
        carried: of each, whether a loop carries it.
    """
    if _ledger.get() is None:
        yield lambda out: None
        return
    drawn: list[tuple[str, Any, Any, str]] = []
    token = _noting.set(drawn)

    def returned(out: Any) -> None:
        left = set(map(id, jax.tree.leaves(out))) if drawn else set[int]()
        going_on = {id(value) for value, goes_on in zip(values, carried, strict=True) if goes_on}
        for name, _, count, where in drawn:
            if id(count) in left & going_on:
                raise _reuse(name, count, "in each iteration of a loop", f"drawn at {where}")

    try:
        yield returned
    finally:
        _noting.reset(token)
    places = {id(value): i for i, value in enumerate(values)}
    for name, key, count, where in drawn:
        sources = [places.get(id(array), _outside(array)) for array in (key, count)]
        if None not in sources:
            identities = [
                one if isinstance(one, int) else id(array) for one, array in zip(sources, (key, count), strict=True)
            ]
            kept[name, identities[0], identities[1]] = name, sources[0], sources[1], where


def _outside(array: Any) -> Reference | None:
    is_inside = isinstance(array, Tracer) and is_of_program(cast("Tracer[Any]", array))
    return None if is_inside else weakref.ref(cast(Any, array))


def enter_draws(kept: Kept, values: Sequence[Any]) -> None:
    """Enters what a transform that was called has drawn, from its arguments' leaves and from what it closes over."""
    entered = _ledger.get()
    if entered is None:
        return
    for name, *sources, where in kept.values():
        key, count = (values[one] if isinstance(one, int) else one() for one in sources)
        if key is not None and count is not None:
            entered.enter(name, key, count, where)


def _proceed(record: Any, method: Callable[..., Any], given: Given, proceed: Callable[[], Any]) -> Any:
    return proceed()


@contextlib.contextmanager
def debug_keys(enabled: bool = True) -> Generator[None]:
    """Debugging mode: drawing twice from the same `Keys` record, instead of from its successor, is an error.

    It sees what is drawn eagerly and in weft's transforms: a compiled function that is called twice with the same keys,
    and a loop that draws in each iteration from keys that it closes over, draw twice. What `jax.jit` compiles draws
    unseen once it is compiled. Inside, `jax.debug_key_reuse` is on as well, which finds keys of JAX's own that two
    samplers take. `WEFT_DEBUG_KEYS=1` in the environment turns it on for the whole process, as `JAX_DEBUG_KEY_REUSE=1`
    does for JAX's.

    Args:
        enabled: `False` turns it off inside.

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
    token = _ledger.set(Ledger() if enabled else None)
    watch_methods(_proceed, 1 if enabled else 0)  # so that transforms look whether there is a ledger
    try:
        with keys_context(enabled or None), jax.debug_key_reuse(enabled):
            yield
    finally:
        watch_methods(_proceed, -1 if enabled else 0)
        _ledger.reset(token)


if is_on(DEBUG_KEYS):
    watch_methods(_proceed, 1)
