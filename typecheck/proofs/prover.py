"""`verify`: contracts proved for all sizes, from the annotations alone.

Arguments are built from the annotations (`arguments`), the program is traced on shapes while every annotated function
that runs is checked (`watch`), at several assignments of distinct sizes (`search`), and then once more
with symbolic sizes (`symbolic`). What passes symbolically is proved; the rest holds on the sizes tried. What a shape
cannot show, two lints look for (`lints`).

Broadcasting between ranks is not refused as such, as `jax_numpy_rank_promotion="raise"` would: a bias `(out,)` that is
added to `(*batch, out)` is right by its contract. At distinct sizes a promotion that aligns two different dims already
fails; one that pairs a dim with itself is the `outer-product` lint's.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.core.edge import names
from weft.typecheck.arguments.builder import Unbuildable, Unwritten
from weft.typecheck.arguments.generalise import generalise
from weft.typecheck.errors import AnnotationError
from weft.typecheck.proofs.beyond import NOT_ABSTRACT, beyond_annotations
from weft.typecheck.proofs.budget import USUAL, Budget
from weft.typecheck.proofs.drift import drifts
from weft.typecheck.proofs.endless import Endless
from weft.typecheck.proofs.following import listening
from weft.typecheck.proofs.in_names import in_names
from weft.typecheck.proofs.links import what_is_unsaid
from weft.typecheck.proofs.lints import lint
from weft.typecheck.proofs.needs import DEALS, Needs, assignment_for
from weft.typecheck.proofs.options import argument_of
from weft.typecheck.proofs.programs import program_of
from weft.typecheck.proofs.report import Cause, Contract, Finding, Report, Verdict
from weft.typecheck.proofs.search import Outcome, Search
from weft.typecheck.proofs.shown import findings_of, shown
from weft.typecheck.proofs.targets import names_taken, targets_of
from weft.typecheck.proofs.trial import Target, Trial, one_at_a_time
from weft.typecheck.proofs.violations import first_line
from weft.typecheck.proofs.watched import forget_closures
from weft.typecheck.proofs.whose import is_of_jax, is_users


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
        thing: an annotated function (jitted or not), a Module class, an instance of one, or a bound method. Of an
            instance only the structure counts: its arrays become abstract ones of the dims that their annotations give.
        dims: sizes to keep fixed, by name.
        args: arguments to use as they are, by name, where an annotation does not say enough.
        strict: whether what the lints find, and what stays undecided, is a failure.
        trials: how many traces the search may take for each function or method; one that needs more is *undecided*.
        seconds: of this thread's processor time that it may take; a limit that is not meant to be met.

    Returns:
        What was found; it is true where nothing fails. It does not depend on the machine, nor on what else runs there,
        but for what is undecided because `seconds` were over.

    What a function that `thing` calls breaks is told as the trace has shown it: no process is started to run the
    program of a failure, as `weft check` does for installed packages.

    Raises:
        AnnotationError: in one line, for an annotation that cannot be read, or one of `dims` that nothing has.
        BudgetError: for no trials or no seconds.
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
    _refuse_unknown(dims or {}, [proof.met for proof in proofs])
    return report


def _refuse_unknown(dims: Mapping[str, int], met: Sequence[set[str]]) -> None:
    """Refuses a size that nothing has, where it is known what sizes there are.

    Raises:
        AnnotationError: naming the sizes that there are.
    """
    known = {name for keys in met for key in keys for name in (key, key.rpartition(".")[2])}
    unknown = sorted(dims.keys() - known)
    if unknown and all(met):
        sizes = ", ".join(sorted(set[str]().union(*met)))
        raise AnnotationError(f"dims={{{unknown[0]!r}: ...}}: nothing has a size of that name; there are {sizes}")


@dataclass(frozen=True)
class Proof:
    """A contract that is still to be found out about; see `prove`. `met` are the keys of sizes that were met then."""

    target: Target
    dims: Mapping[str, Any]
    budget: Budget
    met: set[str] = field(default_factory=set, compare=False)

    def contract(self) -> Contract:
        """What can be found out.

        Raises:
            AnnotationError: if an annotation cannot be read or evaluated.
        """
        try:
            return prove(self.target, self.dims, self.budget, self.met)
        finally:
            forget_closures()


def proofs_of(thing: Any, args: Mapping[str, Any], dims: Mapping[str, Any], budget: Budget) -> list[Proof]:
    """What there is to prove of a thing, in order; nothing is tried yet. See `verify` for the arguments.

    Raises:
        AnnotationError: in one line, for an annotation that cannot be read.
        TypeError: if it is nothing that can be verified.
    """
    taken = names_taken(thing) if args else None
    if taken is not None and not args.keys() <= taken:
        raise AnnotationError(f"{min(args.keys() - taken)!r} is no parameter of what is judged")
    with one_at_a_time:  # a trial in another thread may have put abstract arrays among a module's globals
        return [Proof(target, dict(dims), budget) for target in targets_of(thing, dict(args), generalise)]


def prove(target: Target, dims: Mapping[str, Any], budget: Budget, met: set[str] | None = None) -> Contract:
    """What can be found out about one target within a budget; `met` gets the keys of all sizes that were met.

    Raises:
        AnnotationError: if an annotation cannot be read or evaluated.
    """
    search = Search(target, dims, budget)
    try:
        outcome = search.run()
    except Unbuildable as reason:
        said = str(reason) if isinstance(reason, Unwritten) else f"{reason}; pass it in `args`"
        return _contract(target, Verdict.SKIPPED, reason=said)
    if met is not None:
        met |= search.keys
    if outcome.failed and isinstance(outcome.failed[0].error, AnnotationError):
        raise outcome.failed[0].error
    wrong = outcome.failed or ((outcome.pending,) if outcome.pending is not None else ())
    other = target_instead(target, wrong)
    if other is not None:
        return prove(other, dims, budget, met)
    if outcome.failed:
        return _failed(target, search, outcome)
    if outcome.ended is not None:
        return _ended(target, outcome)
    answers = outcome.answers
    sampled, reason = tuple(dict.fromkeys((*answers.sampled, *dict(outcome.needs.among)))), ""
    if answers.open:
        reason = f"only some sizes were tried of which {', '.join(answers.open)}"
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
        warnings=tuple(_warnings(target, search, outcome)),
        reason=reason,
    )


def _contract(target: Target, verdict: Verdict, **more: Any) -> Contract:
    return Contract(target.name, target.file, target.line, verdict, **more)


def _assumptions(target: Target, outcome: Outcome) -> tuple[str, ...]:
    """What is taken for granted: what the sizes need, what was found of options, and what was made up."""
    assumed, emptied, named = (
        sorted({place for trial in outcome.passed for place in getattr(trial, name)})
        for name in ("assumed", "emptied", "texts")
    )
    guards = dict.fromkeys(guard for trial in outcome.passed for guard in trial.passing)
    return (
        *outcome.needs.words(),
        *outcome.notes,
        *(f"it runs under an axis named {axis!r}" for axis in target.axes),
        *(f"{place} returns something like what it is given first" for place in assumed),
        *(f"{place} is empty" for place in emptied),
        *(f"it does not matter what {place} says" for place in dict.fromkeys(_ITEM.sub("", one) for one in named)),
        *(f"the numbers pass the {guard}" for guard in guards),
    )


def _tried(outcome: Outcome) -> tuple[Mapping[str, Any], ...]:
    return tuple(trial.assignment.sizes for trial in outcome.passed)


def target_instead(target: Target, wrong: Sequence[Trial]) -> Target | None:
    """What to look at in place of a target whose trials went wrong, if they say so: it needs numbers, or an axis."""
    if wrong and target.instead is not None and isinstance(wrong[0].error, NOT_ABSTRACT):
        return target.instead
    axis = _missing_axis(wrong)
    if axis is not None and axis not in target.axes:
        return dataclasses.replace(target, axes=(*target.axes, axis))
    return None


def _missing_axis(failed: Iterable[Trial]) -> str | None:
    """The named axis that a program asks for, as one that runs inside a `vmap` does."""
    errors = (str(trial.error) for trial in failed if isinstance(trial.error, NameError))
    return next((found[1] for found in map(_UNBOUND_AXIS.search, errors) if found), None)


_ITEM = re.compile(r"\[\d+\]$")
_UNBOUND_AXIS = re.compile(rf"{names.UNBOUND_AXIS}(\w+)")


def _failed(target: Target, search: Search, outcome: Outcome) -> Contract:
    deep = next((one.error for one in outcome.failed if isinstance(one.error, RecursionError)), None)
    if deep is not None:
        return _undecided(target, Cause.RECURSION, str(deep) if isinstance(deep, Endless) else Cause.RECURSION.value)
    none_passed = not outcome.passed
    reason = reason_beyond(search, outcome.failed[0], none_passed=none_passed)
    if reason is not None:
        return _contract(target, Verdict.SKIPPED, reason=reason)
    smallest = [search.shrink(failure, outcome.needs) for failure in outcome.failed]
    told = [shown(target, in_names(search, failure), search.dims) for failure in smallest]
    if all(one.doubt for one in told):
        return _undecided(target, Cause.DOUBT, f"{told[0].findings[0]}: {told[0].doubt}", _tried(outcome))
    findings = [one for each in told if not each.doubt for one in each.findings]
    unsaid = None if is_users(target.file) else what_is_unsaid(search, outcome.failed, none_passed=none_passed)
    if unsaid is not None:
        return _undecided(target, Cause.DOUBT, f"{findings[0]}: {unsaid}")
    return _contract(
        target,
        Verdict.FAILS,
        tried=_tried(outcome),
        assumptions=_assumptions(target, outcome),
        failures=tuple({(one.rule, one.file, one.line, one.message): one for one in findings}.values()),
    )


def _ended(target: Target, outcome: Outcome) -> Contract:
    """What is known when the budget ended the search: what it was about to explain, or that nothing has failed yet."""
    tried = _tried(outcome)
    found = f"it held on the {len(tried)} assignments of sizes that were tried" if tried else "nothing is known yet"
    if outcome.pending is not None and isinstance(outcome.pending.error, RecursionError):
        return _undecided(target, Cause.RECURSION, str(outcome.pending.error), tried)  # which more trials would not end
    if outcome.pending is not None:
        found = f"what is not explained yet: {findings_of(target, outcome.pending)[0]}"
    assert outcome.ended is not None
    cause = Cause.SECONDS if outcome.ended.of_time else Cause.TRIALS
    return _undecided(target, cause, f"the search ended after {outcome.ended}; {found}", tried)


def _undecided(target: Target, cause: Cause, reason: str, tried: tuple[Mapping[str, Any], ...] = ()) -> Contract:
    return _contract(target, Verdict.UNDECIDED, tried=tried, reason=reason, cause=cause)


def reason_beyond(search: Search, failed: Trial, *, none_passed: bool) -> str | None:
    """Why a failure says nothing of the contract, if what it is about is not in the annotations."""
    first, target = search.first, search.target
    wrong = next(iter(failed.violations), None)
    if wrong is not None and wrong.place[:2] == (target.file, target.line) and wrong.where.startswith("argument"):
        return f"what was made for it is none ({wrong.where}: {wrong.message}); pass it in `args`"
    if wrong is not None and wrong.of_subclass and target.inherited:
        # As the base class of all games takes any state, and a game a state of its own.
        return f"what it inherits takes more than it takes itself ({wrong.where}: {wrong.message}); pass it in `args`"
    if none_passed and first is not None and first.assumed:
        return beyond_annotations(first)  # other options only fail before that callable is called
    reason = beyond_annotations(failed) or (
        beyond_annotations(search.furthest) if search.furthest is not None and none_passed else None
    )
    if reason is not None and failed.guard and reason.startswith("guard") and search.unbuilt is not None:
        return f"{search.unbuilt}; pass it in `args`"  # what passes the guard asks for more
    return reason or (_of_refused_classes(search, failed) if none_passed else None)


def _of_refused_classes(search: Search, failed: Trial) -> str | None:
    """Why an error may be one of the class that stands for an abstract one, if so: guards refused another class.

    With arguments that pass these guards that class may hold, and it takes only one for which the program does.
    """
    for place, refused in search.refused.items() if not failed.violations else ():
        names, option = refused.classes.get(place, ()), failed.assignment.options.get(place, 0)
        if names and option != (other := refused.assignment.options[place]):
            cls, error = names[option], first_line(failed.error)
            at = f"{names[other]} ends at a {refused.guard}"
            return f"{argument_of(place)}: {cls} fails ({error}), and {at}; pass one in `args`"
    return None


def _warnings(target: Target, search: Search, outcome: Outcome) -> list[Finding]:
    """What the lints say of each variant of the program, in each of several assignments, and which dtypes drift."""
    variants: dict[tuple[tuple[str, int], ...], Trial] = {}
    for trial in outcome.passed:
        variants.setdefault(tuple(trial.assignment.options.items()), trial)
    findings: dict[tuple[str, str, int], Finding] = {}
    for trial in variants.values():
        for one in lint(_traces(search, trial, outcome.needs), target.own, target.products):
            file, line = (one.file, one.line) if one.line else (target.file, target.line)
            findings.setdefault((one.rule, file, line), Finding(one.rule, one.message, file, line))
    findings |= {("one-class", one.message, 0): one for one in _of_one_class(target, search, outcome)}
    bare = sorted({one for trial in outcome.passed for one in trial.bare})
    findings |= {("annotation", one, 0): Finding("annotation", one, target.file, target.line) for one in bare}
    drifted = drifts(target, outcome.passed[0], search.dims)
    findings |= {("dtype-drift", one, 0): Finding("dtype-drift", one, target.file, target.line) for one in drifted}
    return list(findings.values())


def _of_one_class(target: Target, search: Search, outcome: Outcome) -> Iterator[Finding]:
    """What fails for one of the classes that an annotation allows, and holds for others: the class may be at fault.

    Only violations and errors of JAX count: a class may lack what another class has.
    """
    for trial in outcome.doubtful:
        if trial.violations or is_of_jax(trial.error):
            smallest = search.shrink(trial, outcome.needs)
            program = program_of(target, smallest, search.dims)
            for one in findings_of(target, smallest) if program.text else ():
                yield dataclasses.replace(one, rule="one-class", program=program.text)


def _traces(search: Search, variant: Trial, needs: Needs) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """Traces of a variant of the program: the one that there is, then those at other sizes, as they are asked for."""
    yield variant.jaxpr, variant.assignment.sizes
    for number in range(len(DEALS)):
        trial = _dealt(search, variant, needs, number)
        if trial is not None and trial.ok:
            yield trial.jaxpr, trial.assignment.sizes


def _dealt(search: Search, trial: Trial, needs: Needs, number: int) -> Trial | None:
    try:
        return search.attempt(assignment_for(trial.assignment.sizes, needs, DEALS[number], trial.assignment))
    except Unbuildable:
        return None
