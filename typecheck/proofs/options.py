"""Options of a trial, the choices that annotations leave: which are untried, their names, and failures about them.

An option belongs to a *place*, an argument and what is open about it: `mask given`, `mask present` (not None), `x
length`, `ys tree` (a tree, or one array), `x type` (a member of a union), `x dtype` (numbers or integers), `x[0]
broadcast`; the place of a flag is its name. `floats width` is about all floats, where JAX makes them of 64 bits.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from weft.typecheck.arguments.builder import ITEMS, Assignment
from weft.typecheck.matching.bindings import Mismatch
from weft.typecheck.proofs.notes import Options
from weft.typecheck.proofs.trial import Trial
from weft.typecheck.proofs.violations import OF_KIND
from weft.typecheck.proofs.wording import DTYPE_OR_INTEGER, DTYPES, UNPACKED, says


def leaves_kinds_open(trial: Trial) -> bool:
    """Whether a failure may come from a tree or a dtype of the wrong kind, where annotations leave the kind open."""
    kinds = (" tree", " dtype") if says(str(trial.error), DTYPE_OR_INTEGER) else (" tree",)
    # A function of any tree that promises an array may be meant for trees of one array.
    about_kinds = not trial.violations or trial.violations[0].reason in OF_KIND
    return about_kinds and any(place.endswith(kinds) for place in trial.options.counts)


def speaks_of_kinds(trial: Trial) -> bool:
    """Whether an error, or the guard that raised it, mentions dtypes."""
    if speaks_of_rank(trial):
        return False  # the message shows the annotation, which may name dtypes
    return says(f"{trial.error} {trial.guard}", DTYPES)


def asks_for_dtype(trial: Trial) -> bool:
    """Whether an error says that a value has the wrong dtype."""
    return isinstance(trial.error, TypeError) and "dtype" in str(trial.error)


def unpacks_items(trial: Trial) -> bool:
    """Whether unpacking fails, and an argument may have any number of items."""
    return takes_apart(trial) and any(place.endswith(" length") for place in trial.options.counts)


def takes_apart(trial: Trial) -> bool:
    """Whether unpacking fails, as a value has another number of items, or of axes, than names to unpack into."""
    return isinstance(trial.error, ValueError) and says(str(trial.error), UNPACKED)


def speaks_of_rank(trial: Trial) -> bool:
    """Whether a contract, and no guard, was broken by a wrong number of axes."""
    if trial.violations:
        return trial.violations[0].reason == "rank"
    # The stand-in of a callable raises with the mismatch as its context.
    reason = None if trial.error is None else trial.error.__context__
    return isinstance(reason, Mismatch) and reason.reason == "rank"


def at_guard(trial: Trial) -> str:
    """The place of the guard that a trial ended at, in brackets."""
    return f" ({': '.join(trial.guard.split(': ')[:1])})" if trial.guard else ""


def items_of(assignment: Assignment, places: Collection[str]) -> dict[str, int]:
    """The number of items of each collection among the arguments that may have any number, by place."""
    lengths = (place for place in places if place.endswith(" length"))
    return {place: ITEMS[assignment.options.get(place, 0)] for place in lengths}


def argument_of(place: str) -> str:
    return place.rpartition(" ")[0].removeprefix("self.")


class Phrases(NamedTuple):
    """The words for an option: next to the sizes of a failure, and as the end of "holds when ..."."""

    taken_here: str
    needed: str
    excluded: str


# The phrases for what may be open about an argument. `{of}` is the argument without the name of its record.
_PHRASES = {
    "given": ("{name} left out", "{of} is left out", "{of} is given"),
    "present": ("{name} is None", "{of} is None", "{of} is not None"),
    "broadcast": ("{name} of size 1", "{name} is of size 1", "{name} is not of size 1"),
    "length": ("{name} of {items}", "{name} has {items}", "{name} has not {items}"),
    "tree": ("{name} of one array", "{name} is one array", "{name} is not one array"),
    "width": ("{name} of 32 bits", "{name} are of 32 bits", "{name} are of 64 bits, as JAX makes them here"),
    "dtype": ("{name} of integers", "{name} is of integers", "{name} is not of integers"),
    "arrays": ("{place} of {value}", "{place} are of {value}", "{place} are not of {value}"),
    "of a class": ("{name} of class {value}", "{name} is of class {value}", "{name} is not of class {value}"),
    "of a union": ("{name}: {value}", "{name} is a {value}", "{name} is not a {value}"),
    "a value": ("{place} = {value}", "{place} = {value}", "{place} is not {value}"),
    "by number": ("{place} as option {number}", "{place} is option {number}", "{place} is not option {number}"),
}


def phrases(options: Options, place: str, option: int) -> Phrases:
    """The words for an option: `kernel of class RBF`, `kernel is of class RBF`, `kernel is not of class RBF`."""
    name, _, aspect = place.rpartition(" ")
    items, value = ITEMS[option] if aspect == "length" else 0, ""
    if place in options.classes:  # not if the trial failed before it came to that argument
        aspect, value = "of a class", options.classes[place][option]
    elif place in options.values:
        aspect = {"type": "of a union", "arrays": aspect}.get(aspect, "a value")
        value = options.values[place][option]
    elif not name or aspect not in _PHRASES:
        aspect = "by number"
    words = {"place": place, "name": name, "of": argument_of(place), "value": value, "number": option + 1}
    words["items"] = f"{items} item{'s' * (items != 1)}"
    return Phrases(*(phrase.format(**words) for phrase in _PHRASES[aspect]))


def is_class(place: str) -> bool:
    """Whether a place's options are the concrete classes of an abstract class."""
    return place.endswith(" class")


