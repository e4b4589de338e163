"""One trial of a proof: build arguments under one assignment, trace, and see what does not hold.

A trial never computes: the program is traced on shapes. It is a fresh trace each time (JAX would otherwise reuse what
it traced for equal shapes, and nothing would run that could be watched).
"""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.core.contexts import trial_context
from weft.core.edge import _tracers
from weft.core.tracebacks import whole_tracebacks
from weft.typecheck.arguments.builder import Assignment, Builder, Unbuildable
from weft.typecheck.language import objects
from weft.typecheck.matching.scopes import records_in
from weft.typecheck.modes import mode
from weft.typecheck.proofs.following import among_jaxs_own, paused
from weft.typecheck.proofs.guards import is_packages, raised_at
from weft.typecheck.proofs.kept_shapes import changes, shapes_of
from weft.typecheck.proofs.passing import Passing
from weft.typecheck.proofs.reshapes import impossible_reshape
from weft.typecheck.proofs.tracing import trace
from weft.typecheck.proofs.violations import Violation, clashing
from weft.typecheck.proofs.watch import Watch
from weft.typecheck.proofs.whose import file_of, is_users
from weft.typecheck.sizes.dim import known_to_python
from weft.typecheck.sizes.space import Space

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

# All trials have one number for the arguments, and for JAX's own functions: these would take most of the time, traced
# again in each trial.
_SHARED = 0
_numbers = itertools.count(1)

_COLLECTIONS = tuple | list | dict | set

# A trial changes what the whole process sees: the filters of warnings, and arrays among a module's globals (`outside`).
one_at_a_time = threading.RLock()


class Signal(Exception):
    """Stands for what a program raises that is no `Exception`, and says its name."""


def only_built(_: Any) -> None:
    """Stands for the call of a class that has no method to prove."""


