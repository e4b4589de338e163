"""Writes shapes next to their source: as text with aligned comments, as an HTML page, and as JSON.

This file imports neither JAX nor weft, like all code that the command itself runs.
"""

from __future__ import annotations

import html
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .notes import Shapes, to_json

# The furthest column at which comments are aligned; a longer line has its comment directly behind.
_FURTHEST = 60


@dataclass(frozen=True)
class Page:
    """A file or a part of it, to be shown with its shapes.

    Attributes:
        file: the path as printed.
        source: all lines of the file.
        shapes: the shapes, each line once (`notes.joined`).
        first, last: the lines to show.
    """

    file: str
    source: Sequence[str]
    shapes: Sequence[Shapes]
    first: int
    last: int

    @property
    def notes_by_line(self) -> Mapping[int, list[str]]:
        """The notes for each line, by line number."""
        words: defaultdict[int, list[str]] = defaultdict(list)
        for function in self.shapes:
            if function.needs and self.first <= function.line <= self.last:
                words[function.line].append(f"when {', '.join(function.needs)}")
            if function.reason and self.first <= function.line <= self.last:
                words[function.line].append(function.reason)
        notes = {note for function in self.shapes for note in function.notes if self.first <= note.line <= self.last}
        for note in sorted(notes, key=lambda note: (note.line, note.column)):
            words[note.line].append(str(note))
        return words


def as_text(page: Page) -> str:
    """The source as text, with a comment on each line that has notes."""
    notes = page.notes_by_line
    widths = [len(page.source[line - 1].rstrip()) for line in notes]
    # A single long line must not push all comments to the right, so the column has a limit.
    column = min(max(widths, default=0), _FURTHEST)
    lines: list[str] = []
    for number in range(page.first, page.last + 1):
        line = page.source[number - 1].rstrip()
        told = " · ".join(notes.get(number, ()))
        lines.append(f"{line:<{column}}  # {told}" if told else line)
    return "\n".join(lines)


def as_json(page: Page) -> str:
    """The file and its functions as a JSON object."""
    return json.dumps({"file": page.file, "functions": [to_json(shapes) for shapes in page.shapes]}, indent=2)


# The style is part of the page: a page attached to a review must need no other file.
_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1f2328; --dim: #6e7781; --note: #0550ae; --shade: #f6f8fa }
@media (prefers-color-scheme: dark) {
  :root { --back: #0d1117; --text: #e6edf3; --dim: #7d8590; --note: #79c0ff; --shade: #161b22 }
}
body { margin: 0; padding: 1rem; background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif }
h1 { font-size: 1.1rem; overflow-wrap: anywhere }
main { font: 13px/1.5 ui-monospace, Menlo, Consolas, monospace }
.line { display: flex; gap: 0 1.5rem; padding: 0 .25rem }
.line:hover { background: var(--shade) }
.line a { flex: none; width: 3em; text-align: right; color: var(--dim); text-decoration: none }
.line code { flex: 1 1 60%; font: inherit; white-space: pre-wrap; overflow-wrap: anywhere }
.line span { flex: 0 1 40%; color: var(--note); overflow-wrap: anywhere }
@media (max-width: 50rem) {
  .line { flex-wrap: wrap; gap: 0 .5rem }
  .line a { width: 2em }
  .line code { flex-basis: calc(100% - 3em) }
  .line span { flex-basis: 100%; padding-left: 3.5em; box-sizing: border-box }
}
"""


def as_html(page: Page) -> str:
    """A self-contained HTML page for reviews, readable at any width, in light and dark."""
    notes = page.notes_by_line
    numbers = range(page.first, page.last + 1)
    rows = [_row(number, page.source[number - 1].rstrip(), notes.get(number, ())) for number in numbers]
    title = html.escape(page.file)
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8"/>',
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
            f"<title>Shapes of {title}</title><style>{_STYLE}</style></head>",
            f"<body><h1>{title}</h1><main>",
            *rows,
            "</main></body></html>",
        ]
    )


def _row(number: int, line: str, told: Sequence[str]) -> str:
    notes = f"<span>{'<br/>'.join(map(html.escape, told))}</span>" if told else ""
    return (
        f'<div class="line" id="L{number}"><a href="#L{number}">{number}</a>'
        f"<code>{html.escape(line)}</code>{notes}</div>"
    )


FORMATS: Mapping[str, Callable[[Page], str]] = {"text": as_text, "html": as_html, "json": as_json}
