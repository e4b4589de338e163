"""Trials with two changes at once: two options, or an option and another number of axes."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence

from weft.typecheck.arguments.builder import Unbuildable
from weft.typecheck.proofs.changing import Change, difference, in_words, with_changes
from weft.typecheck.proofs.explaining import MOST_PAIRS, Explainer
from weft.typecheck.proofs.options import at_guard, is_class
from weft.typecheck.proofs.trial import Trial
from weft.typecheck.proofs.variations import Results

# With more than `_MANY_PAIRS` pairs, one trial takes several changes: `_TOGETHER`, or `_PART_TOGETHER` of all where a
# configuration has a hundred options, whose pairs would be thousands of trials.
_MANY_PAIRS, _TOGETHER, _PART_TOGETHER = 12, 5, 1 / 4


def vary_pairs(explainer: Explainer, results: Results) -> None:
    """Tries pairs of changes that each hold alone: two options, or an option and another number of axes.

    Where there are many pairs, one trial takes several changes. If it holds, so does each pair of them, unless one
    change keeps the program from reaching what the others are about, as an early return does; the trial then makes
    fewer calls than a change alone did, and its pairs are tried one by one.

    Of two changes that hold alone, only a broken annotation is a failure. An error may be one of a choice that nobody
    makes.
    """
    base = results.passed[0]
    differing = [(difference(base, passed), passed) for passed in results.passed[1:]]
    alone = {repr(change): (change, trial) for change, trial in differing if len(change) == 1}
    single = [change for change, _ in alone.values()]
    numbers = itertools.combinations(range(len(single)), 2)
    untried = [pair for pair in numbers if single[pair[0]].keys() != single[pair[1]].keys()]
    for group in _groups(single, untried) if len(untried) > _MANY_PAIRS else ():
        changes = [single[number] for number in group]
        trial = _together(explainer, results, changes)
        if trial is not None and trial.ok and all(trial.progress >= alone[repr(c)][1].progress for c in changes):
            results.passed.append(trial)
            untried = [pair for pair in untried if not {*pair} <= {*group}]
    for pair in ([single[number] for number in pair] for pair in untried[:MOST_PAIRS]):
        trial = _together(explainer, results, pair)
        if trial is None:
            continue
        if trial.ok:
            results.passed.append(trial)
        elif not trial.guard and any(is_class(place) for one in pair for _, place in one):
            results.notes.append(f"not both {in_words(trial, pair)}")
        # An array without a shape promises no size, so a violation about its sizes may only show that the two do not go
        # together.
        elif trial.violations and not any(key in trial.keys.unnamed for key in trial.spoken_of):
            results.failed.append(trial)
            break
        elif trial.guard:
            results.notes.append(f"not both {in_words(trial, pair)}{at_guard(trial)}")


def _groups(single: Sequence[Change], pairs: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Groups of changes, by number, such that each pair is in some group, and no two of a group change one place."""
    most = max(_TOGETHER, int(_PART_TOGETHER * len(single)))
    untried = dict.fromkeys(pairs)  # a configuration of a hundred options has thousands of pairs, each looked up often
    while untried:
        group = list(next(iter(untried)))
        for number, change in enumerate(single):
            if len(group) == most:
                break
            new = any((min(member, number), max(member, number)) in untried for member in group)
            if new and all(change.keys() != single[member].keys() for member in group):
                group.append(number)
        for pair in itertools.combinations(sorted(group), 2):
            untried.pop(pair, None)
        if len(group) > 2:
            yield group


def _together(explainer: Explainer, results: Results, changes: Sequence[Change]) -> Trial | None:
    """The first trial that held, with some changes made to it; None if no arguments can be made."""
    with contextlib.suppress(Unbuildable):
        return with_changes(explainer, results.passed[0], results.needs, *changes)
    return None
