"""A conversation with one worker: questions about files, each answered to its end, whatever the files do.

A worker that dies at something is replaced, and the next one goes on after it. It stays warm from one question to the
next, with JAX imported; what it has imported of a user's is made anew where it has changed (`loading.reading_instead`).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from .config import Settings
from .units import Unit
from .workers import Worker

# How long what waits may wait, beyond the processor's time that it may take.
_WAITING = 10.0


class Conversation:
    """One worker at a time.

    Args:
        settings: what it is told.
        memory: how much it may take, in megabytes.
    """

    def __init__(self, settings: Settings, memory: float):
        self.settings, self.memory = settings, memory
        self._temporary = tempfile.mkdtemp(prefix="weft-")
        self._worker: Worker | None = None
        self._closed = False

    def start(self) -> None:
        """Starts the worker, if there is none.

        Raises:
            ConfigError: if it cannot be started.
        """
        if self._worker is None and not self._closed:
            self._worker = Worker(self.settings, self.memory, self._temporary)

    def ask(self, unit: Unit, asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """What a worker answers about a unit: its messages, and `{"died": reason, "at": step}` where one has died.

        Raises:
            ConfigError: if a worker cannot be started.
        """
        after = 0
        while not self._closed:
            if self._worker is not None and self._worker.is_spent:
                self._worker.close()
                self._worker = None
            self.start()
            worker = self._worker
            if worker is None:
                return
            worker.ask(unit, after, asked)
            at = {"at": 1, "name": "import", "file": unit.file, "line": 0}
            while (message := worker.answer(self.settings.seconds * 4 + _WAITING)) is not None:
                if "end" in message:
                    return
                if "at" in message:
                    at = message
                yield message
            self._worker = None
            if self._closed:
                return
            yield {"died": worker.why(), "step": at}
            if at["at"] <= max(1, after):  # at its import, where every worker would die
                return
            after = at["at"]

    def restart(self) -> None:
        """Ends the worker; the next question starts another."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def close(self) -> None:
        """Ends the worker."""
        self._closed = True
        if self._worker is not None:
            self._worker.end()
        shutil.rmtree(self._temporary, ignore_errors=True)