@dataclass(frozen=True)
class Target:
    """What is to be proved.

    Attributes:
        name: qualified name of the function or method.
        file, line: where it is defined.
        prepare: builds the callable and its arguments.
        own: files that count as the user's, wherever they are.
        products: the products of dims that its annotations write, in order.
        written: the names of dims that its annotations write, and not only the records among its arguments.
        beside: the names of dims that are named for one array, of each that its annotations and its class speak of.
        instead: what to prove if this one cannot be traced: the same, with arrays from outside as they are.
        constants: sizes that the program is tied to from outside (arrays that it closes over).
        compared: numbers that its body compares something with, a size perhaps.
        compared_ranks: numbers of axes that its body compares something with.
        axes: names of axes that it runs under, as inside a `vmap` that names one.
        inherited: whether it is a method that a base class writes, for all that inherit it.
        made: the instances that its trials have made, by class and arguments.
        transformed: whether it is called through a transform that was taken off.
        behind: the guards that numbers were taken to pass while they were made.
    """

    name: str
    file: str
    line: int
    prepare: Callable[[Builder], Call]
    own: frozenset[str] = frozenset()
    constants: frozenset[int] = frozenset()
    products: tuple[tuple[str, ...], ...] = ()
    written: frozenset[str] = frozenset()
    beside: tuple[frozenset[str], ...] = ()
    instead: Target | None = None
    compared: frozenset[int] = frozenset()
    compared_ranks: frozenset[int] = frozenset()
    axes: tuple[str, ...] = ()
    inherited: bool = False
    transformed: bool = False
    made: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    behind: dict[str, None] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class Trial:
    """What one trace showed.

    Attributes:
        assignment: under which it ran, completed.
        scopes: for each key the scopes that use it.
        originals: for keys of a generalised instance, the sizes that they have in it.
        leading: the keys that are the first of several axes of an array that the function is given.
        linked: whether the function and the records that it is given have names in common.
        ranks, options: what the builder met.
        ranks_of_records: the `*name`s that only records among the arguments use.
        violations: contracts that did not hold.
        error: what the program raised.
        error_at: the user's file and line that raised it.
        guard: the place and text of the statement of the program's own that raised it on purpose, if one did.
        progress: how far it got before the first thing went wrong.
        jaxpr: what was traced, if nothing was raised.
        open_keys: the argument of each key of an axis that its annotation says nothing of.
        numbers: the keys of what is given as an integer, too.
        configured: those of them that no shape names.
        by_default: the integers that what makes records among the arguments takes by default.
        classes: the names of the classes that may stand for an abstract one, by place.
        values: what each option of a place is, as written, where it is one of some values.
        optional: the dims that what may be left out names, by place.
        makers: the names of what makes records beside their class, by the place of the record.
        held: the classes of records that other ones among the arguments hold.
        assumed: the callables that were called, of which nothing says what they return.
        has_shapes: whether an annotation gives the axes of an array.
        by_name: the arguments that are random keys by nothing but their names.
        emptied: the collections of anything that nothing was put into.
        texts: what was made up for strings of which nothing says what they may be, by place.
        bare: annotations that nothing satisfies, and what they were taken for.
        transformed: whether a transform was taken off the function.
        passing: the guards that the numbers in arrays were taken to pass.
        empty: the fields of records, and of objects, among the arguments in which there is a collection without items.
    """

    assignment: Assignment
    scopes: Mapping[str, frozenset[str]]
    originals: Mapping[str, int]
    leading: frozenset[str]
    linked: bool
    ranks: Mapping[str, tuple[int, bool]]
    options: Mapping[str, int]
    vague: frozenset[str]
    violations: tuple[Violation, ...] = ()
    error: Exception | None = None
    error_at: tuple[str, int] = ("", 0)
    guard: str = ""
    progress: tuple[int, int, int] = (0, 0, 0)
    jaxpr: Any = field(default=None, repr=False)
    open_keys: Mapping[str, str] = field(default_factory=dict)
    numbers: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    optional: Mapping[str, frozenset[str]] = field(default_factory=dict)
    makers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    configured: frozenset[str] = frozenset()
    by_default: frozenset[int] = frozenset()
    empty: frozenset[str] = frozenset()
    ranks_of_records: frozenset[str] = frozenset()
    assumed: frozenset[str] = frozenset()
    has_shapes: bool = True
    by_name: frozenset[str] = frozenset()
    emptied: frozenset[str] = frozenset()
    texts: Mapping[str, str] = field(default_factory=dict[str, str])
    bare: frozenset[str] = frozenset()
    transformed: bool = False
    passing: tuple[str, ...] = ()

    @property
    def refused(self) -> bool:
        """Whether a class refused what its annotations allow, in no line of the user's: pydantic's do."""
        return isinstance(self.error, ValueError) and not self.progress[0] and not self.error_at[0]

    @property
    def ok(self) -> bool:
        """Whether everything held."""
        return self.error is None and not self.violations

    @property
    def breaks_promise(self) -> bool:
        """Whether what a function returned, or a record holds, is not what its annotation says, which makes sense."""
        if not self.violations or self.violations[0].where.startswith("argument"):
            return False
        return min(self.violations[0].sizes, default=0) >= 0  # no axis is of size -1

    @property
    def joins_dims(self) -> bool:
        """Whether two dims are one size in it of which annotations name one: axes without a name are no dims."""
        keys = (*self.assignment.merged, *self.assignment.merged.values())
        return any(not self.ranks.get(key.rpartition(".")[0], (0, False))[1] for key in keys)

    @property
    def place(self) -> tuple[Any, ...]:
        """Where it failed first, to tell one failure from another."""
        if self.violations:
            return self.violations[0].place
        return (*self.error_at, type(self.error).__name__)

    @property
    def mentioned(self) -> frozenset[int]:
        """The sizes that the failure speaks of."""
        if self.violations:
            first = self.violations[0]
            return frozenset(first.sizes or map(int, re.findall(r"\d+", first.message)))
        return frozenset(
            clashing(str(self.error)) or map(int, re.findall(r"(?<![\w.])\d+(?!\w|\.\d)", str(self.error)))
        )

    @property
    def complaint(self) -> str:
        """What the failure says, whatever the sizes."""
        text = self.violations[0].message if self.violations else str(self.error)
        return re.sub(r"\d+", "0", text)

    @property
    def spoken_of(self) -> tuple[str, ...]:
        """The keys whose sizes, or multiples of them, the failure speaks of."""
        mentioned = self.mentioned
        return tuple(
            key
            for key, size in self.assignment.sizes.items()
            if size in mentioned
            or (isinstance(size, int) and size > 4 and any(one and one % size == 0 for one in mentioned))
        )


def clashing_keys(trial: Trial) -> frozenset[str]:
    """The keys of the sizes that disagree in an error, if all of these are sizes of keys."""
    sizes = clashing(str(trial.error)) if trial.error is not None and not trial.violations else set[int]()
    keys = frozenset(key for key, size in trial.assignment.sizes.items() if size in sizes)
    return keys if len(keys) == len(sizes) else frozenset()


def run_trial(
    target: Target,
    assignment: Assignment,
    dims: Mapping[str, Any] | None = None,
    watching: Callable[..., Watch] = Watch,
    space: Space | None = None,
) -> Trial:
    """Traces a target under an assignment.

    Args:
        target: what is traced.
        assignment: sizes, ranks and options.
        dims: sizes that are kept fixed.
        watching: makes what follows the trace, given what a `Watch` is.
        space: what sizes that know themselves belong to. JAX's own functions are then traced with the rest, for what
            they ask of these sizes is asked once.

    Raises:
        Unbuildable: if its arguments cannot be built.
    """
    builder = Builder(assignment, dims, target.made, lenient=not is_users(target.file))
    passing = Passing(target.own)
    with (
        one_at_a_time,
        mode("off"),  # the watch checks, and goes on after the first finding
        _tracers.whole_tracebacks(),
        whole_tracebacks(),
        watching(target.own, apart=assignment.apart, about=(target.file, target.line)) as watch,
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
        violations=tuple(watch.violations),
        error=error,
        error_at=at,
        guard=guard,
        progress=_progress(watch, ran.called, at[1]),
        jaxpr=ran.jaxpr,
        held=ran.held,
        empty=ran.empty,
        transformed=target.transformed,
        passing=(*{**target.behind, **passing.passed},),
        **_met(builder),
    )


