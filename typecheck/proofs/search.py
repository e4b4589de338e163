"""The search of a proof: trials at several assignments of sizes, and, where one fails, the needs that explain it.

The search first looks for a trial that holds, by needs (`explaining`) and other options. Then it goes
through classes, options and numbers of axes (`variations`). At last it tries both answers to each question that the
program asks of its sizes (`questions`).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field

from weft.typecheck.arguments.builder import Assignment, Unbuildable
from weft.typecheck.errors import AnnotationError
from weft.typecheck.proofs.explaining import (
    Evidence,
    Exhausted,
    Trials,
    explain,
    explain_with_names_per_record,
    pending,
    with_options_in_rounds,
    with_other_options,
)
from weft.typecheck.proofs.needs import DEALS, Deal, Needs, ascending, written_under
from weft.typecheck.proofs.questions import QuestionResults, answer
from weft.typecheck.proofs.trial import Trial, argument_of, at_guard, is_class, leaves_kinds_open, phrases
from weft.typecheck.proofs.variations import Results, is_inert, vary_parts, vary_together, with_option


@dataclass(frozen=True)
class Outcome:
    """The result of a search.

    Attributes:
        passed: the trials that held.
        failed: the first trial of each failure that no needs explain.
        needs: the needs under which the passed trials hold.
        notes: further conditions of the program, in words ("mask is given").
        doubtful: the trials that fail for one concrete class of an abstract class, and by no guard of that class.
        ended: the reason if the search ended before it had decided.
        answers: the outcome of the questions that the program asks of its sizes.
        in_pairs: whether options were tried alone and in pairs, and not in all combinations.
        evidence: what trials have shown that no needs explain.
    """

    passed: tuple[Trial, ...]
    failed: tuple[Trial, ...]
    needs: Needs
    notes: tuple[str, ...] = ()
    ended: Exhausted | None = None
    doubtful: tuple[Trial, ...] = ()
    answers: QuestionResults = field(default_factory=QuestionResults)
    in_pairs: bool = False
    evidence: Evidence = field(default_factory=Evidence)

    @property
    def pending(self) -> Trial | None:
        """The failing trial that was being explained when the search ended before it had decided."""
        return None if self.ended is None else self.ended.pending


# How often options are varied anew, as the program has asked for further ones.
_MOST_ROUNDS = 3


def _is_about_texts(trial: Trial) -> bool:
    """Whether a failure is about a text that the trial made up, which no sizes mend."""
    looked_up = isinstance(trial.error, KeyError | AttributeError | ImportError | OSError | NameError)
    named = any(text in str(trial.error) for text in trial.unsaid.texts.values())
    # A text that the program compares with something has other values to try.
    made_up = all(len(trial.options.given[place].tried) == 1 for place in trial.unsaid.texts)
    return bool(trial.unsaid.texts) and made_up and (looked_up or named) and not trial.violations


def begin(trials: Trials) -> tuple[Trial, Needs, Evidence]:
    """The first trial that holds, with its needs; a failing trial, if none is found within the budget.

    Raises:
        Unbuildable: if the arguments cannot be built.
    """
    base, results, started = trials.attempt(Assignment()), Results(), None
    if not base.ok and not isinstance(base.error, AnnotationError):
        with contextlib.suppress(Exhausted):
            started = _started(trials, results, base)
    if started is None:
        return base, Needs(), results.evidence
    return trials.with_needs(*started, ascending), started[1], results.evidence


def search(trials: Trials) -> Outcome:
    """Searches for needs, options and sizes under which a target holds, and for a failure that nothing explains.

    Raises:
        Unbuildable: if the arguments cannot be built.
    """
    ended, results, answers = None, Results(), QuestionResults()
    try:
        _decide(trials, results, answers)
    except Exhausted as exhausted:
        ended = exhausted
    trials.free()
    return Outcome(
        passed=tuple(trial for trial in results.passed if trial.ok),
        failed=tuple(results.failed),
        needs=results.needs,
        notes=tuple(dict.fromkeys(results.notes)),
        ended=ended,
        doubtful=tuple(results.doubtful),
        answers=answers,
        in_pairs=results.in_pairs,
        evidence=results.evidence,
    )


def _decide(trials: Trials, results: Results, answers: QuestionResults) -> None:
    """Finds a trial that holds, with its needs; then varies options, classes and numbers of axes, and asks questions.

    A program that holds without needs is tried at the first deal, as both answers to its questions cover other sizes.
    """
    base = trials.attempt(Assignment())
    if isinstance(base.error, AnnotationError) or (not base.ok and _is_about_texts(base)):
        results.failed.append(base)
        return
    started = (base, Needs()) if base.ok else _started(trials, results, base)
    # Needs were found at a single deal, at which an order or a divisor may hold by chance; so every deal is tried.
    if started is None or not _dealt(trials, results, *started, DEALS[: 1 if base.ok else None]):
        return
    _listen(trials, results)
    for _ in range(_MOST_ROUNDS):
        known = _values_to_try(trials)
        for vary in (vary_parts, vary_together):
            if not results.failed:
                vary(trials, results)
        results.passed = list({id(trial): trial for trial in results.passed}.values())
        # Needs of axes that no passed trial has would be told of sizes that a reader does not see.
        if results.passed:
            results.needs = results.needs.about({key for trial in results.passed for key in trial.assignment.sizes})
        if not results.failed:
            answer(trials, results, answers)
        # With another option, or at other sizes, a program may have asked a value for something new.
        if results.failed or _values_to_try(trials) == known:
            break
    # Each round has found further values to try, so some are left.
    else:
        for values in trials.target.asked.values():
            values.is_open = True
    # Of some keys only particular sizes were tried, so the other deals are tried as well.
    if answers.sampled and not results.failed:
        _dealt(trials, results, results.passed[0], results.needs, DEALS[1:])


def _listen(trials: Trials, results: Results) -> None:
    """Traces a trial over symbolic sizes, if it has numbers that are no sizes: only there these note questions."""
    base = results.passed[0]
    if any(not isinstance(values.tried[-1], str) for values in base.options.given.values()):
        written = written_under(results.needs, base.assignment.sizes, set(trials.dims))
        trials.followed(base, written, written.numbers)


def _values_to_try(trials: Trials) -> int:
    """How many values there are to try, of all parameters, with those that new comparisons have added."""
    return sum(len(values.extend()) for values in trials.target.asked.values())


def _started(trials: Trials, results: Results, base: Trial) -> tuple[Trial, Needs] | None:
    """The options and needs under which a failing trial holds; None, with the failure noted, if there are none.

    The ways that assume least are tried first. Other options come with their needs, and then needs with the usual
    options. Other kinds of values follow, for the trial that got furthest. Needs behind a guard that a trial has
    passed are next. Records that do not share dims are the last way.
    """
    with pending(base):
        first = base
        varied, evidence = with_options_in_rounds(trials, base)
        results.heed(evidence)
        needs = Needs() if varied.ok else results.needs_of(explain(trials, varied, Needs(), ascending))
        if needs is not None:
            usual = None
            if varied is not base and needs != Needs():  # the usual options may hold under these needs, too
                with contextlib.suppress(Unbuildable):
                    usual = trials.with_needs(base, needs, ascending)
            base = usual if usual is not None and usual.ok else varied
            _choose(trials, results, base, needs)
        elif varied is not base:
            needs = results.needs_of(explain(trials, base, Needs(), ascending))
        furthest = results.evidence.furthest
        if needs is None and furthest is not None and leaves_kinds_open(furthest):
            further, evidence = with_other_options(trials, furthest)
            results.heed(evidence)
            if further.ok:
                needs = Needs()
            elif further.progress > furthest.progress:
                # Arrays that have to hold integers may need other shapes as well.
                needs = results.needs_of(explain(trials, further, Needs(), ascending))
            if needs is not None:
                base = further
                _choose(trials, results, base, needs)
        if needs is None and results.evidence.past_guard is not None:
            # Joined sizes pass many a guard, and a later failure may come from the joining: this trial joins none.
            base, known = results.evidence.past_guard
            needs = results.needs_of(explain(trials, base, known, ascending))
            if needs is None and base.error is None:
                results.evidence = dataclasses.replace(results.evidence, furthest=base)
        if needs is None:
            needs = results.needs_of(explain_with_names_per_record(trials, base))
    if needs is not None:
        return base, needs
    # Where other options only move the error elsewhere, the failure is told for the usual options.
    nearest = varied if base is first and varied.progress > first.progress else base
    blamed = _blamed(results.evidence, nearest)
    results.failed.append(blamed)
    results.needs = Needs(merged=tuple(blamed.assignment.merged.items()))
    return None


def _blamed(evidence: Evidence, nearest: Trial) -> Trial:
    """The failing trial to report, of those that no needs explain.

    If needs got a trial further before it failed, that trial is reported: its error is one that no need mends.
    """
    further = evidence.furthest
    # But a trial with joined sizes, or with records that do not share dims, is no trial of what annotations say,
    # unless what fails there is about other sizes: then a right program has to join these as well.
    joined = False
    if further is not None and further.joins_dims:
        merged = {*further.assignment.merged, *further.assignment.merged.values()}
        is_later = further.progress > nearest.progress and further.place != nearest.place
        joined = not is_later or not merged.isdisjoint(further.spoken_of)
    blamed = nearest if further is None or joined or further.assignment.names_per_record else further
    if blamed.error is not None and not blamed.guard and evidence.ran_through is not None:
        return evidence.ran_through  # the program ran to its end, and only its result is wrong
    return blamed


def _dealt(trials: Trials, results: Results, base: Trial, needs: Needs, deals: Iterable[Deal]) -> bool:
    """Tries every deal of sizes, and adds needs where a deal fails; whether the trial then holds at all of them."""
    results.needs = needs
    for deal in deals:
        trial = trials.with_needs(base, needs, deal)
        if not trial.ok:
            more = results.needs_of(explain(trials, trial, needs, deal))
            if more is None:
                results.failed.append(trial)
                return False
            needs = more
            # The first trial may have ended at a guard of a constructor, before it met the sizes behind it.
            sizes = {**trial.assignment.sizes, **base.assignment.sizes}
            base = dataclasses.replace(base, assignment=dataclasses.replace(base.assignment, sizes=sizes))
            trial = trials.with_needs(base, needs, deal)
            if not trial.ok:  # the needs suffice at the sizes at which they were found, and not at these
                results.failed.append(trial)
                return False
        results.passed.append(trial)
        results.needs = needs
    return True


def _choose(trials: Trials, results: Results, base: Trial, needs: Needs) -> None:
    """Notes the conditions on options, in words, of a trial that holds with other options than the usual ones."""
    results.needs = needs
    chosen = {place: option for place, option in base.assignment.options.items() if option and not is_class(place)}
    only = next(iter(chosen), "") if len(chosen) == 1 else ""
    excluded = _not_both(trials, results, base, only) if only.endswith(_LEFT_OUT) else None
    if excluded is not None:
        results.notes.append(excluded)
        return
    # An option of several values was tried in order, and the first that held was taken; the rest is varied later.
    several = {place for place in chosen if place in base.options.values and base.options.counts.get(place, 0) > 2}
    results.settled |= chosen.keys() - several
    words = {place: phrases(base.options, place, 0 if place in several else chosen[place]) for place in chosen}
    results.notes += [phrase.excluded if place in several else phrase.needed for place, phrase in words.items()]


def _not_both(trials: Trials, results: Results, base: Trial, omitted: str) -> str | None:
    """Says that two arguments exclude each other, if a trial holds only with one of them left out; else None.

    Example: "exactly one of mean and points is given".
    """

    def fails(*supplied: str) -> Trial | None:
        """The trial with only these of the two arguments given, if it fails."""
        options = {place: int(place not in supplied) for place in (omitted, included)}
        trial = with_option(trials, results, base, options)[0]
        return None if trial.ok else trial

    for included in base.options.counts:
        if included == omitted or not included.endswith(_LEFT_OUT) or is_inert(trials, base, {omitted: 0}, included):
            continue
        both = fails(omitted, included)
        if both is None or fails(omitted):
            continue
        results.settled |= {omitted, included}
        results.alternatives.append(with_option(trials, results, base, {omitted: 0, included: 1})[0])
        names = " and ".join(argument_of(place) for place in base.options.counts if place in (omitted, included))
        return (f"exactly one of {names} is given" if fails() else f"{names} are not both given") + at_guard(both)
    return None


# The endings of places where an argument may be left out, or be None.
_LEFT_OUT = (" given", " present")
