"""The report of a proof: a verdict on each function, and the findings of a failing trial in the names of dims.

A finding has the sizes that show the failure, a program that shows it without weft, and the reason of a doubt.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NamedTuple

from weft.typecheck.arguments.builder import Unbuildable
from weft.typecheck.messages.sources import only_return
from weft.typecheck.proofs.explaining import Exhausted, Trials
from weft.typecheck.proofs.needs import Needs, spelled, written_under
from weft.typecheck.proofs.programs import program_of
from weft.typecheck.proofs.tracing import Target, run_trial
from weft.typecheck.proofs.trial import Trial, is_class, phrases
from weft.typecheck.proofs.violations import OF_INSTANCES, Violation, with_components
from weft.typecheck.proofs.watch import AsJaxtyping


class Verdict(enum.Enum):
    """The outcome of a proof.

    A contract is `PROVED` if it holds for all sizes and without a condition. It `HOLDS` if it has conditions, or sizes
    of which only some could be tried; the report then lists these. It is `UNDECIDED` if the search ended and showed
    neither that the contract holds nor that it fails.
    """

    # From here on the words of the verdicts are those of reports, of `weft check` and of its JSON: interface.
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
    DOUBT = "its failure could not be shown without weft"
    FAULT = "weft failed"


class Edit(NamedTuple):
    """A change of one line of a file: the old text and its replacement."""

    file: str
    line: int
    old: str
    new: str


@dataclass(frozen=True)
class Finding:
    """One failure or warning.

    Attributes:
        rule: `contract` (an annotation that does not hold), `error` (the program raises), or a warning:
            `outer-product`, `memory-order`, `swapped-axes`, `dtype-drift`, `one-class` (only for one of the
            classes that an annotation allows). Under `strict` also `undecided`.
        message: the expected and the actual value, in words.
        file, line: the function whose annotation is broken, or the operation.
        sizes: the smallest sizes that show the finding.
        options: the optional arguments that were given or left out, where that matters.
        program: a program of at most ten lines that shows the finding without weft; "" where none could be written.
        fix: how to mend it, in words, if it looks like a common mistake.
        edit: the fix as a change of the source, where the text that made the value is known.

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
    # Findings compare without program, fix and edit, which say how to show or mend a finding and not which it is.
    program: str = field(default="", compare=False)
    fix: str = field(default="", compare=False)
    edit: Edit | None = field(default=None, compare=False)

    @property
    def identity(self) -> tuple[str, str, int, str]:
        """The rule, the place and the message: two findings that share these are one."""
        return self.rule, self.file, self.line, self.message

    def __str__(self) -> str:
        parts = [f"{spelled(name)}={size}" for name, size in self.sizes.items()] + list(self.options)
        return self.message + (f" (at {', '.join(parts)})" if parts else "")


@dataclass(frozen=True)
class Contract:
    """The verdict on one function or method, with all that led to it.

    Attributes:
        name: its qualified name.
        file, line: where it is defined.
        verdict: the outcome.
        symbolic: the dims that were symbolic in the proof.
        sampled: the dims that only took particular sizes.
        tried: the assignments of sizes at which the contract held.
        assumptions: the conditions that the program has beyond its annotations.
        failures: the failures found.
        warnings: the warnings found.
        reason: why the contract was not checked, not decided, or not proved.
        cause: the kind of the reason, if the contract is undecided.
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
        # The axes of a `*name` were tried in several numbers, so the name stands for all of them.
        names = (name.partition("[")[0] if name.startswith("*") else name for name in map(spelled, self.symbolic))
        way = f" for all {', '.join(dict.fromkeys(names))}" if self.symbolic else ""
        if self.verdict is Verdict.HOLDS and self.sampled:
            way += f"; on the sizes tried of {', '.join(map(spelled, self.sampled))}"
        if self.verdict not in (Verdict.PROVED, Verdict.HOLDS):
            way = ""
        lines = [f"{self.name}: {self.verdict.value}{way}"]
        # A failure is reported at sizes that meet the conditions, so a reader needs them to repeat it.
        begins = "given" if self.verdict is Verdict.FAILS else "holds when"
        lines += [f"  {begins} {condition}" for condition in self.assumptions]
        lines += [f"  {finding.rule}: {finding}" for finding in self.failures]
        lines += [f"  warning, {finding.rule}: {finding}" for finding in self.warnings]
        if self.cause is Cause.FAULT:
            return f"{lines[0]}: {self.reason}"
        if self.reason:
            lines.append(f"  {self.reason}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Report:
    """The result of `verify`: a contract for each function and method that it judged.

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
        """All failures; under `strict` also the warnings and the undecided contracts."""
        of_all, first = list[Finding](), dict[tuple[Any, ...], Finding]()
        for contract in self.contracts:
            of_all += contract.failures
            if self.strict:
                of_all += contract.warnings
                if contract.verdict is Verdict.UNDECIDED:
                    of_all.append(Finding("undecided", contract.reason, contract.file, contract.line))
        # A helper that several functions call breaks its annotation once, and not once for each of its callers.
        for finding in of_all:
            first.setdefault(finding.identity, finding)
        return tuple(first.values())

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The warnings of all contracts."""
        return tuple(warning for contract in self.contracts for warning in contract.warnings)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The conditions of all contracts beyond their annotations."""
        return tuple(dict.fromkeys(assumption for contract in self.contracts for assumption in contract.assumptions))

    @property
    def skipped(self) -> tuple[Contract, ...]:
        """The contracts that could not be checked, each with its reason."""
        return tuple(contract for contract in self.contracts if contract.verdict is Verdict.SKIPPED)

    @property
    def undecided(self) -> tuple[Contract, ...]:
        """The contracts whose search ended without a verdict, each with its reason."""
        return tuple(contract for contract in self.contracts if contract.verdict is Verdict.UNDECIDED)

    @property
    def verdict(self) -> Verdict:
        """The weakest verdict of all contracts; under `strict` a warning is a failure. Undecided contracts stay so."""
        if any(contract.failures or (self.strict and contract.warnings) for contract in self.contracts):
            return Verdict.FAILS
        # From the weakest to the strongest: a green answer about a whole file must not say more than that of each
        # function.
        order = (Verdict.SKIPPED, Verdict.UNDECIDED, Verdict.HOLDS, Verdict.PROVED)
        return min((contract.verdict for contract in self.contracts), key=order.index, default=Verdict.SKIPPED)

    @property
    def ok(self) -> bool:
        """Whether nothing fails; an undecided contract fails under `strict` only."""
        return not self.failures

    @property
    def proved(self) -> bool:
        """Whether every contract is proved for all sizes."""
        return self.verdict is Verdict.PROVED

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return "\n".join(map(str, self.contracts)) or "nothing to verify: no annotation has an array in it"


