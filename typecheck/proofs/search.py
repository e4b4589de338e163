"""The search of a proof: several assignments of sizes, and, where one fails, what would have made it hold.

A failure is a fault of the program unless a *need* explains it: a divisor, an order, a size fixed from outside, dims of
two records that the program joins. Dims of one scope are never joined: that the code forces two names to be one size is
exactly what a contract forbids. Needs are tried one by one; one that lets the trace get further is kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.typecheck.arguments.builder import Assignment, Unbuildable
from weft.typecheck.errors import AnnotationError
from weft.typecheck.proofs.budget import Budget, Exhausted, Meter
from weft.typecheck.proofs.needs import DEALS, Deal, Needs, ascending, assignment_for
from weft.typecheck.proofs.rules import candidates
from weft.typecheck.proofs.trial import Target, Trial, run_trial

_DEPTH = 24


@dataclass(frozen=True)
class Outcome:
    """What the search found.

    Attributes:
        passed: the trials that held.
        failed: the first trial of each failure that nothing explains.
        needs: what the passed ones need.
        notes: other things that the program asks for, in words ("mask is given").
        ended: what ended the search before it had decided, if something did.
        pending: the failure that it was looking for an explanation of when it ended.
    """

    passed: tuple[Trial, ...]
    failed: tuple[Trial, ...]
    needs: Needs
    notes: tuple[str, ...] = ()
    ended: str = ""
    pending: Trial | None = None


def _key(assignment: Assignment) -> tuple[object, ...]:
    return tuple(tuple(sorted(one.items())) if isinstance(one, Mapping) else one for one in vars(assignment).values())


class Search:
    """Trials of one target within a budget; equal trials are run, and paid for, once.

    Attributes:
        furthest: the trial that got furthest of those that nothing explained.
        passed, failed, needs, notes: what was found so far; see `Outcome`.
        pending: the failure that an explanation is being looked for.
    """

    def __init__(self, target: Target, dims: Mapping[str, Any], budget: Budget):
        self.target, self.dims = target, dims
        self.furthest: Trial | None = None
        self.passed: list[Trial] = []
        self.failed: list[Trial] = []
        self.notes: list[str] = []
        self.needs = Needs()
        self.pending: Trial | None = None
        # None once the search has ended: what comes then (smaller sizes of what failed, lints) is little, and a verdict
        # that stands must not fall with it.
        self._meter: Meter | None = Meter(budget)
        self._known: dict[Any, Trial] = {}

    def attempt(self, assignment: Assignment) -> Trial:
        """The trial of an assignment.

        Raises:
            Exhausted: if it would be a new one, and the budget has no more.
        """
        key = _key(assignment)
        if key not in self._known:
            if self._meter is not None:
                self._meter.spend()
            trial = run_trial(self.target, assignment, self.dims)
            self._known[key] = self._known[_key(trial.assignment)] = trial
        return self._known[key]

    def with_needs(self, trial: Trial, needs: Needs, deal: Deal) -> Trial:
        """A trial like another, with sizes dealt under some needs."""
        return self.attempt(assignment_for(trial.assignment.sizes, needs, deal, trial.assignment))

    def run(self) -> Outcome:
        """The whole search, once.

        Raises:
            Unbuildable: if the arguments cannot be built.
        """
        ended = ""
        try:
            self._decide()
        except Exhausted as exhausted:
            ended = str(exhausted)
        self._meter = None
        passed, notes = (one for one in self.passed if one.ok), dict.fromkeys(self.notes)
        return Outcome(tuple(passed), tuple(self.failed), self.needs, tuple(notes), ended, self.pending)

    def _decide(self) -> None:
        """Looks for needs under which every deal of sizes holds, then varies what else may vary."""
        base = self.attempt(Assignment())
        if isinstance(base.error, AnnotationError):
            self.failed.append(base)
            return
        if not base.ok:
            self.pending = base
            needs = self.explain(base, Needs(), ascending)
            if needs is None:
                needs = self.explain_apart(base)
            if needs is None:
                # What fails once the other needs are met says more than what fails without them.
                further = self.furthest
                blamed = base if further is None or further.assignment.merged or further.assignment.apart else further
                self.failed.append(blamed)
                return
            self.needs, self.pending = needs, None
        for deal in DEALS:
            trial = self.with_needs(base, self.needs, deal)
            if not trial.ok:
                needs = self.explain(trial, self.needs, deal)
                if needs is None:
                    self.failed.append(trial)
                    return
                self.needs = needs
                trial = self.with_needs(base, self.needs, deal)
            self.passed.append(trial)
        for vary in (self._options, self._ranks, self._ones):
            if not self.failed:
                self.needs = vary(self.passed, self.failed, self.notes, self.needs)

    def explain(self, trial: Trial, needs: Needs, deal: Deal) -> Needs | None:
        """The needs under which a failing trial holds, or None where no need that is known of explains it."""
        outer, self.pending = self.pending, trial
        found = self._explained(trial, needs, deal)
        self.pending = outer  # left as it is where the budget ends the search
        return found

    def _explained(self, trial: Trial, needs: Needs, deal: Deal) -> Needs | None:
        complaints = {trial.complaint}
        first = trial
        for _ in range(_DEPTH):
            joined: tuple[Trial, Needs] | None = None
            sideways: tuple[Trial, Needs] | None = None
            best: tuple[Trial, Needs] | None = None
            for candidate in candidates(trial, needs, self.target.constants):
                try:
                    found = self.with_needs(trial, candidate, deal)
                except Unbuildable:
                    continue
                if found.ok:
                    return self.weaken(trial, candidate, deal, first)
                merges = len(candidate.merged) > len(needs.merged)
                if (
                    merges
                    and joined is None
                    and found.progress >= trial.progress
                    and found.spoken_of != trial.spoken_of
                ):
                    joined = found, candidate  # the sizes that disagreed are one now, and it went on to something else
                if found.progress > (trial if best is None else best[0]).progress:
                    best = found, candidate
                if sideways is None and found.progress == trial.progress and found.complaint not in complaints:
                    sideways = found, candidate  # on one line, a library may have gone on to its next demand
            best = best or joined or sideways
            if best is None:
                self.furthest = trial if self.furthest is None else max(self.furthest, trial, key=lambda t: t.progress)
                return None
            trial, needs = best
            complaints.add(trial.complaint)
        return None

    def weaken(self, trial: Trial, needs: Needs, deal: Deal, first: Trial) -> Needs:
        """Needs that suffice: divisors that nothing needed are dropped, numbers made smaller, equal made no larger."""
        for one, other in needs.merged:
            apart = dataclasses.replace(needs, merged=tuple(pair for pair in needs.merged if pair != (one, other)))
            for order in ((one, other, 1), (other, one, 1)):
                candidate = apart.plus(order=order)
                # Of the first trial, in which the two still have sizes of their own.
                if all(self.with_needs(first, candidate, each).ok for each in (deal, *DEALS)):
                    needs = candidate
                    break
        for entry in needs.order if len(needs.order) > 1 else ():
            candidate = dataclasses.replace(needs, order=tuple(one for one in needs.order if one != entry))
            if all(self.with_needs(first, candidate, each).ok for each in (deal, *DEALS)):
                needs = candidate
        for entry in needs.multiples:
            key, number = entry
            others = tuple(one for one in needs.multiples if one != entry)
            numbers = range(2, number) if isinstance(number, int) else ()
            smaller = [((key, one),) for one in numbers if int(number) % one == 0]
            for weaker in ((), *smaller):
                candidate = dataclasses.replace(needs, multiples=others + weaker)
                if self.with_needs(trial, candidate, deal).ok:
                    needs = candidate
                    break
        return needs

    def explain_apart(self, base: Trial) -> Needs | None:
        """The same with records that keep their names to themselves, if what fails is about a name of several."""
        spoken_of = base.spoken_of or tuple(base.scopes)
        if all(len(base.scopes.get(key, ())) < 2 for key in spoken_of):
            return None
        needs = Needs(apart=True)
        trial = self.attempt(Assignment(ranks=base.assignment.ranks, options=base.assignment.options, apart=True))
        return needs if trial.ok else self.explain(trial, needs, ascending)

    def shrink(self, trial: Trial, needs: Needs) -> Trial:
        """The same failure at the smallest sizes that show it."""
        for key in trial.assignment.sizes:
            for size in (1, 2, 3, 4):
                sizes = {**trial.assignment.sizes, key: size}
                if key in self.dims or size >= trial.assignment.sizes[key] or not needs.allows(sizes):
                    continue
                try:
                    smaller = self.attempt(dataclasses.replace(trial.assignment, sizes=sizes))
                except Unbuildable:
                    continue
                if not smaller.ok and smaller.place == trial.place:
                    trial = smaller
                    break
        return trial

    def _options(self, passed: list[Trial], failed: list[Trial], notes: list[str], needs: Needs) -> Needs:
        """Each option taken once, all else as in a trial that held."""
        base = passed[0]
        seen: set[str] = set()
        queue = [base]
        while queue:
            current = queue.pop(0)
            for place, count in current.options.items():
                if place in seen:
                    continue
                seen.add(place)
                for option in range(1, count):
                    trial, further = self._option(current, {place: option}, needs)
                    if trial.ok:
                        passed.append(trial)
                        needs = further
                        queue.append(trial)  # options that only turn up behind this one
                    elif (
                        trial.raised_by_user or place.endswith(" length") or self._helped(current, place, option, needs)
                    ):
                        notes.append(without_option(place, option))
                    else:
                        failed.append(trial)
        return needs

    def _option(self, base: Trial, options: Mapping[str, int], needs: Needs) -> tuple[Trial, Needs]:
        assignment = dataclasses.replace(base.assignment, options={**base.assignment.options, **options})
        trial = self.attempt(assignment)
        if trial.ok:
            return trial, needs
        keys = list(trial.assignment.sizes)
        fresh = self.attempt(assignment_for(keys, needs, ascending, trial.assignment))
        if fresh.ok:
            return fresh, needs
        further = self.explain(fresh, needs, ascending)
        if further is None:
            return fresh, needs
        return self.with_needs(fresh, further, ascending), further

    def _helped(self, base: Trial, place: str, option: int, needs: Needs) -> bool:
        """Whether an option that fails alone holds beside another one."""
        for other, count in base.options.items():
            for taken in range(1, count):
                if other != place and self._option(base, {place: option, other: taken}, needs)[0].ok:
                    return True
        return False

    def _ranks(self, passed: list[Trial], failed: list[Trial], notes: list[str], needs: Needs) -> Needs:
        """Other numbers of axes for each variadic name."""
        base = passed[0]
        for key, (rank, anonymous) in base.ranks.items():
            for other in (0, 2, 1):
                if other == rank or any(one == key for one, _ in needs.ranks):
                    continue
                try:
                    trial = self.attempt(
                        dataclasses.replace(base.assignment, ranks={**base.assignment.ranks, key: other})
                    )
                except Unbuildable:
                    continue
                if trial.ok:
                    passed.append(trial)
                elif anonymous or trial.raised_by_user or (other == 0 and trial.error is not None):
                    notes.append(f"{'`...`' if anonymous else '*' + key} is not of {other} axes")
                else:
                    failed.append(trial)
        return needs

    def _ones(self, passed: list[Trial], failed: list[Trial], notes: list[str], needs: Needs) -> Needs:
        """Each size 1, where the program takes that."""
        base = passed[0]
        for key in base.assignment.sizes:
            sizes = {**base.assignment.sizes, key: 1}
            if key in self.dims or not needs.allows(sizes):
                continue
            try:
                trial = self.attempt(dataclasses.replace(base.assignment, sizes=sizes))
            except Unbuildable:
                continue
            if trial.ok:
                passed.append(trial)
            elif trial.violations and min(trial.violations[0].sizes, default=0) >= 0 and self._is_of_one(base, key):
                failed.append(trial)
            else:  # it raises, or the annotation itself (`h-2`) makes no sense there, or it needs some more
                needs = needs.plus(least=(key, 2))
        return needs

    def _is_of_one(self, base: Trial, key: str) -> bool:
        """Whether what fails at size 1 is a matter of 1, as a squeezed axis is, and not of small sizes."""
        return self.attempt(dataclasses.replace(base.assignment, sizes={**base.assignment.sizes, key: 2})).ok


def describe_option(place: str, option: int) -> str:
    """An option as a reader knows it: `mask given` is taken or not."""
    name, _, what = place.rpartition(" ")
    if what == "given" and name:
        return f"{name} left out"
    if what == "present" and name:
        return f"{name} is None"
    if what == "broadcast" and name:
        return f"{name} of size 1"
    if what == "length" and name:
        return f"{name} of {(2, 1, 3)[option]} items"
    return f"{place} as option {option + 1}"


def without_option(place: str, option: int) -> str:
    """That an option is not taken, as the end of "holds when ..."."""
    name, _, what = place.rpartition(" ")
    if what == "given" and name:
        return f"{name} is given"
    if what == "present" and name:
        return f"{name} is not None"
    if what == "length" and name:
        return f"{name} has not {(2, 1, 3)[option]} items"
    return f"it is not {describe_option(place, option)}"
