"""Proves a function from its recorded calls: one verdict for all the structures of arguments that it received."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from weft.typecheck.arguments.builder import Unbuildable
from weft.typecheck.proofs.budget import Budget
from weft.typecheck.proofs.prover import prove
from weft.typecheck.proofs.report import Contract, Verdict
from weft.typecheck.proofs.whose import place_of
from weft.typecheck.recording.structures import Decoder, Node
from weft.typecheck.recording.targets import Unusable, recorded_target

# The verdicts that say something, from the weakest to the strongest.
_STRENGTH = (Verdict.FAILS, Verdict.UNDECIDED, Verdict.HOLDS, Verdict.PROVED)


def called_as(
    function: Any, cls: type | None, calls: Mapping[str, Sequence[Node]], names: Mapping[str, str]
) -> list[Node]:
    """The recorded calls of a function; for a method, the calls on instances of a class.

    Args:
        function: a function, or a method as the class has it.
        cls: the class of the method, or None.
        calls: the recorded calls, by `module:qualname`.
        names: the recorded names of modules that have another name in this process.
    """
    plain = inspect.unwrap(function)
    module, qualname = getattr(plain, "__module__", ""), getattr(plain, "__qualname__", "")
    recorded = list(calls.get(f"{names.get(module, module)}:{qualname}", ()))
    if cls is None:
        return recorded
    # Subclasses inherit a method, so calls of its name may be on instances of other classes.
    decoder = Decoder()
    return [call for call in recorded if _is_on(call, cls, decoder, names)]


def _is_on(call: Node, cls: type, decoder: Decoder, names: Mapping[str, str]) -> bool:
    """Whether the first argument of a call is an instance of a class or of its subclass."""
    first = call["args"][0] if call["args"] else None
    name = first.get("of", "") if isinstance(first, dict) else ""
    if name == f"{names.get(cls.__module__, cls.__module__)}:{cls.__qualname__}":
        return True
    try:
        owner = decoder.named(name) if name else None
    except Exception:  # the class is gone; the proof of the class that defines the method reports that
        return False
    return isinstance(owner, type) and issubclass(owner, cls)


def prove_recorded(
    function: Callable[..., Any],
    name: str,
    owner: type | None,
    calls: Sequence[Node],
    decoder: Decoder,
    dims: Mapping[str, Any],
    budget: Budget,
) -> Contract:
    """The verdict for a function from its recorded calls.

    It is the weakest verdict of the calls; calls without a verdict count only if no call has one. A failure at sizes
    that were not recorded is a failure of the function.
    """
    plain = inspect.unwrap(function)
    contracts: list[Contract] = []
    reasons: list[str] = []
    for call in calls:
        try:
            contracts.append(prove(recorded_target(function, call, decoder, owner, name), dims, budget))
        except (Unusable, Unbuildable) as reason:
            reasons.append(str(reason))
    # A call that could not be used says nothing about the function, and must not hide the verdict of the others.
    decided = [contract for contract in contracts if contract.verdict is not Verdict.SKIPPED]
    reasons = [*(contract.reason for contract in contracts if contract.verdict is Verdict.SKIPPED), *reasons]
    if not decided:
        file, line = place_of(plain)
        why = f"none of {len(calls)} recorded calls gives a verdict: {reasons[0]}"
        return Contract(name, file, line, Verdict.SKIPPED, reason=why)
    worst = min(decided, key=lambda contract: _STRENGTH.index(contract.verdict))
    if worst.verdict is Verdict.FAILS:
        # The failure names the record: from its annotations alone, the function may have no such arguments.
        failures = (dataclasses.replace(f, options=(*f.options, "called as recorded")) for f in worst.failures)
        return dataclasses.replace(worst, failures=tuple(failures))
    rest = f"; {len(reasons)} not used: {reasons[0]}" if reasons else ""
    told = f"it is called as recorded ({len(decided)} structure{'s' * (len(decided) != 1)} of arguments{rest})"
    return dataclasses.replace(
        worst,
        assumptions=(told, *_assumptions(decided)),
        warnings=tuple({(w.rule, w.file, w.line, w.message): w for c in decided for w in c.warnings}.values()),
    )


def _assumptions(contracts: Sequence[Contract]) -> Iterator[str]:
    """The assumptions of several verdicts: those that all share, then those of each."""
    listed = [contract.assumptions for contract in contracts]
    shared = [text for text in listed[0] if all(text in texts for texts in listed)]
    yield from shared
    further = dict.fromkeys(" and ".join(text for text in texts if text not in shared) for texts in listed)
    if any(further):
        yield "; or ".join(text or "no further assumption" for text in further)


def recorded_only(
    module: ModuleType, calls: Mapping[str, Sequence[Node]], judged: set[str]
) -> Iterator[tuple[str, Any, type | None]]:
    """The recorded functions without a verdict from annotations: methods of abstract and of plain classes.

    Args:
        module: the module.
        calls: the recorded calls of the module, by qualified name.
        judged: the names that have a verdict already.

    Yields:
        The name, the function, and the class whose method it is.
    """
    for name in calls:
        if name in judged:
            continue
        owner: Any = None
        value: Any = module
        for part in name.split("."):
            owner, value = value, inspect.getattr_static(value, part, None)
        # A static method takes no instance, so it is a function that happens to stand in a class.
        if isinstance(value, staticmethod):
            owner, value = None, value.__func__
        if callable(value) and not isinstance(value, type | classmethod):
            yield name, value, owner if isinstance(owner, type) else None
