"""The top-level definitions of a source, and what tells whether a verdict of one still holds.

A definition's *key* is made of its own lines and those of everything in the file that it reaches by name. Where an edit
leaves the key, the verdicts stay; lines are kept relative to the definition that they stand in, and move with it.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Definition:
    """A function or class at the top level.

    Attributes:
        name: as it is called.
        first, last: its lines, from 1, decorators included.
        key: the same as long as nothing that it reaches in the file changes.
    """

    name: str
    first: int
    last: int
    key: str


def definitions_of(text: str) -> dict[str, Definition]:
    """The definitions of a source, by name.

    Raises:
        SyntaxError, ValueError: if it is none.
    """
    lines = text.split("\n")
    parts: list[_Part] = [_part(node, lines) for node in ast.parse(text).body]
    binding: dict[str, list[_Part]] = {}
    for part in parts:
        for name in part.binds:
            binding.setdefault(name, []).append(part)
    # What binds no name is done when the file is imported, and may be about anything.
    always = "".join(part.text for part in parts if not part.binds)
    found: dict[str, Definition] = {}
    for part in parts:
        if part.definition:
            reached = _reached(part, binding)
            told = hashlib.sha256("\0".join([always, part.text, *sorted(one.text for one in reached)]).encode())
            found[part.definition] = Definition(part.definition, part.first, part.last, told.hexdigest())
    return found


@dataclass(frozen=True)
class _Part:
    """A statement of the top level; `definition` is its name if it is a function or class."""

    definition: str
    binds: frozenset[str]
    uses: frozenset[str]
    text: str
    first: int
    last: int


def _part(node: ast.stmt, lines: Sequence[str]) -> _Part:
    is_definition = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    decorators = node.decorator_list if is_definition else []
    first = min([node.lineno, *(one.lineno for one in decorators)])
    last = node.end_lineno or node.lineno
    text = "\n".join(lines[first - 1 : last])
    name = node.name if is_definition else ""
    binds = {name} if is_definition else {*_bound(node)}
    # In quotes too: an annotation may name a class that comes later.
    return _Part(name, frozenset(binds), frozenset(_WORD.findall(text)), text, first, last)


def _bound(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from (one.asname or one.name.partition(".")[0] for one in node.names)
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        yield from (one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))


def _reached(start: _Part, binding: Mapping[str, Sequence[_Part]]) -> set[_Part]:
    found, ahead = {start}, [start]
    while ahead:
        for name in ahead.pop().uses & binding.keys():
            new = {*binding[name]} - found
            found |= new
            ahead += new
    return found


@dataclass(frozen=True)
class Anchor:
    """A line as it is kept: in a definition, so many lines from its first; of the file itself if there is no name."""

    name: str
    offset: int

    def line(self, definitions: Mapping[str, Definition]) -> int | None:
        """The line now; None if the definition is gone."""
        if not self.name:
            return self.offset
        known = definitions.get(self.name)
        return None if known is None else known.first + self.offset


def anchor(line: int, definitions: Mapping[str, Definition]) -> Anchor:
    """What a line is kept as."""
    inside = next((one for one in definitions.values() if one.first <= line <= one.last), None)
    return Anchor("", line) if inside is None else Anchor(inside.name, line - inside.first)
