"""Frames of a trace: whose code they run, reports of their calls, and recursions among them without an end.

The *user's* are all files outside of the standard library, installed packages, and weft's own machinery. A file that is
itself being verified always counts as the user's.

A `Follower` is called as each function starts and ends, with the function's frame. On Python 3.12 and newer,
`sys.monitoring` makes these calls. It can disable the events of one place in the code: a function of JAX's is looked at
once, and a proof takes half of the time. Python 3.11 has only `sys.settrace`, under which the interpreter specialises
nothing.

A function that calls itself again and again with arguments of the same shapes counts as endless. In a trace shapes are
nearly all that a call depends on, so such a recursion only ends at Python's limit, a thousand calls deep. Each of these
calls may trace a whole model, and one trial would take longer than all others of a search.
"""

from __future__ import annotations

import collections
import contextlib
import dis
import inspect
import sys
import threading
import traceback
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal, Protocol

import jax
from weft.core.caches import cached_by
from weft.core.edge.names import is_generated
from weft.core.errors import WeftError
from weft.core.frames import Owner, owner_of
from weft.typecheck.proofs.violations import first_line


@cached_by("nothing", most=1)
def _targets() -> tuple[str, ...]:
    """The folders on the path into which `pip install --target` has put packages; each holds their `*.dist-info`."""
    folders = [Path(folder) for folder in sys.path if folder]
    return tuple(f"{folder}/" for folder in folders if next(folder.glob("*.dist-info"), None) is not None)


def is_installed(filename: str) -> bool:
    """Whether a file belongs to the standard library or to an installed package, of any environment."""
    return owner_of(filename) in ("standard", "installed") or filename.startswith(_targets())


# These files run ops, so they are machinery. weft's other modules are programs to judge, unless weft is installed.
_WEFT = Path(__file__).parents[2]
_WEFTS = ("machinery", "contracts")
_MACHINERY = tuple(str(_WEFT / "modules" / name) for name in ("op.py", "untouched.py"))
# Lines at a prompt of Python's or IPython's. A target's own `<string>` is the user's, too (`python -c`); any other is
# what `dataclasses` generated.
_TYPED = ("<stdin>", "<python-input", "<ipython-input")
_IS_INSTALLED = any(name in __file__ for name in ("site-packages", "dist-packages"))


@cached_by("file")
def is_users(filename: str, own: frozenset[str] = frozenset()) -> bool:
    """Whether a file holds the user's code."""
    if filename in own or filename.startswith(_TYPED):
        return True
    owner = owner_of(filename)
    if owner == "modules":
        return not _IS_INSTALLED and filename not in _MACHINERY
    return owner == "user" and not filename.startswith(_targets())


def is_transforms(filename: str) -> bool:
    """Whether a file belongs to JAX, or to the parts of weft that define transforms."""
    return owner_of(filename) in ("jax", "machinery", "nnx")


def is_of_jax(error: Exception | None) -> bool:
    """Whether JAX raised an error, rather than a program or Python."""
    return _raised_by(error) == "jax"


def is_of_library(error: Exception | None) -> bool:
    """Whether an installed package, or equinox, raised an error."""
    return _raised_by(error) in ("equinox", "installed")


def is_of_weft(error: Exception) -> bool:
    """Whether an error is a fault of weft's: a line of its own failed, and no program's called that line."""
    owners = _owners(error)
    if isinstance(error, WeftError | RecursionError | MemoryError) or not owners or owners[-1] not in _WEFTS:
        return False
    # A name that is missing in a line is missing whoever calls it. Most other errors come from what a program passes.
    return isinstance(error, NameError) or all(owner in (*_WEFTS, "standard") for owner in owners)


def text_of_fault(error: Exception) -> str:
    """The type, message and innermost line of weft's of an error."""
    where = "outside of weft"
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename).resolve()
        where = f"{path.relative_to(_WEFT)}:{frame.lineno}" if path.is_relative_to(_WEFT) else where
    return f"weft failed: {type(error).__name__}: {first_line(error)} ({where}); please report it"


def _raised_by(error: Exception | None) -> Owner | None:
    return next(reversed(_owners(error)), None)


def _owners(error: Exception | None) -> list[Owner]:
    frames = traceback.walk_tb(None if error is None else error.__traceback__)
    return [owner_of(frame.f_code.co_filename) for frame, _ in frames]


