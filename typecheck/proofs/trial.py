"""One trial of a proof: builds arguments under one assignment, traces the program, and collects what does not hold.

A trial never computes: the program is traced on shapes. Each trial is a fresh trace. Otherwise JAX would reuse an
earlier trace of equal shapes, and no function would run that could be watched.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.core.edge import _tracers
from weft.core.edge.contexts import trial_context
from weft.core.frames import owner_of
from weft.core.tracebacks import whole_tracebacks
from weft.typecheck.arguments.asked import Asked
from weft.typecheck.arguments.builder import Assignment, Builder, Unbuildable
from weft.typecheck.arguments.uses import names_read
from weft.typecheck.errors import InternalError
from weft.typecheck.language import objects
from weft.typecheck.matching.scopes import records_in
from weft.typecheck.modes import mode
from weft.typecheck.proofs.following import among_jaxs_own, paused
from weft.typecheck.proofs.guards import is_packages, raised_at
from weft.typecheck.proofs.notes import Keys, Options, Rank, Unsaid, keys_of, options_of, ranks_of, unsaid_of
from weft.typecheck.proofs.passing import Passing
from weft.typecheck.proofs.tracing import impossible_reshape, trace
from weft.typecheck.proofs.variable_shapes import changes, shapes_of
from weft.typecheck.proofs.violations import Violation
from weft.typecheck.proofs.watch import Watch
from weft.typecheck.proofs.whose import file_of, is_of_weft, is_users, text_of_fault
from weft.typecheck.proofs.wording import numbers_in, sizes_that_disagree, without_numbers
from weft.typecheck.sizes.dim import known_to_python
from weft.typecheck.sizes.space import Space

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

# The JAX context in which all trials build arguments and trace JAX's own functions. Traced anew in each trial, these
# took most of its time: initialisers alone took two thirds of a layer's trial.
_SHARED = 0
_numbers = itertools.count(1)

_COLLECTIONS = tuple | list | dict | set

# A trial changes state of the whole process: filters of warnings, and arrays among a module's globals (`outside`).
one_at_a_time = threading.RLock()


# What a program reads to decide something by a dtype.
DTYPE_NAMES = frozenset({"dtype", "itemsize", "nbytes", "result_type", "promote_types", "iscomplexobj", "isrealobj"})


class Signal(Exception):
    """Stands for an exception of the program's own that is no `Exception`; its message is that class's name."""


def only_built(_: Any) -> None:
    """The function that is traced for a class without methods to prove: it takes the instance and does nothing."""


@dataclass(frozen=True)
class Target:
    """A function or method whose contract is to be proved.

    Attributes:
        name: qualified name of the function or method.
        file, line: where it is defined.
        prepare: makes the callable and its arguments with a builder.
        own: files that count as the user's, wherever they are.
        products: the products of dims that its annotations write, in order.
        written: the names of dims in its own annotations, in contrast to those of records among its arguments.
        shapes: for each array in the annotations of the target and its class, the names of dims in the array's shape.
        instead: the target to prove if this one cannot be traced: the same, with arrays from outside as they are.
        constants: sizes outside of the program that it may require, such as those of arrays that it closes over.
        compared: numbers that its body compares values with; a value may be a size.
        compared_ranks: numbers that its body compares numbers of axes with.
        axes: names of axes that it is run under, as inside a `vmap` with an `axis_name`.
        inherited: whether it is a method that a base class defines, for all of its subclasses.
        made: the instances that its trials have made, by class and arguments, so that each is constructed once.
        asked: its values that are no sizes, with what its trials asked of them.
        space: the space of the symbolic sizes of its trials.
        transformed: whether a transform around it was taken off, under which callers call it.
        passed_when_made: the guards that numbers were taken to pass while these instances were made.
    """

    name: str
    file: str
    line: int
    prepare: Callable[[Builder], Call]
    own: frozenset[str] = frozenset()
    constants: frozenset[int] = frozenset()
    products: tuple[tuple[str, ...], ...] = ()
    written: frozenset[str] = frozenset()
    shapes: tuple[frozenset[str], ...] = ()
    instead: Target | None = None
    compared: frozenset[int] = frozenset()
    compared_ranks: frozenset[int] = frozenset()
    axes: tuple[str, ...] = ()
    inherited: bool = False
    transformed: bool = False
    made: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    asked: Asked = field(default_factory=dict, compare=False, repr=False)
    space: Space = field(default_factory=Space, compare=False, repr=False)
    passed_when_made: dict[str, None] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_users(self) -> bool:
        """Whether the user wrote it, in a file or for `python -c`."""
        return self.file == "<string>" or is_users(self.file)

    def builder(self, assignment: Assignment, dims: Mapping[str, Any] | None, **how: Any) -> Builder:
        """A builder of the target's arguments under an assignment."""
        return Builder(assignment, dims, asked=self.asked, is_foreign=self._is_foreign, **how)

    def _is_foreign(self, cls: type) -> bool:
        """Whether a class is another package's, so that what it takes by default is no part of the contract."""
        file = file_of(cls)
        return not is_users(file, self.own) or (owner_of(file) == "modules" != owner_of(self.file))


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
    """

    assignment: Assignment
    keys: Keys
    ranks: Mapping[str, Rank]
    options: Options
    unsaid: Unsaid
    violations: tuple[Violation, ...] = ()
    error: Exception | None = None
    error_at: tuple[str, int] = ("", 0)
    guard: str = ""
    progress: tuple[int, int, int] = (0, 0, 0)
    jaxpr: Any = field(default=None, repr=False)
    names: frozenset[str] = frozenset()
    transformed: bool = False
    passing: tuple[str, ...] = ()

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
            or (isinstance(size, int) and size > 4 and any(one and one % size == 0 for one in mentioned))
        )


def run_trial(
    target: Target,
    assignment: Assignment,
    dims: Mapping[str, Any] | None = None,
    watching: Callable[..., Watch] = Watch,
    space: Space | None = None,
) -> Trial:
    """Traces a target under an assignment.

    Args:
        target: the function to trace, with its arguments.
        assignment: sizes, ranks and options.
        dims: sizes that are kept fixed.
        watching: the class of the watch that follows the trace.
        space: the space of symbolic sizes, if the assignment has any. JAX's own functions are then traced anew, since a
            trace that is reused asks no questions.

    Raises:
        Unbuildable: if its arguments cannot be built.
        InternalError: if weft itself fails to build them.
    """
    # An annotation that nothing satisfies is its author's error, but nobody can mend one in an installed package: there
    # it is read as what it was meant to be.
    lenient, is_symbolic = not target.is_users, space is not None
    builder = target.builder(assignment, dims, known=target.made, lenient=lenient, is_symbolic=is_symbolic)
    passing = Passing(target.own)
    with (
        one_at_a_time,
        mode("off"),  # the watch checks, and goes on after the first finding
        _tracers.whole_tracebacks(),
        whole_tracebacks(),
        watching(target.own, names_per_record=assignment.names_per_record, about=(target.file, target.line)) as watch,
        warnings.catch_warnings(),
        passing.going_on(),
        known_to_python() if space is not None else _tracers.own_functions_traced(_of_jaxs_own),
    ):
        warnings.simplefilter("ignore")
        watch.space = space
        ran = _run(target, builder, watch, passing, next(_numbers) if space is not None else _SHARED)
    # A program that catches the end of a recursion goes on unwatched, so what it returns shows nothing.
    error, at, guard = watch.endless or ran.error or watch.unreadable, ("", 0), ""
    if error is not None:
        at, guard = raised_at(error, target.own)
    elif ran.jaxpr is not None and (impossible := impossible_reshape(ran.jaxpr, target.own)) is not None:
        error, at = impossible
    return Trial(
        assignment=_complete(assignment, builder),
        keys=keys_of(builder),
        ranks=ranks_of(builder),
        options=options_of(builder),
        unsaid=unsaid_of(builder, ran.empty_fields),
        violations=tuple(watch.violations),
        error=error,
        error_at=at,
        guard=guard,
        progress=_progress(watch, ran.called, at[1]),
        jaxpr=ran.jaxpr,
        names=frozenset[str]().union(*map(names_read, watch.codes)),
        transformed=target.transformed,
        passing=(*{**target.passed_when_made, **passing.passed},),
    )


@contextlib.contextmanager
def _of_jaxs_own() -> Iterator[None]:
    """The context in which JAX's own functions are traced: shared by all trials, and not followed."""
    with among_jaxs_own(), trial_context(_SHARED):
        yield


