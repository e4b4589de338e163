"""Following a trace: which functions start and end while it runs, with their frames.

Python 3.12 and newer say so through `sys.monitoring`, where a place that nobody asks about is passed over from then on:
a function of JAX's is looked at once, and a proof takes half of the time. Before that there is `sys.settrace`, under
which the interpreter specialises nothing, and which reports a value that is yielded, an exception and a return as one
event: the instruction that the frame is at tells them apart.
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

Left = Literal["return", "yield", "raises"]


class Follower(Protocol):
    """Who is told; `own` is what decides, beside the code itself, what is ignored."""

    own: frozenset[str]

    def ignores(self, code: CodeType) -> bool:
        """Whether nothing is to be said of a function's calls, ever."""
        ...

    def called(self, frame: FrameType, *, thrown: bool) -> None:
        """A call has started, or a generator goes on, with an exception if `thrown`."""
        ...

    def wants(self, frame: FrameType) -> bool:
        """Whether to say how a call is left."""
        ...

    def left(self, frame: FrameType, how: Left, value: Any) -> None:
        """A call that was wanted has ended, or stands at a `yield`."""
        ...

    def reads(self, code: CodeType) -> bool:
        """Whether to say of each line of a function that a call of it comes to it."""
        ...

    def at_line(self, frame: FrameType) -> None:
        """A call of a function that is read comes to the line that its frame is at."""
        ...


def following(follower: Follower) -> AbstractContextManager[None]:
    """Follows the calls of this thread for the length of a `with` block; who was told before is not, meanwhile."""
    return _monitored(follower) if sys.version_info >= (3, 12) else _traced(follower)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """While it lasts, calls are not followed: for checks, whose own calls are nobody's business."""
    global _told
    tracer, told = sys.gettrace(), _told
    sys.settrace(None)
    _told = None
    try:
        yield
    finally:
        _told = told
        sys.settrace(tracer)


def among_jaxs_own() -> AbstractContextManager[None]:
    """While JAX traces a function of its own, in which nobody is told anything.

    Under `sys.settrace` each call in there costs, and these are half of a trace's calls. `sys.monitoring` passes over
    what is looked at once, but not over what is only ever met while it is paused.
    """
    return contextlib.nullcontext() if sys.version_info >= (3, 12) else paused()


@contextlib.contextmanager
def _traced(follower: Follower) -> Iterator[None]:
    # A trace and no profile, as it leaves out builtins and most returns.
    def called(frame: FrameType, event: str, value: Any) -> Any:
        if follower.ignores(frame.f_code):
            return None
        follower.called(frame, thrown=_instruction(frame) != "RESUME")
        reads = follower.reads(frame.f_code)
        if not reads and not follower.wants(frame):
            return None
        frame.f_trace_lines = reads
        return returned

    def returned(frame: FrameType, event: str, value: Any) -> Any:
        if event == "line":
            follower.at_line(frame)
        elif event == "return" and follower.wants(frame):
            at = _instruction(frame)
            follower.left(
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


# Who is told, and of which thread's calls: Python's events are those of the whole process.
_told: tuple[Follower, int] | None = None
_lock = threading.Lock()


# How many `listening` blocks are open, and the tool's number while any is.
_depth = 0
_tool = -1
# The functions whose lines are followed.
_read: list[CodeType] = []
# What the places that are passed over were passed over for.
_ignored: frozenset[str] | None = None


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Keeps Python's events on from one trace to the next: turning them on costs as much as a short trace."""
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
    global _told, _ignored
    with listening():
        if follower.own != _ignored:
            _ignored = follower.own
            sys.monitoring.restart_events()  # pyright: ignore[reportAttributeAccessIssue]
        before, _told = _told, (follower, threading.get_ident())
        count = len(_read)
        try:
            yield
        finally:
            _told = before
            while len(_read) > count:
                sys.monitoring.set_local_events(_tool, _read.pop(), 0)  # pyright: ignore[reportAttributeAccessIssue]


def _listen(monitoring: Any) -> int:
    """Turns Python's events on, and gives the number that weft has there.

    Raises:
        RuntimeError: if other tools hold all of its places.
    """
    # From the top: debuggers, coverage and profilers have numbers of their own at the bottom.
    holders = [monitoring.get_tool(tool) for tool in range(6)]
    tool = next((tool for tool in reversed(range(6)) if holders[tool] is None), None)
    if tool is None:
        raise RuntimeError(f"a proof follows calls by sys.monitoring, whose places are all taken: {', '.join(holders)}")
    monitoring.use_tool_id(tool, "weft")
    events = 0
    for name, callback in _callbacks(monitoring, tool).items():
        event = getattr(monitoring.events, name)
        monitoring.register_callback(tool, event, callback)
        events |= event
    monitoring.set_events(tool, events)
    return tool


def _callbacks(monitoring: Any, tool: int) -> dict[str, Callable[..., Any]]:
    """What is called for each event; an exception's cannot be disabled. Lines are only followed where they are read."""
    disable = monitoring.DISABLE

    def called(*, thrown: bool) -> Callable[..., Any]:
        def callback(code: CodeType, offset: int, error: object = None) -> Any:
            if _told is None or _told[1] != threading.get_ident():
                return None
            if _told[0].ignores(code):
                return None if thrown else disable
            if _told[0].reads(code) and code not in _read:
                _read.append(code)
                monitoring.set_local_events(tool, code, monitoring.events.LINE)
            return _told[0].called(sys._getframe(1), thrown=thrown)  # pyright: ignore[reportPrivateUsage]

        return callback

    def left(how: Left) -> Callable[..., Any]:
        def callback(code: CodeType, offset: int, value: Any) -> Any:
            if _told is None or _told[1] != threading.get_ident():
                return None
            if _told[0].ignores(code):
                return None if how == "raises" else disable
            frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            if _told[0].wants(frame):
                _told[0].left(frame, how, value)
            return None

        return callback

    def at_line(code: CodeType, line: int) -> None:
        if _told is not None and _told[1] == threading.get_ident() and _told[0].reads(code):
            _told[0].at_line(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]

    monitoring.register_callback(tool, monitoring.events.LINE, at_line)
    return {
        "PY_START": called(thrown=False),
        "PY_RESUME": called(thrown=False),
        "PY_THROW": called(thrown=True),
        "PY_RETURN": left("return"),
        "PY_YIELD": left("yield"),
        "PY_UNWIND": left("raises"),
    }
