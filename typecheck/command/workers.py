"""The command's side of its workers: who judges what, what has taken too long or too much, and what is left then.

A worker imports JAX once and judges many units. It is replaced when it dies, when a limit ends it, and between two
units when it has grown over half of the memory that it may take. What it was at when it died is undecided, with the
reason; the next worker goes on after that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .config import ConfigError, Settings
from .lines import Checked, from_json, one_line, undecided
from .units import Unit

# The path is the command's own, so that both find the same modules; it comes first, before weft can be found.
# ^C is the command's, from the start.
_START = """
import json, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.path[:] = json.loads(sys.argv.pop())
from weft.typecheck.command.worker import main
main()
"""
# How long a worker may take to import JAX and weft, on the slowest machine.
_STARTING = 300.0
# How often its memory is looked at.
_LOOK = 0.2


@dataclass
class Judged:
    """What is known of one unit: its parts so far, and when it is finished, what was read."""

    parts: list[Checked] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    finished: bool = False


class Worker:
    """One process.

    Args:
        settings: what it is told.
        memory: how much it may take, in megabytes.
        temporary: the folder that checked code may write to.
    """

    def __init__(self, settings: Settings, memory: float, temporary: str):
        self.memory, self.settings = memory, settings
        # Proofs compute nothing, so a device is not touched: two workers could not share one.
        environment = {"JAX_PLATFORMS": "cpu", **os.environ, "TMPDIR": temporary}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=environment,
        )
        self.ended: str | None = None
        self.has_judged = False
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.listening = threading.Thread(target=self._listen, daemon=True)
        self.listening.start()
        self._ask({"settings": dataclasses.asdict(settings), "temporary": temporary, "caches": _caches()})
        if self.answer(_STARTING) is None:
            self.end()
            raise ConfigError(f"weft check: a worker did not start: {self.why()}")

    def ask(self, unit: Unit, after: int, more: Mapping[str, Any] | None = None) -> None:
        """Asks for the verdicts of a unit, from the step after a number; `worker` says what more can be asked."""
        self._ask({**(more or {}), "unit": dataclasses.asdict(unit), "after": after})

    def _ask(self, request: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
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
                return self._answers.get(timeout=_LOOK)
            except queue.Empty:
                if self.size() > self.memory:
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
            return f"it did not end within {self.settings.seconds:g} seconds of processor time (`--seconds`)"
        if code < 0:
            return f"the process was ended by {signal.Signals(-code).name}"
        return f"the process ended, with exit code {code}"


def _caches() -> list[str]:
    named = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    return [named] if named else []


class Pool:
    """The workers of one run; each has a thread that gives it work.

    Args:
        units: what is to be judged.
        settings: what workers are told.
        jobs: how many there are at most.
        memory: how much each may take, in megabytes.
    """

    def __init__(self, units: Sequence[Unit], settings: Settings, jobs: int, memory: float):
        self.units, self.settings, self.memory = units, settings, memory
        self.found = [Judged() for _ in units]
        self._work = queue.SimpleQueue[int]()
        for index in range(len(units)):
            self._work.put(index)
        self._news = queue.SimpleQueue[BaseException | None]()
        self._stopped = False
        self._workers: list[Worker] = []
        self._temporary = tempfile.mkdtemp(prefix="weft-check-")
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(min(jobs, len(units)))]
        for thread in self._threads:
            thread.start()

    def wait(self, index: int) -> Judged:
        """What a unit gave, when it is finished.

        Raises:
            ConfigError: if workers cannot be started.
        """
        while not self.found[index].finished:
            news = self._news.get()
            if news is not None:
                raise news
        return self.found[index]

    def stop(self) -> None:
        """Ends all workers and forgets what they wrote."""
        self._stopped = True
        for worker in self._workers:
            worker.end()
        for thread in self._threads:
            thread.join(timeout=5)
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _start(self) -> Worker:
        worker = Worker(self.settings, self.memory, self._temporary)
        self._workers.append(worker)
        return worker

    def _run(self) -> None:
        worker: Worker | None = None
        try:
            while not self._stopped:
                try:
                    index = self._work.get_nowait()
                except queue.Empty:
                    break
                if worker is not None and worker.size() > self.memory / 2:
                    worker.close()
                    worker = None
                worker = self._judge(index, worker)
                self.found[index].finished = not self._stopped
                self._news.put(None)
            if worker is not None:
                worker.close()
        except BaseException as error:
            self._news.put(error)

    def _judge(self, index: int, worker: Worker | None) -> Worker | None:
        """Judges one unit, with as many workers as it takes; returns the one that is alive."""
        unit, found, after = self.units[index], self.found[index], 0
        while not self._stopped:
            worker = worker or self._start()
            fresh = not worker.has_judged
            worker.has_judged = True
            worker.ask(unit, after)
            at = {"at": after, "name": "import", "file": unit.file, "line": 0}
            for message in self._messages(worker):
                if "at" in message:
                    at = message
                elif "part" in message:
                    found.parts.append(from_json(message["part"]))
                else:
                    found.reads = message["reads"]
                    return worker
            if self._stopped:
                return None
            reason = worker.why()
            outgrown = "MB of memory" in reason and not fresh
            worker = None
            if outgrown:
                after = max(after, at["at"] - 1)  # the memory may be what earlier units left: once more, alone
            elif at["at"] <= 1:
                found.parts.append(
                    one_line("unusable", unit.file, 0, "import", f"{reason}, while it was imported", "import")
                )
                return None
            else:
                after = at["at"]
                found.parts.append(undecided(at["file"], at["line"], at["name"], reason, strict=self.settings.strict))
        return worker

    def _messages(self, worker: Worker) -> Iterator[dict[str, Any]]:
        # The processor's time ends what computes, on a busy machine as on an idle one; this ends what waits.
        while (message := worker.answer(self.settings.seconds * 4 + 10)) is not None:
            yield message
            if "end" in message:
                return