@dataclass
class _Run:
    """The outcome of a trace, for its trial; `called` says whether its arguments were made."""

    called: bool = False
    error: Exception | None = None
    jaxpr: Any = None
    empty_fields: frozenset[str] = frozenset()


def _run(target: Target, builder: Builder, watch: Watch, passing: Passing, shared: int) -> _Run:
    ran = _Run()
    try:
        with trial_context(shared):
            function, args, kwargs = target.prepare(builder)
        if not watch.violations:  # a violation of a constructor must be found again in each trial
            target.made.update(builder.made)
            target.passed_when_made.update(passing.passed)
            ran.called = True
            watch.calls.clear()  # the first trial calls constructors whose instances later trials reuse
        passing.ended = target.transformed
        with paused():
            _check_records(watch, (args, kwargs))
            made = (made for made, *_ in builder.calls)
            ran.empty_fields = _empty_fields([*records_in(objects.opened((args, kwargs))), *made])
        with trial_context(next(_numbers)):
            ran.jaxpr = trace(function, args, kwargs, lambda *given: _around(target, watch, *given), target.axes)
    except Unbuildable:
        raise
    except Exception as raised:
        if is_of_weft(raised):
            raise InternalError(text_of_fault(raised)) from raised
        ran.error = raised
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as raised:  # a class of the program's own, which it raises as a signal to itself
        if not raised_at(raised, target.own)[1] or not is_packages(file_of(type(raised)), target.own):
            raise  # such as a limit of time
        ran.error = Signal(type(raised).__name__).with_traceback(raised.__traceback__)
    return ran