class CodeOwners(dict[str, Literal["user", "library", "plain"]]):
    """Whose code a file holds, computed at the first look-up. *Plain* libraries are those that define no records."""

    def __init__(self, own: frozenset[str]):
        self.own = own

    def of(self, code: CodeType) -> Literal["user", "library", "plain"]:
        """Whose code this is; what `dataclasses` generates has no file, as the code of `python -c` has none."""
        return "library" if is_generated(code) else self[code.co_filename]

    def __missing__(self, filename: str) -> Literal["user", "library", "plain"]:
        plain = owner_of(filename) in ("standard", "jax")
        self[filename] = "user" if is_users(filename, self.own) else "plain" if plain else "library"
        return self[filename]


def file_of_init(frame: FrameType) -> str:
    """The file of a constructor; if `dataclasses` generated it, the file of its class."""
    filename = frame.f_code.co_filename
    return frame.f_globals.get("__file__", filename) if is_generated(frame.f_code) else filename


def place_of(owner: Any) -> tuple[str, int]:
    """The file where a function or class is defined, and its line: that of the first decorator if it has any."""
    owner = inspect.unwrap(owner)
    code = getattr(owner, "__code__", None)
    if code is not None:
        return code.co_filename, code.co_firstlineno
    try:
        return inspect.getsourcefile(owner) or "", inspect.getsourcelines(owner)[1]
    except (OSError, TypeError):
        return "", 0


@cached_by("class")
def file_of(cls: type) -> str:
    return getattr(sys.modules.get(cls.__module__), "__file__", None) or place_of(cls)[0]


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
    # floor: Python 3.11 has no `sys.monitoring`.
    return _MONITOR.following(follower) if sys.version_info >= (3, 12) else _traced(follower)


def listening() -> AbstractContextManager[None]:
    """Keeps the events of `sys.monitoring` on within a block of several traces."""
    return _MONITOR.listening()


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """A context in which no calls are followed, for weft's own checks, which run in the middle of a trace."""
    # floor: `sys.settrace` follows on Python 3.11.
    tracer, current = sys.gettrace(), _MONITOR.current
    sys.settrace(None)
    _MONITOR.current = None
    try:
        yield
    finally:
        _MONITOR.current = current
        sys.settrace(tracer)


def among_jaxs_own() -> AbstractContextManager[None]:
    """A context for JAX's tracing of its own functions, in which no calls are followed on Python 3.11.

    Under `sys.settrace` each call costs, and half of a trace's calls are in there. Under `sys.monitoring` the follower
    has to be called once for each place, so that the place is disabled; while it is paused, no place would ever be.
    """
    # floor: `sys.settrace` follows on Python 3.11.
    return contextlib.nullcontext() if sys.version_info >= (3, 12) else paused()


# floor: Python 3.11 has no `sys.monitoring`. `sys.settrace` reports a yielded value, an exception and a return as one
# event, and the instruction that the frame is at tells them apart.
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


