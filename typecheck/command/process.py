"""A process of the command's: it is asked, and answers, in lines of JSON, and limits end it. `inside` is its side."""

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

# How long a process may take to import JAX, on the slowest machine.
STARTING = 300.0
# How often its memory is looked at.
_LOOK = 0.2


class Process:
    """One process.

    Args:
        start: what it runs, as Python's `-c` takes it.
        given: its argument, of which it reads JSON.
        seconds: of processor time that it lets itself take, to be said when that ends it.
        memory: how much it may take, in megabytes.
    """

    def __init__(self, start: str, given: Any, *, seconds: float, memory: float):
        self.seconds, self.memory = seconds, memory
        # Proofs compute nothing, so a device is not touched: two processes could not share one.
        environment = {"JAX_PLATFORMS": "cpu", **os.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-c", start, json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=environment,
            # A group of its own: ^C is the command's, and what checked code has started ends with the process.
            start_new_session=True,
        )
        self.ended: str | None = None
        self.has_outgrown = False
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.listening = threading.Thread(target=self._listen, daemon=True)
        self.listening.start()

    def tell(self, message: Mapping[str, Any]) -> None:
        """Sends one message."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        except (OSError, ValueError):  # it has died, or was ended, and `answer` will say so
            pass

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                break
            self._answers.put(message)
        else:
            self.process.stdout.close()
        self._answers.put(None)

    def answer(self, seconds: float) -> dict[str, Any] | None:
        """The next message; None if the process has died, or was ended because a limit was reached (`ended`)."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                message = self._answers.get(timeout=_LOOK)
                if message is None:
                    self._answers.put(None)  # to be found at the next look, too
                return message
            except queue.Empty:
                if self.size() > self.memory:
                    self.has_outgrown = True
                    self.end(f"it took more than {self.memory:g} MB of memory (`--memory`)")
                elif time.monotonic() > deadline:
                    self.end(f"it did not end within {seconds:g} seconds (`--seconds`)")
                else:
                    continue
                return None

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
        """Lets the process end by itself, if it does so at once."""
        self._hang_up()
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.end()
        else:
            end_group(self.process.pid)

    def _hang_up(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # what it was still to be told
            self.process.stdin.close()

    def why(self) -> str:
        """Why it has died."""
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.end("it closed what the process answers on")
            code = 0
        if self.ended is not None:
            return self.ended
        if code == -getattr(signal, "SIGXCPU", 0):
            return f"it did not end within {self.seconds:g} seconds of processor time (`--seconds`)"
        if code < 0:
            return f"the process was ended by {signal.Signals(-code).name}"
        return f"the process ended, with exit code {code}"
