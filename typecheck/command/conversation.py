"""A conversation with one worker: questions about files, each answered to its end, whatever the files do.

A worker imports JAX once and judges many units. It stays warm from one question to the next; what it has imported of a
user's is made anew where it has changed (`loading.up_to_date`). One that dies at something, or that a limit has
ended, is replaced, and the next one goes on after it; so is one that has grown over half of the memory it may take, or
that a file has changed (`contamination`): what it judges next would be judged by that.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from .config import ConfigError, Settings
from .process import STARTING, Process
from .units import Unit

# How long what waits may wait, beyond the processor's time that it may take.
_WAITING = 10.0
# The path is the command's own, so that both find the same modules; it comes first, before weft can be found.
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
    """One worker at a time.

    Args:
        settings: what it is told.
        memory: how much it may take, in megabytes.
    """

    def __init__(self, settings: Settings, memory: float):
        self.settings, self.memory = settings, memory
        self._worker: Process | None = None
        self._closed = self._changed = False

    def start(self) -> None:
        """Starts the worker, if there is none.

        Raises:
            ConfigError: if it cannot be started.
        """
        if self._worker is not None or self._closed:
            return
        worker = self._worker = Process(_START, sys.path, seconds=self.settings.seconds, memory=self.memory)
        worker.tell({"settings": dataclasses.asdict(self.settings)})
        if worker.answer(STARTING) is None and not self._closed:
            self.restart()
            raise ConfigError(f"weft check: a worker did not start: {worker.why()}")

    def ask(self, unit: Unit, asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """What a worker answers about a unit: its messages, and `{"died": reason, "step": step}` where one has died.

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
            if worker is None:
                return
            worker.tell({**asked, "unit": dataclasses.asdict(unit), "after": after})
            step = {"at": 1, "name": "import", "file": unit.file, "line": 0}
            for message in self._messages(worker):
                if "end" in message:
                    self._changed = bool(message.get("changed"))
                    yield message
                    return
                step = message if "at" in message else step
                yield message
            self._worker = None
            if self._closed:
                return
            if has_judged and worker.has_outgrown:  # perhaps by what earlier units left: once more, alone
                after, has_judged = max(after, step["at"] - 1), False
                continue
            has_judged = False
            yield {"died": worker.why(), "step": step}
            if step["at"] <= max(1, after):  # at its import, where every worker would die
                return
            after = step["at"]

    def _messages(self, worker: Process) -> Iterator[dict[str, Any]]:
        """What a worker says of one unit. Processor time ends what computes; the clock here ends what waits."""
        while (message := worker.answer(self.settings.seconds * 4 + _WAITING)) is not None:
            yield message
            if "end" in message:
                return

    def restart(self) -> None:
        """Ends the worker; the next question starts another."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()

    def close(self) -> None:
        """Ends the worker, and what it has started."""
        self._closed = True
        self.restart()
