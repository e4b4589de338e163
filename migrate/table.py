"""The findings of a migration as a table: one row for each thing to do, the most work first."""

from __future__ import annotations

import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable

from .findings import WORKS, Finding

_WIDTH = 110
_LONGEST = 32


def table(findings: Iterable[Finding]) -> str:
    """Makes the table: the kind of work, the numbers of places and of files, the most frequent code, and the fix.

    A long report hides that thirty of its places ask for the same thing, and one for another design.
    """
    rows: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        rows[finding.work, finding.fix or finding.why].append(finding)
    ordered = sorted(rows.items(), key=lambda row: (WORKS.index(row[0][0]), -len(row[1]), row[0][1]))
    cells = [("work", "places", "files", "code", "what to do")]
    for (work, fix), places in ordered:
        code = Counter(sorted(finding.code for finding in places)).most_common(1)[0][0]
        code = code if len(code) <= _LONGEST else f"{code[: _LONGEST - 3]}..."
        cells.append((work, str(len(places)), str(len({finding.file for finding in places})), code, fix))
    column = max(len(code) for _, _, _, code, _ in cells)
    return "\n".join(_line(*row, column) for row in cells)


def _line(work: str, places: str, files: str, code: str, fix: str, column: int) -> str:
    begin = f"{work:<7}  {places:>6}  {files:>5}  {code:<{column}}  "
    return textwrap.fill(fix, _WIDTH, initial_indent=begin, subsequent_indent=" " * len(begin), break_long_words=False)
