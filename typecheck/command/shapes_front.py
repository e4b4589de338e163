"""`weft shapes FILE[:FUNCTION]`: the source with the shapes of its lines beside it."""

from __future__ import annotations

import argparse
import ast
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..shapes.notes import Shapes, from_json, joined
from ..shapes.pages import FORMATS, Page
from .config import Config, ConfigError, Settings, read
from .conversation import Conversation
from .units import shown, unit_of

# What is not settled within so many traces is shown as far as it comes.
_TRIALS = 200


def add_shapes(commands: Any) -> None:
    """Adds the command to a command line's."""
    command = commands.add_parser(
        "shapes",
        help="show the symbolic shape of everything that a program's lines assign",
        description="Traces each annotated function of a file on shapes alone, and prints its source with the shapes.",
        epilog="Exit code: 0 if every function could be traced, 2 if one could not, or something could not be used.",
    )
    command.add_argument("target", metavar="FILE[:FUNCTION]", help="a file, and a function, method or class in it")
    command.add_argument("--format", choices=[*FORMATS], default="text", help="how to print (default: text)")


def show_shapes(options: argparse.Namespace) -> int:
    """Prints, and returns the exit code.

    Raises:
        ConfigError: in one line, for what cannot be used.
    """
    config = read(Path.cwd())
    file, _, name = options.target.rpartition(":") if not Path(options.target).exists() else (options.target, "", "")
    file, name = (file, name) if file else (name, "")
    text = _text(file)
    lines = _lines_of(file, text, name) if name else None
    parsed(file, text)  # what is no source is no worker's business
    found = _told(file, lines, config)
    source = text.splitlines() or [""]
    first, last = (lines[0], lines[-1]) if lines else (1, len(source))
    about = [one for one in found if lines is None or _is_about(one, lines)]
    print(FORMATS[options.format](Page(shown(file), source, about, first, last)))
    untraced = [one for one in about if not one.traced]
    for one in untraced:
        print(f"{shown(file)}:{one.line}: {one.name}: not traced: {one.reason}", file=sys.stderr)
    if not any(one.notes for one in about) and not untraced:
        what = (
            f"{name}: it has no annotations, and nothing that could be traced calls it"
            if name
            else "nothing is annotated"
        )
        print(f"{shown(file)}:{first}: {what}: there are no shapes to show", file=sys.stderr)
        return 2
    return 2 if untraced else 0


def _is_about(one: Shapes, lines: range) -> bool:
    return (one.line <= lines[-1] and lines[0] <= one.last) or any(note.line in lines for note in one.notes)


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"weft shapes: {file}: {why}") from None


def _lines_of(file: str, text: str, name: str) -> range:
    """The lines of a function, method or class, by its qualified name, or by its own if that is one of one.

    Raises:
        ConfigError: if there is none, with the nearest names.
    """
    places = dict(_definitions(parsed(file, text), ""))
    ends = [one for one in places if one == name or one.endswith(f".{name}")]
    if name not in places and len(ends) == 1:
        name = ends[0]
    if name not in places:
        near = difflib.get_close_matches(name, [*places, *(one.rpartition(".")[2] for one in places)], 3, 0.5)
        hint = f"; is it {' or '.join(dict.fromkeys(ends or near))}?" if ends or near else ""
        raise ConfigError(f"weft shapes: {shown(file)} defines no {name!r}{hint}")
    return places[name]


def parsed(file: str, text: str) -> ast.Module:
    """The syntax of a source.

    Raises:
        ConfigError: in one line, if it is none.
    """
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 0
        raise ConfigError(f"{shown(file)}:{line}: {type(error).__name__}: {getattr(error, 'msg', error)}") from None


def _definitions(node: ast.AST, scope: str) -> Iterator[tuple[str, range]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield f"{scope}{child.name}", range(child.lineno, (child.end_lineno or child.lineno) + 1)
            yield from _definitions(child, f"{scope}{child.name}.")
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _definitions(child, scope)


def _told(file: str, lines: range | None, config: Config) -> list[Shapes]:
    settings = Settings(None, False, min(config.trials, _TRIALS), config.seconds, config.dims, config.args)
    conversation = Conversation(settings, config.memory)
    unit = unit_of(Path(file))
    try:
        found = [*heard(conversation.ask(unit, {"shapes": [[lines[0], lines[-1]]] if lines else None}))]
        if lines is not None and not found:  # it has no annotations; what calls it may have
            found = [*heard(conversation.ask(unit, {"shapes": None}))]
        return joined(found)
    finally:
        conversation.close()


def heard(messages: Iterator[dict[str, Any]]) -> Iterator[Shapes]:
    """The shapes of a conversation; where a worker has died, why."""
    for message in messages:
        if "shapes" in message:
            yield from_json(message["shapes"])
        elif "died" in message:
            step = message["step"]
            line = max(step["line"], 1)
            yield Shapes(step["name"], line, line, reason=message["died"], traced=False)