# The most options of one place that are tried, if they are no classes: literals, members of a union, lengths.
_MOST_OF_ONE = 4


def _unions_alike(trial: Trial) -> Iterator[dict[str, int]]:
    """Each member of a union, chosen at once for all fields of one record that are annotated with that union."""
    groups = collections.defaultdict[Any, list[str]](list)
    for place, members in trial.options.values.items():
        if place.endswith(" type") and "." in place:
            groups[place.rpartition(".")[0], members].append(place)
    for (_, members), alike in groups.items():
        if len(alike) > 1 or alike[0] not in trial.options.counts:
            yield from (dict.fromkeys(alike, option) for option in range(1, min(len(members), _MOST_OF_ONE)))


# The most classes that are each tried for all arguments of the same abstract class at once.
_MOST_TOGETHER = 12


def _classes_alike(trial: Trial) -> Iterator[dict[str, int]]:
    """Each concrete class, chosen at once for all arguments that are annotated with the same abstract class.

    A union of two geometric shapes takes two in the plane or two in space, but not one of each.
    """
    groups = collections.defaultdict[Any, list[str]](list)
    for place, classes in trial.options.classes.items():
        groups[classes].append(place)
    for classes, alike in groups.items():
        if len(alike) > 1:
            yield from (dict.fromkeys(alike, option) for option in range(1, min(len(classes), _MOST_TOGETHER)))


def untried_options(trial: Trial, but: frozenset[str]) -> list[dict[str, int]]:
    """Each other option that a trial could take, except at the places in `but`; the likeliest to help first."""
    open_places = (place for place in trial.options.counts if place not in but)
    places = [place for place in open_places if not place.endswith(" dtype") or speaks_of_kinds(trial)]
    owners = tuple(f"{place.removesuffix(' class')}." for place in but)
    places.sort(key=lambda place: not place.startswith(owners))  # a class most often fails for its own arguments
    if unpacks_items(trial):
        places = [place for place in places if place.endswith(" length")]
    others = [
        {place: option}
        for place in places
        for count in (trial.options.counts[place],)
        for option in (range(count) if is_class(place) else range(1, min(count, _MOST_OF_ONE)))
        if option != trial.assignment.options.get(place, 0)
    ]
    return others if but else [*_classes_alike(trial), *others, *_unions_alike(trial)]
