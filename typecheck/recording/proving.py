"""Proofs from recorded calls: one verdict of a function for all the structures that it was called with."""

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

# Verdicts that are no failure, from the one that decides least to the one that decides most.
_WEAKER = (Verdict.SKIPPED, Verdict.UNDECIDED, Verdict.HOLDS, Verdict.PROVED)


def called_as(
    function: Any, cls: type | None, calls: Mapping[str, Sequence[Node]], names: Mapping[str, str]
) -> list[Node]:
    """The recorded calls of a function; of a method, those on instances of a class.

    Args:
        function: a function, or what a class has for a method.
        cls: the class, if it is a method.
        calls: what was recorded, by `module:qualname`.
        names: what modules are called there, where they are called otherwise here.
    """
    plain = inspect.unwrap(function)
    module, qualname = getattr(plain, "__module__", ""), getattr(plain, "__qualname__", "")
    found = list(calls.get(f"{names.get(module, module)}:{qualname}", ()))
    if cls is None:
        return found
    decoder = Decoder()
    return [one for one in found if _is_on(one, cls, decoder, names)]


def _is_on(call: Node, cls: type, decoder: Decoder, names: Mapping[str, str]) -> bool:
    """Whether a call's first argument is of a class, by the names of its bases here."""
    first = call["args"][0] if call["args"] else None
    name = first.get("of", "") if isinstance(first, dict) else ""
    if name == f"{names.get(cls.__module__, cls.__module__)}:{cls.__qualname__}":
        return True
    try:
        found = decoder.named(name) if name else None
    except Exception:  # the class is not there any more, and the proof of the class that defines the method says so
        return False
    return isinstance(found, type) and issubclass(found, cls)


def prove_recorded(
    function: Callable[..., Any],
    name: str,
    owner: type | None,
    calls: Sequence[Node],
    decoder: Decoder,
    dims: Mapping[str, Any],
    budget: Budget,
) -> Contract:
    """The verdict of a function from its recorded calls.

    It is the weakest of those of the calls, but for calls that say nothing while others do; a failure at sizes that
    were not recorded is a failure of the function.
    """
    plain = inspect.unwrap(function)
    contracts: list[Contract] = []
    reasons: list[str] = []
    for call in calls:
        try:
            contracts.append(prove(recorded_target(function, call, decoder, owner, name), dims, budget))
        except (Unusable, Unbuildable) as reason:
            reasons.append(str(reason))
    decided = [one for one in contracts if one.verdict is not Verdict.SKIPPED]
    if not decided:
        file, line = place_of(plain)
        why = next(iter([*(one.reason for one in contracts), *reasons]), "nothing was recorded")
        return Contract(
            name, file, line, Verdict.SKIPPED, reason=f"of {len(calls)} recorded calls none says more: {why}"
        )
    failing = next((one for one in decided if one.verdict is Verdict.FAILS), None)
    if failing is not None:
        failures = [dataclasses.replace(one, options=(*one.options, "called as recorded")) for one in failing.failures]
        return dataclasses.replace(failing, failures=tuple(failures))
    worst = min(decided, key=lambda one: _WEAKER.index(one.verdict))
    reasons += [one.reason for one in contracts if one.verdict is Verdict.SKIPPED]
    rest = f"; {len(reasons)} not used: {reasons[0]}" if reasons else ""
    told = f"it is called as recorded ({len(decided)} structure{'s' * (len(decided) != 1)} of arguments{rest})"
    return dataclasses.replace(
        worst,
        assumptions=(told, *_assumptions(decided)),
        warnings=tuple({(w.rule, w.file, w.line, w.message): w for one in decided for w in one.warnings}.values()),
    )


def _assumptions(contracts: Sequence[Contract]) -> Iterator[str]:
    """What the verdicts of several structures assume: what all do, and what each does beside that."""
    alike = [what for what in contracts[0].assumptions if all(what in one.assumptions for one in contracts)]
    yield from alike
    apart = dict.fromkeys(" and ".join(what for what in one.assumptions if what not in alike) for one in contracts)
    if any(apart):
        yield "; or ".join(what or "nothing more" for what in apart)


def others(
    module: ModuleType, calls: Mapping[str, Sequence[Node]], judged: set[str]
) -> Iterator[tuple[str, Any, type | None]]:
    """What was recorded of a module and is judged by no proof from annotations: methods of abstract and plain classes.

    Args:
        module: the module.
        calls: what was recorded of it, by qualified name.
        judged: the names that have a verdict.

    Yields:
        The name, the function, and the class that it is a method of.
    """
    for name in calls:
        if name in judged:
            continue
        owner: Any = None
        found: Any = module
        for part in name.split("."):
            owner, found = found, inspect.getattr_static(found, part, None)
        if isinstance(found, staticmethod):
            owner, found = None, found.__func__
        if callable(found) and not isinstance(found, type | classmethod):
            yield name, found, owner if isinstance(owner, type) else None
