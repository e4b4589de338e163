"""Programs that need a process of their own, run by whoever can start one.

Where the violated annotation is not the target's own, jaxtyping sees it by its import hook, which has to be there
before the package is. `weft check` runs such programs in fresh processes (`command/programs.py`); within a process that
is not its own, as of a test, nobody does, and what the trace has shown is told.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from weft.typecheck.proofs.programs import Program
from weft.typecheck.proofs.violations import Violation

# Runs a program's text that hooks a module; `Programs.run` says what it answers.
Run = Callable[[str, str], Mapping[str, Any]]
_run: ContextVar[Run | None] = ContextVar("run", default=None)


@contextlib.contextmanager
def run_by(run: Run) -> Iterator[None]:
    """Has programs run by somebody, for the length of a `with` block."""
    token = _run.set(run)
    try:
        yield
    finally:
        _run.reset(token)


def confirmed(program: Program, violation: Violation) -> Program:
    """A program with what running it has shown; as it is if nobody runs any."""
    run = _run.get()
    if run is None or not program.forms:
        return program
    found = dataclasses.replace(program, shows=False, why="")
    for form in program.forms:
        apart = [line.removeprefix("# ") for line in form.text.splitlines() if line.startswith("#")]
        if apart:
            return dataclasses.replace(found, why=f"it cannot be run alone: {apart[0]}")
        ran = run(form.text, form.hooked)
        why = _why_not(ran, violation)
        if not why:
            return dataclasses.replace(found, text=form.text, shows=True, why="", is_over=False)
        if not found.why or ran["at"] == "call":  # a call says more than an import
            found = dataclasses.replace(found, text=form.text, why=why, is_over=ran["limit"])
    return found


def _why_not(ran: Mapping[str, Any], violation: Violation) -> str:
    """Why what running a program gave does not show a violation; "" if it does."""
    if not ran["end"]:
        return "it runs through"
    if ran["limit"]:
        return ran["end"]
    if ran["at"] == "import":
        return f"its modules cannot be imported under jaxtyping's import hook, which ends with {ran['end']}"
    if not ran["checker"] or not _is_of(ran["end"], violation):
        return f"it ends with {ran['end']}"
    return ""


def _is_of(message: str, violation: Violation) -> bool:
    """Whether the first line of a checker's message is about the function, or class, of a violation."""
    _, is_jaxtypings, rest = message.partition(_CHECKING)
    if not is_jaxtypings:
        return f"{violation.function}()" in message  # beartype's own
    part, _, name = rest.rstrip(".").partition(" of ")
    if violation.where.startswith("field"):
        return name.endswith((f"{violation.function}.__init__", ".__post_init__"))
    return part == _PARTS.get(violation.where.partition(" ")[0]) and name.endswith(f".{violation.function}")


_CHECKING = "Type-check error whilst checking the "
_PARTS = {"argument": "parameters", "return": "return value"}
