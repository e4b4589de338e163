"""What a failure is about that annotations leave open: then it says nothing of the contract."""

from __future__ import annotations

import re
import traceback

import jax
from weft.core.callers import owner_of
from weft.core.edge import _tracers, names
from weft.typecheck.proofs import tracing
from weft.typecheck.proofs.options import argument_of
from weft.typecheck.proofs.reshapes import REFUSED
from weft.typecheck.proofs.trial import Trial
from weft.typecheck.proofs.whose import is_of_jax, is_of_library

# What a program raises that needs the numbers in an array, not only its shape.
NOT_ABSTRACT = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
# What no numbers would do for inside of a transform of the program's own: that goes for every array there.
_NOT_INSIDE = (jax.errors.TracerIntegerConversionError, jax.errors.NonConcreteBooleanIndexError)
# What it says of a value that it has kept from where it was made, outside of the trace.
_ABSTRACT = f"'{jax.ShapeDtypeStruct.__name__}'"
# A class that an error names.
_NAMED = re.compile(r"'(\w+)'")
# What a library says where shapes, or kinds of numbers, are what it refuses.
_OF_SHAPES = re.compile(r"\d|shape|dim|ax[ie]s|rank|size|length|dtype|broadcast|array|structure|scalar|matri", re.I)
# What is said where a keyword was not given.
_LACKING = re.compile(r"missing \d+ required|NoneType")
# What is said where a call's arguments are not those of what is called.
_ARGUMENTS = re.compile(
    r"too many positional arguments|missing (a|\d+) required|takes .*positional arguments? but|unexpected keyword arg"
)
_UNSPECIFIC = (KeyError, AttributeError, IndexError)
# What Python's containers say of a value that is not in them: annotations give no values, and so cannot link the two.
_LOOKED_UP = re.compile(r"not in (list|tuple|deque|range|enumerate)$")
_NO_ARRAY = re.compile(
    r"unhashable type|(Tracer|Module)' object is not callable|Expected a callable value|must be callable"
)
_RESHAPED = re.compile(rf"{REFUSED} of shape .* into shape \(([\d, ]+)\)")
# What is said of two trees that are not of one structure.
_STRUCTURES = re.compile(r"pytree structure|Mismatch custom node|different types at key path|tree prefix")
# What JAX and Python say of no items at all. A collection that is made has one or more, so an empty one is a default.
_NO_ITEMS = re.compile(
    r"[Aa]t least one (array|value|element)|[Ee]mpty (branch )?sequence|argument is empty|of empty (iter|seq)"
)


def beyond_annotations(trial: Trial) -> str | None:
    """Why a failure says nothing of the contract, if so: what it is about is not in the annotations."""
    reason = _beyond(trial)
    if reason is None and trial.texts:  # another text may well do otherwise
        texts = ", ".join(sorted(trial.texts))
        which = "neither the annotation nor the body says which text it may be"
        return f"{texts}: {which} ({_said(trial)}); pass it in `args`"
    return reason


def _said(trial: Trial) -> str:
    return f"{trial.violations[0].where}: {trial.violations[0].message}" if trial.violations else _in_short(trial)


def _beyond(trial: Trial) -> str | None:
    if trial.assumed:
        called = ", ".join(sorted(trial.assumed))
        return f"{called}: the annotation does not say what it returns ({_said(trial)}); pass it in `args`"
    if trial.violations:
        return _of_open(trial)
    what = _in_short(trial)
    if needs_numbers(trial) or _ABSTRACT in what:
        return f"it needs the numbers in an array, not only its shape ({what})"
    if isinstance(trial.error, NotImplementedError):
        return f"it is not implemented ({what})"
    if isinstance(trial.error, RuntimeError) and is_of_jax(trial.error):
        return f"it needs a device, or a library, that is not here ({what})"
    of_library = isinstance(trial.error, RuntimeError) and not isinstance(trial.error, RecursionError)
    if (of_library and not trial.guard) or _refuses_a_choice(trial):
        return f"a library refuses what is asked of it, and not for its shapes ({what})"
    if trial.refused:
        return f"no arguments were found that the validation of their classes lets pass ({what}); pass some in `args`"
    if isinstance(trial.error, OSError):
        return f"it needs what lies outside of the program ({what})"
    if trial.guard:
        return f"{trial.guard}: no arguments were found that pass ({what}); pass some in `args`"
    if isinstance(trial.error, ValueError) and _LOOKED_UP.search(what):
        return f"it looks a value up, and annotations do not say that it is there ({what}); pass it in `args`"
    if isinstance(trial.error, ValueError | TypeError) and _NO_ITEMS.search(what):
        for places, why in ((trial.empty, "it has no items by default"), (trial.emptied, "nothing was put into it")):
            if places:
                return f"{', '.join(sorted(places))}: {why}, and it needs items ({what}); pass it in `args`"
    given = _asked_for(trial)
    if given:
        return f"{', '.join(given)}: what has this shape, annotations do not say ({what}); pass it in `args`"
    if trial.classes and (isinstance(trial.error, AttributeError) or _is_called_otherwise(trial.error)):
        places = ", ".join(sorted(argument_of(place) or place for place in trial.classes))
        return f"{places}: no class that was tried has, or gives, what is read of it ({what}); pass it in `args`"
    wrapped = trial.held & set(_NAMED.findall(what)) if isinstance(trial.error, TypeError | AttributeError) else ()
    if wrapped:
        return f"it holds a {', '.join(sorted(wrapped))} where it computes with an array ({what})"
    trees = sorted(argument_of(place) for place in trial.options if place.endswith(" tree"))
    of_tree = {"dict", "tuple"} & set(_NAMED.findall(what)) or _NO_AXES in what
    if trees and isinstance(trial.error, TypeError) and of_tree:
        return f"{', '.join(trees)}: the annotation leaves open which tree it is ({what}); pass it in `args`"
    open_trees = trees or sorted(trial.vague)
    if open_trees and isinstance(trial.error, ValueError) and _STRUCTURES.search(what):
        return f"{', '.join(open_trees)}: the annotation leaves open which tree it is ({what}); pass it in `args`"
    hidden = sorted(one for one in trial.vague if one.startswith("**"))
    lacking = isinstance(trial.error, TypeError) and _LACKING.search(what)
    if hidden and (lacking or isinstance(trial.error, KeyError | IndexError)):
        return f"{', '.join(hidden)}: the annotations do not say what it takes ({what}); pass it in `args`"
    vague = sorted(trial.vague - {*hidden})
    # What stands for the leaves of a tree, or for what is in a mapping, is an array: no key, and no function.
    no_array = isinstance(trial.error, TypeError) and _NO_ARRAY.search(what) is not None
    if vague and (isinstance(trial.error, _UNSPECIFIC) or no_array or _speaks_of_vague(trial)):
        return f"{', '.join(vague)}: the annotation leaves its contents open ({what}); pass it in `args`"
    return None


