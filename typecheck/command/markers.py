"""Markers in comments: `# weft: skip(reason)` and `# weft: ignore[reason]`.

`skip` leaves a function or class out. `ignore` accepts a finding: failures and warnings of its line, or of the `def` or
`class` at which it stands, are listed as ignored. An `ignore` without a finding is a warning, so that markers are
removed when their reasons are gone.
"""

from __future__ import annotations

import linecache
import re
import tokenize
from collections.abc import Iterator

_SKIP = re.compile(r"#\s*weft:\s*skip\((.*?)\)")
_IGNORE = re.compile(r"#\s*weft:\s*ignore\[(.*?)\]")
_DEFINES = re.compile(r"\s*(@|(async\s+)?def\b|class\b)")
# How many lines the head of a `def` may have; its end is a colon, which a broken file may lack.
_HEAD = 40


def skip_reason(file: str, line: int) -> str | None:
    """The reason in a `skip` on the lines of a `def` or `class`, decorators included; None without a marker."""
    return next((match[1] or "no reason given" for _, match in _matches(_SKIP, file, line)), None)


def ignore_of(file: str, line: int) -> tuple[int, str] | None:
    """The line and reason of the `ignore` that covers the findings of a line; None without a marker."""
    return next(((number, match[1] or "no reason given") for number, match in _matches(_IGNORE, file, line)), None)


def ignores_in(file: str) -> list[int]:
    """The lines of all `ignore` markers in a file; none if the file cannot be read."""
    try:
        with tokenize.open(file) as source:
            if "weft:" not in source.read():  # tokenizing is slow, and most files have no marker
                return []
            source.seek(0)
            tokens = list(tokenize.generate_tokens(source.readline))
    except (OSError, SyntaxError, UnicodeDecodeError, tokenize.TokenError):
        return []
    # By tokens, because a string may contain the text of a marker.
    return [token.start[0] for token in tokens if token.type == tokenize.COMMENT and _IGNORE.search(token.string)]


def _matches(pattern: re.Pattern[str], file: str, line: int) -> Iterator[tuple[int, re.Match[str]]]:
    for number in _head(file, line):
        match = pattern.search(linecache.getline(file, number))
        if match is not None:
            yield number, match


def _head(file: str, line: int) -> Iterator[int]:
    """The lines of the head of the `def` or `class` at a line; only the line itself if there is no definition."""
    yield line
    if not _DEFINES.match(linecache.getline(file, line)):
        return
    for number in range(line, line + _HEAD):
        if number > line:
            yield number
        text = linecache.getline(file, number)
        if not text or text.partition("#")[0].rstrip().endswith(":"):
            return