def _complete(assignment: Assignment, builder: Builder) -> Assignment:
    """The assignment with all sizes, ranks and options that the trial asked for."""
    return Assignment(
        dict(builder.sizes),
        {key: rank for key, (rank, _) in builder.ranks.items()},
        {**assignment.options, **builder.chosen_classes},
        assignment.merged,
        assignment.names_per_record,
    )


def _progress(watch: Watch, called: bool, line: int) -> tuple[int, int, int]:
    """How far a trial got: whether its arguments were made, how many places called, and the line of its error."""
    # Places that call, and not calls: a scan that calls a function more often at larger sizes seemed to get further,
    # and needs were added to needs until axes had 10^13 elements.
    calls = len(watch.calls) if watch.calls_at_violation is None else watch.calls_at_violation
    if watch.violations:
        # What is wrong with a record that has been made lies behind the guards of its constructor. What is wrong with a
        # result is no way past an error: sizes that lead there would be taken for what the program needs.
        made = not called and not watch.violations[0].where.startswith("argument")
        line = sys.maxsize if made else 0
    return int(called), calls, line


def _empty_fields(made: list[Any]) -> frozenset[str]:
    """The fields that hold empty collections, also of plain objects, such as a graph that was made without edges."""
    fields = ((type(one).__name__, *field) for one in made for field in getattr(one, "__dict__", {}).items())
    return frozenset(f"{cls}.{name}" for cls, name, value in fields if isinstance(value, _COLLECTIONS) and not value)


def _check_records(watch: Watch, args: Any) -> None:
    """Checks the fields of records and objects among the arguments, which the trial made, against their annotations."""
    for module in records_in(objects.opened(args)):
        watch.check_module(module)
    _check_objects(watch, args)


def _around(target: Target, watch: Watch, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[], None]:
    """Records the objects among the arguments, and returns a function that checks them after the call."""
    before = shapes_of(args, kwargs)

    def afterwards() -> None:
        _check_objects(watch, (args, kwargs))
        if not watch.violations:
            watch.violations += changes(target.name, target.file, target.line, before, shapes_of(args, kwargs))

    return afterwards


def _check_objects(watch: Watch, args: Any) -> None:
    for _, module in objects.objects_in(args):
        watch.check_module(module)
