"""A worker: a process that judges units, one after the other, and says of each step what it is about to do.

It is asked in lines of JSON on its standard input and answers on what was its standard output; what checked code prints
goes to standard error, also where it is printed by native code.

    asked:      {"settings": ..., "temporary": folder, "caches": [...]}, then {"unit": ..., "after": number} each
                a request may have more: "texts": {path: what to read in its place}, "only": a pattern of names, and
                "shapes": {"lines": [[first, last], ...] or null} to be told shapes in place of verdicts
    answered:   {"ready": true}, then for a unit {"at": number, "name", "file", "line"} and {"part": ...} as they come,
                and {"end": true, "reads": [...]} at its end; {"shapes": ...} for each function that they are asked of
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import linecache
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import jax
from weft.typecheck.command.config import Settings
from weft.typecheck.command.lines import to_json as lines_to_json
from weft.typecheck.command.linter import Steps, judged
from weft.typecheck.command.loading import reading_instead
from weft.typecheck.command.recorded import read_calls
from weft.typecheck.command.sandbox import Sandbox
from weft.typecheck.command.shaping import shaped
from weft.typecheck.command.units import Unit, installed_roots
from weft.typecheck.shapes.notes import to_json


def main() -> None:
    """Answers until there are no more questions."""
    asked, answers = _channels()
    first = json.loads(asked.readline())
    settings = Settings(**first["settings"])
    if settings.calls:
        read_calls(Path(settings.calls))  # before files that are read count as read by what is checked
    config: Any = jax.config
    compiled: str | None = config.jax_compilation_cache_dir
    caches = [*first["caches"], *filter(None, [compiled])]
    sandbox = Sandbox([first["temporary"], *caches], (sys.prefix, sys.base_prefix, *installed_roots()))
    _no_core_dumps()
    _end_with_the_command()
    sandbox.install()
    say(answers, {"ready": True})
    home, environment = os.getcwd(), dict(os.environ)
    for line in asked:
        request = json.loads(line)
        with _as_before(home, environment):
            _answer(request, settings, sandbox, answers)
        say(answers, {"end": True, "reads": sorted(sandbox.reads)})


def _end_with_the_command() -> None:
    """A command that is ended from outside, as a CI does, can end no workers; one in a long proof would go on."""
    command = os.getppid()

    def wait() -> None:
        while os.getppid() == command:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def say(answers: TextIO, message: Mapping[str, Any]) -> None:
    """One line to the command."""
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _answer(request: Mapping[str, Any], settings: Settings, sandbox: Sandbox, answers: TextIO) -> None:
    unit, after, texts = Unit(**request["unit"]), request["after"], request.get("texts", {})

    def announce(number: int, name: str, file: str, line: int) -> None:
        _limit_processor_time(settings.seconds)
        say(answers, {"at": number, "name": name, "file": file, "line": line})

    steps = Steps(after, announce, sandbox.refusals, walled=True)
    with reading_instead(texts):
        if request.get("only"):
            settings = dataclasses.replace(settings, only=request["only"])
        if "shapes" in request:
            lines = request["shapes"]["lines"]
            text = texts.get(str(Path(unit.file).resolve())) or Path(unit.file).read_text(encoding="utf-8")
            places = None if lines is None else [range(one, last + 1) for one, last in lines]
            for one in shaped(unit, settings, text, places, steps):
                say(answers, {"shapes": to_json(one)})
            return
        for part in judged(unit, settings, steps):
            if steps.number > after or part.targets:
                say(answers, {"part": lines_to_json(part)})


def _channels() -> tuple[TextIO, TextIO]:
    """The two ends of the talk, away from the numbers that checked code reads from and prints to."""
    asked = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return asked, answers


@contextlib.contextmanager
def _as_before(home: str, environment: Mapping[str, str]) -> Iterator[None]:
    """What a unit does to the folder, the environment and the arguments of the process is not the next one's."""
    arguments = list(sys.argv)
    try:
        yield
    finally:
        os.chdir(home)
        if dict(os.environ) != environment:
            os.environ.clear()
            os.environ.update(environment)
        sys.argv[:] = arguments
        linecache.checkcache()


def over(seconds: float) -> float:
    """How much processor time a step may take before the system ends it: more than the search ends itself at."""
    return seconds * 1.25 + 2


def _limit_processor_time(seconds: float) -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limit: the command's own clock ends what does not end
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime + over(seconds)) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _no_core_dumps() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


if __name__ == "__main__":
    main()