def _met(builder: Builder) -> dict[str, Any]:
    """What a trial keeps of what its builder met."""
    return {
        "scopes": builder.contracts_by_key(),
        "linked": bool(builder.names & builder.names_outside),
        "configured": builder.configured,
        "has_shapes": builder.has_shapes,
        "ranks_of_records": builder.ranks_of_records,
        "by_default": builder.by_default,
        **{
            name: frozenset(getattr(builder, name))
            for name in ("leading", "vague", "numbers", "assumed", "by_name", "emptied", "bare")
        },
        **{name: dict(getattr(builder, name)) for name in _MAPPINGS},
    }


_MAPPINGS = ("originals", "ranks", "options", "open_keys", "classes", "values", "optional", "makers", "texts")


@contextlib.contextmanager
def _of_jaxs_own() -> Iterator[None]:
    """In which JAX's own functions are traced: for all trials, and with nobody looking on."""
    with among_jaxs_own(), trial_context(_SHARED):
        yield


@dataclass
class _Run:
    """What a trace gave to its trial; `called` if its arguments were made."""

    called: bool = False
    error: Exception | None = None
    jaxpr: Any = None
    held: frozenset[str] = frozenset()
    empty: frozenset[str] = frozenset()


def _run(target: Target, builder: Builder, watch: Watch, passing: Passing, shared: int) -> _Run:
    ran = _Run()
    try:
        with trial_context(shared):
            function, args, kwargs = target.prepare(builder)
        if not watch.violations:  # what was found while constructing must be found each time
            target.made.update(builder.made)
            target.behind.update(passing.passed)
            ran.called = True
            watch.calls.clear()  # what preparing calls differs, for some of it is kept
        passing.ended = target.transformed
        with paused():
            _check_records(watch, (args, kwargs))
            records = list(records_in(objects.opened((args, kwargs))))
            given = {type(one).__name__ for one in (*args, *kwargs.values())}
            ran.held = frozenset(type(one).__name__ for one in records) - given
            ran.empty = _empty_fields([*records, *(made for made, *_ in builder.calls)])
        with trial_context(next(_numbers)):
            ran.jaxpr = trace(function, args, kwargs, lambda *given: _around(target, watch, *given), target.axes)
    except Unbuildable:
        raise
    except Exception as raised:
        ran.error = raised
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as raised:  # of a class of the program's own, which it raises as a sign to itself
        if not raised_at(raised, target.own)[1] or not is_packages(file_of(type(raised)), target.own):
            raise  # such as a limit of time
        ran.error = Signal(type(raised).__name__).with_traceback(raised.__traceback__)
    return ran


def _complete(assignment: Assignment, builder: Builder) -> Assignment:
    """An assignment with all that was asked of it."""
    return Assignment(
        dict(builder.sizes),
        {key: rank for key, (rank, _) in builder.ranks.items()},
        {**assignment.options, **builder.taken},
        assignment.merged,
        assignment.apart,
    )


def _progress(watch: Watch, called: bool, line: int) -> tuple[int, int, int]:
    """How far a trial got, whose error, if any, was raised at a line."""
    calls = len(watch.calls) if watch.calls_at_violation is None else watch.calls_at_violation
    if watch.violations:
        # What is wrong with a record that has been made lies behind the guards of its constructor. What is wrong with a
        # result is no way past an error: sizes that lead there would be taken for what the program needs.
        made = not called and not watch.violations[0].where.startswith("argument")
        line = sys.maxsize if made else 0
    return int(called), calls, line


def _empty_fields(made: list[Any]) -> frozenset[str]:
    """The fields without items, also of objects of plain classes, as a graph is that was made without edges."""
    fields = ((type(one).__name__, *field) for one in made for field in getattr(one, "__dict__", {}).items())
    return frozenset(f"{cls}.{name}" for cls, name, value in fields if isinstance(value, _COLLECTIONS) and not value)


def _check_records(watch: Watch, args: Any) -> None:
    """Holds the records and objects among the arguments to their own annotations; they were made abstractly."""
    for module in records_in(objects.opened(args)):
        watch.check_module(module)
    _check_objects(watch, args)


def _around(target: Target, watch: Watch, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[], None]:
    """Notes the objects that a call is given, and returns what looks at them again when it has ended."""
    before = shapes_of(args, kwargs)

    def afterwards() -> None:
        _check_objects(watch, (args, kwargs))
        if not watch.violations:
            watch.violations += changes(target.name, target.file, target.line, before, shapes_of(args, kwargs))

    return afterwards


def _check_objects(watch: Watch, args: Any) -> None:
    for _, module in objects.objects_in(args):
        watch.check_module(module)
