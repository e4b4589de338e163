"""What a worker's process does for itself: its two ends of the pipes, and limits that the system keeps."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, TextIO


def channels() -> tuple[TextIO, TextIO]:
    """The two ends of the pipes, under other numbers than those that checked code reads from and prints to.

    A `print` of a checked file, or of native code, would otherwise stand among the answers.
    """
    asked = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return asked, answers


def end_with_the_command() -> None:
    """Ends this process soon after the command has ended.

    A CI that reaches its time limit kills the command, which then ends no workers: one in a long proof would go on.
    """
    command = os.getppid()

    def wait() -> None:
        while os.getppid() == command:
            time.sleep(0.2)
        _end_at_once()

    threading.Thread(target=wait, daemon=True).start()


def end_group(leader: int) -> None:
    """Ends a process that leads a group, and whatever the process has started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


def _end_at_once() -> None:
    end_group(os.getpid())
    os._exit(1)  # Windows has no groups


def note_reads() -> set[str]:
    """The files that this process reads from now on: verdicts may depend on them, as on a `sizes.toml`."""
    reads = set[str]()
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[0], str | bytes) and not (args[2] or 0) & writing:
            name = os.path.abspath(os.fsdecode(args[0]))
            if not name.endswith((".py", ".pyc", ".so")):  # modules are counted as such
                reads.add(name)

    sys.addaudithook(hook)
    return reads


def say(answers: TextIO, message: Mapping[str, Any]) -> None:
    """Sends one line to the command."""
    try:
        answers.write(json.dumps(message) + "\n")
        answers.flush()
    except BrokenPipeError:  # ^C has ended the command meanwhile
        _end_at_once()


def limit_processor_time(seconds: float) -> None:
    """Has the system end this process if the next step takes much more than its seconds.

    The search ends itself at its seconds; this limit is for what never comes back to the search.
    """
    try:
        import resource
    except ImportError:  # Windows: the command's clock is the only limit there
        return
    usage = resource.getrusage(resource.RUSAGE_SELF)
    most = int(usage.ru_utime + usage.ru_stime + seconds * 1.25 + 2) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def no_core_dumps() -> None:
    """Has the system write no file of this process's memory into the user's folder where native code crashes."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
