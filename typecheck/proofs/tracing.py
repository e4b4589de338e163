"""One trial of a proof: builds arguments under one assignment, traces the program, and collects what does not hold.

A trial never computes: the program is traced on shapes. Each trial is a fresh trace. Otherwise JAX would reuse an
earlier trace of equal shapes, and no function would run that could be watched.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import math
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.extend.core import JaxprEqn
from weft.core.edge import _tracers
from weft.core.edge.contexts import contract_mode, trial_context
from weft.core.edge.equations import iter_equations
from weft.core.frames import owner_of
from weft.core.records.leaves import is_array
from weft.typecheck.arguments.abstract import closed, opened
from weft.typecheck.arguments.builder import Assignment, Builder, Unbuildable
from weft.typecheck.arguments.concolic import Asked
from weft.typecheck.arguments.parameters import names_read
from weft.typecheck.errors import InternalError
from weft.typecheck.language import forms
from weft.typecheck.language.forms import layer_of, objects_in, records_in, unboxed
from weft.typecheck.matching.words import in_words
from weft.typecheck.proofs.frames import among_jaxs_own, file_of, is_of_weft, is_users, paused, text_of_fault
from weft.typecheck.proofs.guards import GuardPasser, is_packages, raised_at
from weft.typecheck.proofs.trial import Trial, keys_of, options_of, ranks_of, unsaid_of
from weft.typecheck.proofs.violations import Violation
from weft.typecheck.proofs.watch import Watch
from weft.typecheck.sizes.dim import known_to_python
from weft.typecheck.sizes.space import Space

Shapes = Mapping[str, tuple[str, Any]]
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

# The JAX context in which all trials build arguments and trace JAX's own functions. Traced anew in each trial, these
# took most of its time: initialisers alone took two thirds of a layer's trial.
_SHARED = 0
_numbers = itertools.count(1)

_COLLECTIONS = tuple | list | dict | set

# A trial changes state of the whole process: filters of warnings, and arrays among a module's globals (`outside`).
one_at_a_time = threading.RLock()


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


def run_trial(
    target: Target,
    assignment: Assignment,
    dims: Mapping[str, Any] | None = None,
    watching: Callable[..., Watch] = Watch,
    space: Space | None = None,
) -> Trial:
    """Traces a target under an assignment.

    Args:
        target, assignment: what to trace; the sizes, ranks and options of its arguments.
        dims: sizes that are kept fixed.
        watching: the class of the watch that follows the trace.
        space: the space of symbolic sizes, if it has any. JAX's own functions are then traced anew, to ask questions.

    Raises:
        Unbuildable: if its arguments cannot be built.
        InternalError: if weft itself fails to build them.
    """
    # An annotation that nothing satisfies is its author's error, but nobody can mend one in an installed package: there
    # it is read as what it was meant to be.
    lenient = not target.is_users
    is_symbolic = space is not None
    builder = target.builder(assignment, dims, known=target.made, lenient=lenient, is_symbolic=is_symbolic)
    passing = GuardPasser(target.own)
    with (
        one_at_a_time,
        contract_mode.scope("off"),  # the watch checks, and goes on after the first finding
        _tracers.whole_tracebacks(),
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
    equations = [] if ran.jaxpr is None else list(iter_equations(ran.jaxpr.eqns))
    if error is not None:
        at, guard = raised_at(error, target.own)
    elif (impossible := impossible_reshape(equations, target.own)) is not None:
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
        names=frozenset[str]().union(*map(names_read, watch.codes.values())),
        transformed=target.transformed,
        passing=(*{**target.passed_when_made, **passing.passed},),
        is_plain=ran.is_plain,
        operations=builder.operations + len(equations),
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
    is_plain: bool = False


def _run(target: Target, builder: Builder, watch: Watch, passing: GuardPasser, shared: int) -> _Run:
    """Makes the arguments and traces the program; an error of the program is noted, and one of weft's raised."""
    ran = _Run()
    try:
        with trial_context(shared):
            function, args, kwargs = target.prepare(builder)
        ran.is_plain = is_plain((args, kwargs))
        if not watch.violations:  # a violation of a constructor must be found again in each trial
            target.made.update(builder.made)
            target.passed_when_made.update(passing.passed)
            ran.called = True
            watch.calls.clear()  # the first trial calls constructors whose instances later trials reuse
        passing.ended = target.transformed
        with paused():
            records = [] if ran.is_plain else records_in(forms.opened((args, kwargs)))
            objects = [] if ran.is_plain else [argument for _, argument in objects_in((args, kwargs))]
            for module in (*records, *objects):
                watch.check_module(module)
            # Also of plain objects, such as a graph that was made without edges.
            ran.empty_fields = frozenset(
                f"{type(record).__name__}.{name}"
                for record in (*records, *(made for made, *_ in builder.calls))
                for name, value in getattr(record, "__dict__", {}).items()
                if isinstance(value, _COLLECTIONS) and not value
            )
        around = functools.partial(_around, target, watch) if objects else _nothing_around
        with trial_context(next(_numbers)):
            ran.jaxpr = trace(function, args, kwargs, around, target.axes)
    except Unbuildable:
        raise
    except Exception as raised:  # whatever the program raises is what the trial shows
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


# What has no annotations of its own.
_PLAIN = (jax.ShapeDtypeStruct, bool, int, float, complex, str, bytes, type(None))


