"""Trials with several changes at once: options, classes and numbers of axes that each hold alone."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence

from weft.typecheck.arguments.builder import Unbuildable
from weft.typecheck.proofs.changing import Change, difference, in_words, with_changes
from weft.typecheck.proofs.explaining import MOST_PAIRS, Explainer
from weft.typecheck.proofs.options import at_guard, is_class
from weft.typecheck.proofs.trial import DTYPE_NAMES, Trial
from weft.typecheck.proofs.variations import Results

# An entry of an assignment, and its value.
_Entry = tuple[tuple[str, str], int | str]
# The most trials with which all combinations are gone through; of more, only pairs are tried.
_MOST = 24


def vary_together(explainer: Explainer, results: Results) -> None:
    """Tries all combinations of changes that each hold alone, or, of many, pairs.

    Of changes that hold alone, only a broken annotation is a failure. An error may be one of a choice nobody makes.
    """
    base = results.passed[0]
    reads_dtypes = any(not DTYPE_NAMES.isdisjoint(trial.names) for trial in results.passed)
    known = dict.fromkeys(frozenset(difference(base, passed).items()) for passed in results.passed[1:])
    # What was changed together, such as two arguments that are left out together, stays together.
    changes = [change for change in known if reads_dtypes or not _is_of_dtypes(change)]
    every = list(itertools.islice(_combinations(changes, len(changes)), _MOST + 1))
    results.in_pairs = len(every) > _MOST
    chosen = itertools.islice(_combinations(changes, 2), MOST_PAIRS) if results.in_pairs else every
    for several in (each for each in chosen if frozenset().union(*each) not in known):
        trial = _together(explainer, results, [*map(dict, several)])
        if trial is None:
            continue
        if trial.ok:
            results.passed.append(trial)
        # An array without a shape promises no size, so a violation about its sizes may only show that the changes do
        # not go together; and so may the classes of two arguments.
        elif trial.violations and not (
            any(is_class(place) for (_, place), _ in frozenset().union(*several))
            or any(key in trial.keys.unnamed for key in trial.spoken_of)
        ):
            results.failed.append(trial)
            break
        else:
            results.notes.append(f"not both {in_words(trial, [*map(dict, several)])}{at_guard(trial)}")


def _is_of_dtypes(change: frozenset[_Entry]) -> bool:
    return any(place.endswith(" arrays") for (_, place), _ in change)


def _combinations(changes: Sequence[frozenset[_Entry]], most: int) -> Iterator[tuple[frozenset[_Entry], ...]]:
    """Two changes or more, no two of which change the same entry; the fewest first."""
    for size in range(2, most + 1):
        for several in itertools.combinations(changes, size):
            entries = [entry for change in several for entry, _ in change]
            if len(entries) == len({*entries}):
                yield several


def _together(explainer: Explainer, results: Results, changes: Sequence[Change]) -> Trial | None:
    """The first trial that held, with some changes made to it; None if no arguments can be made."""
    with contextlib.suppress(Unbuildable):
        return with_changes(explainer, results.passed[0], results.needs, *changes)
    return None
