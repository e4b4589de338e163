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
from weft.typecheck.proofs.conditions import confirmed
from weft.typecheck.proofs.needs import DEALS, Deal, Needs, ascending, assignment_for
from weft.typecheck.proofs.options import (
    argument_of,
    at_guard,
    describe_option,
    difference,
    leaves_kinds_open,
    taken_option,
    without_option,
)
from weft.typecheck.proofs.rules import candidates
from weft.typecheck.proofs.trial import Target, Trial, run_trial

_DEPTH = 24

# How many pairs of options are tried.
_PAIRS = 40


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
        unbuilt: why no arguments could be made where a need was tried, if so.
        passed, failed, needs, notes: what was found so far; see `Outcome`.
        pending: the failure that an explanation is being looked for.
    """

    def __init__(self, target: Target, dims: Mapping[str, Any], budget: Budget):
        self.target, self.dims = target, dims
        self.furthest: Trial | None = None
        self.unbuilt: Unbuildable | None = None
        self.passed: list[Trial] = []
        self.failed: list[Trial] = []
        self.notes: list[str] = []
        self.needs = Needs()
        self.pending: Trial | None = None
        # None once the search has ended: what comes then (smaller sizes of what failed, lints) is little, and a verdict
        # that stands must not fall with it.
        self._meter: Meter | None = Meter(budget)
        self._known: dict[Any, Trial] = {}
        self._settled: set[str] = set()  # places whose options have been spoken of
        self.passed_beside: list[Trial] = []

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
            other = self._otherwise(base)
            needs = Needs() if other.ok else self.explain(other, Needs(), ascending)
            if needs is not None:
                base = other
                self.notes += self._chosen(base, needs)
            elif other is not base:
                needs = self.explain(base, Needs(), ascending)
            if needs is None and self.furthest is not None and leaves_kinds_open(self.furthest):
                further = self._with_other_options(self.furthest)
                if further.ok:
                    base, needs = further, Needs()
                    self.notes += self._chosen(base, needs)
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
        for vary in (self._options, self._ranks, self._pairs, self._ones):
            if not self.failed:
                self.needs = vary(self.passed, self.failed, self.notes, self.needs)
        if not self.failed and self.needs.words():
            self.needs = confirmed(self.passed[0], self.needs, self._at, frozenset(self.dims))

    def _at(self, sizes: Mapping[str, int], needs: Needs) -> Trial:
        return self.attempt(dataclasses.replace(self.passed[0].assignment, sizes=dict(sizes)))

    def _otherwise(self, base: Trial) -> Trial:
        """The trial with options taken otherwise, one after another, as long as a guard or an open annotation asks."""
        for _ in range(3):
            if base.ok or not (base.guard or leaves_kinds_open(base)):
                break
            other = self._with_other_options(base)
            if other is base:
                break
            base = other
        return base

    def _with_other_options(self, base: Trial) -> Trial:
        """The trial with one option, or two, taken otherwise that holds, or gets furthest beyond a guard."""
        others = [{place: option} for place, count in base.options.items() for option in range(1, min(count, 4))]
        pairs = [{**one, **two} for n, one in enumerate(others) for two in others[n + 1 :] if one.keys() != two.keys()]
        best, sideways = base, base
        for options in (*others, *pairs[:_PAIRS]):
            taken = {**base.assignment.options, **options}
            try:
                trial = self.attempt(dataclasses.replace(base.assignment, options=taken))
            except Unbuildable as reason:
                self.unbuilt = self.unbuilt or reason
                continue
            if trial.ok:
                return trial
            if trial.progress > best.progress:
                best = trial
            kinds = all(place.endswith((" tree", " dtype")) for place in options)
            if kinds and sideways is base and trial.progress >= base.progress and trial.complaint != base.complaint:
                sideways = trial  # what it says now is not about the kind of value that it was given
        return sideways if best is base else best

    def _chosen(self, base: Trial, needs: Needs) -> list[str]:
        """What the options of a trial that holds say, where the usual ones do not hold."""
        taken = {place: option for place, option in base.assignment.options.items() if option}

        def fails(*given: str) -> Trial | None:
            """With only these of the optional arguments given."""
            options = {place: int(place not in given) for place in (one, other)}
            trial = self._option(base, options, needs)[0]
            return None if trial.ok else trial

        if len(taken) == 1:
            (one,) = taken
            for other in base.options if one.endswith((" given", " present")) else ():
                both = fails(one, other) if other != one and other.endswith((" given", " present")) else None
                if both is None or fails(one):
                    continue
                self._settled |= {one, other}
                self.passed_beside.append(self._option(base, {one: 0, other: 1}, needs)[0])
                names = " and ".join(argument_of(place) for place in base.options if place in (one, other))
                neither = fails()
                words = f"exactly one of {names} is given" if neither else f"{names} are not both given"
                return [words + at_guard(both)]
        self._settled |= taken.keys()
        return [taken_option(place, option) for place, option in taken.items()]

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
                except Unbuildable as reason:
                    self.unbuilt = self.unbuilt or reason
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
        seen: set[str] = set(self._settled)
        queue = [base]
        passed += self.passed_beside
        while queue:
            current = queue.pop(0)
            for place, count in current.options.items():
                if place in seen or place.endswith(" dtype"):
                    continue
                seen.add(place)
                for option in range(1, count):
                    trial, further = self._option(current, {place: option}, needs)
                    if trial.ok:
                        passed.append(trial)
                        needs = further
                        queue.append(trial)  # options that only turn up behind this one
                    elif (
                        trial.guard
                        or place.endswith((" length", " tree"))
                        or self._helped(current, place, option, needs)
                    ):
                        notes.append(without_option(place, option) + at_guard(trial))
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

    def _pairs(self, passed: list[Trial], failed: list[Trial], notes: list[str], needs: Needs) -> Needs:
        """Two options, or an option and another number of axes, of those that hold alone."""
        base = passed[0]
        alone = [difference(base, one) for one in passed[1:]]
        single = list({repr(one): one for one in alone if len(one) == 1}.values())
        pairs = [(one, two) for n, one in enumerate(single) for two in single[n + 1 :] if one.keys() != two.keys()]
        for one, two in pairs[:_PAIRS]:
            changed = {**one, **two}
            options = {place: to for (what, place), to in changed.items() if what == "option"}
            ranks = {place: to for (what, place), to in changed.items() if what == "rank"}
            assignment = base.assignment
            assignment = dataclasses.replace(
                assignment, options={**assignment.options, **options}, ranks={**assignment.ranks, **ranks}
            )
            try:
                trial = self.attempt(assignment)
                if not trial.ok:
                    trial = self.attempt(assignment_for(trial.assignment.sizes, needs, ascending, trial.assignment))
            except Unbuildable:
                continue
            if trial.ok:
                passed.append(trial)
            elif trial.violations and not any(key in trial.open_keys for key in trial.spoken_of):
                failed.append(trial)
                break
            elif trial.guard:
                said = [describe_option(place, option) for place, option in options.items()]
                said += [f"{key} of {rank} axes" for key, rank in ranks.items()]
                notes.append(f"not both {' and '.join(said)}{at_guard(trial)}")
        return needs

    def _ranks(self, passed: list[Trial], failed: list[Trial], notes: list[str], needs: Needs) -> Needs:
        """Other numbers of axes for each variadic name."""
        base = passed[0]
        if any(key in base.open_keys for key, _ in needs.merged):
            return needs  # of arrays that are of one shape, none has a number of axes by itself
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
                elif anonymous or trial.guard or (other == 0 and trial.error is not None):
                    notes.append(f"{'`...`' if anonymous else '*' + key} is not of {other} axes{at_guard(trial)}")
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
