"""The search of a proof: several assignments of sizes, and, where one fails, what would have made it hold.

First a trial that holds is looked for, by needs (`explaining`) and by options taken otherwise; then all else is varied
(`variations`); at last each question that the program asks of its sizes is answered both ways (`questions`).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.typecheck.arguments.builder import Assignment, Unbuildable
from weft.typecheck.errors import AnnotationError
from weft.typecheck.proofs.budget import Budget, Exhausted
from weft.typecheck.proofs.explaining import Explainer
from weft.typecheck.proofs.needs import DEALS, Deal, Needs, ascending
from weft.typecheck.proofs.options import (
    argument_of,
    at_guard,
    is_class,
    leaves_kinds_open,
    taken_option,
    without_option,
)
from weft.typecheck.proofs.pairs import vary_pairs
from weft.typecheck.proofs.questions import Answers, answer
from weft.typecheck.proofs.ranks import vary_ranks
from weft.typecheck.proofs.trial import Target, Trial
from weft.typecheck.proofs.variations import (
    Found,
    is_inert,
    vary_classes,
    vary_options,
    with_option,
)


@dataclass(frozen=True)
class Outcome:
    """What the search found.

    Attributes:
        passed: the trials that held.
        failed: the first trial of each failure that nothing explains.
        needs: what the passed ones need.
        notes: other things that the program asks for, in words ("mask is given").
        doubtful: the trials that fail for a class that may stand for an abstract one, and by no choice of that class.
        ended: what ended the search before it had decided, if something did.
        pending: the failure that it was looking for an explanation of when it ended.
        answers: what is known of the questions that the program asks of its sizes.
    """

    passed: tuple[Trial, ...]
    failed: tuple[Trial, ...]
    needs: Needs
    notes: tuple[str, ...] = ()
    ended: Exhausted | None = None
    pending: Trial | None = None
    doubtful: tuple[Trial, ...] = ()
    answers: Answers = field(default_factory=Answers)


def _is_about_texts(trial: Trial) -> bool:
    """Whether a failure is about a text that was made up, which no sizes would mend."""
    looked_up = isinstance(trial.error, KeyError | AttributeError | ImportError | OSError | NameError)
    named = any(text in str(trial.error) for text in trial.texts.values())
    return bool(trial.texts) and (looked_up or named) and not trial.violations


class Search(Explainer):
    """The search for one target.

    Attributes:
        found: what was found so far.
    """

    def __init__(self, target: Target, dims: Mapping[str, Any], budget: Budget):
        super().__init__(target, dims, budget)
        self.found = Found()
        self.answers = Answers()

    def begin(self) -> tuple[Trial, Needs]:
        """The first trial that holds, with what it needs; one that fails, if nothing is found within the budget.

        Raises:
            Unbuildable: if the arguments cannot be built.
        """
        base, started = self.attempt(Assignment()), None
        if not base.ok and not isinstance(base.error, AnnotationError):
            with contextlib.suppress(Exhausted):
                started = self._started(base)
        return (base, Needs()) if started is None else (self.with_needs(*started, ascending), started[1])

    def run(self) -> Outcome:
        """The whole search, once.

        Raises:
            Unbuildable: if the arguments cannot be built.
        """
        ended, found = None, self.found
        try:
            self._decide()
        except Exhausted as exhausted:
            ended = exhausted
        self._meter = None
        passed, notes = (one for one in found.passed if one.ok), dict.fromkeys(found.notes)
        lists = tuple(passed), tuple(found.failed), found.needs, tuple(notes)
        return Outcome(*lists, ended, self.pending, tuple(found.doubtful), self.answers)

    def _decide(self) -> None:
        """Looks for needs under which every deal of sizes holds, then varies what else may vary."""
        base = self.attempt(Assignment())
        if isinstance(base.error, AnnotationError):
            self.found.failed.append(base)
            return
        if not base.ok and _is_about_texts(base):
            self.found.failed.append(base)
            return
        started = (base, Needs()) if base.ok else self._started(base)
        # Needs are found at a few sizes, of which some may be one by chance.
        if started is None or not self._dealt(*started, DEALS[: 1 if base.ok else None]):
            return
        found = self.found
        for vary in (vary_classes, vary_options, vary_ranks, vary_pairs):
            if not found.failed:
                vary(self, found)
        if found.passed:
            found.needs = found.needs.about({key for trial in found.passed for key in trial.assignment.sizes})
        if not found.failed:
            self.answers = answer(self, found)
            if self.answers.sampled and not found.failed:
                self._dealt(found.passed[0], found.needs, DEALS[1:])

    def _started(self, base: Trial) -> tuple[Trial, Needs] | None:
        """Options and needs under which a failing trial holds; None, and the failure noted, if there are none.

        In the order of how much is taken for granted: other options and what they need; needs with the usual options;
        other kinds of values for what got furthest; what lies behind a guard that was passed; names that records keep
        to themselves; records that something else than their class has made.
        """
        self.pending = first = base
        other = self.otherwise(base)
        needs = Needs() if other.ok else self.explain(other, Needs(), ascending)
        if needs is not None:
            base = self._as_usual(base, other, needs)
            self.found.notes += self._chosen(base, needs)
        elif other is not base:
            needs = self.explain(base, Needs(), ascending)
        if needs is None and self.furthest is not None and leaves_kinds_open(self.furthest):
            further = self.with_other_options(self.furthest)
            if further.ok:
                needs = Needs()
            elif further.progress > self.furthest.progress:
                # Arrays that have to be of integers may have to be of other shapes as well.
                needs = self.explain(further, Needs(), ascending)
            if needs is not None:
                base = further
                self.found.notes += self._chosen(base, needs)
        if needs is None and self.beyond is not None:
            # Sizes that are joined pass many a guard, and what fails then may fail because they are one.
            base, needs = self.beyond[0], self.explain(*self.beyond, ascending)
            if needs is None and base.error is None:
                self.furthest = base
        if needs is None:
            needs = self.explain_apart(base)
        if needs is None and (made := self.made_otherwise(first)) is not None:
            base, needs = made
            self.found.notes += self._chosen(base, needs)
        if needs is None:
            # Options that only move the error elsewhere get no further than the usual ones.
            nearest = other if base is first and other.progress > first.progress else base
            self.found.failed.append(self._blamed(nearest))
            return None
        self.pending = None
        return base, needs

    def _blamed(self, nearest: Trial) -> Trial:
        """The failure that is told, of those that nothing explains: what fails once other needs are met says more."""
        further = self.furthest
        # But sizes that were joined, and names that records keep to themselves, are not what the annotations say.
        blamed = nearest if further is None or further.joins_dims or further.assignment.apart else further
        if blamed.error is not None and not blamed.guard and self.at_end is not None:
            return self.at_end  # all that is wrong then is wrong with the result, whatever the shapes
        return blamed

    def _as_usual(self, base: Trial, other: Trial, needs: Needs) -> Trial:
        """The trial with the usual options, if what another one needs is enough for that, too."""
        if other is not base and needs != Needs():
            with contextlib.suppress(Unbuildable):
                usual = self.with_needs(base, needs, ascending)
                return usual if usual.ok else other
        return other

    def _dealt(self, base: Trial, needs: Needs, deals: Iterable[Deal]) -> bool:
        """Whether it holds however sizes are dealt, under these needs or more."""
        self.found.needs = needs
        for deal in deals:
            trial = self.with_needs(base, needs, deal)
            if not trial.ok:
                more = self.explain(trial, needs, deal)
                if more is None:
                    self.found.failed.append(trial)
                    return False
                needs = more
                # Behind a guard of a constructor there are sizes that the first trial never met.
                sizes = {**trial.assignment.sizes, **base.assignment.sizes}
                base = dataclasses.replace(base, assignment=dataclasses.replace(base.assignment, sizes=sizes))
                trial = self.with_needs(base, needs, deal)
                if not trial.ok:  # the condition holds at some sizes, and these are not among them
                    self.found.failed.append(trial)
                    return False
            self.found.passed.append(trial)
            self.found.needs = needs
        return True

    def _chosen(self, base: Trial, needs: Needs) -> list[str]:
        """What the options of a trial that holds say, where the usual ones do not hold."""
        taken = {place: option for place, option in base.assignment.options.items() if option and not is_class(place)}
        only = next(iter(taken), "") if len(taken) == 1 else ""
        excluded = self._not_both(base, only, needs) if only.endswith(_LEFT_OUT) else None
        if excluded is not None:
            return [excluded]
        # Of several values the others are varied like those of any option: what was taken was only the first to hold.
        several = {place for place in taken if place in base.values and base.options.get(place, 0) > 2}
        self.found.settled |= taken.keys() - several
        return [
            without_option(base, place, 0) if place in several else taken_option(base, place, option)
            for place, option in taken.items()
        ]

    def _not_both(self, base: Trial, one: str, needs: Needs) -> str | None:
        """That an argument, which is left out in a trial that holds, is not given beside another one, if that is so."""

        def fails(*given: str) -> Trial | None:
            """With only these of the two given."""
            trial = with_option(self, base, {place: int(place not in given) for place in (one, other)}, needs)[0]
            return None if trial.ok else trial

        for other in base.options:
            if other == one or not other.endswith(_LEFT_OUT) or is_inert(self, base, {one: 0}, other):
                continue
            both = fails(one, other)
            if both is None or fails(one):
                continue
            self.found.settled |= {one, other}
            self.found.beside.append(with_option(self, base, {one: 0, other: 1}, needs)[0])
            names = " and ".join(argument_of(place) for place in base.options if place in (one, other))
            return (f"exactly one of {names} is given" if fails() else f"{names} are not both given") + at_guard(both)
        return None


# Places of arguments that may be left out, or be None.
_LEFT_OUT = (" given", " present")
