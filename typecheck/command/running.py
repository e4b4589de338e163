"""A run: verdicts that are kept and verdicts that workers find, in the order of the files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from .config import Settings
from .kept import Kept
from .lines import Checked
from .units import Unit
from .workers import Pool


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
        KeyboardInterrupt: with the parts of what is not finished, for who wants to print them.
        ConfigError: if workers cannot be started.
    """
    kept = None if keep_in is None else Kept(keep_in, settings)
    keys = {} if kept is None else {unit: kept.key(unit) for unit in units}
    known = (
        {} if kept is None else {unit: parts for unit in units if (parts := kept.find(unit, keys[unit])) is not None}
    )
    ahead = [unit for unit in units if unit not in known]
    pool = Pool(ahead, settings, jobs, memory) if ahead else None
    place = {unit: index for index, unit in enumerate(ahead)}
    given = 0
    try:
        for unit in units:
            if unit in known:
                parts = known[unit]
            else:
                assert pool is not None
                judged = pool.wait(place[unit])
                parts = judged.parts
                if kept is not None:
                    kept.keep(unit, keys[unit], parts, judged.reads)
            given += 1
            yield parts
    except KeyboardInterrupt:
        left = [known[unit] if unit in known else pool.found[place[unit]].parts for unit in units[given:] if pool]
        raise KeyboardInterrupt(*left) from None
    finally:
        if pool is not None:
            pool.stop()
        if kept is not None:
            kept.close()
