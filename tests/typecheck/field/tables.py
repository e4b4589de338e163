"""Writes the tables of `docs/field.md` from the data in this folder: `python tests/typecheck/field/tables.py`."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[2] / "docs" / "field.md"
START, END = "<!-- verdicts: written by tests/typecheck/field/tables.py -->\n", "<!-- end of verdicts -->"
COLUMNS = ("proved", "holds", "fails", "undecided", "skipped", "none")
# Files call the verdict of a contract that took too long, or whose module cannot be imported, by other words.
WORDS = {"unusable": "none", "timeout": "none", "over": "none"}


def verdicts() -> Iterator[tuple[str, Counter[str]]]:
    """The counts of each package of the first table, then of all packages that were judged once."""
    for package, counts in json.loads((HERE / "verdicts.json").read_text()).items():
        yield package, Counter({WORDS.get(word, word): count for word, count in counts.items()})
    with (HERE / "tried.csv").open() as file:
        rows = list(csv.DictReader(file))
    yield f"{len(rows)} others", Counter({name: sum(int(row[name]) for row in rows) for name in COLUMNS})


def table() -> str:
    """The table of verdicts, in Markdown."""
    lines = [
        "| package | contracts | " + " | ".join((*COLUMNS[:4], "not checked", "no answer")) + " |",
        "|---" * 8 + "|",
    ]
    for package, counts in verdicts():
        cells = [counts.total(), *(counts[name] for name in COLUMNS)]
        lines.append(f"| {package} | " + " | ".join(f"{cell:,}" for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def write() -> None:
    """Puts the table into the page."""
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(f"{before}{START}{table()}{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    write()
