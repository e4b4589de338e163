"""Steps of the search for needs: which failing trial it goes on from, and how it weakens needs that suffice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from weft.typecheck.arguments.builder import Assignment
from weft.typecheck.proofs.beyond import needs_numbers
from weft.typecheck.proofs.needs import DEALS, Deal, Needs
from weft.typecheck.proofs.trial import Trial
from weft.typecheck.sizes.clauses import Answer
from weft.typecheck.sizes.deciding import Question

# Multiples of multiples: no program needs them, and a loop over such an axis would be written out.
_LARGEST = 1 << 20


def is_out_of_hand(assignment: Assignment) -> bool:
    return any(isinstance(size, int) and size > _LARGEST for size in assignment.sizes.values())


class Step:
    """Chooses which failing trial, of those with one more need, the search goes on from.

    Where a failure needs several things, each of them gets the program further, so the trial that got furthest is
    preferred. A trial that fails on the same line with other sizes or another message is the next best: within one call
    a library checks one thing after the other.

    Attributes:
        best: the trial that got furthest, if a trial got further than without its need.
        joined: the first trial that joins the sizes that disagreed, and fails with other sizes.
        elsewhere: the first trial that gets as far as before, and fails with a message that is new.
        asked_last: the last questions of the failing trial, with their answers.
        by_question: the need that was last read off a question.
        asked: the first trial that gives a guard's last question the other answer, and fails at the same guard.
    """

    def __init__(self, trial: Trial, needs: Needs, complaints: set[str]):
        self.trial, self.needs, self.complaints = trial, needs, complaints
        self.best: tuple[Trial, Needs] | None = None
        self.joined: tuple[Trial, Needs] | None = None
        self.elsewhere: tuple[Trial, Needs] | None = None
        self.by_question: Needs | None = None
        self.asked_last: tuple[Answer, ...] = ()
        self.asked: tuple[Trial, Needs] | None = None

    def see(self, result: Trial, candidate: Needs) -> None:
        """Compares a failing trial with the best ones so far."""
        trial = self.trial
        merges = len(candidate.merged) > len(self.needs.merged)
        if merges and self.joined is None and result.progress >= trial.progress and result.spoken_of != trial.spoken_of:
            self.joined = result, candidate
        # With arrays of one shape a line may get as far as needing their numbers, where every trial ends.
        ends = candidate.of_one_shape and needs_numbers(result)
        reached = (trial if self.best is None else self.best[0]).progress
        if result.progress > reached or (ends and result.progress == reached):
            self.best = result, candidate
        # A guard that asks two things of sizes (`n != m or n != k`) is met again once the first is so.
        if self.asked is None and candidate is self.by_question and trial.guard and result.guard == trial.guard:
            self.asked = result, candidate
        if self.elsewhere is None and result.progress == trial.progress and result.complaint not in self.complaints:
            self.elsewhere = result, candidate

    @property
    def chosen(self) -> tuple[Trial, Needs] | None:
        return self.best or self.joined or self.elsewhere or self.asked


def as_tried(candidate: Needs, needs: Needs, pinned: frozenset[str], denied: Sequence[Question]) -> Needs:
    """The candidate with each new equation `n = 4` restated as "n was tried at 4", where other numbers may do as well.

    Example: `side = int(n**0.5)` makes `side * side = n` a comparison with a number, which says nothing of other sizes.

    Args:
        candidate: the needs with one more.
        needs: the needs before.
        pinned: keys whose numbers the program read.
        denied: equations that the program itself asked, and that did not hold. Where it went another way for `n = 1`, a
            failure that `n = 2` mends says nothing of `n = 1`.
    """

    def is_tried(key: str, number: int) -> bool:
        return key in pinned or any(one.dims == {key} and not one.answer({key: number}) for one in denied)

    new = [entry for entry in candidate.equal if entry not in needs.equal and is_tried(*entry)]
    if not new:
        return candidate
    tried = tuple((key, (number,)) for key, number in new)
    return dataclasses.replace(candidate, equal=needs.equal, among=(*candidate.among, *tried))


# Whether a trial holds at sizes that a deal chooses so that they meet needs.
Holds = Callable[[Trial, Needs, Deal], bool]


def weakened(holds: Holds, trial: Trial, needs: Needs, deal: Deal, first: Trial) -> Needs:
    """Weaker needs that suffice: with fewer conditions, smaller divisors, or orders in place of equations."""
    for key, root in needs.merged:
        if root not in trial.assignment.sizes:
            continue  # a need of shapes also joins axes that the arrays of this trial do not have
        unjoined = needs.without(merged=(key, root))
        weaker = [unjoined.plus(order=pair) for pair in ((key, root, 1), (root, key, 1))]
        weaker += [unjoined.plus(multiples=pair) for pair in ((key, root), (root, key))]
        for candidate in weaker:
            # The first trial is tried, since it has sizes of its own for both keys.
            if all(holds(first, candidate, each) for each in (deal, *DEALS)):
                needs = candidate
                break
    for entry in needs.order if len(needs.order) > 1 else ():
        candidate = needs.without(order=entry)
        if all(holds(first, candidate, each) for each in (deal, *DEALS)):
            needs = candidate
    for key, number in needs.multiples:
        others = needs.without(multiples=(key, number))
        numbers = [n for n in range(2, number) if number % n == 0] if isinstance(number, int) else []
        for candidate in (others, *(others.plus(multiples=(key, divisor)) for divisor in numbers)):
            if holds(trial, candidate, deal):
                needs = candidate
                break
    return needs
