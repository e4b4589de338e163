"""A conversation with one worker: questions about files, each answered to its end, whatever the files do.

A worker imports JAX once and judges many units. It stays warm from one question to the next; it imports the user's
modules again where a file of them has changed (`loading.up_to_date`). A worker that dies, or that a limit ends, is
replaced, and the next worker goes on after the step that ended it. A worker is also replaced if it has grown over half
of its memory, or if a file has changed it (`contamination`), for the next verdict would be that file's doing.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from .config import ConfigError, Settings
from .process import STARTING, Process
from .units import Unit

# Seconds that a step may wait, for a lock or a network, beyond four times its processor time.
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
    """Questions to one worker at a time.

    Args:
        settings: the settings that verdicts depend on.
        memory: how much memory a worker may take, in megabytes.
    """

    def __init__(self, settings: Settings, memory: float):
        self.settings, self.memory = settings, memory
        self._worker: Process | None = None
        self._closed = self._changed = False

    def start(self) -> None:
        """Starts the worker, if there is none.

        Raises:
            ConfigError: if the worker cannot be started.
        """
        if self._worker is not None or self._closed:
            return
        worker = self._worker = Process(_START, sys.path, seconds=self.settings.seconds, memory=self.memory)
        worker.tell({"settings": dataclasses.asdict(self.settings)})
        if worker.answer(STARTING) is None and not self._closed:
            self.restart()
            raise ConfigError(f"weft check: a worker did not start: {worker.why()}")

    def ask(self, unit: Unit, asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """A worker's messages about a unit, and `{"died": reason, "step": step}` for each step that ended a worker.

        Raises:
            ConfigError: if a worker cannot be started.
        """
        after, has_judged = 0, self._worker is not None
        while not self._closed:
            if self._worker is not None and (self._changed or self._worker.size() > self.memory / 2):
                self._worker.close()
                self._worker, has_judged = None, False
            self._changed = False
            self.start()
            worker = self._worker
            if worker is None:  # another thread has closed the conversation
                return
            worker.tell({**asked, "unit": dataclasses.asdict(unit), "after": after})
            step = {"at": 1, "name": "import", "file": unit.file, "line": 0}
            # Processor time ends a step that computes; this clock ends a step that waits.
            while (message := worker.answer(self.settings.seconds * 4 + _WAITING)) is not None:
                yield message
                if "end" in message:
                    self._changed = bool(message["changed"])
                    return
                step = message if "at" in message else step
            self._worker = None
            if self._closed:
                return
            if has_judged and worker.has_outgrown:
                # Earlier units may have left the memory behind: a fresh worker takes the same step once more.
                after, has_judged = max(after, step["at"] - 1), False
                continue
            has_judged = False
            yield {"died": worker.why(), "step": step}
            if step["at"] <= max(1, after):  # the import, at which the next worker would die, too
                return
            after = step["at"]

    def restart(self) -> None:
        """Ends the worker; the next question starts another one."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()

    def close(self) -> None:
        """Ends the worker for good, and the processes that it has started."""
        self._closed = True
        self.restart()
