"""`weft shapes FILE[:FUNCTION]`: prints a source with the shapes of its lines next to them."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..shapes.notes import Shapes, from_json, joined
from ..shapes.pages import FORMATS, Page
from ..shapes.statements import definitions
from .config import Config, ConfigError, read
from .process import Conversation
from .units import shown, unit_of

# A function for which no conditions are found in so many traces is shown up to where its trace failed.
_TRIALS = 200


def add_shapes(commands: Any) -> None:
    """Adds the subcommand `shapes` to the command line."""
    command = commands.add_parser(
        "shapes",
        help="show the symbolic shape of everything that a program's lines assign",
        description="Traces each annotated function of a file on shapes alone, and prints its source with the shapes.",
        epilog="Exit code: 0 if every function could be traced, 2 if one could not, or something could not be used.",
    )
    command.add_argument("target", metavar="FILE[:FUNCTION]", help="a file, and a function, method or class in it")
    command.add_argument("--format", choices=[*FORMATS], default="text", help="how to print (default: text)")


def show_shapes(options: argparse.Namespace) -> int:
    """Prints the source with its shapes, and returns the exit code.

    Raises:
        ConfigError: in one line, for a target that cannot be used.
    """
    config = read(Path.cwd())
    file, colon, name = options.target.rpartition(":")
    if not colon or Path(options.target).exists():  # `C:\net.py` has a colon, too
        file, name = options.target, ""
    text, tree = _source(file)  # here, because a worker would only report that the import failed
    lines = _lines_of(file, tree, name) if name else None
    source = text.splitlines() or [""]
    first, last = (lines[0], lines[-1]) if lines else (1, len(source))
    about = [
        shapes
        for shapes in _traced(file, lines, config)
        if (shapes.line <= last and first <= shapes.last) or any(first <= note.line <= last for note in shapes.notes)
    ]
    print(FORMATS[options.format](Page(shown(file), source, about, first, last)))
    untraced = [shapes for shapes in about if not shapes.traced]
    for shapes in untraced:
        print(f"{shown(file)}:{shapes.line}: {shapes.name}: not traced: {shapes.reason}", file=sys.stderr)
    if untraced or any(shapes.notes for shapes in about):
        return 2 if untraced else 0
    why = "nothing is annotated"
    if name:
        why = f"{name}: it has no annotations, and nothing that could be traced calls it"
    print(f"{shown(file)}:{first}: {why}: there are no shapes to show", file=sys.stderr)
    return 2


def _source(file: str) -> tuple[str, ast.Module]:
    """The text and the syntax tree of a file.

    Raises:
        ConfigError: in one line, if the file cannot be read or is not valid Python.
    """
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"weft shapes: {file}: {getattr(error, 'strerror', None) or error}") from None
    try:
        return text, ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 0
        raise ConfigError(f"{shown(file)}:{line}: {type(error).__name__}: {getattr(error, 'msg', error)}") from None


def _lines_of(file: str, tree: ast.Module, name: str) -> range:
    """The lines of a function, method or class with a qualified name, or with a last name that only one has.

    Raises:
        ConfigError: if there is none; the message has the nearest names.
    """
    places = {place.replace(".<locals>", ""): lines for place, lines in definitions(tree)}
    ends = [place for place in places if place == name or place.endswith(f".{name}")]
    if name not in places and len(ends) == 1:
        name = ends[0]
    if name not in places:
        last_names = [place.rpartition(".")[2] for place in places]
        nearest = ends or difflib.get_close_matches(name, [*places, *last_names], 3, 0.5)
        hint = f"; is it {' or '.join(dict.fromkeys(nearest))}?" if nearest else ""
        raise ConfigError(f"weft shapes: {shown(file)} defines no {name!r}{hint}")
    return places[name]


def _traced(file: str, lines: range | None, config: Config) -> list[Shapes]:
    """The shapes in a file's functions, or in those on some of its lines."""
    settings = dataclasses.replace(config.settings, strict=False, trials=min(config.trials, _TRIALS))
    conversation = Conversation(settings, config.memory)
    unit = unit_of(Path(file))
    try:
        shapes = [*_heard(conversation.ask(unit, {"shapes": lines and [[lines[0], lines[-1]]]}))]
        # A function without annotations has no trace of its own, but the traces of its callers pass through it.
        if lines and not shapes:
            shapes = [*_heard(conversation.ask(unit, {"shapes": None}))]
        return joined(shapes)
    finally:
        conversation.close()


def _heard(messages: Iterator[dict[str, Any]]) -> Iterator[Shapes]:
    """The shapes in a worker's messages, and the reasons of steps that ended a worker."""
    for message in messages:
        if "shapes" in message:
            yield from_json(message["shapes"])
        elif "died" in message:
            step = message["step"]
            line = max(step["line"], 1)
            yield Shapes(step["name"], line, line, reason=message["died"], traced=False)
