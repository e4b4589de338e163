"""A worker's own side: its pipes to the command, and the limits that the system enforces on it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, TextIO


def channels() -> tuple[TextIO, Callable[[Mapping[str, Any]], None]]:
    """The pipe with the requests, and a function that sends an answer; both under file descriptors of their own.

    Otherwise a `print` in a checked file, or output of native code, would appear among the answers.
    """
    asked = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # Standard input is empty for checked code: an `input()` there would take the next request.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    word = json.loads(asked.readline())["word"]

    def close() -> None:
        for pipe in (asked, answers):
            with contextlib.suppress(OSError):  # its parent was such a process, too
                os.close(pipe.fileno())

    if hasattr(os, "register_at_fork"):
        # A process that a checked file forks goes on in the worker's loop: it would take requests, and answer them.
        os.register_at_fork(after_in_child=close)

    def say(message: Mapping[str, Any]) -> None:
        try:
            answers.write(f"{word} {json.dumps(message)}\n")
            answers.flush()
        except OSError:  # the command has ended, by ^C for example, or checked code has closed the pipe
            _end_at_once()

    return asked, say


def end_with_the_command() -> None:
    """Ends this process soon after the command ends.

    A CI that reaches its time limit kills the command, which cannot end its workers then: a long proof would go on.
    """
    command = os.getppid()

    def wait() -> None:
        # The system gives an orphan another parent, which is the only sign that works without the command's help.
        while os.getppid() == command:
            time.sleep(0.2)
        _end_at_once()

    threading.Thread(target=wait, daemon=True).start()


def end_group(leader: int) -> None:
    """Ends a process that leads a group, with all processes that it has started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


def _end_at_once() -> None:
    end_group(os.getpid())
    os._exit(1)  # on Windows, which has no process groups


def note_reads() -> set[str]:
    """The set of files that this process reads from now on, such as a `sizes.toml`: verdicts may depend on them."""
    reads = set[str]()
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[0], str | bytes) and not (args[2] or 0) & writing:
            name = os.path.abspath(os.fsdecode(args[0]))
            if not name.endswith((".py", ".pyc", ".so")):  # modules are taken from `sys.modules` instead
                reads.add(name)

    sys.addaudithook(hook)
    return reads


def note_runs(unrelated: tuple[str, ...]) -> set[tuple[str, str]] | None:
    """The set of functions that run from now on, by file and qualified name; None on Python 3.11, which is too slow.

    Args:
        unrelated: the beginnings of the paths of files whose functions are not noted.
    """
    monitoring: Any = getattr(sys, "monitoring", None)
    if monitoring is None:  # floor: Python 3.11 has no `sys.monitoring`
        return None
    tool = next((tool for tool in range(5, -1, -1) if monitoring.get_tool(tool) is None), None)
    if tool is None:
        return None
    runs = set[tuple[str, str]]()
    is_noted = functools.cache(lambda file: os.path.isabs(file) and not os.path.realpath(file).startswith(unrelated))

    def note(code: CodeType, offset: int) -> Any:
        # The code of modules and classes is no function's: it is in the skeleton of its file.
        if not is_noted(code.co_filename) or not code.co_flags & inspect.CO_OPTIMIZED:
            return monitoring.DISABLE
        # Not disabled: a function that runs for a later verdict has to be noted again.
        runs.add((code.co_filename, code.co_qualname))
        return None

    monitoring.use_tool_id(tool, "weft check")
    for event in (monitoring.events.PY_START, monitoring.events.PY_RESUME):
        monitoring.register_callback(tool, event, note)
    monitoring.set_events(tool, monitoring.events.PY_START | monitoring.events.PY_RESUME)
    return runs


def limit_processor_time(seconds: float) -> None:
    """Lets the system end this process if the next step takes much longer than its seconds of processor time.

    The search ends itself in time; the limit is for code that never returns to the search.
    """
    try:
        import resource
    except ImportError:  # Windows: the command's clock is the only limit there
        return
    usage = resource.getrusage(resource.RUSAGE_SELF)
    most = int(usage.ru_utime + usage.ru_stime + seconds * 1.25 + 2) + 1
    # A limit of the system that is lower stays, because a process cannot raise it.
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def no_core_dumps() -> None:
    """Prevents core dumps, which a crash in native code would write into the user's folder."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
