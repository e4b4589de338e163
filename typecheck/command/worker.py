"""A worker: a process that judges units one after the other, and announces each step before taking it.

It reads requests as lines of JSON from standard input and answers on its former standard output; output of checked code
goes to standard error, that of native code included.

    asked:      {"word": ...}, with which each answer begins; {"settings": ...}; {"unit": ..., "after": number, "known":
                [definition, ...]} each, without the definitions whose outcomes are known; a request with "shapes":
                [[first, last], ...], or null for all lines, asks for shapes, not verdicts
    answered:   {"ready": true}, then for a unit {"at": number, "name", "file", "line"} and {"part": ...} as they come,
                {"ran": [[file, function], ...]} for each definition, which all of these have as "of",
                and {"end": true, "reads": [...], "changed": [...]} at its end, with what it has changed of the process,
                which is then good for no other; {"shapes": ...} for each function that they are asked of

Nothing that a file has changed is put back: a package that sets `jax_enable_x64` on import stays imported, so its
second file would be judged without the option. So the next file is judged in a fresh process, and every verdict, stored
ones included, is that of a fresh process.
"""

from __future__ import annotations

import json
import os
import random
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from weft.typecheck.command.config import Settings
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
    """Judges a unit, or reads its shapes, and sends each outcome as it comes."""
    unit, after = Unit(**request["unit"]), request["after"]
    # The definition that the next functions to run are noted for. It follows `steps.definition`, which has moved on
    # already when an announcement shows that a definition is done.
    noted_for = ""

    def end_definition() -> None:
        nonlocal noted_for
        is_noted = not os.path.realpath(unit.file).startswith(_not_checked())
        ran = None if runs is None else sorted({(os.path.realpath(file), name) for file, name in [*runs]})
        say({"ran": ran if is_noted else None, "of": noted_for})
        noted_for = steps.definition
        if runs is not None:
            runs.clear()

    def announce(number: int, name: str, file: str, line: int) -> None:
        if noted_for != steps.definition:
            end_definition()
        limit_processor_time(settings.seconds)
        say({"at": number, "name": name, "file": file, "line": line, "of": noted_for})

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
        if noted_for != steps.definition:  # what comes after all definitions is announced by no step
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


# Libraries whose functions must stay the same objects, because checked code or weft itself calls them.
_PATCHED = ("jax", "jaxlib", "numpy", "jaxtyping", "equinox", "optax", "flax", "weft", "builtins", "math", "functools")
# Limits of the system that a worker sets for itself.
_OWN_LIMITS = ("RLIMIT_CPU", "RLIMIT_CORE")


def begin() -> Mapping[str, Any]:
    """The state of the process before a file is judged; random generators are set to the same state for every file."""
    random.seed(0)
    np.random.seed(0)
    return _state()


def changed_since(before: Mapping[str, Any]) -> list[str]:
    """The names of the settings and functions that have changed."""
    after = _state()
    names = [name for name in before if name != "functions" and before[name] != after[name]]
    functions, now = before["functions"], after["functions"]
    return names + [".".join(key) for key, function in functions.items() if now.get(key, function) is not function]


def _state() -> dict[str, Any]:
    """All of the process that a file may change and that a later verdict may depend on."""
    return {
        "jax.config": dict(jax.config.values),
        "numpy.seterr": np.geterr(),
        # Only filters that turn warnings into errors can change a verdict; libraries add others as they are imported.
        "warnings": [entry for entry in warnings.filters if entry[0] == "error"],
        "recursion limit": sys.getrecursionlimit(),
        "limits": _limits(),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "arguments": list(sys.argv),
        "path": list(sys.path),
        "processes": _has_children(),
        "functions": _functions(),
    }


def _has_children() -> bool:
    """Whether processes are left that this one has started: they would take time from the next file."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (ChildProcessError, AttributeError):  # Windows has no `waitid`
        return False
    return True


def _limits() -> dict[str, Any]:
    try:
        import resource
    except ImportError:  # Windows has none
        return {}
    names = [name for name in vars(resource) if name.startswith("RLIMIT_") and name not in _OWN_LIMITS]
    return {name: resource.getrlimit(getattr(resource, name)) for name in names}


def _functions() -> dict[tuple[str, str], Any]:
    """The public callables of the libraries, by module and name."""
    return {
        # Private modules change with each import of a library, and programs do not call them.
        (module, name): value
        for module, members in [*sys.modules.items()]
        if module.partition(".")[0] in _PATCHED and "._" not in module
        for name, value in [*(getattr(members, "__dict__", None) or {}).items()]
        if not name.startswith("_") and callable(value)
    }


if __name__ == "__main__":
    main()
