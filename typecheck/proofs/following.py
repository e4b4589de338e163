"""Following a trace: a `Follower` is called as each function starts and ends, with the function's frame.

On Python 3.12 and newer, `sys.monitoring` makes these calls. It can disable the events of one place in the code: a
function of JAX's is looked at once, and a proof takes half of the time. Python 3.11 has only `sys.settrace`, under
which the interpreter specialises nothing. It also reports a yielded value, an exception and a return as one event; the
instruction that the frame is at tells them apart.
"""

from __future__ import annotations

import contextlib
import dis
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import CodeType, FrameType
from typing import Any, Literal, Protocol

Ending = Literal["return", "yield", "raises"]


class Follower(Protocol):
    """An object that is called as functions start and end. `own` and a code object decide what it ignores."""

    own: frozenset[str]

    def ignores(self, code: CodeType) -> bool:
        """Whether to report none of a function's calls, ever."""
        ...

    def called(self, frame: FrameType, *, thrown: bool) -> None:
        """A call has started, or a generator resumes; `thrown` if it resumes with an exception."""
        ...

    def wants(self, frame: FrameType) -> bool:
        """Whether to report the end of a call."""
        ...

    def ended(self, frame: FrameType, how: Ending, value: Any) -> None:
        """A call that the follower wants has ended, or has reached a `yield`."""
        ...

    def reads(self, code: CodeType) -> bool:
        """Whether to report each line that a call of a function comes to."""
        ...

    def at_line(self, frame: FrameType) -> None:
        """A call of a function whose lines are followed has come to the line that its frame is at."""
        ...


def following(follower: Follower) -> AbstractContextManager[None]:
    """Has a follower called for this thread's calls within a `with` block, in place of any earlier follower."""
    return _monitored(follower) if sys.version_info >= (3, 12) else _traced(follower)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """A context in which no calls are followed, for weft's own checks, which run in the middle of a trace."""
    global _current
    tracer, current = sys.gettrace(), _current
    sys.settrace(None)
    _current = None
    try:
        yield
    finally:
        _current = current
        sys.settrace(tracer)


def among_jaxs_own() -> AbstractContextManager[None]:
    """A context for JAX's tracing of its own functions, in which no calls are followed on Python 3.11.

    Under `sys.settrace` each call costs, and half of a trace's calls are in there. Under `sys.monitoring` the follower
    has to be called once for each place, so that the place is disabled; while it is paused, no place would ever be.
    """
    return contextlib.nullcontext() if sys.version_info >= (3, 12) else paused()


@contextlib.contextmanager
def _traced(follower: Follower) -> Iterator[None]:
    # `sys.settrace` and not `sys.setprofile`: that reports builtins, too, and each return whether it is wanted or not.
    def called(frame: FrameType, event: str, value: Any) -> Any:
        if follower.ignores(frame.f_code):
            return None
        # A generator that is closed, or that an exception is thrown into, stands at another instruction than one that
        # goes on.
        follower.called(frame, thrown=_instruction(frame) != "RESUME")
        reads = follower.reads(frame.f_code)
        if not reads and not follower.wants(frame):
            return None
        # Line events are off unless the function's lines are read: each would call Python code.
        frame.f_trace_lines = reads
        return returned

    def returned(frame: FrameType, event: str, value: Any) -> Any:
        if event == "line":
            follower.at_line(frame)
        elif event == "return" and follower.wants(frame):
            at = _instruction(frame)
            follower.ended(
                frame, "return" if at.startswith("RETURN") else "yield" if at == "YIELD_VALUE" else "raises", value
            )
        return returned

    previous = sys.gettrace()
    sys.settrace(called)
    try:
        yield
    finally:
        sys.settrace(previous)


def _instruction(frame: FrameType) -> str:
    return dis.opname[frame.f_code.co_code[frame.f_lasti]]


# The follower and its thread: `sys.monitoring` reports the calls of the whole process.
_current: tuple[Follower, int] | None = None
_lock = threading.Lock()