class _Monitor:
    """The use of `sys.monitoring`, which reports the calls of all threads: a process has one, and so has weft.

    Attributes:
        current: the follower, and its thread.
        depth: how many `listening` blocks are open.
        tool: weft's number while any is.
        read: the functions whose lines are followed.
        ignored: the `own` files for which places have been disabled.
    """

    def __init__(self) -> None:
        self.monitoring: Any = getattr(sys, "monitoring", None)  # floor: Python 3.11 has none
        self.current: tuple[Follower, int] | None = None
        self.depth, self.tool = 0, -1
        self.read: list[CodeType] = []
        self.ignored: frozenset[str] | None = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        # Turning the events on costs as much as a short trace, since Python rewrites the code of each function that
        # runs. So they stay on for a block of several traces.
        with self._lock:
            self.depth += 1
            if self.depth == 1 and self.monitoring is not None:
                self._begin()
        try:
            yield
        finally:
            with self._lock:
                self.depth -= 1
                if self.depth == 0 and self.monitoring is not None:
                    self.monitoring.set_events(self.tool, 0)
                    self.monitoring.free_tool_id(self.tool)

    @contextlib.contextmanager
    def following(self, follower: Follower) -> Iterator[None]:
        with self.listening():
            if follower.own != self.ignored:
                # Places disabled for one program's files may belong to the next program's: a place that stayed disabled
                # would hide the calls of the very function that is judged.
                self.ignored = follower.own
                self.monitoring.restart_events()
            before, self.current = self.current, (follower, threading.get_ident())
            count = len(self.read)
            try:
                yield
            finally:
                self.current = before
                # Only those that this block has added: a follower may stand inside of another, whose lines are followed
                # on.
                while len(self.read) > count:
                    self.monitoring.set_local_events(self.tool, self.read.pop(), 0)

    def _begin(self) -> None:
        """Turns the events on.

        Raises:
            RuntimeError: if other tools use all six numbers.
        """
        monitoring = self.monitoring
        # Numbers are tried from the top, since debuggers, coverage and profilers have fixed numbers at the bottom.
        holders = [monitoring.get_tool(tool) for tool in range(6)]
        tool = next((tool for tool in reversed(range(6)) if holders[tool] is None), None)
        if tool is None:
            raise RuntimeError(f"a proof needs a tool id of sys.monitoring, and all are taken: {', '.join(holders)}")
        monitoring.use_tool_id(tool, "weft")
        self.tool, self.ignored = tool, None
        monitoring.register_callback(tool, monitoring.events.LINE, self._at_line)
        events = 0
        for name, callback in {
            "PY_START": self._called(thrown=False),
            "PY_RESUME": self._called(thrown=False),
            "PY_THROW": self._called(thrown=True),
            "PY_RETURN": self._ending("return"),
            "PY_YIELD": self._ending("yield"),
            "PY_UNWIND": self._ending("raises"),
        }.items():
            event = getattr(monitoring.events, name)
            monitoring.register_callback(tool, event, callback)
            events |= event
        monitoring.set_events(tool, events)

    # The events of exceptions cannot be disabled, and line events are local to a code.

    def _called(self, *, thrown: bool) -> Callable[..., Any]:
        disable = self.monitoring.DISABLE

        def callback(code: CodeType, offset: int, error: object = None) -> Any:
            if self.current is None or self.current[1] != threading.get_ident():
                return None
            follower = self.current[0]
            if follower.ignores(code):
                return None if thrown else disable
            if follower.reads(code) and code not in self.read:
                self.read.append(code)
                self.monitoring.set_local_events(self.tool, code, self.monitoring.events.LINE)
            return follower.called(sys._getframe(1), thrown=thrown)  # pyright: ignore[reportPrivateUsage]

        return callback

    def _ending(self, how: Ending) -> Callable[..., Any]:
        disable = self.monitoring.DISABLE

        def callback(code: CodeType, offset: int, value: Any) -> Any:
            if self.current is None or self.current[1] != threading.get_ident():
                return None
            follower = self.current[0]
            if follower.ignores(code):
                return None if how == "raises" else disable
            frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            if follower.wants(frame):
                follower.ended(frame, how, value)
            return None

        return callback

    def _at_line(self, code: CodeType, line: int) -> None:
        if self.current is not None and self.current[1] == threading.get_ident() and self.current[0].reads(code):
            self.current[0].at_line(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]


_MONITOR = _Monitor()


# The depth of nested calls of one function with like arguments after which the recursion counts as endless. A recursion
# that counts in an object of its own may come to an end after all; so its contract is undecided, and does not fail.
_ALIKE = 24


class Endless(RecursionError):
    """A function has called itself with like arguments so often that no end is in sight."""


class Depths:
    """Counts the calls of each function from each place, and compares their arguments once they are many.

    Comparing the arguments of every call would take longer than the trial.
    """

    def __init__(self) -> None:
        self._calls: collections.Counter[Hashable] = collections.Counter()

    def called(self, site: Hashable, frame: FrameType) -> None:
        """Counts a call.

        Raises:
            Endless: if the call is the innermost of many nested calls with like arguments.
        """
        self._calls[site] += 1
        if self._calls[site] % _ALIKE == 0 and _is_endless(frame):
            name = frame.f_code.co_name
            raise Endless(f"{name} calls itself without an end, with arguments of the same shapes each time")


def _is_endless(frame: FrameType) -> bool:
    """Whether the innermost open calls of a function, as many as `_ALIKE`, all have like arguments."""
    code, arguments, count = frame.f_code, _arguments_of(frame), 0
    outer: FrameType | None = frame
    while outer is not None and count < _ALIKE:
        if outer.f_code is code:
            # Both are held while they are compared: a class may make new leaves whenever it is flattened, and those of
            # two calls would have the same `id`.
            others = _arguments_of(outer)
            if arguments[1] != others[1] or not all(map(_are_alike, arguments[0], others[0])):
                return False
            count += 1
        outer = outer.f_back
    return count == _ALIKE


def _arguments_of(frame: FrameType) -> tuple[list[Any], Any]:
    """The leaves of a call's arguments, and their treedef."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return jax.tree.flatten([frame.f_locals.get(name) for name in names])


def _are_alike(leaf: Any, earlier: Any) -> bool:
    """Whether a trace does the same for two leaves: arrays of one shape and dtype, equal numbers, the same object."""
    if all(hasattr(value, "shape") and hasattr(value, "dtype") for value in (leaf, earlier)):
        return (tuple(leaf.shape), str(leaf.dtype)) == (tuple(earlier.shape), str(earlier.dtype))
    are_plain = all(isinstance(value, bool | int | float | str) for value in (leaf, earlier))
    return leaf == earlier if are_plain else leaf is earlier
