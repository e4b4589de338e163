"""What a terminal shows: tables of text, and a progress bar for what takes seconds."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Formats rows as lines, with each column as wide as its widest cell.

    >>> columns([("kind", "path"), ("update", "w")])
    ['kind    path', 'update  w']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


@contextlib.contextmanager
def progress_bar(name: str, stages: int, wanted: bool = True) -> Iterator[Callable[[str], None]]:
    """A progress bar on standard error, where that is a terminal; gives a function to call as a stage begins.

    Args:
        name: what the bar says before the first stage.
        stages: the number of stages.
        wanted: whether to show it; without `rich` there is none.

    >>> with progress_bar("planning", 2) as stage:
    ...     stage("lowering")
    ...     stage("compiling")
    """
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ModuleNotFoundError:
        yield lambda description: None
        return
    console, begun = Console(stderr=True), itertools.count()
    with Progress(console=console, transient=True, disable=not (wanted and console.is_terminal)) as bar:
        task = bar.add_task(name, total=stages)
        yield lambda description: bar.update(task, description=description, completed=next(begun))
