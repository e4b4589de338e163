"""The clock that all benchmarks share: peers side by side, in interleaved rounds, compared round by round.

A machine's speed drifts while a benchmark runs, so a *round* times every *case* once, one after the other in an order
that rotates, and ratios are taken inside a round. What is reported is the median over rounds: of the seconds, and of
the ratios to the *limit*, the case that does the same work with nothing around it.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax

PACKAGES = ("weft-jax", "jax", "jaxlib", "equinox", "flax", "jaxtyping", "numpy")


@dataclass(frozen=True)
class Case:
    """One thing to time.

    Attributes:
        name: its row in the table.
        advance: takes what the last call left and makes one call, giving what the next one starts from.
        start: what the first call starts from.
        calls: how many calls make one timing; None finds a number that takes about `SLICE` seconds.
        prepare: run before each timing, off the clock.
        waits: whether the clock runs until the last result is there: what counts is then how many calls are done in a
            time, and not when each of them returns.
    """

    name: str
    advance: Callable[[Any], Any]
    start: Any = None
    calls: int | None = None
    prepare: Callable[[], object] | None = None
    waits: bool = False


@dataclass(frozen=True)
class Timing:
    """Seconds a call of one case, one entry a round."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def ratio(self, limit: Timing) -> float:
        """The median over rounds of this case's time by the limit's in the same round."""
        return statistics.median(mine / its for mine, its in zip(self.seconds, limit.seconds, strict=True))


# Long enough that the clock's own cost vanishes, short enough that a round sees one speed of the machine.
SLICE = 0.03


def time_cases(cases: Sequence[Case], rounds: int) -> list[Timing]:
    """Times cases in interleaved rounds.

    Dispatch is asynchronous, and what is timed is the call itself: results are awaited after the clock has stopped,
    unless a case says that it waits for them.
    """
    states = [case.start for case in cases]
    calls = [case.calls or 0 for case in cases]
    for i, case in enumerate(cases):
        if case.prepare is None:
            states[i] = _settle(case.advance(case.advance(states[i])))
        if not calls[i]:
            calls[i] = _calls_in_a_slice(case, states[i])
    gc.collect()
    gc.freeze()
    seconds: list[list[float]] = [[] for _ in cases]
    for round in range(rounds):
        for turn in range(len(cases)):
            i = (turn + round) % len(cases)
            case, state, count = cases[i], states[i], calls[i]
            # As in a loop: whoever kept what the first call starts from would spare that call the freeing of it.
            states[i] = None
            if case.prepare is not None:
                case.prepare()
            begin = time.perf_counter()
            for _ in range(count):
                state = case.advance(state)
            if case.waits:
                _settle(state)
            seconds[i].append((time.perf_counter() - begin) / count)
            states[i] = _settle(state)
    gc.unfreeze()
    return [Timing(case.name, tuple(each)) for case, each in zip(cases, seconds, strict=True)]


def _settle(state: Any) -> Any:
    jax.block_until_ready(state)
    return state


def _calls_in_a_slice(case: Case, state: Any) -> int:
    begin = time.perf_counter()
    for _ in range(3):
        state = case.advance(state)
    _settle(state)
    return max(2, round(SLICE * 3 / (time.perf_counter() - begin)))


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    cells = [list(map(str, row)) for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in cells
    )


def compare(timings: Sequence[Timing], limit: str, *, unit: str = "µs a call", scale: float = 1e6) -> str:
    """A Markdown table of timings: the median, and the ratio to the case named `limit`."""
    base = next(timing for timing in timings if timing.name == limit)
    rows = [(t.name, f"{t.median * scale:,.0f}", f"{t.ratio(base):.2f}") for t in timings]
    return table(("case", unit, "ratio to the limit"), rows)


def environment() -> str:
    """The versions and the machine that figures hold for, on one line."""
    versions = [f"{package} {_version(package)}" for package in PACKAGES]
    place = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return f"{', '.join(versions)}; {place}, jax on {jax.default_backend()}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def read_arguments(description: str | None, scripts: Sequence[str] = ()) -> argparse.Namespace:
    """The arguments that every benchmark takes; with `scripts`, also which of them to run."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds and small sizes: does it run, not how fast")
    parser.add_argument("--rounds", type=int, help="rounds for each table")
    if scripts:
        parser.add_argument("scripts", nargs="*", help=f"by default all of {', '.join(scripts)}")
    return parser.parse_args()
