"""A run: yields stored verdicts and verdicts of workers in the order of the files."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .cache import Cache
from .config import Settings
from .conversation import Conversation
from .lines import Checked, from_json, one_line, undecided
from .units import Unit


def results(
    units: Sequence[Unit], settings: Settings, jobs: int, memory: float, root: Path | None
) -> Iterator[list[Checked]]:
    """The parts of each unit, in the order of the units, as soon as they are known.

    Args:
        units: the units to judge.
        settings: all that verdicts depend on besides the sources.
        jobs, memory: the number of workers, and the memory limit of each.
        root: the folder for `.weft`; None to store nothing.

    Raises:
        ConfigError: if workers cannot be started.
    """
    cache = None if root is None else Cache(root, settings)
    known = {unit: parts for unit in units if cache and (parts := cache.find(unit)) is not None}
    # Stored verdicts need no worker, and a run that needs none starts none.
    ahead = [unit for unit in units if unit not in known]
    conversations = [Conversation(settings, memory) for _ in range(min(jobs, len(ahead)))]
    idle = queue.SimpleQueue[Conversation]()
    for conversation in conversations:
        idle.put(conversation)

    def judge(unit: Unit) -> tuple[list[Checked], list[str]]:
        conversation = idle.get()
        try:
            return judged(conversation, unit)
        finally:
            idle.put(conversation)

    # The threads only wait for the answers of their workers, so Python's lock does not slow them.
    threads = ThreadPoolExecutor(max(len(conversations), 1))
    try:
        results_ahead = threads.map(judge, ahead)
        for unit in units:
            if unit in known:
                yield known[unit]
                continue
            parts, reads = next(results_ahead)
            if cache is not None:
                cache.store(unit, parts, reads)
            yield parts
    finally:
        # Also after an error or ^C, because a worker would go on with its proof.
        for conversation in conversations:
            conversation.close()
        threads.shutdown(cancel_futures=True)


def judged(conversation: Conversation, unit: Unit) -> tuple[list[Checked], list[str]]:
    """The parts of a unit, and the files outside of its package that its verdicts depend on."""
    parts, reads = list[Checked](), list[str]()
    for message in conversation.ask(unit, {}):
        if "part" in message:
            parts.append(from_json(message["part"]))
        elif "end" in message:
            reads = message["reads"]
        elif "died" in message:
            parts.append(_died(unit.file, message, strict=conversation.settings.strict))
    return parts, reads


def _died(file: str, message: dict[str, Any], *, strict: bool) -> Checked:
    """The part for a step at which a worker died."""
    reason, step = message["died"], message["step"]
    if step["at"] <= 1:
        return one_line("unusable", file, 0, "import", f"{reason}, while the file was imported", "import")
    return undecided(step["file"], step["line"], step["name"], reason, strict=strict)
