"""What else may vary, once a program holds: options, and numbers of axes; two of them do in `pairs`, sizes in `sizes`.

Each function takes what was found so far, adds the trials that hold and those that fail, or what the program asks for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from weft.typecheck.arguments.builder import Unbuildable
from weft.typecheck.proofs.beyond import beyond_annotations
from weft.typecheck.proofs.changing import Change, change_of, changed, difference, goes_with, with_changes
from weft.typecheck.proofs.explaining import MOST_CLASSES, Explainer
from weft.typecheck.proofs.needs import Needs, ascending
from weft.typecheck.proofs.options import (
    argument_of,
    at_guard,
    is_class,
    taken_option,
    without_option,
)
from weft.typecheck.proofs.trial import Trial


@dataclass
class Found:
    """What a search has found so far.

    Attributes:
        passed, failed, needs, notes: see `Outcome`.
        settled: the places whose options have been spoken of.
        beside: trials that hold with options of these.
        doubtful: trials that fail for a class that may stand for an abstract one, and by no choice of that class.
    """

    passed: list[Trial] = field(default_factory=list)
    failed: list[Trial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    needs: Needs = field(default_factory=Needs)
    settled: set[str] = field(default_factory=set)
    beside: list[Trial] = field(default_factory=list)
    doubtful: list[Trial] = field(default_factory=list)


def vary_classes(explainer: Explainer, found: Found) -> None:
    """Each class that may stand for an abstract one; those for which the program holds are named.

    What raises for one of them by its own choice, or asks for what annotations leave open, is not for that class. Any
    other failure is a finding about the program, whose annotation promises that class: it is kept, to be told.
    """
    base = found.passed[0]
    for place, names in base.classes.items():
        holding, failing = {base.assignment.options.get(place, 0): ""}, list[str]()
        for option in range(min(len(names), MOST_CLASSES)):
            if option in holding:
                continue
            try:
                trial, further = with_option(explainer, base, {place: option}, found.needs)
            except Unbuildable:
                continue
            few = len(further.merged) <= len(found.needs.merged) + 1
            if trial.ok and few and _suits(explainer, found, further):
                found.passed.append(trial)
                found.needs = further
                holding[option] = _beside(base, trial, place)
            elif not trial.ok:  # what holds under many needs of its own is not spoken of: they would be asked of all
                failing.append(names[option] + at_guard(trial))
                if not trial.guard and beyond_annotations(trial) is None:
                    found.doubtful.append(trial)
        listed = " or ".join(names[option] + holding[option] for option in sorted(holding))
        fails = f", not {' or '.join(failing)}" if failing else ""
        found.notes.append(f"{argument_of(place) or place} is {listed}{fails}")


def _beside(base: Trial, trial: Trial, place: str) -> str:
    """The options that a trial takes beside another one that it was to take, in brackets."""
    usual = base.assignment.options
    taken = {one: n for one, n in trial.assignment.options.items() if n and n != usual.get(one) and not is_class(one)}
    said = ", ".join(taken_option(trial, one, option) for one, option in taken.items())
    return f" ({said})" if said else ""


def vary_options(explainer: Explainer, found: Found) -> None:
    """Each option taken once, all else as in a trial that held."""
    base = found.passed[0]
    seen: set[str] = set(found.settled)
    queue = [base]
    found.passed += found.beside
    while queue:
        current = queue.pop(0)
        for place, count in current.options.items():
            # Classes were varied before; dtypes are tried where something speaks of them, for most is for floats alone.
            if place in seen or place.endswith((" dtype", " class")):
                continue
            seen.add(place)
            for option in range(1, count):
                try:
                    trial, further = with_option(explainer, current, {place: option}, found.needs)
                except Unbuildable:  # what cannot be made was not tried
                    found.notes.append(without_option(current, place, option))
                    continue
                # What is annotated as any number of items, or any tree, is written by many who mean a certain one.
                given = place.endswith((" length", " tree", " width"))
                if trial.ok and not _suits(explainer, found, further):
                    found.notes.append(without_option(trial, place, option))
                elif trial.ok:
                    found.passed.append(trial)
                    found.needs = further
                    queue.append(trial)  # options that only turn up behind this one
                elif (together := _left_out_together(explainer, current, trial, place, found.needs)) is not None:
                    found.passed.append(together)
                    more = (one for _, one in difference(current, together) if one != place)
                    beside = " and ".join(map(argument_of, more))
                    found.notes.append(f"{without_option(trial, place, option)}, or left out with {beside}")
                elif (none := _where_there_is_none(explainer, trial, place)) is not None:
                    found.notes.append(f"{without_option(trial, place, option)}, or {none}")
                elif (
                    trial.guard
                    or given
                    or _is_open(trial)
                    or _is_for_others(explainer, trial, place)
                    or _helped(explainer, current, place, option, found.needs)
                ):
                    found.notes.append(without_option(trial, place, option) + at_guard(trial))
                else:
                    found.failed.append(trial)


def with_option(explainer: Explainer, base: Trial, options: Mapping[str, int], needs: Needs) -> tuple[Trial, Needs]:
    """The trial with some options taken otherwise, and the needs that it holds under, if it does.

    If it does not, and the option is a class, the trial that got furthest: what fails once the guards of its
    constructor are passed says more than these do.
    """
    fresh = with_changes(explainer, base, needs, options=options)
    of_class = any(map(is_class, options))
    if of_class and not fresh.ok and explainer.was_in_vain(fresh):
        return fresh, needs
    first = fresh
    if of_class:
        fresh = explainer.otherwise(fresh, frozenset(options))
    if fresh.ok:
        return fresh, needs
    further = explainer.explain(fresh, needs, ascending)
    if further is None:
        if of_class:
            explainer.in_vain.add((first.place, first.complaint))
        stuck = explainer.stuck if of_class else None
        # Sizes that are joined pass many a guard, and what fails then may fail because they are one.
        return (fresh if stuck is None or stuck.assignment.merged else stuck), needs
    return explainer.with_needs(fresh, further, ascending), further


def _is_for_others(explainer: Explainer, trial: Trial, place: str) -> bool:
    """Whether a member of a union, or the default of a record's field, raises that others are meant to take, too.

    That of a record among the arguments its class writes, and that of an inherited method a base class, each for all
    users: which members a function, or a subclass, takes is not written where it is. What is wrong with its own
    result is wrong for each; that what it calls takes another member only says which it takes.
    """
    target = explainer.target
    own = any(one.place[:2] == (target.file, target.line) for one in trial.violations)
    if not place.endswith((" type", " given", " present")) or own:
        return False
    if not place.endswith(" type"):  # as a dataset may be made without data
        return "." in place and not place.startswith("self.")
    return "." in place.removeprefix("self.") or target.inherited


def _suits(explainer: Explainer, found: Found, needs: Needs) -> bool:
    """Whether what holds with other options holds under needs, too: they are stated of all together."""
    if needs == found.needs:
        return True
    variants = {tuple(one.assignment.options.items()): one for one in reversed(found.passed)}
    try:
        return all(explainer.with_needs(one, needs, ascending).ok for one in variants.values())
    except Unbuildable:
        return False


def _is_open(trial: Trial) -> bool:
    """Whether a failure with an option is about what annotations leave open, with which it may well hold."""
    return not trial.violations and beyond_annotations(trial) is not None


def _left_out_together(explainer: Explainer, base: Trial, failing: Trial, place: str, needs: Needs) -> Trial | None:
    """What holds without an argument that fails alone, for others are of a size that it would have had.

    As the mean and the covariance of some points are, which are others where the points are left out: what takes
    their place has a size of its own.
    """
    spoken_of = {key.rpartition(".")[2] for key in failing.spoken_of}
    own = base.optional.get(place, frozenset()) & spoken_of
    others = [one for one, dims in base.optional.items() if one != place and dims & own]
    if not others or failing.guard or any(base.assignment.options.get(one, 0) for one in others):
        return None
    with contextlib.suppress(Unbuildable):
        trial = with_changes(explainer, base, needs, options=dict.fromkeys((place, *others), 1))
        return trial if trial.ok else None
    return None


def _where_there_is_none(explainer: Explainer, failing: Trial, place: str) -> str | None:
    """The sizes of which there is none where an argument is left out, if it holds there: `inputs_dim = 0`.

    A model without inputs has weights for none of them. No other trial has a size of 0, for there most of what is wrong
    is right.
    """
    own = failing.optional.get(place, frozenset())
    keys = [key for key in failing.spoken_of if key.rpartition(".")[2] in own]
    if not keys or failing.guard or 0 not in failing.mentioned:
        return None
    is_right = goes_with(explainer, failing, {}, [change_of(sizes=dict.fromkeys(keys, 0))])
    return " and ".join(f"{key} = 0" for key in keys) if is_right else None


def _helped(explainer: Explainer, base: Trial, place: str, option: int, needs: Needs) -> bool:
    """Whether an option that fails alone holds beside another one, or a field of a record beside a number of axes."""
    ranks = (change_of(ranks={key: rank}) for key, (usual, _) in base.ranks.items() for rank in (1, 2) if rank != usual)
    if "." in place and goes_with(explainer, base, change_of(options={place: option}), ranks):
        return True
    for options in _options_beside(explainer, base, {place: option}):
        with contextlib.suppress(Unbuildable):
            if with_option(explainer, base, options, needs)[0].ok:
                return True
    return False


def options_of_fields(base: Trial) -> Iterator[Change]:
    """Each option of a field of a record: it may say how many axes others have, which no annotation can."""
    return (change_of(options={place: 1}) for place in base.options if "." in place)


def _options_beside(explainer: Explainer, base: Trial, options: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Options that fail alone, with each other one that changes something about that.

    What fails there as the other one does alone, or before it comes to where the first fails, is a fault of the other,
    which is looked for by itself.
    """
    alone = explainer.attempt(changed(base, options=options))
    for other, count in base.options.items():
        for taken in range(1, min(count, MOST_CLASSES) if is_class(other) else count):
            with contextlib.suppress(Unbuildable):  # what cannot be made helps nobody
                if other in options or is_inert(explainer, base, options, other, taken):
                    continue
                both = explainer.attempt(changed(base, options={**options, other: taken}))
                if both.ok or not (
                    both.progress < alone.progress
                    or _alike(both, explainer.attempt(changed(base, options={other: taken})))
                ):
                    yield {**options, other: taken}


def is_inert(explainer: Explainer, base: Trial, options: Mapping[str, int], other: str, taken: int = 1) -> bool:
    """Whether one more option changes nothing of what a trial with some options fails with.

    What would explain the one failure would explain the other, so it need not be looked for twice.
    """
    alone, both = (explainer.attempt(changed(base, options={**options, **more})) for more in ({}, {other: taken}))
    return _alike(both, alone)


def _alike(one: Trial, other: Trial) -> bool:
    """Whether a trial fails as another one does."""
    return not one.ok and (one.complaint, one.place) == (other.complaint, other.place)