def _refuses_a_choice(trial: Trial) -> bool:
    """Whether a library that is not JAX refuses a value by what it is, as a name of a method that it does not know."""
    said = str(trial.error)
    if type(trial.error) is not ValueError or trial.guard or is_of_jax(trial.error) or not said:
        return False
    return is_of_library(trial.error) and not _OF_SHAPES.search(said)


def _is_called_otherwise(error: Exception | None) -> bool:
    """Whether something is called with other arguments than it takes, as Python says and `inspect` does."""
    return isinstance(error, TypeError) and _ARGUMENTS.search(str(error)) is not None


def _asked_for(trial: Trial) -> list[str]:
    """The integers that make up a shape that something cannot be reshaped to, where no annotation names any of them.

    With one size of a contract among them, the program says how they belong to it.
    """
    found = _RESHAPED.search(str(trial.error)) if isinstance(trial.error, TypeError) else None
    shape = list(map(int, re.findall(r"\d+", found[1]))) if found else []
    keys = {trial.assignment.sizes[key]: key for key in trial.configured}
    return [keys[size] for size in shape] if all(size in keys for size in shape) else []


def needs_numbers(trial: Trial) -> bool:
    """Whether it asks for the numbers in an array, and some would do."""
    if isinstance(trial.error, TypeError) and names.TRACED_SHAPE in str(trial.error):
        return names.A_TRACER in str(trial.error).lower()
    if isinstance(trial.error, _NOT_INSIDE):
        return not trial.transformed and not _is_inside_transform(trial.error)
    return isinstance(trial.error, NOT_ABSTRACT) and not _tracers.asks_for_one_integer(trial.error)


def _is_inside_transform(error: Exception) -> bool:
    """Whether JAX was asked inside of a transform of the program's own: there no numbers would do."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    of_traces = [number for number, file in enumerate(files) if file == tracing.__file__]
    inside = files[of_traces[-1] + 1 :] if of_traces else files
    while inside and owner_of(inside[-1]) == "jax":  # who says so
        inside.pop()
    return any(owner_of(file) == "jax" for file in inside)


def _in_short(trial: Trial) -> str:
    return f"{type(trial.error).__name__}: {(str(trial.error).strip().splitlines() or [''])[0]}"


def _speaks_of_vague(trial: Trial) -> bool:
    """Whether a failure is about the shape of an array whose annotation gives none, or about its number of axes."""
    ranks = {int(rank) for found in _OF_RANK.finditer(str(trial.error)) for rank in found.groups() if rank}
    open_ranks = {rank for rank, anonymous in trial.ranks.values() if anonymous}
    if 0 in open_ranks and _NO_AXES in str(trial.error):
        return True
    if open_ranks and not is_of_jax(trial.error) and _SAYS_AXES.search(str(trial.error)):
        return True
    return any(key in trial.open_keys for key in trial.spoken_of) or bool(ranks & open_ranks)


# What JAX says where an array without axes is taken apart, and what libraries say of a number of axes.
_NO_AXES = "iteration over a 0-d array"
_SAYS_AXES = re.compile(r"\bdimensional\b|\bndim\b|\b\d-?[dD]\b")
_OF_RANK = re.compile(rf"{names.NO_SUCH_AXIS} (\d+)|values to unpack \(expected \d+, got (\d+)\)|it has ndim (\d+)")


def _of_open(trial: Trial) -> str | None:
    """Why a violation says nothing of the contract, if so: it is about an array whose annotation gives no shape."""
    first = trial.violations[0]
    trees = sorted(argument_of(place) for place in trial.options if place.endswith(" tree"))
    if trees and first.of_kind and first.where.startswith("argument"):
        return f"{', '.join(trees)}: the annotation leaves open which tree it is ({_said(trial)}); pass it in `args`"
    keys = [key for key, size in trial.assignment.sizes.items() if size in first.sizes and key in trial.open_keys]
    if not keys and not (first.of_rank and trial.open_keys):
        return None
    places = ", ".join(sorted({trial.open_keys[key] for key in keys or trial.open_keys}))
    return f"{places}: the annotation gives no shape ({first.where}: {first.message}); pass it in `args`"
