"""A worker's process as the command sees it: it is asked, and answers, in lines of JSON, and limits end it.

`inside` is the process's own side. A pool of a library (`concurrent.futures`, loky) has no use here: one process that
dies breaks such a pool as a whole, and a library ends a call that takes too long, not one that takes too much memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from .inside import end_group

# Seconds that a process may take to import JAX, on a busy machine without compiled bytecode.
STARTING = 300.0
# Seconds between two looks at the memory of a process.
_LOOK = 0.2


class Process:
    """One process.

    Args:
        start: the source that it runs, as Python's `-c` takes it.
        given: the argument of the source, which reads it as JSON.
        seconds: the processor time that the process lets itself take; only the message about it is written here.
        memory: how much memory it may take, in megabytes.
    """

    def __init__(self, start: str, given: Any, *, seconds: float, memory: float):
        self.seconds, self.memory = seconds, memory
        # Proofs compute nothing, so a worker needs no device: two processes could not share one.
        environment = {"JAX_PLATFORMS": "cpu", **os.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-c", start, json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=environment,
            # A group of its own: ^C reaches the command only, and what checked code has started ends with the worker.
            start_new_session=True,
        )
        self.ended: str | None = None
        self.has_outgrown = False
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        # A thread reads: a pipe cannot be waited for together with a clock on every system.
        self.listening = threading.Thread(target=self._listen, daemon=True)
        self.listening.start()

    def tell(self, message: Mapping[str, Any]) -> None:
        """Sends one message; if the process has died, `answer` will say so."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(ValueError):  # native code of a checked program may write to the pipe
            for line in self.process.stdout:
                self._answers.put(json.loads(line))
            self.process.stdout.close()
        self._answers.put(None)

    def answer(self, seconds: float) -> dict[str, Any] | None:
        """The next message; None if the process has died, or if a limit has ended it (`ended`)."""
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
                    self._answers.put(None)  # the next call has to find the end, too
                return message

    def size(self) -> float:
        """How much memory it has, in megabytes; 0 where the system does not say."""
        try:
            with open(f"/proc/{self.process.pid}/statm") as sizes:
                return int(sizes.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        except (OSError, ValueError, IndexError, AttributeError):
            return 0.0

    def end(self, reason: str | None = None) -> None:
        """Ends the process, for a reason."""
        self.ended = self.ended or reason
        end_group(self.process.pid)
        self.process.kill()
        self.process.wait()
        self._hang_up()

    def close(self) -> None:
        """Lets the process end by itself, if it does so at once: it may write bytecode for the next run."""
        self._hang_up()
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.end()
        else:
            end_group(self.process.pid)

    def _hang_up(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # closing writes what is still in the buffer
            self.process.stdin.close()

    def why(self) -> str:
        """Why the process has died."""
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
