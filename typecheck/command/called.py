"""Recorded calls, as the verdicts of one unit ask for them."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from weft.typecheck.command.config import Settings
from weft.typecheck.command.recorded import paths_of, read_calls
from weft.typecheck.command.units import Unit
from weft.typecheck.proofs.budget import Budget
from weft.typecheck.proofs.report import Contract, Verdict
from weft.typecheck.proofs.trial import Target
from weft.typecheck.recording.proving import called_as, others, prove_recorded
from weft.typecheck.recording.structures import Decoder
from weft.typecheck.recording.targets import Unusable, recorded_target


class Recorded:
    """The recorded calls of one unit.

    Attributes:
        judged: the names that have a verdict without them.
    """

    def __init__(self, unit: Unit, module: ModuleType, settings: Settings):
        self.calls = read_calls(Path(settings.calls)) if settings.calls else {}
        if settings.calls:
            sys.path += paths_of(Path(settings.calls))  # until this unit is judged (`loading.importable`)
        self.module, self.judged = module, set[str]()
        # A script has another name while it is checked, and a test may have been what called it.
        self._names = {module.__name__: unit.module}
        self._decoder = Decoder({unit.module: module})
        self._of_unit = {
            name.partition(":")[2]: calls for name, calls in self.calls.items() if name.startswith(f"{unit.module}:")
        }

    def others(self) -> Iterator[tuple[str, Any, type | None]]:
        """What has recorded calls and no verdict: methods of abstract and of plain classes."""
        return others(self.module, self._of_unit, self.judged)

    def contract(
        self, name: str, function: Any, owner: type | None, dims: Mapping[str, int], budget: Budget
    ) -> Contract | None:
        """The verdict from recorded calls; None if there are none."""
        calls = called_as(function, owner, self.calls, self._names) if self.calls else []
        return prove_recorded(function, name, owner, calls, self._decoder, dims, budget) if calls else None

    def targets(self, name: str, thing: Any) -> Iterator[Target]:
        """What there is to prove of a function, or of a method of a class, by each of its recorded calls."""
        function, owner = _called(name, thing)
        if function is None or not self.calls:
            return
        for call in called_as(function, owner, self.calls, self._names):
            with contextlib.suppress(Unusable):
                yield recorded_target(function, call, self._decoder, owner, name)

    def instead(self, contract: Contract, thing: Any, dims: Mapping[str, int], budget: Budget) -> Contract:
        """The verdict that stands where no arguments could be made, if recorded calls give one."""
        if contract.verdict is not Verdict.SKIPPED:
            return contract
        function, owner = _called(contract.name, thing)
        if function is None:
            return contract
        found = self.contract(contract.name, function, owner, dims, budget)
        if found is None:
            return contract
        if found.verdict is Verdict.SKIPPED:
            return dataclasses.replace(contract, reason=f"{contract.reason}; {found.reason}")
        return found


def _called(name: str, thing: Any) -> tuple[Any, type | None]:
    """The function that a contract is about, and the class that it is a method of; None for what has no calls."""
    if not isinstance(thing, type):
        return thing, None
    function = inspect.getattr_static(thing, name.rpartition(".")[2], None)
    if isinstance(function, staticmethod):
        return function.__func__, None
    return (None if isinstance(function, classmethod) else function), thing
