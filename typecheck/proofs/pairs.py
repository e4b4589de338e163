"""Pairs of what may vary: two options, or an option and another number of axes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from weft.typecheck.arguments.builder import Unbuildable
from weft.typecheck.proofs.changing import Change, difference, in_words, with_changes
from weft.typecheck.proofs.explaining import MOST_PAIRS, Explainer
from weft.typecheck.proofs.options import at_guard, is_class
from weft.typecheck.proofs.trial import Trial
from weft.typecheck.proofs.variations import Found

# From how many pairs on several are tried in one trial, and of how many options such a trial takes otherwise at most.
_MANY_PAIRS, _MOST_TOGETHER = 12, 5


def vary_pairs(explainer: Explainer, found: Found) -> None:
    """Two options, or an option and another number of axes, of those that hold alone.

    Where they are many, one trial takes several: what holds there has held for each two of them, unless one of them
    keeps the program from coming to what the others are about, as an early return does. Fewer calls show that.

    Only a broken annotation is a failure of two that hold alone. An error may be of a choice that nobody makes.
    """
    base = found.passed[0]
    differing = [(difference(base, one), one) for one in found.passed[1:]]
    alone = {repr(change): (change, trial) for change, trial in differing if len(change) == 1}
    single = [change for change, _ in alone.values()]
    pairs = [(one, two) for n, one in enumerate(single) for two in single[n + 1 :] if one.keys() != two.keys()]
    for group in _groups(single, pairs) if len(pairs) > _MANY_PAIRS else ():
        trial = _together(explainer, found, group)
        if trial is not None and trial.ok and all(trial.progress >= alone[repr(one)][1].progress for one in group):
            found.passed.append(trial)
            pairs = [pair for pair in pairs if not all(one in group for one in pair)]
    for pair in pairs[:MOST_PAIRS]:
        trial = _together(explainer, found, pair)
        if trial is None:
            continue
        if trial.ok:
            found.passed.append(trial)
        elif not trial.guard and any(is_class(place) for one in pair for _, place in one):
            found.notes.append(f"not both {in_words(trial, pair)}")
        elif trial.violations and not any(key in trial.open_keys for key in trial.spoken_of):
            found.failed.append(trial)
            break
        elif trial.guard:
            found.notes.append(f"not both {in_words(trial, pair)}{at_guard(trial)}")


def _groups(single: Sequence[Change], pairs: Sequence[tuple[Change, Change]]) -> Iterator[list[Change]]:
    """Several changes at a time, so that each pair is among one of them; of one place only one."""
    left = list(pairs)
    while left:
        group = list(left[0])
        for other in single:
            apart = all(other.keys() != one.keys() for one in group)
            new = any((one, other) in left or (other, one) in left for one in group)
            if apart and new and len(group) < _MOST_TOGETHER:
                group.append(other)
        left = [pair for pair in left if not all(one in group for one in pair)]
        if len(group) > 2:
            yield group


def _together(explainer: Explainer, found: Found, changes: Sequence[Change]) -> Trial | None:
    """The first trial that held with some changes; None if no arguments can be made."""
    with contextlib.suppress(Unbuildable):
        return with_changes(explainer, found.passed[0], found.needs, *changes)
    return None
