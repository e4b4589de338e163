"""What annotations leave open, and how Python, JAX and NumPy refuse what stands there.

`kernel: Kernel`, `weights: PyTree`, `f: Callable`, `options: dict[str, Any]` and a bare `Array` say no more than the
kind of a value. A trial has to choose the rest, and a program that was written for another choice raises. That says
nothing of the contract. Each of `ROWS` is something that is left open, with the *refusals* that are about such a choice
and not about shapes; an error of any other form is a failure of the program, however much is left open.

Errors of one class are told apart by their words alone. All words are in this file, and one of its tests has Python,
JAX or NumPy say each of them: what no longer says them, or says others, is found there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from weft.core.edge import names
from weft.typecheck.proofs.options import argument_of
from weft.typecheck.proofs.reshapes import REFUSED
from weft.typecheck.proofs.trial import Trial
from weft.typecheck.proofs.violations import first_line, in_short
from weft.typecheck.proofs.whose import is_of_jax


@dataclass(frozen=True)
class Refusal:
    """Errors of some classes, whose first line has one of some patterns in it, if that matters."""

    errors: tuple[type[Exception], ...]
    words: tuple[str, ...] = ()

    def __call__(self, trial: Trial) -> bool:
        said = first_line(trial.error)
        by_words = not self.words or any(re.search(one, said) for one in self.words)
        return isinstance(trial.error, self.errors) and by_words


# It has no such key, attribute or item.
NOTHING_THERE = Refusal((KeyError, AttributeError, IndexError))
NO_ATTRIBUTE = Refusal((AttributeError,))
NO_KEY = Refusal((KeyError, IndexError))
# A value is not in one of Python's containers.
NOT_AMONG = Refusal((ValueError,), ("not in list$", "not in tuple$", "not in deque$", "not in range$"))
# `next` finds nothing that is as it looks for.
NONE_FOUND = Refusal((StopIteration,))
# It is called with other arguments than it takes, as Python says and `inspect` does.
OTHER_ARGUMENTS = Refusal(
    (TypeError,),
    (
        "too many positional arguments",
        "missing a required",
        r"missing \d+ required",
        r"takes .*positional arguments? but",
        "unexpected keyword arg",
    ),
)
# An argument was not given, or None was, which is its default.
NO_ARGUMENT = Refusal((TypeError,), (r"missing (a|\d+) required",))
OF_NONE = Refusal((TypeError,), ("NoneType",))
# There are no items at all. A collection that is made has one or more, so an empty one is a default.
NO_ITEMS = Refusal(
    (ValueError, TypeError),
    ("at least one array", "empty sequence", "Empty branch sequence", "argument is empty", "of empty iter"),
)
# A dict of arrays, or a tuple, where an array is computed with; or an array where a dict is asked for an item, or a
# tuple is taken apart.
_NO_AXES = "iteration over a 0-d array"
A_TREE = Refusal((TypeError,), ("'dict'", "'tuple'", "support string indexing", _NO_AXES))
# Two trees are not of one structure.
OTHER_STRUCTURE = Refusal((ValueError,), ("pytree structure", "Mismatch custom node", "tree prefix"))
# An array, or a bare Module, where a key or a function is meant.
NO_FUNCTION = Refusal(
    (TypeError,),
    ("unhashable type", r"(Tracer|Module)' object is not callable", "Expected a callable value", "must be callable"),
)
# A key where a generator of keys is meant.
NO_GENERATOR = Refusal((TypeError,), (r"Tracer' object is not callable",))

# Numbers that are not of the kind that something takes.
OTHER_NUMBERS = Refusal(
    (TypeError, ValueError),
    (
        "have integer or boolean type",
        "have an integer type",
        "of integer type",
        "must be integers",
        "does not accept dtype",
        "arguments to have the same dtypes",
        "interpreted as an integer",
    ),
)

# What Python names the class of that it cannot compute with.
_NAMED = re.compile(r"'(\w+)'")
_RESHAPED = re.compile(rf"{REFUSED} of shape .* into shape \(([\d, ]+)\)")


def of_any_shape(trial: Trial) -> bool:
    """Whether a failure is about the shape of an array whose annotation gives none, or about its number of axes."""
    said = str(trial.error)
    ranks = {int(rank) for found in _OF_RANK.finditer(said) for rank in found.groups() if rank}
    open_ranks = {rank for rank, anonymous in trial.ranks.values() if anonymous}
    if 0 in open_ranks and _NO_AXES in said:
        return True
    # Where no array has axes that are promised, there is no other shape that it could be about.
    if open_ranks and _SAYS_AXES.search(said) and not (trial.has_shapes and is_of_jax(trial.error)):
        return True
    if open_ranks and _SAYS_SIZES.search(said) and not trial.has_shapes:
        return True
    return any(key in trial.open_keys for key in trial.spoken_of) or bool(ranks & open_ranks)


# What JAX says where it names the sizes that it takes, and not those that it was given.
_SAYS_SIZES = re.compile(r"\b([dD]imensions?|shapes?|sizes?|lengths?|ax[ei]s)\b")
# What libraries say of a number of axes, in many words, and JAX in few.
_SAYS_AXES = re.compile(r"\bdimensional\b|\bndim\b|\b\d-?[dD]\b|number of indices")
_OF_RANK = re.compile(rf"{names.NO_SUCH_AXIS} (\d+)|values to unpack \(expected \d+, got (\d+)\)|it has ndim (\d+)")


def no_method(trial: Trial) -> bool:
    """Whether nothing was found for the classes of what it is given, as multiple dispatch (plum's) says it."""
    return isinstance(trial.error, LookupError) and not isinstance(trial.error, KeyError | IndexError | UnicodeError)


def _any_error(_: Trial) -> bool:
    return True


def _integers(trial: Trial) -> list[str]:
    """The integers that make up a shape that something cannot be reshaped to, where no annotation names any of them.

    With one size of a contract among them, the program says how they belong to it.
    """
    found = _RESHAPED.search(str(trial.error)) if isinstance(trial.error, TypeError) else None
    shape = list(map(int, re.findall(r"\d+", found[1]))) if found else []
    keys = {trial.assignment.sizes[key]: key for key in trial.configured}
    return [keys[size] for size in shape] if all(size in keys for size in shape) else []


def _held(trial: Trial) -> set[str]:
    """The classes of records inside of other ones that an error names."""
    about_classes = isinstance(trial.error, TypeError | AttributeError)
    return {*_NAMED.findall(first_line(trial.error))} & trial.held if about_classes else set()


def _classes(trial: Trial) -> list[str]:
    return [argument_of(place) or place for place in trial.classes]


def open_trees(trial: Trial) -> list[str]:
    """The arguments that may be a tree, or one array."""
    return [argument_of(place) for place in trial.options if place.endswith(" tree")]


# Of how many arrays of any numbers a search finds which have to be integers, by trying one more after the other.
_MOST_KINDS = 3


def _kinds(trial: Trial) -> list[str]:
    """Arrays of any numbers, as in a table of nodes and boxes, if there are more than can be tried together, or if
    their shapes have to be found as well."""
    places = [argument_of(place) for place in trial.options if place.endswith(" dtype")]
    return places if len(places) > _MOST_KINDS or not trial.has_shapes else []


def _keywords(trial: Trial) -> list[str]:
    return [one for one in trial.vague if one.startswith("**")]


def _contents(trial: Trial) -> list[str]:
    """What stands for the leaves of a tree, or for what is in a mapping, is an array: no key, and no function."""
    return [one for one in trial.vague if not one.startswith("**")]


@dataclass(frozen=True)
class Row:
    """Something that annotations leave open.

    Attributes:
        places: where a trial met it; none, if it did not.
        refusals: the errors that say that another choice was meant there.
        reason: what a reader is told, of `{places}`.
        can_be_passed: whether it helps to pass an argument.
    """

    places: Callable[[Trial], Collection[str]]
    refusals: tuple[Callable[[Trial], bool], ...]
    reason: str
    can_be_passed: bool = True

    def reason_of(self, trial: Trial) -> str | None:
        """Why a failure is about it, if so."""
        places = sorted(self.places(trial))
        if not places or not any(refused(trial) for refused in self.refusals):
            return None
        advice = "; pass it in `args`" if self.can_be_passed else ""
        return f"{self.reason.format(places=', '.join(places))} ({in_short(trial.error)}){advice}"


# In order: what is told first of a failure that may be about several. Which classes, records and trees there are says
# more than that the contents of something are open, which goes for each of these.
ROWS = {
    "a value": Row(
        lambda _: ("any",), (NOT_AMONG, NONE_FOUND), "it looks a value up, and annotations do not say that it is there"
    ),
    "the items of a default": Row(
        lambda trial: trial.empty, (NO_ITEMS,), "{places}: it has no items by default, and it needs items"
    ),
    "the items of a collection of anything": Row(
        lambda trial: trial.emptied, (NO_ITEMS, NO_ARGUMENT), "{places}: nothing was put into it, and it needs items"
    ),
    "integers": Row(_integers, (_any_error,), "{places}: what has this shape, annotations do not say"),
    "a class": Row(
        _classes,
        (NO_ATTRIBUTE, no_method, OTHER_ARGUMENTS),
        "{places}: no class that was tried has, or gives, what is read of it",
    ),
    "a record": Row(_held, (_any_error,), "it holds a {places} where it computes with an array", can_be_passed=False),
    "a tree": Row(open_trees, (A_TREE, OTHER_STRUCTURE), "{places}: the annotation leaves open which tree it is"),
    "contents of some structure": Row(
        lambda trial: trial.vague, (OTHER_STRUCTURE,), "{places}: the annotation leaves open which tree it is"
    ),
    "kinds of numbers": Row(_kinds, (OTHER_NUMBERS,), "{places}: the annotations leave open which numbers they are"),
    "keywords": Row(_keywords, (NO_ARGUMENT, OF_NONE, NO_KEY), "{places}: the annotations do not say what it takes"),
    "a key by its name": Row(
        lambda trial: trial.by_name, (NO_GENERATOR,), "{places}: no annotation says that it is a random key"
    ),
    "contents": Row(
        _contents, (NOTHING_THERE, NO_FUNCTION, of_any_shape), "{places}: the annotation leaves its contents open"
    ),
    "a method": Row(
        lambda _: ("any",),
        (no_method,),
        "nothing is there for what it is given, and no annotation says that there is",
    ),
}


def left_open(trial: Trial) -> str | None:
    """What a failure without violations is about that annotations leave open, in words, if so."""
    return next((reason for row in ROWS.values() if (reason := row.reason_of(trial)) is not None), None)
