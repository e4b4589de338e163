"""A trial, the result of one trace: what it noted about its arguments, what failed, and the options that it leaves.

An option belongs to a *place*, an argument and what is open about it. The places are `mask given`, `mask present` (not
None), `x length`, `ys tree` (a tree, or one array), `x type` (a member of a union), `x dtype` (numbers or integers) and
`x[0] broadcast`. The place of a flag is its name. `floats width` is about all floats, where JAX makes them of 64 bits.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from weft.typecheck.arguments.builder import ITEMS, Assignment, Builder
from weft.typecheck.arguments.concolic import Values
from weft.typecheck.matching.bindings import Mismatch
from weft.typecheck.proofs.violations import (
    DTYPE_OR_INTEGER,
    DTYPES,
    OF_KIND,
    UNPACKED,
    Violation,
    numbers_in,
    says,
    sizes_that_disagree,
    without_numbers,
)

# What a program reads to decide something by a dtype.
DTYPE_NAMES = frozenset({"dtype", "itemsize", "nbytes", "result_type", "promote_types", "iscomplexobj", "isrealobj"})


@dataclass(frozen=True)
class Keys:
    """How the annotations and the arguments use the keys of sizes.

    Attributes:
        scopes: the scopes whose annotations name each key.
        originals: the sizes of keys in the instance that is generalised.
        leading: the keys that are the first of several axes of an array argument.
        numbers: the keys whose sizes are integer arguments as well.
        configured: the keys of integer arguments that no shape names.
        unnamed: for each axis that no annotation names, its key and argument.
        by_default: the default integers of the constructors of records among the arguments, which a size may equal.
        are_shared: whether the function and the records that it is given have names in common.
    """

    scopes: Mapping[str, Set[str]]
    originals: Mapping[str, int]
    leading: Set[str]
    numbers: Set[str]
    configured: Set[str]
    unnamed: Mapping[str, str]
    by_default: Set[int]
    are_shared: bool

    def scopes_of(self, key: str) -> Set[str]:
        """The scopes whose annotations name a key: "" is the function's, "self." that of its own record."""
        return self.scopes.get(key, frozenset[str]())


class Rank(NamedTuple):
    """The number of axes that a `*name`, a `...` or an array without a shape has in a trial.

    Attributes:
        axes: the number of axes.
        is_unnamed: whether no name stands for them: of a `...`, and of an array without a shape.
        is_of_records: whether only records among the arguments write the `*name`.
    """

    axes: int
    is_unnamed: bool = False
    is_of_records: bool = False


# Names by which a program reads variables and attributes whatever their names are.
_BY_ANY_NAME = frozenset({"getattr", "vars", "locals", "__dict__", "attrgetter", "asdict", "astuple", "fields"})


@dataclass(frozen=True)
class Options:
    """The choices that annotations leave, by place; the head of this file says which places there are.

    Attributes:
        noted: how many options each place had in the trial.
        own: the parameters with a default that are the program's own.
        given: the values that note what is asked of them, by place.
        classes: the names of the concrete classes for an abstract class.
        noted_values: the text of each option, where the options are values or members of a union.
    """

    noted: Mapping[str, int]
    own: Set[str]
    given: Mapping[str, Values]
    classes: Mapping[str, tuple[str, ...]]
    noted_values: Mapping[str, tuple[str, ...]]

    def is_read(self, place: str, names: Set[str]) -> bool:
        """Whether a program that reads some names may read a parameter, to which a place belongs."""
        parameter = place.partition(" ")[0]
        is_own = parameter in self.own and names.isdisjoint(_BY_ANY_NAME)
        return not is_own or parameter.rpartition(".")[2] in names

    @property
    def counts(self) -> dict[str, int]:
        """How many options each place has by now: a value has more as more is asked of it."""
        asked = {place: len(values.extend()) for place, values in self.given.items()}
        return {**self.noted, **{place: count for place, count in asked.items() if count > 1}}

    @property
    def values(self) -> dict[str, tuple[str, ...]]:
        """The text of each option, where the options are values or members of a union."""
        asked = {place: tuple(map(repr, values.extend())) for place, values in self.given.items()}
        return {**self.noted_values, **asked}


@dataclass(frozen=True)
class Assumptions:
    """What annotations do not say about the arguments, and the trial had to make up.

    Attributes:
        contents: the arguments whose annotation leaves open what is in them.
        keys_by_name: the arguments that only their names show to be random keys.
        emptied: the collections of anything that were left empty.
        empty_fields: the fields of records and objects among the arguments that hold an empty collection by default.
        texts: the made-up strings, where nothing says which strings are possible, by place.
        unsatisfied: annotations that nothing satisfies, each with the annotation that it was read as.
        results: the callables that were called though no annotation says what they return.
        fixed: the parameters that stay at their default, with its words.
    """

    contents: Set[str]
    keys_by_name: Set[str]
    emptied: Set[str]
    texts: Mapping[str, str]
    unsatisfied: Set[str]
    results: Set[str]
    empty_fields: Set[str]
    fixed: Mapping[str, str]


def keys_of(builder: Builder) -> Keys:
    return Keys(
        scopes=builder.contracts_by_key(),
        originals=builder.originals,
        leading=builder.leading,
        numbers=builder.numbers,
        configured=builder.configured,
        unnamed=builder.open_keys,
        by_default=builder.by_default,
        are_shared=bool(builder.names & builder.names_outside),
    )


