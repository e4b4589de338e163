"""What a process of the command's does for itself: its two ends of the talk, and limits that the system keeps."""

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
    """The two ends of the talk, away from the numbers that checked code reads from and prints to."""
    asked = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return asked, answers


def end_with_the_command() -> None:
    """A command that is ended from outside, as a CI does, can end no workers; one in a long proof would go on."""
    command = os.getppid()

    def wait() -> None:
        while os.getppid() == command:
            time.sleep(0.2)
        end_group(os.getpid())
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def end_group(leader: int) -> None:
    """Ends a process that leads a group, and whatever it has started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


def note_reads() -> set[str]:
    """The files that this process reads from now on, but for Python's own: verdicts may depend on them."""
    reads = set[str]()
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[0], str | bytes) and not (args[2] or 0) & writing:
            name = os.path.abspath(os.fsdecode(args[0]))
            if not name.endswith((".py", ".pyc", ".so")):
                reads.add(name)

    sys.addaudithook(hook)
    return reads


def say(answers: TextIO, message: Mapping[str, Any]) -> None:
    """One line to the command."""
    try:
        answers.write(json.dumps(message) + "\n")
        answers.flush()
    except BrokenPipeError:  # the command has ended meanwhile, as at ^C
        end_group(os.getpid())
        os._exit(1)


def over(seconds: float) -> float:
    """How much processor time a step may take before the system ends it: more than the search ends itself at."""
    return seconds * 1.25 + 2


def limit_processor_time(seconds: float) -> None:
    """Has the system end this process if what comes next takes much more than its seconds."""
    try:
        import resource
    except ImportError:  # Windows has no such limit: the command's own clock ends what does not end
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime + over(seconds)) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def no_core_dumps() -> None:
    """Whatever ends this process leaves no file of its memory."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
