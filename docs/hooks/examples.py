"""Docstrings as the site shows them: a doctest is a block of code, and what is raised later is a list."""

from __future__ import annotations

import re
from typing import Any

import griffe

# A doctest goes on to the next empty line, as `doctest` has it.
DOCTEST = re.compile(r"^( *)>>> (?:.*\n?)(?:^ *\S.*\n?)*", re.MULTILINE)
LATER = re.compile(r"^(Raises|Returns) (\([^)]*\)):\n((?:(?: {4}.*)?\n)*(?: {4}.*)?)", re.MULTILINE)
ENTRY = re.compile(r"^ {4}(\w[\w, ]*): ", re.MULTILINE)


def shown(text: str) -> str:
    """A docstring with its doctests fenced."""

    def fence(match: re.Match[str]) -> str:
        indent, body = match.group(1), match.group(0).rstrip("\n")
        return f"{indent}```pycon\n{body}\n{indent}```\n"

    def listed(match: re.Match[str]) -> str:
        return f"**{match.group(1)}** {match.group(2)}:\n\n" + ENTRY.sub(r"- `\1`: ", match.group(3))

    return LATER.sub(listed, DOCTEST.sub(fence, text))


class Examples(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = shown(obj.docstring.value)
