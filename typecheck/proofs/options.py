"""Options of a trial, which it may take otherwise: what they are called, and in which two trials differ.

An option belongs to a *place*, an argument and what is open about it: `mask given`, `mask present` (not None), `x
length`, `ys tree` (a tree, or one array), `x dtype` (numbers or integers), `x[0] broadcast`; a flag's is its name.
"""

from __future__ import annotations

import re

from weft.typecheck.proofs.trial import Trial


def leaves_kinds_open(trial: Trial) -> bool:
    """Whether an error may be one of a tree or a dtype of the wrong kind, where annotations leave that open."""
    kinds = (" tree", " dtype") if re.search("dtype|integer|type", str(trial.error)) else (" tree",)
    return not trial.violations and any(place.endswith(kinds) for place in trial.options)


def difference(base: Trial, trial: Trial) -> dict[tuple[str, str], int]:
    """The options and ranks in which a trial differs from another."""
    options, usual = trial.assignment.options, base.assignment.options
    found = {("option", one): options.get(one, 0) for one in options if options.get(one, 0) != usual.get(one, 0)}
    ranks = base.assignment.ranks
    return found | {("rank", k): n for k, n in trial.assignment.ranks.items() if k in ranks and ranks[k] != n}


def at_guard(trial: Trial) -> str:
    """The place of the guard that a trial ended at, in brackets."""
    return f" ({': '.join(trial.guard.split(': ')[:1])})" if trial.guard else ""


def argument_of(place: str) -> str:
    return place.rpartition(" ")[0].removeprefix("self.")


def taken_option(trial: Trial, place: str, option: int) -> str:
    """That an option is taken, as the end of "holds when ..."."""
    name, _, what = place.rpartition(" ")
    if place in trial.values:
        return f"{place} = {trial.values[place][option]}"
    if what in ("given", "present") and name:
        return f"{argument_of(place)} is {'left out' if what == 'given' else 'None'}"
    if what == "tree" and name:
        return f"{name} is one array"
    if what == "dtype" and name:
        return f"{name} is of integers"
    return f"{'it is ' if not name else ''}{describe_option(trial, place, option)}"


def is_class(place: str) -> bool:
    """Whether an option is one of the classes that may stand for an abstract one."""
    return place.endswith(" class")


def describe_option(trial: Trial, place: str, option: int) -> str:
    """An option as a reader knows it: `mask given` is taken or not; `kernel class` is one of some classes."""
    name, _, what = place.rpartition(" ")
    if is_class(place):
        return f"{name} of class {trial.classes[place][option]}"
    if place in trial.values:
        return f"{place} = {trial.values[place][option]}"
    if what == "given" and name:
        return f"{name} left out"
    if what == "present" and name:
        return f"{name} is None"
    if what == "broadcast" and name:
        return f"{name} of size 1"
    if what == "length" and name:
        return f"{name} of {(2, 1, 3)[option]} items"
    if what == "tree" and name:
        return f"{name} of one array"
    return f"{place} as option {option + 1}"


def without_option(trial: Trial, place: str, option: int) -> str:
    """That an option is not taken, as the end of "holds when ..."."""
    name, _, what = place.rpartition(" ")
    if place in trial.values:
        return f"{place} is not {trial.values[place][option]}"
    if what == "given" and name:
        return f"{argument_of(place)} is given"
    if what == "present" and name:
        return f"{argument_of(place)} is not None"
    if what == "length" and name:
        return f"{name} has not {(2, 1, 3)[option]} items"
    if what == "tree" and name:
        return f"{name} is not one array"
    return f"it is not {describe_option(trial, place, option)}"
