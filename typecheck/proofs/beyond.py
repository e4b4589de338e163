"""Why a failure says nothing of a contract: because it depends on something that annotations leave open."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Callable

import jax
from weft.core.callers import owner_of
from weft.core.edge import _tracers, names
from weft.typecheck.proofs import tracing
from weft.typecheck.proofs.guards import is_refused_by_library
from weft.typecheck.proofs.left_open import Refusal, left_open, open_trees
from weft.typecheck.proofs.trial import Trial
from weft.typecheck.proofs.violations import OF_KIND
from weft.typecheck.proofs.whose import is_of_jax, is_users
from weft.typecheck.proofs.wording import SHAPES_OR_DTYPES, first_line, in_short, says

# Errors of JAX's where a program needs the numbers in an array, not only its shape.
NOT_ABSTRACT = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
# Errors that, inside of a transform of the program's own, every array would raise, whatever numbers it holds.
_NOT_INSIDE = (jax.errors.TracerIntegerConversionError, jax.errors.NonConcreteBooleanIndexError)
# In Python's errors about a `ShapeDtypeStruct` that a constructor kept, so that it reached the trace as it is.
_ABSTRACT = f"{jax.ShapeDtypeStruct.__name__}'"
_OF_MODULE = Refusal((AttributeError,), ("^module '",))
_OF_KEYWORD = Refusal((TypeError,), ("got an unexpected keyword argument",))


def beyond_annotations(trial: Trial) -> str | None:
    """Why a failure shows nothing about the contract; None if annotations settle everything that it depends on."""
    reason = _beyond(trial)
    if reason is None and trial.unsaid.texts and not trial.violations:  # another text may well do otherwise
        texts = ", ".join(sorted(trial.unsaid.texts))
        unknown = "neither the annotation nor the body says which text it may be"
        return f"{texts}: {unknown} ({_said(trial)}); pass it in `args`"
    return reason


def _said(trial: Trial) -> str:
    first = next(iter(trial.violations), None)
    return in_short(trial.error) if first is None else f"{first.where}: {first.message}"


def _beyond(trial: Trial) -> str | None:
    if trial.unsaid.results:
        called = ", ".join(sorted(trial.unsaid.results))
        return f"{called}: the annotation does not say what it returns ({_said(trial)}); pass it in `args`"
    if trial.violations:
        return _of_open(trial)
    error = in_short(trial.error)
    reasons = (reason.format(error=error, guard=trial.guard) for is_so, reason in _OF_NO_ARGUMENT if is_so(trial))
    return next(reasons, None) or left_open(trial)


def needs_numbers(trial: Trial) -> bool:
    """Whether a trial failed because the program needs the numbers in an array, and some numbers would do."""
    if isinstance(trial.error, TypeError) and names.TRACED_SHAPE in str(trial.error):
        return names.A_TRACER in str(trial.error).lower()
    if isinstance(trial.error, TypeError) and is_refused_by_library(trial.error) and "Tracer" in str(trial.error):
        return True
    of_custom_vjp = names.NOT_DIFFERENTIATED in str(trial.error)
    if trial.error is not None and (of_custom_vjp or isinstance(trial.error, _NOT_INSIDE)):
        return not trial.transformed and not _is_inside_transform(trial.error)
    return isinstance(trial.error, NOT_ABSTRACT) and not _tracers.asks_for_one_integer(trial.error)


def _needs_values(trial: Trial) -> bool:
    return needs_numbers(trial) or _ABSTRACT in first_line(trial.error)


def _is_inside_transform(error: Exception) -> bool:
    """Whether JAX raised an error inside of a transform of the program's own, where no numbers would help."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    of_traces = [number for number, file in enumerate(files) if file == tracing.__file__]
    inside = files[of_traces[-1] + 1 :] if of_traces else files
    while inside and owner_of(inside[-1]) == "jax":  # the frames of JAX that raise the error
        inside.pop()
    return any(owner_of(file) == "jax" for file in inside)


def _is_not_here(trial: Trial) -> bool:
    return (isinstance(trial.error, RuntimeError) and is_of_jax(trial.error)) or _was_not_imported(trial.error)


def _was_not_imported(error: Exception | None) -> bool:
    """Whether the program reads an attribute of a global that is None, as modules set it when an import has failed."""
    if not isinstance(error, AttributeError) or error.obj is not None:
        return False
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    text = linecache.getline(frame.f_code.co_filename, line)
    absent = [name for name in frame.f_code.co_names if frame.f_globals.get(name, name) is None]
    return any(re.search(rf"\b{name}\.{error.name}\b", text) for name in absent)