def ranks_of(builder: Builder) -> dict[str, Rank]:
    of_records = builder.ranks_of_records
    return {key: Rank(axes, is_unnamed, key in of_records) for key, (axes, is_unnamed) in builder.ranks.items()}


def options_of(builder: Builder) -> Options:
    return Options(builder.options, builder.own, builder.given, builder.classes, builder.values)


def unsaid_of(builder: Builder, empty_fields: Set[str]) -> Assumptions:
    return Assumptions(
        contents=builder.vague,
        keys_by_name=builder.by_name,
        emptied=builder.emptied,
        empty_fields=empty_fields,
        texts=builder.texts,
        unsatisfied=builder.bare,
        results=builder.assumed,
        fixed=builder.fixed,
    )


@dataclass(frozen=True)
class Trial:
    """The result of one trace.

    Attributes:
        assignment: the assignment of the trial, completed with all sizes, ranks and options that the trial met.
        keys: how annotations and arguments use the keys of its sizes.
        ranks: the numbers of axes of `*name`s, `...` and arrays without a shape, by key.
        options: the choices that annotations leave, by place.
        unsaid: what annotations do not say about the arguments.
        violations: the contracts that did not hold.
        error: the error that the program raised.
        error_at: the user's file and line that raised it.
        guard: the place and text of the program's own statement that raised on purpose; "" if none did.
        progress: how far the trial got before its first violation or error.
        jaxpr: the jaxpr of the trace, if no error was raised.
        names: the names that the user's functions in the trace read, of variables and attributes.
        transformed: whether a transform around the function was taken off.
        passing: the guards that the numbers in arrays were taken to pass.
        is_plain: whether no record and no object is among its arguments.
        operations: the number of operations in the trace, and in those that made its records.
    """

    assignment: Assignment
    keys: Keys
    ranks: Mapping[str, Rank]
    options: Options
    unsaid: Assumptions
    violations: tuple[Violation, ...] = ()
    error: Exception | None = None
    error_at: tuple[str, int] = ("", 0)
    guard: str = ""
    progress: tuple[int, int, int] = (0, 0, 0)
    jaxpr: Any = field(default=None, repr=False)
    names: frozenset[str] = frozenset()
    transformed: bool = False
    passing: tuple[str, ...] = ()
    is_plain: bool = False
    operations: int = 0

    @property
    def refused(self) -> bool:
        """Whether the constructor of a class refused arguments that its annotations allow, as pydantic's do."""
        return isinstance(self.error, ValueError) and not self.progress[0] and not self.error_at[0]

    @property
    def ok(self) -> bool:
        """Whether everything held."""
        return self.error is None and not self.violations

    @property
    def breaks_promise(self) -> bool:
        """Whether a result or a field breaks its annotation, and the annotation makes sense at these sizes."""
        if not self.violations or self.violations[0].where.startswith("argument"):
            return False
        return min(self.violations[0].sizes, default=0) >= 0  # no axis is of size -1

    @property
    def joins_dims(self) -> bool:
        """Whether the trial makes two dims the same size, at least one of which an annotation names."""
        keys = (*self.assignment.merged, *self.assignment.merged.values())
        return any(not self.ranks.get(key.rpartition(".")[0], Rank(0)).is_unnamed for key in keys)

    @property
    def place(self) -> tuple[Any, ...]:
        """The place of the first violation, or of the error: trials that fail in one place have the same failure."""
        if self.violations:
            return self.violations[0].place
        return (*self.error_at, type(self.error).__name__)

    @property
    def mentioned(self) -> frozenset[int]:
        """The sizes that the failure mentions."""
        if self.violations:
            first = self.violations[0]
            return frozenset(first.sizes or numbers_in(first.message))
        return frozenset(sizes_that_disagree(str(self.error)) or numbers_in(str(self.error)))

    @property
    def complaint(self) -> str:
        """The failure's message with every number replaced by 0, to compare messages at different sizes."""
        return without_numbers(self.violations[0].message if self.violations else str(self.error))

    @property
    def spoken_of(self) -> tuple[str, ...]:
        """The keys whose sizes, or multiples of them, the failure mentions."""
        mentioned = self.mentioned
        return tuple(
            key
            for key, size in self.assignment.sizes.items()
            if size in mentioned
            or (isinstance(size, int) and size > 4 and any(number and number % size == 0 for number in mentioned))
        )


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
    return f" ({trial.guard.partition(': ')[0]})" if trial.guard else ""


def items_of(assignment: Assignment, places: Collection[str]) -> dict[str, int]:
    """The number of items of each collection among the arguments that may have any number, by place."""
    lengths = (place for place in places if place.endswith(" length"))
    return {place: ITEMS[assignment.options.get(place, 0)] for place in lengths}


def argument_of(place: str) -> str:
    return place.rpartition(" ")[0].removeprefix("self.")


class OptionWording(NamedTuple):
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


def phrases(options: Options, place: str, option: int) -> OptionWording:
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
    return OptionWording(*(phrase.format(**words) for phrase in _PHRASES[aspect]))


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
        # A single place with noted options is varied by itself, with the other options.
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
