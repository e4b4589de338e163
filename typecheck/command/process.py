"""A worker's process from the command's side: exchanges lines of JSON with it, and ends at its limits.

`inside` is the process's own side. A library's pool (`concurrent.futures`, loky) does not serve: a single process that
dies breaks the whole pool, and a library limits the time of a call but not its memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from .inside import end_group

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
            # A process group of its own: ^C reaches only the command, and processes
            # that checked code starts end with the worker.
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
