"""Changes: how one trial differs from another, and which other change makes a failing change hold.

A change that fails by itself need not be a fault of the program: annotations cannot say that a field gives the number
of axes of others. So the search asks whether the failure goes away when something else is changed together with it.
The caller of `goes_with` names the other changes that may be related, since each costs a trial, and words the result.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weft.typecheck.arguments.builder import Assignment, Unbuildable
from weft.typecheck.proofs.explaining import Explainer
from weft.typecheck.proofs.needs import Needs, ascending, axes, closed
from weft.typecheck.proofs.options import phrases
from weft.typecheck.proofs.trial import Trial

# New values for entries of an assignment, by the entry's part and key: `{("options", "mask given"): 1}`.
Change = Mapping[tuple[str, str], int | str]


def change_of(**parts: Mapping[str, int | str]) -> Change:
    """A change by its parts: `change_of(options={"mask given": 1}, ranks={"batch": 2})`."""
    return {(part, key): to for part, entries in parts.items() for key, to in entries.items()}


def changed(base: Trial, *changes: Change, **parts: Mapping[str, int | str]) -> Assignment:
    """The assignment of a trial with changes made to it; one may be given by parts: `changed(base, sizes={"n": 1})`."""
    entries: dict[str, dict[str, Any]] = {}
    for change in (*changes, change_of(**parts)):
        for (part, key), to in change.items():
            entries.setdefault(part, dict(getattr(base.assignment, part)))[key] = to
    if "merged" in entries:
        # A change may merge a key into one that another change merges further: each has to point at the last of them.
        entries["merged"] = closed(entries["merged"])
    return dataclasses.replace(base.assignment, **entries)


def difference(base: Trial, trial: Trial) -> Change:
    """The change that leads from one trial to another: their options and numbers of axes that differ."""
    options, usual = trial.assignment.options, base.assignment.options
    ranks = base.assignment.ranks
    return change_of(
        options={one: option for one, option in options.items() if option != usual.get(one, 0)},
        ranks={key: rank for key, rank in trial.assignment.ranks.items() if key in ranks and ranks[key] != rank},
    )


def with_changes(
    explainer: Explainer, base: Trial, needs: Needs, *changes: Change, **parts: Mapping[str, int | str]
) -> Trial:
    """The trial with some changes, at the sizes of the base; if it fails there, at sizes that meet the needs.

    Raises:
        Unbuildable: if there are no arguments like that.
    """
    trial = explainer.attempt(changed(base, *changes, **parts))
    # Options may bring axes of their own, whose sizes the base's needs have not been asked of yet.
    return trial if trial.ok else explainer.with_needs(trial, needs, ascending)


def attempted(explainer: Explainer, base: Trial, *changes: Change) -> Trial | None:
    """The trial with some changes, or None if there are no arguments like that."""
    with contextlib.suppress(Unbuildable):
        return explainer.attempt(changed(base, *changes))
    return None


def holds(explainer: Explainer, base: Trial, *changes: Change) -> bool:
    """Whether arguments can be made with some changes, and the trial with them holds."""
    trial = attempted(explainer, base, *changes)
    return trial is not None and trial.ok


def goes_with(explainer: Explainer, base: Trial, change: Change, others: Iterable[Change]) -> bool:
    """Whether a trial holds with a change together with one of some other changes."""
    return any(holds(explainer, base, change, other) for other in others)


def in_words(trial: Trial, changes: Sequence[Change]) -> str:
    """Changes of options and numbers of axes in a reader's words: `mask left out and x of 3 axes`."""
    return " and ".join(
        phrases(trial.options, place, int(to)).taken_here if part == "options" else f"{place} of {axes(int(to))}"
        for change in changes
        for (part, place), to in change.items()
    )
