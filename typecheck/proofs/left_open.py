"""A table of what annotations leave open, with the errors by which Python, JAX and NumPy refuse a wrong choice of it.

`kernel: Kernel`, `weights: PyTree`, `f: Callable`, `options: dict[str, Any]` and a bare `Array` say no more than the
kind of a value. A trial has to choose the rest, and a program that was written for another choice raises. That says
nothing of the contract. Each of `ROWS` is one thing that annotations leave open, with the *refusals* that are about
such a choice and not about shapes. Any other error is a failure of the program, however much is left open.

Errors of one class are told apart by their words alone. All these words are in this file, and a test provokes each of
them in Python, JAX or NumPy, so that a new version with other words fails that test.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from weft.typecheck.proofs.options import argument_of
from weft.typecheck.proofs.reshapes import REFUSED
from weft.typecheck.proofs.trial import Trial
from weft.typecheck.proofs.whose import is_of_jax
from weft.typecheck.proofs.wording import AXES, SIZES, first_line, in_short, numbers_in, rank_in, says


@dataclass(frozen=True)
class Refusal:
    """Recognises errors by their class and, if there are `words`, by a pattern that their first line has to match."""

    errors: tuple[type[Exception], ...]
    words: tuple[str, ...] = ()

    def __call__(self, trial: Trial) -> bool:
        by_words = not self.words or says(first_line(trial.error), self.words)
        return isinstance(trial.error, self.errors) and by_words


ANY_ERROR = Refusal((Exception,))
# A key, attribute or item does not exist.
NOTHING_THERE = Refusal((KeyError, AttributeError, IndexError))
NO_ATTRIBUTE = Refusal((AttributeError,))
NO_KEY = Refusal((KeyError, IndexError))
# `index` or `remove` does not find a value in one of Python's containers.
NOT_AMONG = Refusal((ValueError,), ("not in list$", "not in tuple$", "not in deque$", "not in range$"))
# `next` finds no item.
NONE_FOUND = Refusal((StopIteration,))
# A function is called with other arguments than it takes, in the words of Python and of `inspect`.
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
# An argument is missing, or has its default None.
NO_ARGUMENT = Refusal((TypeError,), (r"missing (a|\d+) required",))
OF_NONE = Refusal((TypeError,), ("NoneType",))
# A collection has no items. Collections that a trial makes have one or more, so an empty one is a default.
NO_ITEMS = Refusal(
    (ValueError, TypeError),
    ("at least one array", "empty sequence", "Empty branch sequence", "argument is empty", "of empty iter"),
)
# The program computes with a dict of arrays, or a tuple, as with an array; or it indexes an array as a dict, or a
# tuple is taken apart.
_NO_AXES = "iteration over a 0-d array"
A_TREE = Refusal((TypeError,), ("'dict'", "'tuple'", "support string indexing", _NO_AXES))
# Two trees have different treedefs.
OTHER_STRUCTURE = Refusal((ValueError,), ("pytree structure", "Mismatch custom node", "tree prefix"))
# The program uses an array, or a bare Module, as a dict's key or a function.
NO_FUNCTION = Refusal(
    (TypeError,),
    ("unhashable type", r"(Tracer|Module)' object is not callable", "Expected a callable value", "must be callable"),
)
# The program calls a random key, since it means a generator of keys; or it takes one for numbers, or for an index, such
# as the `key` of a `__getitem__`.
NO_GENERATOR = Refusal((TypeError,), (r"Tracer' object is not callable",))
NO_RANDOM_KEY = Refusal((TypeError, ValueError), ("key<",))

# A function takes another dtype: integers, or the dtype of its other arguments.
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


def of_any_shape(trial: Trial) -> bool:
    """Whether a failure is about the shape of an array whose annotation gives none, or about its number of axes."""
    said = str(trial.error)
    open_ranks = {rank.axes for rank in trial.ranks.values() if rank.is_unnamed}
    if 0 in open_ranks and _NO_AXES in said:
        return True
    # Where no annotation gives axes, the error cannot be about any other shape.
    if open_ranks and says(said, AXES) and not (trial.unsaid.has_shapes and is_of_jax(trial.error)):
        return True
    if open_ranks and says(said, SIZES) and not trial.unsaid.has_shapes:
        return True
    return any(key in trial.keys.unnamed for key in trial.spoken_of) or bool(rank_in(trial.error) & open_ranks)


def no_method(trial: Trial) -> bool:
    """Whether multiple dispatch (plum's) found no method for the classes of the arguments."""
    return isinstance(trial.error, LookupError) and not isinstance(trial.error, KeyError | IndexError | UnicodeError)


def _integers(trial: Trial) -> list[str]:
    """The keys of the integers in a shape that a reshape refuses, where no annotation names any of them.

    If a size of the contract is among them, the program states how the integers belong to it, and the error counts.
    """
    refused = str(trial.error).partition(REFUSED)[2] if isinstance(trial.error, TypeError) else ""
    shape = numbers_in(refused.partition("into shape ")[2].partition(")")[0])
    keys = {trial.assignment.sizes[key]: key for key in trial.keys.configured}
    return [keys[size] for size in shape] if all(size in keys for size in shape) else []


def _inner_classes(trial: Trial) -> set[str]:
    """The classes named in an error whose instances are inside of other records."""
    said = first_line(trial.error) if isinstance(trial.error, TypeError | AttributeError) else ""
    return {cls for cls in trial.unsaid.inner_classes if f"'{cls}'" in said}


def _classes(trial: Trial) -> list[str]:
    return [argument_of(place) or place for place in trial.options.classes]


def open_trees(trial: Trial) -> list[str]:
    """The arguments that may be a tree, or one array."""
    return [argument_of(place) for place in trial.options.counts if place.endswith(" tree")]


# A search can find out which of so many arrays without a dtype have to be integers, by trying one after the other.
_MOST_KINDS = 3


def _kinds(trial: Trial) -> list[str]:
    """The arrays without a dtype, if they are too many to try, or if their shapes have to be found out as well."""
    places = [argument_of(place) for place in trial.options.counts if place.endswith(" dtype")]
    return places if len(places) > _MOST_KINDS or not trial.unsaid.has_shapes else []


def _keywords(trial: Trial) -> list[str]:
    return [one for one in trial.unsaid.contents if one.startswith("**")]


def _contents(trial: Trial) -> list[str]:
    """The trees and mappings whose contents are open: a trial fills them with arrays, not with keys or functions."""
    return [one for one in trial.unsaid.contents if not one.startswith("**")]


@dataclass(frozen=True)
class Row:
    """One thing that annotations leave open.

    Attributes:
        places: the places in a trial's arguments where this is left open.
        refusals: the errors that say that the program means another choice there.
        reason: the sentence for a reader, with `{places}`.
        can_be_passed: whether a user can pass the right choice as an argument.
    """

    places: Callable[[Trial], Collection[str]]
    refusals: tuple[Callable[[Trial], bool], ...]
    reason: str
    can_be_passed: bool = True

    def reason_of(self, trial: Trial) -> str | None:
        """The sentence for a reader if a failure is about this, else None."""
        places = sorted(self.places(trial))
        if not places or not any(refused(trial) for refused in self.refusals):
            return None
        advice = "; pass it in `args`" if self.can_be_passed else ""
        return f"{self.reason.format(places=', '.join(places))} ({in_short(trial.error)}){advice}"


# The first row that fits is told. Rows about classes, records and trees come before rows about contents, which fit the
# same failures and say less.
ROWS = {
    "a value": Row(
        lambda _: ("any",), (NOT_AMONG, NONE_FOUND), "no annotation says that the value that it looks up is there"
    ),
    "the items of a default": Row(
        lambda trial: trial.unsaid.empty_fields, (NO_ITEMS,), "{places}: it is empty by default, and items are needed"
    ),
    "the items of a collection of anything": Row(
        lambda trial: trial.unsaid.emptied, (NO_ITEMS, NO_ARGUMENT), "{places}: weft left it empty; items are needed"
    ),
    "integers": Row(_integers, (ANY_ERROR,), "{places}: no annotation says which array has this shape"),
    "a class": Row(
        _classes,
        (NO_ATTRIBUTE, no_method, OTHER_ARGUMENTS),
        "{places}: no class that was tried has the attribute, or takes the arguments, that the program uses",
    ),
    "a record": Row(_inner_classes, (ANY_ERROR,), "a {places} is where it needs an array", can_be_passed=False),
    "a tree": Row(open_trees, (A_TREE, OTHER_STRUCTURE), "{places}: the annotation leaves open which tree it is"),
    "contents of some structure": Row(
        lambda trial: trial.unsaid.contents, (OTHER_STRUCTURE,), "{places}: the annotation leaves open which tree it is"
    ),
    "kinds of numbers": Row(_kinds, (OTHER_NUMBERS,), "{places}: no annotation says whether they are of integers"),
    "keywords": Row(_keywords, (NO_ARGUMENT, OF_NONE, NO_KEY), "{places}: no annotation says which keywords it takes"),
    "a key by its name": Row(
        lambda trial: trial.unsaid.keys_by_name,
        (NO_GENERATOR, NO_RANDOM_KEY),
        "{places}: no annotation says that it is a random key",
    ),
    "contents": Row(
        _contents, (NOTHING_THERE, NO_FUNCTION, of_any_shape), "{places}: the annotation leaves its contents open"
    ),
    "a method": Row(
        lambda _: ("any",),
        (no_method,),
        "the program looks up a method or an entry for its arguments, and no annotation says that there is one",
    ),
}


def left_open(trial: Trial) -> str | None:
    """What annotations leave open that explains a failure without violations, in a sentence for a reader, else None."""
    return next((reason for row in ROWS.values() if (reason := row.reason_of(trial)) is not None), None)
