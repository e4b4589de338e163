"""A process that runs programs of failures as a stranger would: JAX, jaxtyping and the package, and no weft.

It is asked in lines of JSON on its standard input and answers on what was its standard output; what a program prints
goes nowhere.

    asked:      {"seconds": number}, then {"run": text} for each program
    answered:   {"ready": true}, then for each program {"at": "import"} and {"at": "call"} before it gets there, and
                {"end": "" or what was raised, "at": ..., "checker": whether a checker of types raised it}

A program is lines of imports, and a last line that is the call.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from .inside import channels, end_with_the_command, limit_processor_time, no_core_dumps, say


def main() -> None:
    """Runs programs until there are no more."""
    asked, answers = channels()
    first = json.loads(asked.readline())
    no_core_dumps()
    end_with_the_command()
    sys.dont_write_bytecode = True  # what the hook has made of a module is nobody else's
    warnings.simplefilter("ignore")
    importlib.import_module("jax")  # which a program is not charged for
    say(answers, {"ready": True})
    for line in asked:
        for message in _run(json.loads(line)["run"], first["seconds"]):
            say(answers, message)


def _run(text: str, seconds: float) -> Iterator[dict[str, Any]]:
    *imports, call = text.splitlines()
    names: dict[str, Any] = {}
    for at, lines in (("import", imports), ("call", [call])):
        limit_processor_time(seconds)
        yield {"at": at}
        try:
            exec(compile("\n".join(lines), "<program>", "exec"), names)
        except BaseException as error:  # even SystemExit: the process has more to run
            yield {"end": _said(error), "at": at, "checker": _is_of_checker(error)}
            return
    yield {"end": "", "at": "call", "checker": False}


def _said(error: BaseException) -> str:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _is_of_checker(error: BaseException) -> bool:
    """Whether jaxtyping or beartype refused a value, and not an annotation."""
    return any(
        (one.__module__.partition(".")[0], one.__name__)
        in (("jaxtyping", "TypeCheckError"), ("beartype", "BeartypeCallHintViolation"))
        for one in type(error).__mro__
    )