@dataclass(frozen=True)
class FailureFinding:
    """The finding of a failing trial.

    Attributes:
        finding: the failure, with its program.
        doubt: why nobody without weft could see the failure; "" if somebody could.
    """

    finding: Finding
    doubt: str = ""


def shown(target: Target, trial: Trial, dims: Mapping[str, Any]) -> FailureFinding:
    """The finding of a failing trial, with its program, and whether it is in doubt.

    weft binds dims by instances and by integers, which jaxtyping does not. A user of weft has asked for that. The
    author of an installed package has not, so a failure there that only weft sees is in doubt.
    """
    strangers = not target.is_users
    by_weft = False
    if trial.violations:
        # One more trial in this process answers whether jaxtyping would see the violation. Running the program instead
        # took processes without weft, and regular expressions over jaxtyping's messages.
        try:
            seen = run_trial(target, trial.assignment, dims, AsJaxtyping)
        except Unbuildable:
            seen = trial
        by_weft = seen.ok or (bool(seen.violations) and seen.place != trial.place)
        if strangers and (seen.ok or trial.violations[0].reason in OF_INSTANCES):
            return FailureFinding(
                finding_of(target, trial),
                "it shows only where instances and integers bind dims, as weft lets them and jaxtyping does not",
            )
        # jaxtyping sees another violation of this trial. Its author can see that one, so it is the one to tell.
        if strangers and by_weft:
            trial, by_weft = seen, False
    program = program_of(target, trial, dims, by_weft=by_weft)
    finding = dataclasses.replace(finding_of(target, trial), program=program.text)
    # A failure that nobody can repeat would be taken for one of weft.
    doubt = f"no program of a few lines shows it: {program.reason}" if strangers and not program.text else ""
    return FailureFinding(finding, doubt)


def finding_of(target: Target, trial: Trial) -> Finding:
    """The finding of a failing trial: its first violation, from which others often follow, or else its error."""
    sizes = dict(trial.assignment.sizes)
    options = tuple(
        phrases(trial.options, place, option).taken_here
        for place, option in trial.assignment.options.items()
        if option or is_class(place)
    )
    if not trial.violations:
        file, line = trial.error_at if trial.error_at[1] else (target.file, target.line)
        return Finding("error", with_components(trial.error), file, line, sizes, options)
    violation = trial.violations[0]
    inside = f" (in {violation.inside})" if violation.inside else ""
    return Finding(
        "contract",
        f"{violation.function}, {violation.where}{inside}: {violation.message}",
        violation.file,
        violation.line,
        sizes,
        options,
        fix=violation.fix.text if violation.fix is not None else "",
        edit=_edit_of(violation),
    )


def _edit_of(violation: Violation) -> Edit | None:
    """The change of a function's only `return` that mends its value; None if there are several, or no fix is known."""
    if violation.fix is None or not violation.fix.mend or violation.where != "return":
        return None
    place = only_return(violation.file, violation.line)
    if place is None:
        return None
    line, text = place
    # A fix such as `{x}.T` binds tighter than most operators: `return a + b` becomes `return (a + b).T`.
    operand = ast.parse(text, mode="eval").body
    is_primary = isinstance(operand, ast.Name | ast.Attribute | ast.Subscript | ast.Call)
    mended = violation.fix.mend.format(x=text if is_primary else f"({text})")
    return Edit(violation.file, line, f"return {text}", f"return {mended}")


def in_names(trials: Trials, trial: Trial) -> Trial:
    """The failing trial with its error in the names of dims, if a trace over symbolic sizes raises the same error.

    No text is edited. The trial is traced once more over symbolic sizes with the same numbers. JAX then writes the
    sizes' names where it wrote numbers: `got (dec,) and (enc,)`, not `got (2,) and (1,)`.
    """
    if trial.violations or trial.error is None or isinstance(trial.error, RecursionError):
        return trial
    written = written_under(Needs(), trial.assignment.sizes, set(trials.dims))
    try:
        _, traced = trials.followed(trial, written, written.numbers)
    except Exhausted:
        return trial
    # Over symbolic sizes another line of a library may raise, and say less: `zip() argument 2 is shorter` for an einsum
    # whose labels differ in size.
    if isinstance(traced, Exception) or traced.error is None or _raised_by(traced.error) != _raised_by(trial.error):
        return trial
    return dataclasses.replace(trial, error=traced.error)


def _raised_by(error: Exception) -> tuple[type, CodeType | None]:
    """The class of an error, and the code object that raised it."""
    *_, last = (None, *(frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)))
    return type(error), last
