"""Notebooks as programs: joins the code of all cells to one file, and writes the edited code back into the cells.

A comment line before each cell has its number. Lines in IPython's syntax (`%timeit f(x)`, `!pip install jax`, `model?`)
are *masked*: turned into comments, with a `pass` where Python may need a statement. A notebook is not migrated if its
JSON cannot be written again byte by byte.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

_CELL = "# weft: cell "
_MASK = "#weft-keeps: "
# Cell magics whose cells are Python after the first line; cells of other magics are masked as a whole.
_OF_PYTHON = ("time", "timeit", "capture", "prun")
# `%magic`, `!command` and `?name`, alone on a line or to the right of an assignment; `name?`.
_MAGIC = re.compile(r"^(\s*)(?:([%!?].*)|(.*\?{1,2}\s*))$")
_ASSIGNED = re.compile(r"^(\s*[\w.,\s\[\]]+=)(\s*[%!].*)$")
# The ways in which notebook software formats JSON, as options of `json.dumps`.
_WRITTEN: tuple[dict[str, Any], ...] = (
    {"indent": 1, "ensure_ascii": False},
    {"indent": 1},
    {"indent": 2, "ensure_ascii": False},
    {"indent": 2},
    {"ensure_ascii": False},
    {},
)


@dataclass(frozen=True)
class Notebook:
    """A notebook file.

    Attributes:
        content: the notebook's JSON.
        style: the options of `json.dumps` that reproduce the file, and the white space at its end.
        code: the code of its cells, as one Python file.
    """

    content: dict[str, Any]
    style: tuple[dict[str, Any], str]
    code: bytes

    @classmethod
    def read(cls, data: bytes) -> Notebook:
        """Reads a notebook file.

        Raises:
            ValueError: if it is no notebook, cannot be reproduced byte by byte, or a cell cannot be parsed.
        """
        text = data.decode()
        try:
            content = json.loads(text)
        except ValueError as error:
            raise ValueError(f"it is not a notebook: {error}") from None
        if not isinstance(content, dict) or not isinstance(cast("dict[str, Any]", content).get("cells"), list):
            raise ValueError("it is not a notebook of version 4: it has no cells")
        content = cast("dict[str, Any]", content)
        end = text[len(text.rstrip()) :]
        style = next((options for options in _WRITTEN if json.dumps(content, **options) + end == text), None)
        # An edit of one cell must not reformat the whole file: its diff would be unreadable.
        if style is None:
            raise ValueError("writing it would reformat the whole file: open and save it with Jupyter first")
        parts = [f"{_CELL}{number}\n{_readable(code, number)}\n" for number, code in _cells(content)]
        return cls(content, (style, end), "".join(parts).encode())

    def written(self, code: bytes) -> bytes:
        """Returns the file with edited code in its cells.

        Raises:
            ValueError: if the edited code lacks cells.
        """
        parts = dict(_parts(code.decode()))
        # An edit that removes a statement may take the comment line above it away, which separates two cells.
        if [*parts] != [number for number, _ in _cells(self.content)]:
            raise ValueError("an edit would reach from one cell into the next")
        cells: list[Any] = []
        for number, cell in enumerate(self.content["cells"], 1):
            if number in parts:
                source = _as_written(parts[number])
                cell = {**cell, "source": source.splitlines(True) if isinstance(cell["source"], list) else source}
            cells.append(cell)
        style, end = self.style
        return (json.dumps({**self.content, "cells": cells}, **style) + end).encode()

    def place(self, line: int) -> str:
        """Names the place of a line of `code`: `cell 3, line 2`, where text cells count, too."""
        cell, start = 1, 0
        for i, text in enumerate(self.code.decode().split("\n")[:line], 1):
            if text.startswith(_CELL):
                cell, start = int(text.removeprefix(_CELL)), i
        return f"cell {cell}, line {max(1, line - start)}"


def _cells(content: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Yields the code cells with their numbers, if the notebook's language is Python."""
    metadata = content.get("metadata", {})
    language = (
        metadata.get("language_info", {}).get("name") or metadata.get("kernelspec", {}).get("language") or "python"
    )
    for number, cell in enumerate(content["cells"], 1):
        if cell.get("cell_type") == "code" and language in ("python", "ipython"):
            source = cell.get("source", "")
            yield number, source if isinstance(source, str) else "".join(source)


def _parts(code: str) -> Iterator[tuple[int, str]]:
    """Splits the joined code into cells: yields number and code."""
    number, lines = 0, list[str]()
    for line in code.removesuffix("\n").split("\n"):
        if line.startswith(_CELL):
            if number:
                yield number, "\n".join(lines)
            number, lines = int(line.removeprefix(_CELL)), []
        else:
            lines.append(line)
    if number:
        yield number, "\n".join(lines)


def _readable(code: str, number: int) -> str:
    """Converts a cell to valid Python, by masking lines in IPython's syntax."""
    if _CELL in code or _MASK in code:
        raise ValueError(f"cell {number} has a comment that the migration uses to separate cells: {_CELL.strip()}")
    lines = code.split("\n")
    magic = code.lstrip("\n").split("\n")[0]
    if magic.startswith("%%") and magic[2:].split(" ")[0] not in _OF_PYTHON:
        return "\n".join(f"{_MASK}{line}" for line in lines)
    # A line may look like a magic and be the middle of an expression (`% 2`). So only lines at which Python's parser
    # fails are masked, one after the other.
    while (wrong := _line_of_error("\n".join(lines))) is not None:
        if wrong >= len(lines) or (masked := _masked(lines[wrong])) == lines[wrong]:
            raise ValueError(f"cell {number} cannot be parsed")
        while lines[wrong].endswith("\\") and wrong + 1 < len(lines):
            lines[wrong], wrong, masked = masked, wrong + 1, f"{_MASK}{lines[wrong + 1]}"
        lines[wrong] = masked
    return "\n".join(lines)


def _masked(line: str) -> str:
    assigned = _ASSIGNED.match(line) if _MASK not in line else None
    if assigned:
        return f"{assigned[1]} None  {_MASK}{assigned[2]}"
    magic = _MAGIC.match(line) if _MASK not in line else None
    return f"{magic[1]}pass  {_MASK}{line[len(magic[1]) :]}" if magic and line.strip() else line


_UNMASK = re.compile(rf"^(.*?)(?:(?<==) None  |pass  |){re.escape(_MASK)}(.*)$", re.MULTILINE)


def _as_written(code: str) -> str:
    return _UNMASK.sub(r"\1\2", code)


def _line_of_error(code: str) -> int | None:
    """Returns the number, from 0, of the line with a syntax error; None if the code is valid."""
    try:
        # Notebooks allow `await` outside of functions.
        compile(code, "<cell>", "exec", flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except SyntaxError as error:
        return (error.lineno or 1) - 1
    except ValueError:  # a zero byte
        return 0
    return None


def masked_lines(code: bytes, word: str) -> Iterator[int]:
    """Yields the numbers of masked lines that contain a word."""
    named = re.compile(rf"{re.escape(_MASK)}.*\b{re.escape(word)}\b")
    for i, line in enumerate(code.decode().split("\n"), 1):
        if named.search(line):
            yield i
