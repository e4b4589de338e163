"""The command's side of its workers: who judges what, what has taken too long or too much, and what is left then.

A worker imports JAX once and judges many units. It is replaced when it dies, when a limit ends it, and between two
units when it has grown over half of the memory that it may take, or a file has changed it (`contamination`). What it
was at when it died is undecided, with the reason; the next worker goes on after that.
"""

from __future__ import annotations

import dataclasses
import queue
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .config import ConfigError, Settings
from .lines import Checked, from_json, one_line, undecided
from .process import STARTING, Process, caches
from .programs import Programs
from .units import Unit

# The path is the command's own, so that both find the same modules; it comes first, before weft can be found.
_START = """
import json, sys
sys.path[:] = json.loads(sys.argv.pop())
from weft.typecheck.command.worker import main
main()
"""


@dataclass
class Judged:
    """What is known of one unit: its parts so far, and when it is finished, what was read."""

    parts: list[Checked] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    finished: bool = False


class Worker(Process):
    """One process that judges.

    Args:
        settings: what it is told.
        memory: how much it may take, in megabytes.
        temporary: the folder that checked code may write to.
        runs: whether who asks runs programs for it (`{"run": ...}`, see `worker`).
    """

    def __init__(self, settings: Settings, memory: float, temporary: str, *, runs: bool = False):
        super().__init__(_START, sys.path, seconds=settings.seconds, memory=memory, temporary=temporary)
        self.settings = settings
        self.has_judged = self.changed = False
        told = {"temporary": temporary, "caches": caches(), "runs": runs}
        self.tell({"settings": dataclasses.asdict(settings), **told})
        if self.answer(STARTING) is None:
            self.end()
            raise ConfigError(f"weft check: a worker did not start: {self.why()}")

    @property
    def is_spent(self) -> bool:
        """Whether what it has judged would be seen in what it judges next: it has grown much, or is not as it was."""
        return self.changed or self.size() > self.memory / 2

    def answer(self, seconds: float) -> dict[str, Any] | None:
        message = super().answer(seconds)
        self.changed |= bool(message and message.get("changed"))
        return message

    def ask(self, unit: Unit, after: int, more: Mapping[str, Any] | None = None) -> None:
        """Asks for the verdicts of a unit, from the step after a number; `worker` says what more can be asked."""
        self.tell({**(more or {}), "unit": dataclasses.asdict(unit), "after": after})


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
        self._programs: list[Programs] = []
        self._refused: dict[str, dict[str, Any]] = {}
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
        for programs in self._programs:
            programs.close()
        for thread in self._threads:
            thread.join(timeout=5)
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _start(self) -> Worker:
        worker = Worker(self.settings, self.memory, self._temporary, runs=True)
        self._workers.append(worker)
        return worker

    def _run(self) -> None:
        worker: Worker | None = None
        programs = Programs(self.settings.seconds, self.memory, self._temporary, self._refused)
        self._programs.append(programs)
        try:
            while not self._stopped:
                try:
                    index = self._work.get_nowait()
                except queue.Empty:
                    break
                if worker is not None and worker.is_spent:
                    worker.close()
                    worker = None
                worker = self._judge(index, worker, programs)
                self.found[index].finished = not self._stopped
                self._news.put(None)
            if worker is not None:
                worker.close()
        except BaseException as error:
            self._news.put(error)
        finally:
            programs.close()

    def _judge(self, index: int, worker: Worker | None, programs: Programs) -> Worker | None:
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
                elif "run" in message:
                    worker.tell({"ran": programs.run(message["run"], message["hooked"], message["path"])})
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
