"""Changes: how one trial differs from another, and what a change goes with.

A change that fails by itself need not be a fault of the program. Annotations cannot say that two arguments are left out
together, that a field gives the number of axes of others, or that an integer of a record is the size of an axis. So it
is always asked whether the failure goes away when something else is changed *beside*: `beside` answers that for options
and options, options and axes, arguments and sizes of zero, integers and axes alike. Who asks says which others may have
to do with it, for each costs a trial, and what a reader is told where one does.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weft.typecheck.arguments.builder import Assignment, Unbuildable
from weft.typecheck.proofs.explaining import Explainer
from weft.typecheck.proofs.needs import Needs, ascending, axes, closed
from weft.typecheck.proofs.options import describe_option
from weft.typecheck.proofs.trial import Trial

# What entries of an assignment become, by the part of it and the key there: `{("options", "mask given"): 1}`.
Change = Mapping[tuple[str, str], int | str]


def change_of(**parts: Mapping[str, int | str]) -> Change:
    """A change by its parts: `change_of(options={"mask given": 1}, ranks={"batch": 2})`."""
    return {(part, key): to for part, entries in parts.items() for key, to in entries.items()}


def changed(base: Trial, *changes: Change, **parts: Mapping[str, int | str]) -> Assignment:
    """The assignment of a trial with some changes, and one by its parts: `changed(base, sizes={"n": 1})`."""
    found: dict[str, dict[str, Any]] = {}
    for change in (*changes, change_of(**parts)):
        for (part, key), to in change.items():
            found.setdefault(part, dict(getattr(base.assignment, part)))[key] = to
    if "merged" in found:
        found["merged"] = closed(found["merged"])
    return dataclasses.replace(base.assignment, **found)


def difference(base: Trial, trial: Trial) -> Change:
    """The options and ranks in which a trial differs from another."""
    options, usual = trial.assignment.options, base.assignment.options
    ranks = base.assignment.ranks
    return change_of(
        options={one: option for one, option in options.items() if option != usual.get(one, 0)},
        ranks={key: rank for key, rank in trial.assignment.ranks.items() if key in ranks and ranks[key] != rank},
    )


def with_changes(
    explainer: Explainer, base: Trial, needs: Needs, *changes: Change, **parts: Mapping[str, int | str]
) -> Trial:
    """The trial with some changes; at sizes as needs ask for them, if it fails at those of the base.

    Raises:
        Unbuildable: if there are no arguments like that.
    """
    trial = explainer.attempt(changed(base, *changes, **parts))
    return trial if trial.ok else explainer.with_needs(trial, needs, ascending)


def attempted(explainer: Explainer, base: Trial, *changes: Change) -> Trial | None:
    """The trial with some changes, or None if there are no arguments like that."""
    with contextlib.suppress(Unbuildable):
        return explainer.attempt(changed(base, *changes))
    return None


def holds(explainer: Explainer, base: Trial, *changes: Change) -> bool:
    """Whether there is a trial with some changes, and it holds."""
    trial = attempted(explainer, base, *changes)
    return trial is not None and trial.ok


def goes_with(explainer: Explainer, base: Trial, change: Change, others: Iterable[Change]) -> bool:
    """Whether a trial holds with a change and one of some others beside it."""
    return any(holds(explainer, base, change, other) for other in others)


def in_words(trial: Trial, changes: Sequence[Change]) -> str:
    """Options and ranks as a reader knows them: `mask left out and x of 3 axes`."""
    return " and ".join(
        describe_option(trial, place, int(to)) if part == "options" else f"{place} of {axes(int(to))}"
        for one in changes
        for (part, place), to in one.items()
    )