def _is_refused_by_a_library(trial: Trial) -> bool:
    of_library = isinstance(trial.error, RuntimeError) and not isinstance(trial.error, RecursionError)
    return (of_library and not trial.guard) or _refuses_a_choice(trial)


def _refuses_a_choice(trial: Trial) -> bool:
    """Whether a library, or JAX, refuses the value of an argument, such as the name of a method that it does not know.

    Where the user's own line passes such a value, it is a mistake in that line, and a failure.
    """
    if is_users(trial.error_at[0]):
        return False
    said, cls = first_line(trial.error), type(trial.error)
    # Libraries derive classes of their own from ValueError for such refusals.
    of_value = not trial.guard and (cls is ValueError or (cls.__module__ != "builtins" and issubclass(cls, ValueError)))
    of_library = is_refused_by_library(trial.error) or is_of_jax(trial.error)
    return of_value and of_library and bool(said) and not says(said.lower(), SHAPES_OR_DTYPES)


def _asks_another_version(trial: Trial) -> bool:
    """Whether an installed package asks for a module, an attribute or a keyword of another version than is installed.

    In the user's own code the same error is a mistake, and a failure.
    """
    asked = isinstance(trial.error, ImportError) or _OF_MODULE(trial)
    asked = asked or (is_of_jax(trial.error) and _OF_KEYWORD(trial)) or _of_a_class_of_jax(trial.error)
    return asked and not is_users(trial.error_at[0])


def _of_a_class_of_jax(error: Exception | None) -> bool:
    """Whether an attribute is missing that a program reads of a class of JAX's, such as `MemorySpace.ANY`."""
    cls = error.obj if isinstance(error, AttributeError) else None
    return isinstance(cls, type) and cls.__module__.partition(".")[0] == "jax"


def _divides_by_nothing(trial: Trial) -> bool:
    """Whether an installed package divides by 0 where a trial chose integers that no shape names, as for patches.

    In the user's own code the same error is a failure: its author can annotate or guard the integer.
    """
    is_strangers = isinstance(trial.error, ZeroDivisionError) and not is_users(trial.error_at[0])
    return is_strangers and bool(trial.keys.configured)


# Failures that say nothing of a contract whatever arguments it is given, with the reason; the first that fits is told.
_OF_NO_ARGUMENT: tuple[tuple[Callable[[Trial], bool], str], ...] = (
    (_needs_values, "it needs the numbers in an array, not only its shape ({error})"),
    (Refusal((ValueError,), (names.OUTSIDE_ONLY,)), "it makes a call that JAX refuses while tracing ({error})"),
    (Refusal((NotImplementedError,)), "it is not implemented ({error})"),
    (_is_not_here, "it needs a device, or a library, that is not here ({error})"),
    (_is_refused_by_a_library, "a library refuses the call, and not because of shapes ({error})"),
    (
        lambda trial: trial.refused,
        "no arguments were found that the constructors of their classes accept ({error}); pass some in `args`",
    ),
    (_asks_another_version, "it needs a package, or a version of one, that is not here ({error})"),
    (_divides_by_nothing, "no annotation says by which integers it can divide ({error}); pass some in `args`"),
    (Refusal((OSError,)), "it needs a file, or something else from outside of the program ({error})"),
    (lambda trial: bool(trial.guard), "{guard}: no arguments were found that pass ({error}); pass some in `args`"),
)


def _of_open(trial: Trial) -> str | None:
    """Why a violation shows nothing about the contract: an annotation leaves a tree or a shape open; else None."""
    first = trial.violations[0]
    trees = sorted(open_trees(trial))
    if trees and first.reason in OF_KIND and first.where.startswith("argument") and first.of_tree:
        return f"{', '.join(trees)}: the annotation leaves open which tree it is ({_said(trial)}); pass it in `args`"
    keys = [key for key, size in trial.assignment.sizes.items() if size in first.sizes and key in trial.keys.unnamed]
    if not keys and not (first.reason == "rank" and trial.keys.unnamed):
        return None
    places = ", ".join(sorted({trial.keys.unnamed[key] for key in keys or trial.keys.unnamed}))
    return f"{places}: the annotation gives no shape ({first.where}: {first.message}); pass it in `args`"
