"""Hovers: the shape, verdict or dim of the word under the cursor."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from ..shapes.statements import definitions
from .judging import Document

_WORD = re.compile(r"\w+")


def hover(document: Document, line: int, column: int) -> str | None:
    """The text for the word under the cursor, in Markdown; None if nothing is known about it.

    Args:
        document: the document.
        line, column: the position of the cursor: lines from 1, characters from 0.
    """
    # The judged text and not the edited one: the findings and shapes are about the lines of that text.
    lines = document.judged.split("\n")
    text = lines[line - 1] if line <= len(lines) else ""
    word = next((match[0] for match in _WORD.finditer(text) if match.start() <= column <= match.end()), None)
    if word is None:
        return None
    # The shape comes first: in `x = f(x)`, a reader wants to know the `x` that this line assigns.
    notes = [note for note in document.notes() if note.line == line and note.name.rpartition(".")[2] == word]
    if notes:
        return f"`{notes[0].name}`: `{notes[0].shape}`"
    if re.match(r"\s*((async )?def|class) ", text):
        verdicts = [(name, told) for name, told in document.verdicts().items() if name.rpartition(".")[2] == word]
        # Two classes may have a method of one name, so the function must be one that the line is in.
        around = _names_around(document, line)
        for name, told in verdicts:
            if name in around:
                return f"`{name}`: {told}"
    # A dim may be named like a parameter, as for `n: int`: then the parameter binds it, which the second loop says.
    scopes, of_functions = list[tuple[str, Mapping[str, str]]](), document.dims()
    for name in reversed(_names_around(document, line)):  # innermost first; of a class, its methods
        methods = (method for method in of_functions if method.startswith(f"{name}."))
        scopes += ((each, of_functions[each]) for each in ([name] if name in of_functions else methods))
    for name, dims in scopes:
        origin = dims.get(word) or dims.get(f"*{word}")
        if origin is not None and not _is_parameter(word, origin):
            return f"dim `{word}` of `{name}`: bound by {origin}"
    for name, dims in scopes:
        bound = [f"`{dim}` ({where})" for dim, where in dims.items() if _is_parameter(word, where)]
        if bound:
            return f"`{word}` of `{name}` binds {', '.join(bound)}"
    return None


def _is_parameter(word: str, where: str) -> bool:
    """Whether a dim was bound at the parameter or field that has the name `word`."""
    return re.match(rf"(argument|config|field) ([\w.]*\.)?{re.escape(word)}(\W|$)", where) is not None


def _names_around(document: Document, line: int) -> list[str]:
    """The functions and classes around a line, outermost first."""
    try:
        tree = ast.parse(document.judged)
    # A file may be saved in a state that does not parse.
    except (SyntaxError, ValueError):
        return []
    return [name for name, lines in definitions(tree) if line in lines]
