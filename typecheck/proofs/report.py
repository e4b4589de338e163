"""The report of a proof: what was found of each function, with the sizes that show it."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from weft.typecheck.proofs.needs import spelled


class Verdict(enum.Enum):
    """What is known of a function's contract.

    `PROVED` is said of what holds for all sizes, whatever they are. `HOLDS` is what has conditions, or sizes of which
    only some could be tried; which of the two, the report says beside it. `UNDECIDED` is what the search for a verdict
    ended without: nothing that it knows shows that the contract holds, nor that it fails.
    """

    PROVED = "proved"
    HOLDS = "holds"
    FAILS = "fails"
    UNDECIDED = "undecided"
    SKIPPED = "not checked"


class Cause(enum.Enum):
    """Why a contract is undecided."""

    TRIALS = "the search took all its trials"
    SECONDS = "the search took all its time"
    RECURSION = "its calls go deeper than Python's limit of recursion"
    DOUBT = "what shows its failure could not be confirmed"


class Edit(NamedTuple):
    """A text of one line of a file, and the text to put in its place."""

    file: str
    line: int
    old: str
    new: str


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or looks wrong.

    Attributes:
        rule: `contract` (an annotation that does not hold), `error` (the program raises), or a warning:
            `outer-product`, `memory-order`, `swapped-axes`, `dtype-drift`, `one-class` (only for one of the
            classes that an annotation allows). Under `strict` also `undecided`.
        message: what is expected and what is found.
        file, line: where: the function whose annotation it is, or the operation.
        sizes: the smallest sizes found that show it.
        options: which optional arguments were given or not, where that matters.
        program: one of at most ten lines, without weft, that shows it; "" where none could be written.
        fix: what would mend it, in words, if it looks like a common slip.
        edit: the same as a change of a source, where it is known which text made the value.

    >>> from jaxtyping import Array, Float
    >>> from weft.typecheck import verify
    >>> def first(x: Float[Array, "n m"]) -> Float[Array, "n"]:
    ...     return x[0]
    >>> finding = verify(first).failures[0]
    >>> finding.rule, sorted(finding.sizes)
    ('contract', ['m', 'n'])
    """

    rule: str
    message: str
    file: str
    line: int
    sizes: Mapping[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    program: str = field(default="", compare=False)
    fix: str = field(default="", compare=False)
    edit: Edit | None = field(default=None, compare=False)

    def __str__(self) -> str:
        parts = [f"{spelled(name)}={size}" for name, size in self.sizes.items()] + list(self.options)
        return self.message + (f" (at {', '.join(parts)})" if parts else "")


@dataclass(frozen=True)
class Contract:
    """What was found of one function or method.

    Attributes:
        name: its qualified name.
        file, line: where it is defined.
        verdict: the outcome.
        symbolic: the dims that were symbolic in the proof.
        sampled: the dims that only took particular sizes.
        tried: the assignments of sizes that it held on.
        assumptions: what it needs beyond its annotations.
        failures: what is wrong.
        warnings: what the lints say.
        reason: why it was not checked, not decided, or not proved.
        cause: the same as one of a few, if it is undecided.
    """

    name: str
    file: str
    line: int
    verdict: Verdict
    symbolic: tuple[str, ...] = ()
    sampled: tuple[str, ...] = ()
    tried: tuple[Mapping[str, Any], ...] = ()
    assumptions: tuple[str, ...] = ()
    failures: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()
    reason: str = ""
    cause: Cause | None = None

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.verdict.value}{self._way()}"]
        # What fails does so where these are met.
        lines += [f"  {'given' if self.verdict is Verdict.FAILS else 'holds when'} {one}" for one in self.assumptions]
        lines += [f"  {one.rule}: {one}" for one in self.failures]
        lines += [f"  warning, {one.rule}: {one}" for one in self.warnings]
        if self.reason:
            lines.append(f"  {self.reason}")
        return "\n".join(lines)

    def _way(self) -> str:
        all_of = f" for all {', '.join(map(spelled, self.symbolic))}" if self.symbolic else ""
        if self.verdict is Verdict.PROVED or (self.verdict is Verdict.HOLDS and not self.sampled):
            return all_of
        if self.verdict is Verdict.HOLDS:
            return f"{all_of}; on the sizes tried of {', '.join(map(spelled, self.sampled))}"
        return ""


@dataclass(frozen=True)
class Report:
    """What `verify` returns: a contract for each function and method that it looked at.

    It is true where every contract holds.

    >>> from jaxtyping import Array, Float
    >>> from weft.typecheck import verify
    >>> def total(x: Float[Array, "n"]) -> Float[Array, ""]:
    ...     return x.sum()
    >>> report = verify(total)
    >>> bool(report), report.proved, report.failures
    (True, True, ())
    """

    contracts: tuple[Contract, ...]
    strict: bool = False

    @property
    def failures(self) -> tuple[Finding, ...]:
        """Everything that fails; under `strict` the warnings, and what is undecided, too."""
        return tuple(self._findings())

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What the lints say."""
        return tuple(one for contract in self.contracts for one in contract.warnings)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the program needs beyond its annotations."""
        return tuple(dict.fromkeys(one for contract in self.contracts for one in contract.assumptions))

    @property
    def skipped(self) -> tuple[Contract, ...]:
        """What could not be checked; each says why."""
        return tuple(one for one in self.contracts if one.verdict is Verdict.SKIPPED)

    @property
    def undecided(self) -> tuple[Contract, ...]:
        """What the search ended without a verdict on; each says what it knew."""
        return tuple(one for one in self.contracts if one.verdict is Verdict.UNDECIDED)

    @property
    def verdict(self) -> Verdict:
        """The weakest verdict of all; under `strict` a warning is a failure, but what is undecided stays that."""
        if any(one.failures or (self.strict and one.warnings) for one in self.contracts):
            return Verdict.FAILS
        order = (Verdict.SKIPPED, Verdict.UNDECIDED, Verdict.HOLDS, Verdict.PROVED)
        return min((one.verdict for one in self.contracts), key=order.index, default=Verdict.SKIPPED)

    @property
    def ok(self) -> bool:
        """Whether nothing fails; what is undecided does so under `strict` only."""
        return not self.failures

    @property
    def proved(self) -> bool:
        """Whether every contract is proved for all sizes."""
        return self.verdict is Verdict.PROVED

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return "\n".join(map(str, self.contracts)) or "nothing to verify: no annotation has an array in it"

    def _findings(self) -> Iterator[Finding]:
        seen: set[tuple[Any, ...]] = set()
        for contract in self.contracts:
            for one in (*contract.failures, *(_strictly(contract) if self.strict else ())):
                place = (one.rule, one.file, one.line, one.message)
                if place not in seen:
                    seen.add(place)
                    yield one


def _strictly(contract: Contract) -> Iterator[Finding]:
    """What is a failure under `strict` only."""
    yield from contract.warnings
    if contract.verdict is Verdict.UNDECIDED:
        yield Finding("undecided", contract.reason, contract.file, contract.line)
