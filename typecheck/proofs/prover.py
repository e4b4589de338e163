"""`verify`: contracts proved for all sizes, from the annotations alone.

`arguments` builds arguments from the annotations. The program is traced on shapes at several assignments of distinct
sizes (`search`), while every annotated function that runs is checked (`watch`). Then it is traced over symbolic sizes,
and each question that it asks of them is answered both ways (`questions`). Sizes that stay symbolic are proved; of the
others the contract holds on the sizes tried. `lints` warns of mistakes that no shape shows.

`verify` does not refuse rank promotion as such, as `jax_numpy_rank_promotion="raise"` would: a bias `(out,)` that is
added to `(*batch, out)` is right by its contract. At distinct sizes a promotion that aligns two different dims already
fails, and the `outer-product` lint warns of a promotion that pairs a dim with itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.core.edge import names
from weft.typecheck.arguments.builder import Unbuildable, Unwritten
from weft.typecheck.arguments.generalise import generalise
from weft.typecheck.arguments.parameters import IN_A_TEXT
from weft.typecheck.errors import AnnotationError, InternalError
from weft.typecheck.proofs.beyond import NOT_ABSTRACT, beyond_annotations
from weft.typecheck.proofs.explaining import USUAL, Budget, Evidence, Trials, shrink
from weft.typecheck.proofs.frames import Endless, is_of_jax, listening
from weft.typecheck.proofs.lints import drifts, lint
from weft.typecheck.proofs.needs import DEALS, Needs
from weft.typecheck.proofs.programs import program_of
from weft.typecheck.proofs.report import Cause, Contract, Finding, Report, Verdict, finding_of, in_names, shown
from weft.typecheck.proofs.search import Outcome, search
from weft.typecheck.proofs.targets import names_taken, targets_of
from weft.typecheck.proofs.tracing import Target, one_at_a_time
from weft.typecheck.proofs.trial import Trial, argument_of
from weft.typecheck.proofs.violations import first_line
from weft.typecheck.proofs.watch import forget_closures


def verify(
    thing: Any,
    *,
    dims: Mapping[str, int] | None = None,
    args: Mapping[str, Any] | None = None,
    strict: bool = False,
    trials: int = USUAL.trials,
    seconds: float = USUAL.seconds,
) -> Report:
    """Proves the contracts of a function, of a Module class's public methods, or of an instance, for all sizes.

    Args:
        thing: an annotated function (jitted or not), a Module class, an instance of one, or a bound method. Only
            the structure of an instance counts. Its arrays become abstract ones of the dims in their annotations.
        dims: sizes to keep fixed, by name.
        args: arguments to use as they are, by name, where an annotation does not say enough.
        strict: whether warnings, and undecided contracts, count as failures.
        trials: how many traces the search may take for each function or method. One that needs more is *undecided*.
        seconds: the most processor time of this thread. A search is not meant to reach it.

    Returns:
        The report, which is true if nothing fails. It does not depend on the machine or its load, unless
        `seconds` ran out and a contract is undecided.

    The program of a failure is written from the trace, and not run.

    Raises:
        AnnotationError: in one line, for an annotation that cannot be read, or a name in `dims` that no size has.
        BudgetError: for a budget of no trials or no seconds.
        TypeError: if it is nothing that can be verified.

    >>> from jaxtyping import Array, Float
    >>> def project(x: Float[Array, "b i"], w: Float[Array, "o i"]) -> Float[Array, "b o"]:
    ...     return x @ w.T
    >>> print(verify(project))
    project: proved for all b, i, o
    """
    proofs = proofs_of(thing, args or {}, dims or {}, Budget(trials, seconds))
    with listening():
        report = Report(tuple(proof.contract() for proof in proofs), strict)
    # A misspelled name in `dims` would be kept fixed by nothing, and the report would read as if it had been.
    met = set[str]().union(*(proof.met for proof in proofs))
    unknown = sorted((dims or {}).keys() - {name for key in met for name in (key, key.rpartition(".")[2])})
    if unknown and all(proof.met for proof in proofs):  # else more sizes may have been there
        there_are = ", ".join(sorted(met))
        raise AnnotationError(f"dims={{{unknown[0]!r}: ...}}: nothing has a size of that name; there are {there_are}")
    return report


@dataclass(frozen=True)
class Proof:
    """A contract that is still to be judged; see `prove`. Judging it adds the keys of all its sizes to `met`."""

    target: Target
    dims: Mapping[str, Any]
    budget: Budget
    met: set[str] = field(default_factory=set, compare=False)

    def contract(self) -> Contract:
        """Judges the contract.

        Raises:
            AnnotationError: if an annotation cannot be read or evaluated.
        """
        try:
            return prove(self.target, self.dims, self.budget, self.met)
        finally:
            forget_closures()


def proofs_of(thing: Any, args: Mapping[str, Any], dims: Mapping[str, Any], budget: Budget) -> list[Proof]:
    """The proofs of all contracts of a thing, in order, none of them begun. See `verify` for the arguments.

    Raises:
        AnnotationError: in one line, for an annotation that cannot be read.
        TypeError: if it is nothing that can be verified.
    """
    known_names = names_taken(thing) if args else None
    if known_names is not None and not args.keys() <= known_names:
        raise AnnotationError(f"no function that is judged has a parameter {min(args.keys() - known_names)!r}")
    with one_at_a_time:  # a trial in another thread may have put abstract arrays among a module's globals
        return [Proof(target, dict(dims), budget) for target in targets_of(thing, dict(args), generalise)]


def prove(target: Target, dims: Mapping[str, Any], budget: Budget, met: set[str] | None = None) -> Contract:
    """The contract of one target, judged within a budget; the keys of all sizes in its trials are added to `met`.

    Raises:
        AnnotationError: if an annotation cannot be read or evaluated.
    """
    trials = Trials(target, dims, budget)
    try:
        outcome = search(trials)
    except Unbuildable as reason:
        # No argument helps where there is no body to trace: an abstract method, or a stub.
        said = str(reason) if isinstance(reason, Unwritten) else f"{reason}; pass it in `args`"
        return _contract(target, Verdict.SKIPPED, reason=said)
    except InternalError as error:
        return _undecided(target, Cause.FAULT, error.what)
    if met is not None:
        met |= trials.keys
    if outcome.failed and isinstance(outcome.failed[0].error, AnnotationError):
        # An annotation that cannot be read is no finding about the program: it is an error of whoever wrote it.
        raise outcome.failed[0].error
    wrong = outcome.failed or ((outcome.pending,) if outcome.pending is not None else ())
    replacement = target_instead(target, wrong)
    if replacement is not None:
        return prove(replacement, dims, budget, met)
    if outcome.failed:
        return _failed(trials, outcome)
    if outcome.ended is not None:
        return _ended(target, outcome)
    answers = outcome.answers
    sampled = tuple(dict.fromkeys((*answers.sampled, *dict(outcome.needs.among))))
    reason = ""
    if answers.open:
        reason = f"only some sizes were tried at which {', '.join(answers.open)}"
    elif outcome.in_pairs:
        reason = "options were tried alone and in pairs"
    elif sampled:
        reason = "; ".join(dict.fromkeys(filter(None, answers.sampled.values())))
    assumptions = _assumptions(target, outcome)
    return _contract(
        target,
        Verdict.HOLDS if sampled or reason or assumptions else Verdict.PROVED,
        symbolic=tuple(answers.free),
        sampled=sampled,
        tried=_tried(outcome),
        assumptions=assumptions,
        warnings=tuple(_warnings(trials, outcome)),
        reason=reason,
    )


def _contract(target: Target, verdict: Verdict, **more: Any) -> Contract:
    return Contract(target.name, target.file, target.line, verdict, **more)


def _assumptions(target: Target, outcome: Outcome) -> tuple[str, ...]:
    """The conditions of a verdict, in words: needs of sizes, notes about options, and what trials made up or left."""
    assumed = sorted({place for trial in outcome.passed for place in trial.unsaid.results})
    emptied = sorted({place for trial in outcome.passed for place in trial.unsaid.emptied})
    guards = dict.fromkeys(guard for trial in outcome.passed for guard in trial.passing)
    return (
        *outcome.needs.words(),
        *outcome.notes,
        *(f"it runs under an axis named {axis!r}" for axis in target.axes),
        *(f"{place} returns a value like its first argument" for place in assumed),
        *(f"{place} is empty" for place in emptied),
        *(() if outcome.failed else _values_tried(outcome)),
        *(f"the numbers pass the {guard}" for guard in guards),
    )


# What reads a text in C code, where nothing notes it.
_READ_TEXTS = {IN_A_TEXT, "re", "fnmatch", "join", "json", "literal_eval", "eval", "exec"}


def _values_tried(outcome: Outcome) -> Iterator[str]:
    """The parameters that the program read, or that stay fixed, with the values that were tried."""
    read, fixed = dict[str, dict[str, None]](), dict[str, dict[str, None]]()
    names = frozenset[str]().union(*(trial.names for trial in outcome.passed))
    for trial in outcome.passed:
        for place, values in trial.options.given.items():
            unheard = not _READ_TEXTS.isdisjoint(names) and isinstance(values.tried[-1], str)
            if values.is_read or values.is_open or unheard:
                chosen = trial.options.values[place][trial.assignment.options.get(place, 0)]
                read.setdefault(place, {})[chosen] = None
        for place, words in trial.unsaid.fixed.items():
            if trial.options.is_read(place, names):
                fixed.setdefault(place, {})[words] = None
    for place, words in (read | fixed).items():
        yield f"{place} = {' or '.join(words)}"


def _tried(outcome: Outcome) -> tuple[Mapping[str, Any], ...]:
    return tuple(trial.assignment.sizes for trial in outcome.passed)


def target_instead(target: Target, wrong: Sequence[Trial]) -> Target | None:
    """The target to prove instead, if the failing trials show that this one needs numbers, or a named axis."""
    # Arrays from outside of the function are abstract at first: one of 8 by 8 would tie two dims to one size. A
    # function that needs their numbers is proved with the arrays that there are.
    if wrong and target.instead is not None and isinstance(wrong[0].error, NOT_ABSTRACT):
        return target.instead
    # A program with `jax.lax.psum(x, "i")` is meant to run inside of a transform with an axis `i`.
    errors = (str(trial.error) for trial in wrong if isinstance(trial.error, NameError))
    # JAX goes on with a full stop, and a layer's error with the next line.
    words = (error.partition(names.UNBOUND_AXIS)[2].split(maxsplit=1)[:1] for error in errors)
    axis = next((word.rstrip(".") for first in words for word in first), None)
    if axis is not None and axis not in target.axes:
        return dataclasses.replace(target, axes=(*target.axes, axis))
    return None


def _failed(trials: Trials, outcome: Outcome) -> Contract:
    """The contract of a search that found failures: it fails, or they show nothing about it, or are in doubt."""
    target = trials.target
    # Python's limit on recursion depends on how deep the caller already is, so such a failure is no finding.
    deep = next((trial.error for trial in outcome.failed if isinstance(trial.error, RecursionError)), None)
    if deep is not None:
        return _undecided(target, Cause.RECURSION, str(deep) if isinstance(deep, Endless) else Cause.RECURSION.value)
    none_passed = not outcome.passed
    reason = reason_beyond(trials, outcome.evidence, outcome.failed[0], none_passed=none_passed)
    if reason is not None:
        return _contract(target, Verdict.SKIPPED, reason=reason)
    # Doubts are only about how a failure can be shown, so they are looked into at the sizes that a reader will see.
    smallest = [shrink(trials, failure, outcome.needs) for failure in outcome.failed]
    told = [shown(target, in_names(trials, failure), trials.dims) for failure in smallest]
    if all(each.doubt for each in told):
        return _undecided(target, Cause.DOUBT, f"{told[0].finding}: {told[0].doubt}", _tried(outcome))
    findings = [each.finding for each in told if not each.doubt]
    return _contract(
        target,
        Verdict.FAILS,
        tried=_tried(outcome),
        assumptions=_assumptions(target, outcome),
        failures=tuple({finding.identity: finding for finding in findings}.values()),
    )


def _ended(target: Target, outcome: Outcome) -> Contract:
    """The undecided contract of a search that the budget ended, with the failure that was not explained yet, if any."""
    tried = _tried(outcome)
    so_far = f"it held on the {len(tried)} assignments of sizes that were tried" if tried else "nothing is known yet"
    if outcome.pending is not None and isinstance(outcome.pending.error, RecursionError):
        return _undecided(target, Cause.RECURSION, str(outcome.pending.error), tried)  # which more trials would not end
    if outcome.pending is not None:
        so_far = f"what is not explained yet: {finding_of(target, outcome.pending)}"
    assert outcome.ended is not None
    cause = Cause.SECONDS if outcome.ended.of_time else Cause.TRIALS
    return _undecided(target, cause, f"the search ended after {outcome.ended}; {so_far}", tried)


def _undecided(target: Target, cause: Cause, reason: str, tried: tuple[Mapping[str, Any], ...] = ()) -> Contract:
    return _contract(target, Verdict.UNDECIDED, tried=tried, reason=reason, cause=cause)


def reason_beyond(trials: Trials, evidence: Evidence, failed: Trial, *, none_passed: bool) -> str | None:
    """Why a failure shows nothing about the contract, since it depends on what annotations leave open; else None."""
    first, target = trials.first, trials.target
    wrong = next(iter(failed.violations), None)
    if wrong is not None and wrong.place[:2] == (target.file, target.line) and wrong.where.startswith("argument"):
        # A trial made an argument that does not fit its own annotation: that is weft's failure, and not the program's.
        return f"weft made no {wrong.where} that fits its annotation ({wrong.message}); pass one in `args`"
    if wrong is not None and wrong.of_subclass and target.inherited:
        # As the base class of all games takes any state, and a game a state of its own.
        return f"this class takes less than its base class ({wrong.where}: {wrong.message}); pass it in `args`"
    if none_passed and first is not None and first.unsaid.results:
        return beyond_annotations(first)  # with other options the program fails before it calls that callable
    reason = beyond_annotations(failed) or (
        beyond_annotations(evidence.furthest) if evidence.furthest is not None and none_passed else None
    )
    if reason is not None and failed.guard and reason.startswith("guard") and evidence.unbuilt is not None:
        return f"{evidence.unbuilt}; pass it in `args`"  # no arguments that pass the guard could be made
    return reason or (_of_refused_classes(evidence, failed) if none_passed else None)


def _of_refused_classes(evidence: Evidence, failed: Trial) -> str | None:
    """The reason not to judge a failure for one concrete class, if a guard refused another class; else None.

    With arguments that pass the guard the program may hold for that other class, and one class that holds suffices.
    """
    for place, refused in evidence.refused.items() if not failed.violations else ():
        names, option = refused.options.classes.get(place, ()), failed.assignment.options.get(place, 0)
        if names and option != (refused_option := refused.assignment.options[place]):
            cls, error = names[option], first_line(failed.error)
            at = f"{names[refused_option]} ends at a {refused.guard}"
            return f"{argument_of(place)}: {cls} fails ({error}), and {at}; pass one in `args`"
    return None


def _warnings(trials: Trials, outcome: Outcome) -> list[Finding]:
    """The warnings about a program that holds.

    They are the lints' for each variant, and those about failing classes, annotations that nothing satisfies, and
    drifting dtypes.
    """
    target, variants = trials.target, dict[tuple[tuple[str, int], ...], Trial]()
    for trial in outcome.passed:
        variants.setdefault(tuple(trial.assignment.options.items()), trial)
    findings: dict[tuple[str, str, int], Finding] = {}
    for trial in variants.values():
        for warning in lint(_traces(trials, trial, outcome.needs), target.own, target.products):
            file, line = (warning.file, warning.line) if warning.line else (target.file, target.line)
            findings.setdefault((warning.rule, file, line), Finding(warning.rule, warning.message, file, line))
    findings |= {("one-class", finding.message, 0): finding for finding in _of_one_class(trials, outcome)}
    unsatisfied = sorted({annotation for trial in outcome.passed for annotation in trial.unsaid.unsatisfied})
    drifted = drifts(target, outcome.passed[0], trials.dims)
    for rule, messages in (("annotation", unsatisfied), ("dtype-drift", drifted)):
        findings |= {(rule, message, 0): Finding(rule, message, target.file, target.line) for message in messages}
    return list(findings.values())


def _of_one_class(trials: Trials, outcome: Outcome) -> Iterator[Finding]:
    """Findings about a program that fails for one of the classes that an annotation allows, and holds for others.

    Only violations and errors of JAX count. Any other error may be one of a class that lacks what another class has.
    """
    for trial in outcome.doubtful:
        if trial.violations or is_of_jax(trial.error):
            smallest = shrink(trials, trial, outcome.needs)
            program = program_of(trials.target, smallest, trials.dims)
            # The class may be at fault as well as the program, so this is a warning, and only with a program.
            if program.text:
                yield dataclasses.replace(finding_of(trials.target, smallest), rule="one-class", program=program.text)


def _traces(trials: Trials, variant: Trial, needs: Needs) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """Traces of a variant of the program: first the trial's own, then traces at other sizes, made when asked for."""
    yield variant.jaxpr, variant.assignment.sizes
    for deal in DEALS:
        with contextlib.suppress(Unbuildable):
            trial = trials.with_needs(variant, needs, deal)
            if trial.ok:
                yield trial.jaxpr, trial.assignment.sizes
