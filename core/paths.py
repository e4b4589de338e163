"""Paths: the place of a leaf in a tree.

A *path* is a tuple of attribute names, mapping keys and sequence indices: `("layers", 0, "weight")`. `weft` and `nnx`
use the same form, and every error prints it as Python source: `model.layers[0].weight`.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Hashable, Sequence

Path = tuple[Hashable, ...]

_NAME = re.compile(r"[^\W\d]\w*")


def format_path(path: Path, root: str = "") -> str:
    """A path as Python source, after the name of its root.

    >>> format_path(("layers", 0, "weight"), "model")
    'model.layers[0].weight'
    >>> format_path(("a b", "c"))
    "['a b'].c"
    """
    text = root
    for part in path:
        if isinstance(part, str) and part.isidentifier():
            text += f".{part}" if text else part
        else:
            text += f"[{part!r}]"
    return text or "<root>"


def first_places(places: Sequence[str], most: int = 5) -> list[str]:
    """The first of many places, and how many more there are, for an error."""
    return [*places[:most], *([f"and {len(places) - most} more"] if places[most:] else [])]


def parse_path(text: str) -> Path:
    """The inverse of `format_path`: the path that a string spells.

    Raises:
        ValueError: if it spells none.

    >>> parse_path("layers[0]['a b'].weight")
    ('layers', 0, 'a b', 'weight')
    """
    parts: list[Hashable] = []
    rest = text if text.startswith("[") else f".{text}"
    while rest:
        step = _bracketed(rest) if rest.startswith("[") else _named(rest)
        if step is None:
            raise ValueError(f"not a path: {text!r}")
        part, rest = step
        parts.append(part)
    return tuple(parts)


def _named(text: str) -> tuple[Hashable, str] | None:
    name = _NAME.match(text, 1) if text.startswith(".") else None
    return None if name is None else (name[0], text[name.end() :])


def _bracketed(text: str) -> tuple[Hashable, str] | None:
    # A literal may hold brackets itself, so the first one that closes a whole literal ends it.
    for end in (i for i, letter in enumerate(text) if letter == "]"):
        with contextlib.suppress(ValueError, SyntaxError):
            return ast.literal_eval(text[1:end]), text[end + 1 :]
    return None
