"""Conversations with a worker: asks about files, and gets each answer to its end, whatever the files do.

A worker imports JAX once and judges many units. It stays alive between questions, and imports the user's modules again
when one of their files has changed (`loading.up_to_date`). A worker that dies or exceeds a limit is replaced, and the
next one goes on after the step at which that happened. A worker is also replaced if it uses more than half of its
memory, or if a file has changed its process (`contamination`), because the next verdict would depend on that file.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from .config import ConfigError, Settings
from .process import STARTING, Process
from .units import Unit

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
            # A worker that is close to its limit is replaced before a step, so
            # that the limit ends only steps that need as much.
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