def is_plain(tree: Any) -> bool:
    """Whether a tree has arrays, numbers and texts alone, in tuples, lists and dicts: no record and no object."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda node: type(node) not in (tuple, list, dict))
    return all(isinstance(leaf, _PLAIN) for leaf in leaves)


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


def _around(target: Target, watch: Watch, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[], None]:
    """Records the objects among the arguments, and returns a function that checks them after the call."""
    before = shapes_of(args, kwargs)

    def afterwards() -> None:
        for _, module in objects_in((args, kwargs)):
            watch.check_module(module)
        if not watch.violations:
            watch.violations += changes(target.name, target.file, target.line, before, shapes_of(args, kwargs))

    return afterwards


# The size of a named axis that a program runs under: a prime that no dim has.
_AXIS_SIZE = 127
# The beginning of JAX's error when it compiles such a reshape.
REFUSED = "cannot reshape array"


def _nothing_around(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[], None]:
    """For `trace`, where no object is among the arguments."""
    return lambda: None


def trace(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    around: Callable[..., Callable[[], None]] = _nothing_around,
    axes: tuple[str, ...] = (),
) -> Any:
    """The jaxpr of a call. `ShapeDtypeStruct`s among the arguments are traced; all other leaves are passed as they are.

    Args:
        function: the function to call.
        args, kwargs: the arguments of the call, with `ShapeDtypeStruct`s for arrays.
        around: is called with the arguments inside the trace, and returns a function that is called when `function` has
            returned, to look at objects among the arguments, which the call may have changed.
        axes: names of axes that it runs under.
    """
    leaves, treedef = jax.tree.flatten(opened((args, dict(kwargs))))
    dynamic = [isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves]

    def run(*arrays: Any) -> list[Any]:
        # Tracers take the places of arrays inside the trace, so that objects are made of them there.
        source = iter(arrays)
        live = [next(source) if traced else leaf for leaf, traced in zip(leaves, dynamic, strict=True)]
        positional, named = closed(treedef.unflatten(live))
        afterwards = around(positional, named)
        out = _ran(function(*positional, **named))
        afterwards()
        # `make_jaxpr` returns arrays only: a function may return a text, or an object.
        return [leaf for leaf in jax.tree.leaves(opened(out)) if is_array(leaf)]

    arrays = [leaf for leaf, traced in zip(leaves, dynamic, strict=True) if traced]
    return jax.make_jaxpr(run, axis_env=[(name, _AXIS_SIZE) for name in axes])(*arrays)


def _ran(result: Any) -> Any:
    """A function's result; of a generator its first values, and of a coroutine the value that it returns."""
    # A generator of batches may never end; three values show whether one differs from those before it.
    if inspect.isgenerator(result):
        return list(itertools.islice(result, 3))
    if inspect.iscoroutine(result):
        try:
            result.send(None)
        except StopIteration as stop:
            return stop.value
        result.close()
        raise Unbuildable("the coroutine awaits something that only an event loop completes")
    return result


def frames(eqn: Any) -> Iterator[tuple[str, str, int]]:
    """File, function and line of the Python frames that an operation was traced in, innermost first."""
    traceback = eqn.source_info.traceback
    for frame in () if traceback is None else traceback.frames:
        yield frame.file_name, frame.function_name, frame.line_num


def shape_of(var: Any) -> tuple[int, ...]:
    return tuple(getattr(var.aval, "shape", ()))


def impossible_reshape(equations: Iterable[JaxprEqn], own: frozenset[str]) -> tuple[Exception, tuple[str, int]] | None:
    """The error of the first reshape that changes the number of elements, with the user's file and line; or None.

    `jax.lax.reshape` accepts any new shape while tracing, and only compiling fails.

    Args:
        equations: the equations of a trace, those inside of others included.
        own: files that count as the user's.
    """
    for eqn in equations:
        if eqn.primitive.name != "reshape":
            continue
        old, new = shape_of(eqn.invars[0]), shape_of(eqn.outvars[0])
        if math.prod(old) != math.prod(new):
            at = next(((file, line) for file, _, line in frames(eqn) if is_users(file, own)), ("", 0))
            return TypeError(f"{REFUSED} of shape {old} into shape {new}"), at
    return None


def shapes_of(args: tuple[Any, ...], names: Mapping[str, Any]) -> Shapes:
    """For each variable among the arguments whose shape must not change, by path: its kind and name, and its aval."""
    shapes: dict[str, tuple[str, Any]] = {}
    for path, owner in objects_in({**dict(enumerate(args)), **names}):
        layer = layer_of(type(owner))
        for name, value in layer.attributes(owner).items() if layer is not None else ():
            if layer is not None and isinstance(value, layer.lasting) and is_array(unboxed(value)):
                # As an abstract value, since the call may put another array into the same variable.
                array, kind = unboxed(value), type(value).__name__
                shapes[f"{path}.{name}"] = f"{kind} {name}", jax.ShapeDtypeStruct(array.shape, array.dtype)
    return shapes


def changes(function: str, file: str, line: int, before: Shapes, after: Shapes) -> Iterator[Violation]:
    """A violation for each variable whose shape a call has changed."""
    for path, (where, old) in before.items():
        # A variable that the call has removed is no change of shape.
        _, new = after.get(path, (where, old))
        if old.shape != new.shape:
            yield Violation(function, file, line, where, f"was {in_words(old)}, and is {in_words(new)} after the call")
