"""Markers in comments: `# weft: skip(reason)` and `# weft: ignore[reason]`.

The first leaves a function or class out. The second is for what is found: a failure or a warning of its line, or of the
`def` or `class` that it stands at, is listed as ignored. One that ignores nothing is a warning, so that markers go when
their reasons do.
"""

from __future__ import annotations

import linecache
import re
import tokenize
from collections.abc import Iterator

_SKIP = re.compile(r"#\s*weft:\s*skip\((.*?)\)")
_IGNORE = re.compile(r"#\s*weft:\s*ignore\[(.*?)\]")
_DEFINES = re.compile(r"\s*(@|(async\s+)?def\b|class\b)")
# How many lines the head of a `def` may have before it is not looked at any more.
_HEAD = 40


def skip_reason(file: str, line: int) -> str | None:
    """The reason of a `skip` on the lines of a `def` or `class`, decorators included."""
    return next((found[1] or "no reason given" for _, found in _found(_SKIP, file, line)), None)


def ignore_of(file: str, line: int) -> tuple[int, str] | None:
    """The `ignore` that is for what is found at a place: its own line, and its reason."""
    return next(((number, found[1] or "no reason given") for number, found in _found(_IGNORE, file, line)), None)


def ignores_in(file: str) -> list[int]:
    """The lines of all `ignore` markers of a file; none if it cannot be read."""
    try:
        with tokenize.open(file) as source:
            if "weft:" not in source.read():
                return []
            source.seek(0)
            tokens = list(tokenize.generate_tokens(source.readline))
    except (OSError, SyntaxError, UnicodeDecodeError, tokenize.TokenError):
        return []
    return [one.start[0] for one in tokens if one.type == tokenize.COMMENT and _IGNORE.search(one.string)]


def _found(pattern: re.Pattern[str], file: str, line: int) -> Iterator[tuple[int, re.Match[str]]]:
    for number in _head(file, line):
        found = pattern.search(linecache.getline(file, number))
        if found is not None:
            yield number, found


def _head(file: str, line: int) -> Iterator[int]:
    """The lines of the head of the `def` or `class` at a line; that line alone if it is another one."""
    yield line
    if not _DEFINES.match(linecache.getline(file, line)):
        return
    for number in range(line, line + _HEAD):
        if number > line:
            yield number
        text = linecache.getline(file, number)
        if not text or text.partition("#")[0].rstrip().endswith(":"):
            return
