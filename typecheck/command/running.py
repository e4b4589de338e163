"""A run: yields stored verdicts and verdicts of workers in the order of the files; with `--watch`, again and again."""

from __future__ import annotations

import os
import queue
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from .cache import Cache, Group, sources_of
from .config import Config, Settings, nearest
from .lines import Checked, from_json, one_line, undecided
from .process import Conversation
from .sources import Node
from .units import Unit, state_of, units_of


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
    known = {unit: cache.find(unit) if cache else ({}, False) for unit in units}
    # Stored verdicts need no worker, and a run that needs none starts none.
    ahead = [unit for unit in units if not known[unit][1]]
    conversations = [Conversation(settings, memory) for _ in range(min(jobs, len(ahead)))]
    idle = queue.SimpleQueue[Conversation]()
    for conversation in conversations:
        idle.put(conversation)

    def judge(unit: Unit) -> Judgement:
        conversation = idle.get()
        try:
            return judgement(conversation, unit, known[unit][0])
        finally:
            idle.put(conversation)

    # The threads only wait for the answers of their workers, so Python's lock does not slow them.
    threads = ThreadPoolExecutor(max(len(conversations), 1))
    try:
        results_ahead = threads.map(judge, ahead)
        for unit in units:
            groups, is_whole = known[unit]
            if not is_whole:
                judged = next(results_ahead)
                groups = judged.groups
                if cache is not None:
                    cache.store(unit, groups, judged.reads, judged.carried)
            yield parts_of(groups)
    finally:
        # Also after an error or ^C, because a worker would go on with its proof.
        for conversation in conversations:
            conversation.close()
        threads.shutdown(cancel_futures=True)


class Judgement(NamedTuple):
    """What a worker says of a unit.

    Attributes:
        groups: the outcomes of each definition; those that were known before are among them.
        reads: the files outside of the unit's package that its verdicts depend on; None if there is no whole answer.
        carried: the functions that all verdicts of the worker depend on.
    """

    groups: dict[str, Group]
    reads: list[str] | None
    carried: set[Node]


def parts_of(groups: Mapping[str, Group]) -> list[Checked]:
    """The outcomes of all definitions."""
    return [part for group in groups.values() for part in group.parts]


def judgement(conversation: Conversation, unit: Unit, known: Mapping[str, Group]) -> Judgement:
    """Has a worker judge all definitions of a unit whose outcomes are not known."""
    groups, group = {"": Group("")}, Group("")
    reads: list[str] | None = None
    for message in conversation.ask(unit, {"known": [*known]}):
        name = message.get("of", group.name)
        group = groups.setdefault(name, known.get(name) or Group(name))
        if "part" in message and not group.is_stored:
            group.parts.append(from_json(message["part"]))
        elif message.get("ran") is not None and not group.is_stored:
            group.ran = [*(group.ran or ()), *((file, name) for file, name in message["ran"])]
        elif "end" in message:
            reads = message["reads"]
        elif "died" in message:
            reason, step = message["died"], message["step"]
            if step["at"] <= 1:
                while_importing = f"{reason}, while the file was imported"
                group.parts.append(one_line("unusable", unit.file, 0, "import", while_importing, "import"))
            else:
                strict = conversation.settings.strict
                group.parts.append(undecided(step["file"], step["line"], step["name"], reason, strict=strict))
    return Judgement(groups, reads, conversation.carried)


# Seconds between two looks at the files.
_LOOK = 0.3


def watch(run: Callable[[], int], config: Config) -> int:
    """Runs, and runs again whenever a checked file, or a file that one imports, changes; until ^C.

    Args:
        run: does one run, and returns 130 if it was interrupted.
        config: says which files are checked.
    """
    try:
        while True:
            # Before the run: an edit during the run must start the next one.
            before = _state(config)
            if run() == 130:
                return 0
            print(f"watching {len(before)} files; ^C ends", file=sys.stderr, flush=True)
            while _state(config) == before:
                time.sleep(_LOOK)
            print(f"\n{time.strftime('%H:%M:%S')} a file has changed", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        return 0


def _state(config: Config) -> Mapping[str, tuple[int, int] | None]:
    units, _ = units_of(config.paths, config.exclude, config.root)
    files = {os.path.abspath(path) for unit in units for path in (unit.file, *sources_of(unit))}
    files |= {str(file) for file in (nearest(config.root), config.baseline) if file}
    return {file: state_of(file) for file in files}
