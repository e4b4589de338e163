"""A worker from the command's side: a process that exchanges lines of JSON, ends at its limits, and is replaced.

`inside` is the process's own side. A library's pool (`concurrent.futures`, loky) does not serve: a single process that
dies breaks the whole pool, and a library limits the time of a call but not its memory.

A `Conversation` asks a worker about files, and gets each answer to its end, whatever the files do. A worker imports JAX
once and judges many units. It stays alive between questions, and imports the user's modules again when one of their
files has changed (`loading.up_to_date`). A worker that dies or exceeds a limit is replaced, and the next one goes on
after the step at which that happened. A worker is also replaced if it uses more than half of its memory, or if a file
has changed its process, because the next verdict would depend on that file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from .config import ConfigError, Settings
from .inside import end_group
from .units import Unit

# Seconds that a process may take to import JAX on a busy machine without compiled bytecode.
STARTING = 300.0
# Seconds between two measurements of a process's memory.
_LOOK = 0.2


class Process:
    """One worker process.

    Args:
        start: the source that it runs, as for Python's `-c`.
        argument: the argument of the source, passed as JSON.
        seconds: the limit of processor time, which the process sets itself; used here for the message only.
        memory: the limit of memory, in megabytes.
    """

    def __init__(self, start: str, argument: Any, *, seconds: float, memory: float):
        self.seconds, self.memory = seconds, memory
        # Proofs compute nothing, so a worker needs no device, and two processes could not share one.
        # The user's own setting of the platform wins.
        environment = {"JAX_PLATFORMS": "cpu", **os.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-c", start, json.dumps(argument)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=environment,
            # A process group of its own: ^C reaches only the command, and processes that checked code starts end with
            # the worker.
            start_new_session=True,
        )
        self.ended: str | None = None
        self.has_outgrown = False
        # Checked code may write to any open descriptor: a line without this word is no answer of weft's.
        self._word = secrets.token_hex(8)
        self.tell({"word": self._word})
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        # A thread reads, because not every system can wait for a pipe and a clock at once.
        self.listening = threading.Thread(target=self._listen, daemon=True)
        self.listening.start()

    def tell(self, message: Mapping[str, Any]) -> None:
        """Sends a message; if the process has died, the next `answer` says so."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(ValueError):  # what checked code writes need not be UTF-8
            for line in self.process.stdout:
                word, _, answer = line.partition(" ")
                if word != self._word:
                    self.ended = "it wrote into the pipe that weft's answers go through"
                    break
                self._answers.put(json.loads(answer))
        with contextlib.suppress(OSError):
            self.process.stdout.close()
        self._answers.put(None)

    def answer(self, seconds: float) -> dict[str, Any] | None:
        """The next message; None if the process has died or a limit has ended it (see `ended`)."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                message = self._answers.get(timeout=_LOOK)
            except queue.Empty:
                if self.size() > self.memory:
                    self.has_outgrown = True
                    self.end(f"it took more than {self.memory:g} MB of memory (`--memory`)")
                    return None
                if time.monotonic() > deadline:
                    self.end(f"it did not end within {seconds:g} seconds (`--seconds`)")
                    return None
            else:
                if message is None:
                    self._answers.put(None)  # so that a further call finds the end as well
                return message

    def size(self) -> float:
        """The memory of the process, in megabytes; 0 if the system does not tell."""
        try:
            with open(f"/proc/{self.process.pid}/statm") as sizes:
                return int(sizes.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        except (OSError, ValueError, IndexError, AttributeError):
            return 0.0

    def end(self, reason: str | None = None) -> None:
        """Ends the process; `reason` is what `why` returns afterwards."""
        self.ended = self.ended or reason
        end_group(self.process.pid)
        self.process.kill()
        self.process.wait()
        self._hang_up()

    def close(self) -> None:
        """Lets the process end by itself if it does so at once: it may write bytecode for the next run."""
        self._hang_up()
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.end()
        else:
            end_group(self.process.pid)

    def _hang_up(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # closing flushes the buffer, and the process may be gone
            self.process.stdin.close()

    def why(self) -> str:
        """The reason why the process has died."""
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.end("it closed the pipe that it answers on")
            code = 0
        if self.ended is not None:
            return self.ended
        if code == -getattr(signal, "SIGXCPU", 0):
            return f"it did not end within {self.seconds:g} seconds of processor time (`--seconds`)"
        if code < 0:
            return f"the process was ended by {signal.Signals(-code).name}"
        return f"the process ended, with exit code {code}"


# How many seconds longer than four times its processor time a step may take, for a lock or a network.
_WAITING = 10.0
# The worker gets the command's own path, so that both find the same modules. `json` is imported without the current
# folder on the path: a `json.py` of the user's ended every worker.
_START = """
import sys
path = sys.argv.pop()
sys.path = [one for one in sys.path if one]
import json
sys.path[:] = json.loads(path)
from weft.typecheck.command.worker import main
main()
"""


class Conversation:
    """Questions to one worker at a time, which is replaced when it dies.

    Args:
        settings: the settings that verdicts depend on.
        memory: the limit of a worker, in megabytes.
    """

    def __init__(self, settings: Settings, memory: float):
        # The worker is started at the first question, so that a run without questions starts none.
        self.settings, self.memory = settings, memory
        self._worker: Process | None = None
        # The functions that ran in a worker, and that its later verdicts may rest on without calling them.
        self.carried = set[tuple[str, str]]()
        self._closed = self._changed = self._abandoned = False
        self._heard = time.monotonic()

    def start(self) -> None:
        """Starts a worker if none is running.

        Raises:
            ConfigError: if the worker cannot be started.
        """
        if self._worker is not None or self._closed:
            return
        worker = self._worker = Process(_START, sys.path, seconds=self.settings.seconds, memory=self.memory)
        worker.tell({"settings": dataclasses.asdict(self.settings)})
        # Importing JAX on a busy machine takes far longer than any proof's limit.
        if worker.answer(STARTING) is None and not self._closed:
            self.restart()
            raise ConfigError(f"weft check: a worker did not start: {worker.why()}")

    def ask(self, unit: Unit, asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """A worker's messages about a unit, with `{"died": reason, "step": step}` for each step that ended a worker.

        Raises:
            ConfigError: if a worker cannot be started.
        """
        if self._abandoned:  # after its last answer, so that nobody has taken the dead worker away
            self._worker, self._abandoned = None, False
        after, has_judged = 0, self._worker is not None
        while not self._closed:
            # A worker that is close to its limit is replaced before a step, so that the limit ends only steps that need
            # as much.
            if self._worker is not None and (self._changed or self._worker.size() > self.memory / 2):
                self._worker.close()
                self._worker, has_judged = None, False
            self._changed = False
            self.start()
            worker = self._worker
            if worker is None:  # another thread has closed the conversation
                return
            worker.tell({**asked, "unit": dataclasses.asdict(unit), "after": after})
            step, self._heard = {"at": 1, "name": "import", "file": unit.file, "line": 0}, time.monotonic()
            # The processor time limits a step that computes; this clock limits a step that waits.
            while (message := worker.answer(self.settings.seconds * 4 + _WAITING)) is not None:
                yield message
                self._heard = time.monotonic()
                if "end" in message:
                    self._changed = bool(message["changed"])
                    return
                step = message if "at" in message else step
            self._worker = None
            if self._closed or self._abandoned:
                self._abandoned = False
                return
            if has_judged and worker.has_outgrown:
                # Earlier units may have left the memory behind: a fresh worker takes the same step once more.
                after, has_judged = max(after, step["at"] - 1), False
                continue
            has_judged = False
            yield {"died": worker.why(), "step": step}
            if step["at"] <= max(1, after):  # the import, at which every worker would die
                return
            after = step["at"]

    def abandon(self, seconds: float) -> None:
        """Ends the worker, and the answer that another thread waits for, if it has sent nothing for some seconds."""
        worker = self._worker
        if worker is not None and time.monotonic() - self._heard > seconds:
            self._abandoned = True
            worker.end("the file was saved again")

    def restart(self) -> None:
        """Ends the worker; the next question starts a new one."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()

    def close(self) -> None:
        """Ends the worker for good, with all processes that it has started."""
        self._closed = True
        self.restart()
