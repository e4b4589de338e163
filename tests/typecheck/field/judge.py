"""Judges modules in the process that it runs in, a JSON line for each contract: `python judge.py OUT MODULE...`.

A contract that takes longer than its limit of processor time is *over*, and the next one is judged. What a module
prints does not matter, for the lines go to a file.
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from weft.typecheck.command.linter import definitions
from weft.typecheck.command.loading import flax_over_weft, import_below
from weft.typecheck.errors import AnnotationError
from weft.typecheck.proofs.explaining import USUAL
from weft.typecheck.proofs.frames import listening
from weft.typecheck.proofs.prover import Proof, proofs_of

SECONDS = 40


class Over(BaseException):
    """The limit is reached; no `except Exception` on the way is to take it."""


def rows_of(name: str) -> list[dict[str, Any]]:
    """What is found of one module."""
    try:
        module = importlib.import_module(name)
    except BaseException as error:  # whatever it does on import, even SystemExit
        return [{"name": "import", "verdict": "unusable", "reason": f"{type(error).__name__}: {error}"}]
    import_below(name)
    rows: list[dict[str, Any]] = []
    for defined, thing in definitions(module):
        rows += _judged(defined, thing)
    return rows


def _judged(name: str, thing: Any) -> list[dict[str, Any]]:
    try:
        proofs = proofs_of(thing, {}, {}, USUAL)
    except BaseException as error:  # one definition is not to cost the others
        return [{"name": name, "verdict": _of_error(error), "reason": repr(error)}]
    return [_contract(proof) for proof in proofs]


def _of_error(error: BaseException) -> str:
    return "unusable" if isinstance(error, AnnotationError) else "crash"


def _contract(proof: Proof) -> dict[str, Any]:
    start = time.process_time()
    known = {"name": proof.target.name, "place": _place(proof.target.file, proof.target.line)}
    try:
        # Again each second after that: raised in a callback of the garbage collector, it would be ignored.
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS, 1)
        with listening():
            contract = proof.contract()
    except BaseException as error:
        known |= {"verdict": "over" if isinstance(error, Over) else _of_error(error), "reason": repr(error)}
    else:
        known |= {
            "verdict": contract.verdict.name.lower(),
            "reason": contract.reason,
            "failures": [str(failure) for failure in contract.failures],
            "programs": [failure.program for failure in contract.failures],
            "assumptions": contract.assumptions,
            "warnings": [f"{warning.rule}: {warning}" for warning in contract.warnings],
        }
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return {**known, "seconds": round(time.process_time() - start, 2)}


def _place(file: str, line: int) -> str:
    return f"{file.rpartition('site-packages/')[2]}:{line}"


def _over(*_: Any) -> None:
    raise Over(f"{SECONDS} seconds")


if __name__ == "__main__":
    signal.signal(signal.SIGVTALRM, _over)
    with Path(sys.argv[1]).open("w") as out, flax_over_weft():
        for name in sys.argv[2:]:
            for row in rows_of(name):
                print(json.dumps({"module": name, **row}), file=out, flush=True)