# How many `listening` blocks are open, and the tool's number while any is.
_depth = 0
_tool = -1
# The functions whose lines are followed.
_read: list[CodeType] = []
# The `own` files for which places have been disabled.
_ignored: frozenset[str] | None = None


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Keeps the events of `sys.monitoring` on within a block of several traces."""
    # Turning them on costs as much as a short trace, since Python rewrites the code of each function that runs.
    global _depth, _tool, _ignored
    monitoring: Any = getattr(sys, "monitoring", None)
    with _lock:
        _depth += 1
        if _depth == 1 and monitoring is not None:
            _tool, _ignored = _listen(monitoring), None
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0 and monitoring is not None:
                monitoring.set_events(_tool, 0)
                monitoring.free_tool_id(_tool)


@contextlib.contextmanager
def _monitored(follower: Follower) -> Iterator[None]:
    global _current, _ignored
    with listening():
        if follower.own != _ignored:
            # Places disabled for one program's files may belong to the next program's: a place that stayed disabled
            # would hide the calls of the very function that is judged.
            _ignored = follower.own
            sys.monitoring.restart_events()  # pyright: ignore[reportAttributeAccessIssue]
        before, _current = _current, (follower, threading.get_ident())
        count = len(_read)
        try:
            yield
        finally:
            _current = before
            # Only those that this block has added: a follower may stand inside of another, whose lines are followed on.
            while len(_read) > count:
                sys.monitoring.set_local_events(_tool, _read.pop(), 0)  # pyright: ignore[reportAttributeAccessIssue]


def _listen(monitoring: Any) -> int:
    """Turns the events of `sys.monitoring` on, and returns weft's tool number there.

    Raises:
        RuntimeError: if other tools use all six numbers.
    """
    # Numbers are tried from the top, since debuggers, coverage and profilers have fixed numbers at the bottom.
    holders = [monitoring.get_tool(tool) for tool in range(6)]
    tool = next((tool for tool in reversed(range(6)) if holders[tool] is None), None)
    if tool is None:
        raise RuntimeError(f"a proof needs a tool id of sys.monitoring, and all are taken: {', '.join(holders)}")
    monitoring.use_tool_id(tool, "weft")
    events = 0
    for name, callback in _callbacks(monitoring, tool).items():
        event = getattr(monitoring.events, name)
        monitoring.register_callback(tool, event, callback)
        events |= event
    monitoring.set_events(tool, events)
    return tool


def _callbacks(monitoring: Any, tool: int) -> dict[str, Callable[..., Any]]:
    """The callback of each event. The events of exceptions cannot be disabled, and line events are local to a code."""
    disable = monitoring.DISABLE

    def called(*, thrown: bool) -> Callable[..., Any]:
        def callback(code: CodeType, offset: int, error: object = None) -> Any:
            if _current is None or _current[1] != threading.get_ident():
                return None
            if _current[0].ignores(code):
                return None if thrown else disable
            if _current[0].reads(code) and code not in _read:
                _read.append(code)
                monitoring.set_local_events(tool, code, monitoring.events.LINE)
            return _current[0].called(sys._getframe(1), thrown=thrown)  # pyright: ignore[reportPrivateUsage]

        return callback

    def ending(how: Ending) -> Callable[..., Any]:
        def callback(code: CodeType, offset: int, value: Any) -> Any:
            if _current is None or _current[1] != threading.get_ident():
                return None
            if _current[0].ignores(code):
                return None if how == "raises" else disable
            frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            if _current[0].wants(frame):
                _current[0].ended(frame, how, value)
            return None

        return callback

    def at_line(code: CodeType, line: int) -> None:
        if _current is not None and _current[1] == threading.get_ident() and _current[0].reads(code):
            _current[0].at_line(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]

    monitoring.register_callback(tool, monitoring.events.LINE, at_line)
    return {
        "PY_START": called(thrown=False),
        "PY_RESUME": called(thrown=False),
        "PY_THROW": called(thrown=True),
        "PY_RETURN": ending("return"),
        "PY_YIELD": ending("yield"),
        "PY_UNWIND": ending("raises"),
    }
