"""The recorded calls of one unit, and the verdicts that proofs get from them."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from weft.typecheck.command.config import Settings
from weft.typecheck.command.recorded import read_calls
from weft.typecheck.command.units import Unit
from weft.typecheck.proofs.budget import Budget
from weft.typecheck.proofs.prover import Proof
from weft.typecheck.proofs.report import Contract, Verdict
from weft.typecheck.recording.proving import called_as, prove_recorded, recorded_only
from weft.typecheck.recording.structures import Decoder


class Recorded:
    """The recorded calls of one unit.

    Attributes:
        judged: the names that have a verdict from their annotations.
    """

    def __init__(self, unit: Unit, module: ModuleType, settings: Settings):
        self.calls, paths = read_calls(*settings.calls) if settings.calls[0] else ({}, [])
        sys.path += paths  # tests define classes of their own, in modules that only these paths lead to
        self.module, self.judged = module, set[str]()
        # A script has another name while it is checked, and a test may have imported it by its own.
        self._names = {module.__name__: unit.module}
        self._decoder = Decoder({unit.module: module})
        # Other files' calls stay out, so that no unit is judged for functions of another.
        self._of_unit = {
            name.partition(":")[2]: calls for name, calls in self.calls.items() if name.startswith(f"{unit.module}:")
        }

    def recorded_only(self) -> Iterator[tuple[str, Any, type | None]]:
        """The functions that have recorded calls and no verdict: methods of abstract and of plain classes."""
        return recorded_only(self.module, self._of_unit, self.judged)

    def contract(
        self, name: str, function: Any, owner: type | None, dims: Mapping[str, int], budget: Budget
    ) -> Contract | None:
        """The verdict from recorded calls; None if there are none."""
        calls = called_as(function, owner, self.calls, self._names) if self.calls else []
        return prove_recorded(function, name, owner, calls, self._decoder, dims, budget) if calls else None

    def contract_of(self, proof: Proof, thing: Any) -> Contract:
        """The verdict of a proof, or of recorded calls if annotations alone do not determine the arguments."""
        contract = proof.contract()
        if contract.verdict is not Verdict.SKIPPED:
            return contract
        function, owner = thing, None
        # A method's contract is named `Class.method`, and the calls are recorded for the function in the class body.
        if isinstance(thing, type):
            function, owner = inspect.getattr_static(thing, contract.name.rpartition(".")[2], None), thing
            if isinstance(function, staticmethod):
                function, owner = function.__func__, None
        # A class method takes a class first, which a recorded structure does not have.
        if function is None or isinstance(function, classmethod):
            return contract
        recorded = self.contract(contract.name, function, owner, proof.dims, proof.budget)
        # Both reasons are told: a user may mend the annotation, or record further calls.
        if recorded is not None and recorded.verdict is Verdict.SKIPPED:
            return dataclasses.replace(contract, reason=f"{contract.reason}; {recorded.reason}")
        return recorded or contract
