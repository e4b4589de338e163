"""What a failing trial shows: whether it is beyond annotations, and whether a search for needs goes on from it.

`kernel: Kernel`, `weights: PyTree`, `f: Callable`, `options: dict[str, Any]` and a bare `Array` say no more than the
kind of a value, and a trial has to choose the rest. An error may then only say that the program was written for another
choice. It counts if it is about sizes that annotations name, and shows nothing otherwise.
"""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable, Sequence

import jax
from weft.core.edge import _tracers, names
from weft.core.frames import owner_of
from weft.typecheck.arguments.builder import Assignment
from weft.typecheck.proofs import tracing
from weft.typecheck.proofs.frames import is_installed
from weft.typecheck.proofs.guards import is_refused_by_library
from weft.typecheck.proofs.needs import DEALS, Deal, Needs
from weft.typecheck.proofs.trial import Trial, argument_of
from weft.typecheck.proofs.violations import OF_KIND, first_line, in_short, numbers_in, sizes_that_disagree
from weft.typecheck.sizes.clauses import Answer
from weft.typecheck.sizes.deciding import Question

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


def beyond_annotations(trial: Trial) -> str | None:
    """Why a failure shows nothing about the contract; None if annotations settle everything that it depends on."""
    if trial.unsaid.results:
        called = ", ".join(sorted(trial.unsaid.results))
        return f"{called}: the annotation does not say what it returns ({_said(trial)}); pass it in `args`"
    if trial.violations:
        return _of_open(trial)
    error = in_short(trial.error)
    reasons = (reason.format(error=error, guard=trial.guard) for is_so, reason in _OF_NO_ARGUMENT if is_so(trial))
    return next(reasons, None) or _of_no_named_size(trial)


def _said(trial: Trial) -> str:
    first = next(iter(trial.violations), None)
    return in_short(trial.error) if first is None else f"{first.where}: {first.message}"


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


