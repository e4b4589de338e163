"""Lines of output, the parts that contain them, and the exit code.

A *part* is the outcome of one contract, one marker, or one failed import. The command and its workers exchange parts
as JSON. A stored outcome is shown at other lines after an edit above its definition (`moved`). Like all code that the
command needs when every verdict is stored, this file imports neither JAX nor weft.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# Verdicts, as in `proofs.report.Verdict`, and two more for accepted failures.
PROVED, HOLDS, FAILS, UNDECIDED = "proved", "holds", "fails", "undecided"
IGNORED, KNOWN = "ignored", "in the baseline"

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

# The words of a summary for each level, in the order of the summary.
_COUNTED = {
    "warning": "warnings",
    "unbuilt": "not checked",
    "skipped": "skipped",
    "unusable": "unusable",
    "crash": "internal errors",
}


@dataclass(frozen=True)
class Fix:
    """A repair of a finding: in words and, where the source text is known, as a change of a line.

    Attributes:
        text: the repair in words.
        file, line, old, new: the change; empty if only the words are known.
    """

    text: str
    file: str = ""
    line: int = 0
    old: str = ""
    new: str = ""


@dataclass(frozen=True)
class Line:
    """One line of output.

    Attributes:
        level: `error`, `warning`, `undecided` (the search ended without a verdict), `skipped` and `ignored` (on
            request), `known` (in the baseline), `unbuilt` (no arguments could be made), `unusable`, `crash` (an
            internal error of weft).
        file, line: the place.
        name: the function or class.
        message: the text.
        rule: the violated rule: `contract`, `error`, the name of a lint, or the sort of line.
        program: a program without weft that shows the failure, if there is one.
        fix: a repair, if one is known.
    """

    level: str
    file: str
    line: int
    name: str
    message: str
    rule: str = ""
    program: str = field(default="", compare=False)
    fix: Fix | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        # Addresses differ from run to run, and would make a failure in the baseline a new one.
        object.__setattr__(self, "message", _ADDRESS.sub("", self.message))

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.name}: {self.message}"


@dataclass(frozen=True)
class Checked:
    """The outcome of one contract, of a file, or of a whole run.

    Attributes:
        lines: the findings.
        verdicts: one for each contract, in words.
        assumptions: the conditions under which contracts hold.
        targets: the functions and classes that were examined, as `module:name`.
        marks: the markers `# weft: ignore[...]` that ignored something, as file and line.
        lasting: whether the same sources always give this outcome; not if a limit or a failure of the machine ended it.
        name: the function or class, for a single contract.
    """

    lines: tuple[Line, ...] = ()
    verdicts: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    marks: tuple[tuple[str, int], ...] = ()
    lasting: bool = True
    name: str = ""

    @property
    def exit_code(self) -> int:
        """2 if something was unusable or weft failed, else 1 if something fails, else 0."""
        levels = {line.level for line in self.lines}
        return 2 if levels & {"unusable", "crash"} else 1 if "error" in levels else 0

    def count(self, level: str) -> int:
        """The number of lines of a level."""
        return sum(line.level == level for line in self.lines)

    @property
    def summary(self) -> str:
        """The last line of the report."""
        return self.counts(())

    def counts(self, omitted: Collection[str]) -> str:
        """The counts of verdicts and levels in words; levels in `omitted` are left out."""
        counts = {verdict: self.verdicts.count(verdict) for verdict in set(self.verdicts)}
        levels = {level: self.count(level) for level in _COUNTED if level not in omitted}
        parts = [
            f"{counts.get(PROVED, 0)} proved",
            f"{counts.get(HOLDS, 0)} hold",
            f"{counts.get(FAILS, 0)} fail",
            *(f"{counts[verdict]} {verdict}" for verdict in (UNDECIDED, IGNORED, KNOWN) if counts.get(verdict)),
            *(f"{count} {_COUNTED[level]}" for level, count in levels.items() if count),
        ]
        number = len(self.verdicts)
        return f"{number} contract{'' if number == 1 else 's'}: {', '.join(parts)}"


def joined(parts: Iterable[Checked]) -> Checked:
    """All parts as one; a line that several parts have counts once."""
    listed = list(parts)
    fields = ("lines", "verdicts", "assumptions", "targets", "marks")
    items: dict[str, Any] = {name: tuple(item for part in listed for item in getattr(part, name)) for name in fields}
    items["lines"] = tuple(dict.fromkeys(items["lines"]))
    return Checked(**items, lasting=all(part.lasting for part in listed))


def to_json(part: Checked) -> dict[str, Any]:
    """The part as an object for JSON."""
    return dataclasses.asdict(part)


def from_json(fields: Mapping[str, Any]) -> Checked:
    """The part from a JSON object made by `to_json`.

    Raises:
        KeyError, TypeError, ValueError: if the object is no part.
    """
    return Checked(
        tuple(Line(**{**line, "fix": line["fix"] and Fix(**line["fix"])}) for line in fields["lines"]),
        tuple(fields["verdicts"]),
        tuple(fields["assumptions"]),
        tuple(fields["targets"]),
        tuple((str(file), int(line)) for file, line in fields["marks"]),
        bool(fields["lasting"]),
        str(fields["name"]),
    )


def one_line(level: str, file: str, line: int, name: str, message: str, rule: str = "") -> Checked:
    """A part with a single line and no contract."""
    return Checked((Line(level, file, line, name, message, rule),))


def undecided(file: str, line: int, name: str, reason: str, *, strict: bool, lasting: bool = False) -> Checked:
    """The part of a contract whose search was ended from outside: by a limit, a signal, or the program itself."""
    said = Line("error" if strict else "undecided", file, line, name, f"undecided: {reason}", "undecided")
    return Checked((said,), (UNDECIDED,), lasting=lasting)


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
