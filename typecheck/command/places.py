"""The lines that an outcome names. A stored outcome is shown at other lines after an edit above its definition."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator

from .lines import Checked, Fix, Line

# How an assumption begins (`linter._part`), and how texts name a place: `guard at dims.py:12`, `"dims.py", line 12`.
_BEGINNING = re.compile(r"(.*?):(\d+): ")
_PLACE = re.compile(r"([\w.-]+\.py)\W{1,3}(?:line )?(\d+)")
_LINE = re.compile(r"\blines? \d")


def moved(part: Checked, line_of: Callable[[str, int], int]) -> Checked:
    """The outcome with other line numbers.

    Args:
        part: the outcome.
        line_of: returns the new number for a file, as it is shown, and a number.
    """

    def of_fix(fix: Fix | None) -> Fix | None:
        return fix and dataclasses.replace(fix, line=line_of(fix.file, fix.line))

    def of_line(line: Line) -> Line:
        return dataclasses.replace(line, line=line_of(line.file, line.line), fix=of_fix(line.fix))

    def of_assumption(text: str) -> str:
        return _BEGINNING.sub(lambda place: f"{place[1]}:{line_of(place[1], int(place[2]))}: ", text, count=1)

    return dataclasses.replace(
        part,
        lines=tuple(map(of_line, part.lines)),
        assumptions=tuple(map(of_assumption, part.assumptions)),
        marks=tuple((file, line_of(file, line)) for file, line in part.marks),
    )


def places(part: Checked) -> list[tuple[str, int]]:
    """The files, as they are shown, and lines that `moved` would change."""
    noted: list[tuple[str, int]] = []

    def note(file: str, line: int) -> int:
        noted.append((file, line))
        return line

    moved(part, note)
    return [(file, line) for file, line in noted if line]


def places_in_texts(part: Checked) -> list[tuple[str, int]] | None:
    """The files, without folders, and lines in an outcome's texts; None if there is a line whose file is not named."""
    placed = [(match[1], int(match[2])) for text in _texts(part) for match in _PLACE.finditer(text)]
    is_open = any(_LINE.search(_PLACE.sub("", text)) for text in _texts(part))
    return None if is_open else placed


def _texts(part: Checked) -> Iterator[str]:
    for line in part.lines:
        yield from (line.message, line.program, line.fix.text if line.fix else "")
    yield from (_BEGINNING.sub("", text, count=1) for text in part.assumptions)
