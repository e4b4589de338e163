"""`weft check --watch`: runs again whenever a checked file has changed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping

from .cache import sources_of
from .config import Config, nearest
from .units import state_of, units_of

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
