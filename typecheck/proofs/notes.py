"""What a trial notes about its arguments while it builds them: of their sizes, of options, and of what is left open."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from weft.typecheck.arguments.asked import Values
from weft.typecheck.arguments.builder import Builder


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
    """The choices that annotations leave, by place; `options` says which places there are.

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
class Unsaid:
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
    used = builder.contracts_by_key(), builder.originals, builder.leading, builder.numbers, builder.configured
    return Keys(*used, builder.open_keys, builder.by_default, bool(builder.names & builder.names_outside))


def ranks_of(builder: Builder) -> dict[str, Rank]:
    of_records = builder.ranks_of_records
    return {key: Rank(axes, is_unnamed, key in of_records) for key, (axes, is_unnamed) in builder.ranks.items()}


def options_of(builder: Builder) -> Options:
    return Options(builder.options, builder.own, builder.given, builder.classes, builder.values)


def unsaid_of(builder: Builder, empty_fields: Set[str]) -> Unsaid:
    made_up = builder.emptied, builder.texts, builder.bare, builder.assumed
    return Unsaid(builder.vague, builder.by_name, *made_up, empty_fields, builder.fixed)
