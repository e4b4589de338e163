"""A run: verdicts that are kept and verdicts that workers find, in the order of the files."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .config import Settings
from .conversation import Conversation
from .kept import Kept
from .lines import Checked, from_json, one_line, undecided
from .units import Unit


def results(
    units: Sequence[Unit], settings: Settings, jobs: int, memory: float, keep_in: Path | None
) -> Iterator[list[Checked]]:
    """The parts of each unit, in order, as soon as those before it are there.

    Args:
        units: what to judge.
        settings: what verdicts depend on beside the sources.
        jobs, memory: how many workers, and how much each may take.
        keep_in: the folder of `.weft`, or None to keep nothing.

    Raises:
        ConfigError: if workers cannot be started.
    """
    kept = None if keep_in is None else Kept(keep_in, settings)
    keys = {unit: kept.key(unit) for unit in units} if kept is not None else {}
    known = {unit: parts for unit, key in keys.items() if kept and (parts := kept.find(unit, key)) is not None}
    ahead = [unit for unit in units if unit not in known]
    pool = Pool(settings, min(jobs, len(ahead)), memory)
    try:
        judged = pool.judge(ahead)
        for unit in units:
            if unit in known:
                yield known[unit]
                continue
            parts, reads = next(judged)
            if kept is not None:
                kept.keep(unit, keys[unit], parts, reads)
            yield parts
    finally:
        pool.stop()
        if kept is not None:
            kept.close()


class Pool:
    """The workers of one run, each with a thread that asks it.

    `concurrent.futures` has the threads and the order, and not the processes: its pool of these is broken as a whole
    by one that dies, and cannot end one that hangs.
    """

    def __init__(self, settings: Settings, jobs: int, memory: float):
        self.settings = settings
        self._conversations = [Conversation(settings, memory) for _ in range(jobs)]
        self._idle = queue.SimpleQueue[Conversation]()
        for one in self._conversations:
            self._idle.put(one)
        self._threads = ThreadPoolExecutor(max(jobs, 1))

    def judge(self, units: Sequence[Unit]) -> Iterator[tuple[list[Checked], list[str]]]:
        """What each unit gave, in order."""
        return self._threads.map(self._judged, units)

    def stop(self) -> None:
        """Ends all workers."""
        for one in self._conversations:
            one.close()
        self._threads.shutdown(cancel_futures=True)

    def _judged(self, unit: Unit) -> tuple[list[Checked], list[str]]:
        conversation, parts, reads = self._idle.get(), list[Checked](), list[str]()
        try:
            for message in conversation.ask(unit, {}):
                if "part" in message:
                    parts.append(from_json(message["part"]))
                elif "end" in message:
                    reads = message["reads"]
                elif "died" in message:
                    parts.append(self._died(unit, message["died"], message["step"]))
        finally:
            self._idle.put(conversation)
        return parts, reads

    def _died(self, unit: Unit, reason: str, step: dict[str, Any]) -> Checked:
        if step["at"] <= 1:
            return one_line("unusable", unit.file, 0, "import", f"{reason}, while it was imported", "import")
        return undecided(step["file"], step["line"], step["name"], reason, strict=self.settings.strict)
