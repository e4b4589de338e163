"""A worker: a process that judges units one after the other, and announces each step before taking it.

It reads requests as lines of JSON from standard input and answers on its former standard output; output of checked code
goes to standard error, that of native code included.

    asked:      {"word": ...}, with which each answer begins; {"settings": ...}; {"unit": ..., "after": number, "known":
                [definition, ...]} each, without the definitions whose outcomes are known; a request with "shapes":
                [[first, last], ...], or null for all lines, asks for shapes, not verdicts
    answered:   {"ready": true}, then for a unit {"at": number, "name", "file", "line"} and {"part": ...} as they come,
                {"ran": [[file, function], ...]} for each definition, which all of these have as "of",
                and {"end": true, "reads": [...], "changed": [...]} at its end, with what it has changed of the process
                (`contamination`), which is then good for no other; {"shapes": ...} for each function that they are
                asked of
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from weft.typecheck.command.config import Settings
from weft.typecheck.command.contamination import begin, changed_since
from weft.typecheck.command.inside import (
    channels,
    end_with_the_command,
    limit_processor_time,
    no_core_dumps,
    note_reads,
    note_runs,
)
from weft.typecheck.command.lines import to_json as lines_to_json
from weft.typecheck.command.linter import Steps, judged
from weft.typecheck.command.loading import up_to_date
from weft.typecheck.command.shaping import shaped
from weft.typecheck.command.units import MACHINERY, WEFT, Unit, installed_roots
from weft.typecheck.shapes.notes import to_json

Say = Callable[[Mapping[str, Any]], None]


def main() -> None:
    """Answers requests until the command closes the pipe."""
    asked, say = channels()
    first = json.loads(asked.readline())
    settings = Settings(**first["settings"])
    no_core_dumps()
    end_with_the_command()
    reads, runs = note_reads(), note_runs(_not_checked())
    say({"ready": True})
    for line in iter(asked.readline, ""):
        request = json.loads(line)
        before = begin()
        _answer(request, settings, say, runs)
        say({"end": True, "reads": _outside(reads), "changed": changed_since(before)})


def _answer(request: Mapping[str, Any], settings: Settings, say: Say, runs: set[tuple[str, str]] | None) -> None:
    unit, after, of = Unit(**request["unit"]), request["after"], ""

    def end_definition() -> None:
        nonlocal of
        is_noted = not os.path.realpath(unit.file).startswith(_not_checked())
        ran = None if runs is None else sorted({(os.path.realpath(file), name) for file, name in [*runs]})
        say({"ran": ran if is_noted else None, "of": of})
        of = steps.definition
        if runs is not None:
            runs.clear()

    def announce(number: int, name: str, file: str, line: int) -> None:
        if of != steps.definition:
            end_definition()
        limit_processor_time(settings.seconds)
        say({"at": number, "name": name, "file": file, "line": line, "of": of})

    steps = Steps(after, announce, walled=True, known=request.get("known", ()))
    with up_to_date():
        if "shapes" in request:
            lines = request["shapes"] and [range(first, last + 1) for first, last in request["shapes"]]
            text = Path(unit.file).read_text(encoding="utf-8")
            for shapes in shaped(unit, settings, text, lines, steps):
                say({"shapes": to_json(shapes)})
            end_definition()
            return
        for part in judged(unit, settings, steps):
            if steps.number > after or part.targets:
                say({"part": lines_to_json(part), "of": steps.definition})
        if of != steps.definition:
            end_definition()
        end_definition()


def _outside(reads: set[str]) -> list[str]:
    """The files that a verdict may depend on outside of its package: files read, and modules that are not installed."""
    unrelated = (sys.prefix, sys.base_prefix, *installed_roots(), "/proc", "/sys", "/dev", "/etc", str(WEFT / "core"))
    modules = {file for module in [*sys.modules.values()] if (file := getattr(module, "__file__", None))}
    return sorted(file for file in reads | modules if not file.startswith(unrelated))


def _not_checked() -> tuple[str, ...]:
    """The beginnings of the paths of installed code and of weft's machinery."""
    own = (os.path.join(WEFT, room, "") for room in MACHINERY)
    return (sys.prefix, sys.base_prefix, *installed_roots(), *own)


if __name__ == "__main__":
    main()