def _is_inside_transform(error: Exception) -> bool:
    """Whether JAX raised an error inside of a transform of the program's own, where no numbers would help."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    of_traces = [number for number, file in enumerate(files) if file == tracing.__file__]
    inside = files[of_traces[-1] + 1 :] if of_traces else files
    while inside and owner_of(inside[-1]) == "jax":  # the frames of JAX that raise the error
        inside.pop()
    return any(owner_of(file) == "jax" for file in inside)


# Failures that say nothing of a contract whatever arguments it is given, with the reason; the first that fits is told.
_OF_NO_ARGUMENT: tuple[tuple[Callable[[Trial], bool], str], ...] = (
    (
        lambda trial: needs_numbers(trial) or _ABSTRACT in first_line(trial.error),
        "it needs the numbers in an array, not only its shape ({error})",
    ),
    (lambda trial: names.OUTSIDE_ONLY in str(trial.error), "it makes a call that JAX refuses while tracing ({error})"),
    (lambda trial: isinstance(trial.error, NotImplementedError), "it is not implemented ({error})"),
    (
        # JAX raises `RuntimeError` for a missing device.
        lambda trial: (
            isinstance(trial.error, RuntimeError | OSError)
            and not isinstance(trial.error, RecursionError)
            and not trial.guard
        ),
        "it needs a device, a library or a file that is not here ({error})",
    ),
    (
        lambda trial: trial.refused,
        "no arguments were found that the constructors of their classes accept ({error}); pass some in `args`",
    ),
    (lambda trial: bool(trial.guard), "{guard}: no arguments were found that pass ({error}); pass some in `args`"),
)


def open_parts(trial: Trial) -> set[str]:
    """The arguments, and their parts, that a trial chose because annotations leave them open, whatever their sizes."""
    unsaid, options = trial.unsaid, trial.options
    made_up = (unsaid.contents, unsaid.keys_by_name, unsaid.emptied, unsaid.empty_fields, unsaid.texts)
    chosen = ((place, classes[trial.assignment.options.get(place, 0)]) for place, classes in options.classes.items())
    # An error that names no class is about arrays: of another class the program would raise it as well.
    places = [place for place, cls in chosen if cls in str(trial.error)]
    places += [place for place in options.counts if place.endswith(" tree")]
    return {place for made in made_up for place in made} | {argument_of(place) or place for place in places}


def _of_no_named_size(trial: Trial) -> str | None:
    """Why an error shows nothing: it is about no size that annotations name, and something else is open; else None.

    Nobody can annotate or guard what an installed package leaves open, so there every such error shows nothing.
    """
    spoken_of, error = trial.spoken_of, in_short(trial.error)
    # A reshape may be refused whose new shape is made of integers alone that no annotation names.
    new = numbers_in(str(trial.error).partition(tracing.REFUSED)[2].partition("into shape ")[2].partition(")")[0])
    configured = trial.keys.configured
    folds = bool(new) and {trial.assignment.sizes[key] for key in configured}.issuperset(new)
    integers = configured if folds else frozenset[str]()
    places = {trial.keys.unnamed.get(key, key) for key in spoken_of if key in trial.keys.unnamed or key in integers}
    if not places and (spoken_of or sizes_that_disagree(str(trial.error))):
        return None
    if places := places or open_parts(trial):
        return f"{', '.join(sorted(places))}: the annotation leaves it open ({error}); pass it in `args`"
    is_strangers = is_installed(trial.error_at[0])
    return f"the error is about no size that annotations name ({error})" if is_strangers else None


def _of_open(trial: Trial) -> str | None:
    """Why a violation shows nothing about the contract: an annotation leaves a tree or a shape open; else None."""
    first = trial.violations[0]
    trees = sorted(argument_of(place) for place in trial.options.counts if place.endswith(" tree"))
    if trees and first.reason in OF_KIND and first.where.startswith("argument") and first.of_tree:
        return f"{', '.join(trees)}: the annotation leaves open which tree it is ({_said(trial)}); pass it in `args`"
    keys = [key for key, size in trial.assignment.sizes.items() if size in first.sizes and key in trial.keys.unnamed]
    if not keys and not (first.reason == "rank" and trial.keys.unnamed):
        return None
    places = ", ".join(sorted({trial.keys.unnamed[key] for key in keys or trial.keys.unnamed}))
    return f"{places}: the annotation gives no shape ({first.where}: {first.message}); pass it in `args`"


# Multiples of multiples: no program needs them, and a loop over such an axis would be written out.
_LARGEST = 1 << 20


def is_out_of_hand(assignment: Assignment) -> bool:
    return any(isinstance(size, int) and size > _LARGEST for size in assignment.sizes.values())


class Step:
    """Chooses which failing trial, of those with one more need, the search goes on from.

    Where a failure needs several things, each of them gets the program further, so the trial that got furthest is
    preferred. A trial that fails on the same line with other sizes or another message is the next best: within one call
    a library checks one thing after the other.

    Attributes:
        best: the trial that got furthest, if a trial got further than without its need.
        joined: the first trial that joins the sizes that disagreed, and fails with other sizes.
        elsewhere: the first trial that gets as far as before, and fails with a message that is new.
        asked_last: the last questions of the failing trial, with their answers.
        by_question: the need that was last read off a question.
        asked: the first trial that gives a guard's last question the other answer, and fails at the same guard.
    """

    def __init__(self, trial: Trial, needs: Needs, complaints: set[str]):
        self.trial, self.needs, self.complaints = trial, needs, complaints
        self.best: tuple[Trial, Needs] | None = None
        self.joined: tuple[Trial, Needs] | None = None
        self.elsewhere: tuple[Trial, Needs] | None = None
        self.by_question: Needs | None = None
        self.asked_last: tuple[Answer, ...] = ()
        self.asked: tuple[Trial, Needs] | None = None

    def see(self, result: Trial, candidate: Needs) -> None:
        """Compares a failing trial with the best ones so far."""
        trial = self.trial
        merges = len(candidate.merged) > len(self.needs.merged)
        if merges and self.joined is None and result.progress >= trial.progress and result.spoken_of != trial.spoken_of:
            self.joined = result, candidate
        # With arrays of one shape a line may get as far as needing their numbers, where every trial ends.
        ends = candidate.of_one_shape and needs_numbers(result)
        reached = (trial if self.best is None else self.best[0]).progress
        if result.progress > reached or (ends and result.progress == reached):
            self.best = result, candidate
        # A guard that asks two things of sizes (`n != m or n != k`) is met again once the first is so.
        if self.asked is None and candidate is self.by_question and trial.guard and result.guard == trial.guard:
            self.asked = result, candidate
        if self.elsewhere is None and result.progress == trial.progress and result.complaint not in self.complaints:
            self.elsewhere = result, candidate

    @property
    def chosen(self) -> tuple[Trial, Needs] | None:
        return self.best or self.joined or self.elsewhere or self.asked


def as_tried(candidate: Needs, needs: Needs, pinned: frozenset[str], denied: Sequence[Question]) -> Needs:
    """The candidate with each new equation `n = 4` restated as "n was tried at 4", where other numbers may do as well.

    Example: `side = int(n**0.5)` makes `side * side = n` a comparison with a number, which says nothing of other sizes.

    Args:
        candidate: the needs with one more.
        needs: the needs before.
        pinned: keys whose numbers the program read.
        denied: equations that the program itself asked, and that did not hold. Where it went another way for `n = 1`, a
            failure that `n = 2` mends says nothing of `n = 1`.
    """

    def is_tried(key: str, number: int) -> bool:
        return key in pinned or any(
            question.dims == {key} and not question.answer({key: number}) for question in denied
        )

    new = [entry for entry in candidate.equal if entry not in needs.equal and is_tried(*entry)]
    if not new:
        return candidate
    tried = tuple((key, (number,)) for key, number in new)
    return dataclasses.replace(candidate, equal=needs.equal, among=(*candidate.among, *tried))


# A trial at sizes that a deal chooses so that they meet needs.
WithNeeds = Callable[[Trial, Needs, Deal], Trial]


def weakened(with_needs: WithNeeds, trial: Trial, needs: Needs, deal: Deal, first: Trial) -> Needs:
    """Weaker needs that suffice.

    Two dims that were made one may only need an order, or to divide each other. An order may be dropped. A divisor may
    be dropped or become smaller.
    """
    for key, root in needs.merged:
        if root not in trial.assignment.sizes:
            continue  # a need of shapes also joins axes that the arrays of this trial do not have
        unjoined = needs.without(merged=(key, root))
        weaker = [unjoined.plus(order=pair) for pair in ((key, root, 1), (root, key, 1))]
        weaker += [unjoined.plus(multiples=pair) for pair in ((key, root), (root, key))]
        for candidate in weaker:
            # The first trial is tried, since it has sizes of its own for both keys.
            if all(with_needs(first, candidate, each).ok for each in (deal, *DEALS)):
                needs = candidate
                break
    # One of two sizes is always the larger, so an order may hold by chance at one deal: all deals are tried.
    for entry in needs.order if len(needs.order) > 1 else ():
        candidate = needs.without(order=entry)
        if all(with_needs(first, candidate, each).ok for each in (deal, *DEALS)):
            needs = candidate
    # At the primes of a deal no size divides another by chance, so one deal shows whether a divisor is needed.
    for key, number in needs.multiples:
        others = needs.without(multiples=(key, number))
        numbers = [n for n in range(2, number) if number % n == 0] if isinstance(number, int) else []
        for candidate in (others, *(others.plus(multiples=(key, divisor)) for divisor in numbers)):
            if with_needs(trial, candidate, deal).ok:
                needs = candidate
                break
    return needs
