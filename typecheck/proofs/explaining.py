"""The search for needs under which a failing trial holds, tried one by one, within a budget.

A failure is a fault of the program unless a *need* explains it: a divisor, an order, a size fixed from outside, dims of
two records that the program joins. Dims of one scope are never joined: that the code forces two names to be one size is
exactly what a contract forbids. A need that lets the trace get further stays, and further needs are tried with it.

Which trials a search makes, and what it concludes from them, follows from the program alone. It is the same on any
machine, idle or busy, with a small heap or a large one. The *budget* only says where a search ends. A search that ends
there has decided nothing: its contract is *undecided*, which is no failure.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.typecheck.arguments.builder import Assignment, Unbuildable
from weft.typecheck.errors import AnnotationError, BudgetError
from weft.typecheck.proofs.beyond import Step, as_tried, is_out_of_hand, needs_numbers, weakened
from weft.typecheck.proofs.frames import Endless
from weft.typecheck.proofs.needs import Deal, Needs, Written, ascending, assignment_for, written_under
from weft.typecheck.proofs.preconditions import of_no_size, preconditions
from weft.typecheck.proofs.tracing import Target, run_trial
from weft.typecheck.proofs.trial import (
    Trial,
    asks_for_dtype,
    is_class,
    leaves_kinds_open,
    unpacks_items,
    untried_options,
)
from weft.typecheck.proofs.violations import OF_KIND
from weft.typecheck.sizes.clauses import Answer
from weft.typecheck.sizes.deciding import Question, otherwise
from weft.typecheck.sizes.space import Space


@dataclass(frozen=True)
class Budget:
    """The limits of one search.

    Attributes:
        trials: the most traces. The longest search over 200 collected programs took 183.
        seconds: the most time by `clock`, far more than the trials should take: it ends what nobody would wait for.
        clock: the time in seconds; by default this thread's processor time, in which other processes do not count.

    Raises:
        BudgetError: for a budget of no trials or no time.
    """

    # The limit is one of trials, since a trial takes longer in a process with a large heap: under a limit of processor
    # time alone, right programs were undecided at the end of long runs.
    trials: int = 1000
    seconds: float = 300.0
    clock: Callable[[], float] = time.thread_time

    def __post_init__(self) -> None:
        for name, amount in (("trials", self.trials), ("seconds", self.seconds)):
            if not amount > 0:
                raise BudgetError(f"a proof cannot be tried in {amount} {name}", fix=f"give it some: {name} > 0")


USUAL = Budget()


class Exhausted(Exception):
    """A search has come to the end of its budget; the message says of which part.

    Attributes:
        of_time: whether time ran out, of which another machine may need less.
        pending: the failing trial that was being explained then, if any.
    """

    def __init__(self, message: str, *, of_time: bool = False):
        super().__init__(message)
        self.of_time = of_time
        self.pending: Trial | None = None


@contextlib.contextmanager
def pending(trial: Trial) -> Iterator[None]:
    """While a failing trial is explained: if the budget ends then, the innermost such trial is the one to report."""
    try:
        yield
    except Exhausted as ended:
        ended.pending = ended.pending or trial
        raise


class Meter:
    """Counts what one search has used of its budget."""

    def __init__(self, budget: Budget):
        self.budget = budget
        self.spent = 0
        self._end = budget.clock() + budget.seconds

    def spend(self) -> None:
        """Pays for one trial.

        Raises:
            Exhausted: if no trials, or no seconds, are left.
        """
        if self.spent >= self.budget.trials:
            raise Exhausted(f"{self.spent} trials (`trials=` of `verify`, `--trials` of `weft check`)")
        if self.budget.clock() >= self._end:
            limit = f"{self.budget.seconds:g} seconds (`seconds=` of `verify`, `--seconds` of `weft check`)"
            raise Exhausted(f"{limit} and {self.spent} trials", of_time=True)
        self.spent += 1


# The most needs that are added one after the other to explain one failure.
_DEPTH = 24
# The most pairs of options that are tried.
MOST_PAIRS = 40
# How often in a row options are changed, each time for the guard that the last change led to.
_MOST_ROUNDS = 3
# After so many options that do not change how a class fails, the search assumes that no other option does either.
_MOST_ALIKE = 8
# The most concrete classes that are tried for an abstract class.
MOST_CLASSES = 4
# Sizes that powers of two, squares, most divisors and small counts have in common.
_ROUND = (64, 144, 2)
# A failure is told at sizes up to this one, if it remains there.
_SMALL = 4


def _key(assignment: Assignment) -> tuple[object, ...]:
    return tuple(
        tuple(sorted(choices.items())) if isinstance(choices, Mapping) else choices
        for choices in vars(assignment).values()
    )


# The most trials that end in an endless recursion, each of which may take as long as a hundred others.
_MOST_ENDLESS = 3


class Trials:
    """The trials of one target within a budget; equal trials are run, and paid for, once."""

    def __init__(self, target: Target, dims: Mapping[str, Any], budget: Budget):
        self.target, self.dims = target, dims
        self._meter: Meter | None = Meter(budget)
        self._known: dict[Any, Trial] = {}
        self._endless = 0

    def attempt(self, assignment: Assignment) -> Trial:
        """The trial of an assignment; equal assignments share one trial.

        Raises:
            Exhausted: if a new trial is beyond the budget, or if too many trials have ended in endless recursion.
            Unbuildable: if there are no arguments like that.
        """
        key = _key(assignment)
        if key not in self._known:
            self._spend()
            trial = run_trial(self.target, assignment, self.dims)
            # Under the trial's own assignment, too, which is completed with all that the trial met.
            self._known[key] = self._known[_key(trial.assignment)] = trial
            self._endless += isinstance(trial.error, Endless)
            if self._endless == _MOST_ENDLESS and self._meter is not None:
                raise Exhausted(f"{_MOST_ENDLESS} trials with a recursion that has no end")
        return self._known[key]

    def _spend(self) -> None:
        if self._meter is not None:
            self._meter.spend()

    def free(self) -> None:
        """Further trials cost nothing: smaller sizes of what failed, and lints, must not undo a verdict that stands."""
        self._meter = None

    @property
    def first(self) -> Trial | None:
        """The first trial of all."""
        return next(iter(self._known.values()), None)

    @property
    def keys(self) -> set[str]:
        """The keys of all sizes in all trials so far."""
        return {key for trial in self._known.values() for key in trial.assignment.sizes}

    def with_needs(self, trial: Trial, needs: Needs, deal: Deal) -> Trial:
        """Runs the trial with its options and numbers of axes, at sizes of a deal that meet the needs."""
        return self.attempt(assignment_for(trial.assignment.sizes, needs, deal, trial.assignment))

    def followed(self, base: Trial, written: Written, numbers: Mapping[str, int]) -> tuple[Space, Trial | Exception]:
        """A trial over symbolic sizes at some numbers of the free dims, or the error for which there is none.

        Raises:
            Exhausted: if the budget has no more.
        """
        space = self.target.space
        sizes = written.dims(numbers, space)
        assignment = dataclasses.replace(base.assignment, sizes={**base.assignment.sizes, **sizes})
        self._spend()
        try:
            traced: Trial | Exception = run_trial(self.target, assignment, self.dims, space=space)
        except (Unbuildable, AnnotationError, ValueError, TypeError) as error:
            traced = error
        space.end()
        return copy.copy(space), traced  # the next trace begins with the space anew


@dataclass(frozen=True)
class Evidence:
    """What failing trials have shown that matters where no needs explain a failure.

    Attributes:
        furthest: of the failing trials that no need explained, the trial that got furthest.
        unbuilt: why no arguments could be made under some need; None if they always could.
        past_guard: the first trial that passed a guard without joining sizes, with its needs.
        ran_through: the first trial that ran to its end and broke only its promise, with no size fixed or joined.
        refused: by place, the first trial in which a guard refused the class there, while the base met no guard.
    """

    furthest: Trial | None = None
    unbuilt: Unbuildable | None = None
    past_guard: tuple[Trial, Needs] | None = None
    ran_through: Trial | None = None
    refused: Mapping[str, Trial] = field(default_factory=dict[str, Trial])

    def then(self, later: Evidence) -> Evidence:
        """This evidence and what later trials have shown."""
        first, second = self.furthest, later.furthest
        if first is not None and second is not None:
            # Of two trials that get equally far, that counts which asks for the numbers in an array.
            ordered = (second, first) if needs_numbers(second) else (first, second)
            second = max(ordered, key=lambda trial: trial.progress)
        return Evidence(
            furthest=second or first,
            unbuilt=self.unbuilt or later.unbuilt,
            past_guard=self.past_guard or later.past_guard,
            ran_through=self.ran_through or later.ran_through,
            refused={**later.refused, **self.refused},
        )


@dataclass(frozen=True)
class Explanation:
    """What the search for the needs of a failing trial has found.

    Attributes:
        needs: the needs under which the trial holds; None where no needs explain it.
        stuck: the failing trial that no need got further, if there are no such needs.
        evidence: what the trials on the way have shown.
    """

    needs: Needs | None
    stuck: Trial
    evidence: Evidence


def with_options_in_rounds(trials: Trials, base: Trial, but: frozenset[str] = frozenset()) -> tuple[Trial, Evidence]:
    """Changes options of a failing trial, one after another, while a guard or an open annotation ends each trial.

    Example: with `mask` given a guard asks for `heads`, so the second round gives `heads` as well.

    Args:
        trials: the trials of the target.
        base: a trial that failed.
        but: places whose options stay as they are.
    """
    evidence = Evidence()
    for _ in range(_MOST_ROUNDS):
        # A member of a union may be there for other classes that inherit the method, or for other functions that take
        # the record.
        unions = [place.removeprefix("self.") for place in base.options.values if place.endswith(" type")]
        for_others = not base.violations and any(trials.target.inherited or "." in place for place in unions)
        kinds = leaves_kinds_open(base) or unpacks_items(base) or for_others
        kinds = kinds or needs_numbers(base)  # a program may ask for numbers only with this option
        if base.ok or not (base.guard or kinds or base.options.classes.keys() - but):
            break
        varied, more = with_other_options(trials, base, but)
        evidence = evidence.then(more)
        if varied is base:
            break
        base = varied
    return base, evidence


def with_other_options(trials: Trials, base: Trial, but: frozenset[str] = frozenset()) -> tuple[Trial, Evidence]:
    """The first trial that holds with one option changed, or two; else the trial that gets furthest.

    Example: a guard "give scale or offset" raises while neither is given; the trial with `scale` given is returned.

    Args:
        trials: the trials of the target.
        base: the failing trial.
        but: places whose options stay as they are. If there are any, they hold a class that is being tried, and
            options are then changed one at a time.
    """
    others = untried_options(base, but)
    pairs = [
        {**first, **second}
        for n, first in enumerate(others)
        for second in others[n + 1 :]
        if first.keys() != second.keys()
    ]
    # Where a class is tried, what helps it is one option after another: that any two together do, and neither alone
    # gets further, was never seen, and looking for them took most of the time of programs over many classes.
    pairs = [] if but or needs_numbers(base) else pairs[:MOST_PAIRS]
    evidence, best, of_other_kind, alike = Evidence(), base, base, collections.Counter[str]()
    for number, options in enumerate((*others, *pairs)):
        if number >= len(others) and best is not base:
            break  # the next round tries further options together with the one that helped
        if but and alike.total() >= _MOST_ALIKE:
            break
        if any(alike[place] >= MOST_CLASSES for place in options):
            continue  # so many classes end in this failure that it is not about the class
        merged = {**base.assignment.options, **options}
        try:
            trial = trials.attempt(dataclasses.replace(base.assignment, options=merged))
        except Unbuildable as reason:
            evidence = evidence.then(Evidence(unbuilt=reason))
            continue
        if trial.ok:
            return trial, evidence
        if base.violations and base.violations[0].reason in OF_KIND and not any(map(is_class, options)):
            continue  # the result is of the wrong kind, and a kind of argument that only raises does not mend that
        if isinstance(trial.error, NotImplementedError) and any(map(is_class, options)):
            continue  # a method that a class does not implement says nothing of the program
        if trial.progress > best.progress:
            best = trial
        if trial.guard and not base.guard and len(options) == 1:
            evidence = evidence.then(Evidence(refused={place: trial for place in options if is_class(place)}))
        if (but or not trial.guard) and trial.complaint == base.complaint and len(options) == 1:
            alike.update(place for place in options if but or is_class(place))
        kinds = all(place.endswith((" tree", " dtype")) for place in options)
        elsewhere = trial.progress >= base.progress and trial.complaint != base.complaint
        if kinds and of_other_kind is base and elsewhere and not asks_for_dtype(trial):
            of_other_kind = trial  # the message is no longer about the kind of its arguments
    return (of_other_kind if best is base else best), evidence


def explain(trials: Trials, trial: Trial, needs: Needs, deal: Deal) -> Explanation:
    """The needs under which a failing trial holds, or the failing trial that no need got further.

    The search is greedy, since all pairs of needs would be too many: it adds each need to those that got the program
    further. `weakened` then drops needs that turn out to be needless.
    """
    with pending(trial):
        complaints, evidence, first = {trial.complaint}, Evidence(), trial
        for _ in range(_DEPTH):
            step = Step(trial, needs, complaints)
            # A program that asks for the numbers in an array does so at any size.
            for candidate in () if needs_numbers(trial) else _candidates(trials, step):
                if is_out_of_hand(assignment_for(trial.assignment.sizes, candidate, deal, trial.assignment)):
                    continue
                try:
                    result = trials.with_needs(trial, candidate, deal)
                    if not result.ok and candidate is step.by_question and result.place == trial.place:
                        result = _with_the_rest_as_before(trials, trial, candidate, step.asked_last) or result
                except Unbuildable as reason:
                    evidence = evidence.then(Evidence(unbuilt=reason))
                    continue
                if result.ok:
                    return Explanation(weakened(trials.with_needs, trial, candidate, deal, first), result, evidence)
                if candidate is step.by_question and not candidate.allows(result.assignment.sizes):
                    continue  # another need asks for the opposite, so the trial shows nothing of this one
                step.see(result, candidate)
                evidence = evidence.then(_evidence_of(result, candidate, trial))
            if step.chosen is None:
                return Explanation(None, trial, evidence.then(Evidence(furthest=trial)))
            trial, needs = step.chosen
            complaints.add(trial.complaint)
        return Explanation(None, trial, evidence)


def _evidence_of(result: Trial, candidate: Needs, before: Trial) -> Evidence:
    """What a trial with one more need has shown that fails as well; `before` is the trial without that need."""
    ran_through = result.error is None and not result.joins_dims and candidate.of_many_sizes
    # A trial that ran to its end is past the guard, whatever is wrong with its result.
    further = result.progress > before.progress or result.error is None
    past_guard = before.guard not in ("", result.guard) and not candidate.merged and further
    return Evidence(
        ran_through=result if ran_through else None,
        past_guard=(result, candidate) if past_guard else None,
    )


def _candidates(trials: Trials, step: Step) -> Iterator[Needs]:
    """Yields the needs with one more: those about numbers of axes and items, then those that questions show."""
    trial, needs, constants = step.trial, step.needs, trials.target.constants
    yield from of_no_size(trial, needs)
    asked, pinned, denied = _asked_last(trials, trial)
    step.asked_last = tuple(asked.items())
    for candidate in preconditions(asked, trial, needs, constants):
        step.by_question = as_tried(candidate, needs, pinned, denied)
        yield step.by_question
    # A key whose number the program read asks no questions, so that the program is known at the sizes tried alone.
    read = sorted(pinned - dict(needs.among).keys() - dict(needs.equal).keys()) if step.best is None else []
    yield from (needs.plus(among=(key, (size,))) for key in read for size in _ROUND)


def _with_the_rest_as_before(trials: Trials, trial: Trial, needs: Needs, asked: tuple[Answer, ...]) -> Trial | None:
    """The trial at sizes that meet the needs and leave every other question its answer; None if there are none.

    Dealing sizes anew may change further answers: an order that held may be broken while another is met.
    """
    sizes = trial.assignment.sizes
    for number, (question, answer) in enumerate(asked):
        if not question.is_order:
            continue
        rest = (*asked[:number], *asked[number + 1 :], (question, answer))
        allowed = next((solution for solution in otherwise(rest, sizes, {}) if needs.allows(solution)), None)
        if allowed is not None:
            return trials.attempt(dataclasses.replace(trial.assignment, sizes=allowed))
    return None


def _asked_last(trials: Trials, trial: Trial) -> tuple[dict[Question, bool], frozenset[str], list[Question]]:
    """The questions of a failing trial, the last of them last, the keys whose numbers the program read, and the
    equations that the program itself asked and that did not hold.
    """
    if isinstance(trial.error, RecursionError):
        return {}, frozenset(), []  # of Python's own limit, too, which no size changes
    written = written_under(Needs(), trial.assignment.sizes, set(trials.dims))
    space, traced = trials.followed(trial, written, written.numbers)
    if isinstance(traced, Exception):
        return {}, frozenset(), []
    asked = {written.of_keys(question): answer for question, answer in space.last.items()}
    pinned = frozenset(space.pinned)
    own = ((question, answer) for question, (answer, _, own) in space.asked.items() if own)
    denied = [question for question, answer in own if not answer and not question.is_order]
    return asked, pinned, denied


def explain_with_names_per_record(trials: Trials, base: Trial) -> Explanation:
    """The needs under which a trial holds if each record has dims of its own.

    It is tried only if the failure is about a name that several scopes use: two layers may each have a `width`.
    """
    nothing = Explanation(None, base, Evidence())
    spoken_of = base.spoken_of or tuple(base.keys.scopes)
    if all(len(base.keys.scopes_of(key)) < 2 for key in spoken_of):
        return nothing
    needs = Needs(apart=True)
    trial = trials.attempt(
        Assignment(ranks=base.assignment.ranks, options=base.assignment.options, names_per_record=True)
    )
    if trial.place == base.place and trial.complaint == base.complaint and len(trial.spoken_of) == 1:
        return nothing  # a failure about one size alone, such as an odd one, is not about names that records share
    return Explanation(needs, trial, Evidence()) if trial.ok else explain(trials, trial, needs, ascending)


def shrink(trials: Trials, trial: Trial, needs: Needs) -> Trial:
    """The trial at the smallest sizes at which the same failure remains."""
    # A multiple of another key can only shrink after that key, so what has not shrunk is tried once more.
    for _ in range(2):
        for key in [key for key, size in trial.assignment.sizes.items() if size > _SMALL and key not in trials.dims]:
            for size in range(1, _SMALL + 1):
                sizes = {**trial.assignment.sizes, key: size}
                if not needs.allows(sizes):
                    continue
                try:
                    smaller = trials.attempt(dataclasses.replace(trial.assignment, sizes=sizes))
                except Unbuildable:
                    continue
                # At small sizes a guard may refuse, often on the same line: that is another failure than this one.
                if not smaller.ok and smaller.place == trial.place and smaller.guard == trial.guard:
                    trial = smaller
                    break
    return trial
