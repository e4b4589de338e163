"""Watching a trace: checks every annotated function of the user's that runs during it, decorated or not.

`frames` reports which functions run, with which arguments, and what they return. So local functions, methods, and
records that the program builds are checked against their annotations without any change of the program. A violation is
recorded and the trace goes on, so that later violations are found as well.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
from collections.abc import Callable, Mapping
from types import CodeType, FrameType, FunctionType
from typing import Any, Literal

import equinox as eqx
from weft.core.edge import names
from weft.core.memory import Recent
from weft.core.records.leaves import is_array
from weft.core.records.module import Module
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import ANYTHING, Annotation, Anything, RecordOf, StreamOf, holds_arrays
from weft.typecheck.language.forms import OBJECT, TYPEDDICT, form_of_value, has_own_dims, is_size, note_sizes
from weft.typecheck.language.signatures import Parameter, Signature, names_of_class, signature_of
from weft.typecheck.matching.arrays import settle
from weft.typecheck.matching.bindings import Bindings, Mismatch, Slot
from weft.typecheck.matching.compiling import Check, check_of
from weft.typecheck.matching.policies import PROOF, UNSHARED, Policy
from weft.typecheck.matching.record_plans import record_plan
from weft.typecheck.matching.records import check_instance, dims_of_instance, refuse_stack
from weft.typecheck.matching.scopes import bind_numbers
from weft.typecheck.messages.fixes import likely_fix
from weft.typecheck.proofs.frames import (
    CodeOwners,
    Depths,
    Ending,
    Endless,
    file_of,
    file_of_init,
    following,
    is_users,
    place_of,
)
from weft.typecheck.proofs.violations import Violation, describe, inside_of, sizes_of, wants_subclass
from weft.typecheck.sizes.space import Space


class CheckedFunction:
    """A function whose calls are checked: its signature, and its checks, each made when it is first needed."""

    def __init__(self, signature: Signature):
        self.signature = signature
        self.names = signature.names
        self.place = place_of(signature.function)
        self._checks: dict[tuple[Policy, str], tuple[Slot, Check | None]] = {}

    def argument(self, parameter: Parameter, policy: Policy) -> tuple[Slot, Check | None]:
        """The slot and the check of an argument; the check is None where the annotation allows anything."""
        return self._row("argument", parameter.name, parameter.annotation, policy)

    def result(self, role: Literal["return", "yield"], policy: Policy) -> tuple[Slot, Check | None]:
        """The slot and the check of a returned or yielded value."""
        returns, flavour = self.signature.returns, self.signature.flavour
        if flavour == "generator" and isinstance(returns, StreamOf):
            returns = returns.yields if role == "yield" else returns.returns
        elif role == "yield" or flavour not in ("function", "coroutine"):
            returns = ANYTHING
        return self._row(role, "", returns, policy)

    def _row(
        self, role: Literal["argument", "return", "yield"], name: str, annotation: Annotation, policy: Policy
    ) -> tuple[Slot, Check | None]:
        key = policy, f"{role} {name}"
        if key not in self._checks:
            slot = Slot(role, name, self.signature.function, annotation)
            self._checks[key] = slot, check_of(annotation, policy)
        return self._checks[key]


# By identity, since code objects of two files are equal if their text is. Each code is kept alive, for its `id`.
_watched: Recent[int, tuple[CodeType, Callable[[FrameType], CheckedFunction | None]]] = Recent(
    listed=("weft.typecheck.proofs.watch", "code")
)

# The codes whose functions close over values or have defaults; by identity, too, and held for it.
_closures: dict[int, CodeType] = {}


def watched_of_code(frame: FrameType) -> CheckedFunction | None:
    """The function that a frame runs, if it has annotations, else None."""
    code = frame.f_code
    known = _watched.get(id(code))
    if known is None:
        known = _watched.add(id(code), (code, _find_function(frame)))
    return known[1](frame)


def forget_closures() -> None:
    """Drops the functions that close over values, and so the arrays among these; called at the end of a proof."""
    while _closures:
        _watched.forget(_closures.popitem()[0])


def _find_function(frame: FrameType) -> Callable[[FrameType], CheckedFunction | None]:
    function = None if frame.f_code.co_name.startswith("<") else _function_of_code(frame)
    # A wrapper has the annotations of the function that it wraps, and that one is checked when it runs.
    if function is None or not getattr(function, "__annotations__", None) or hasattr(function, "__wrapped__"):
        return lambda _: None
    if function.__closure__ or function.__defaults__ or function.__kwdefaults__:
        _closures[id(frame.f_code)] = frame.f_code
    read: dict[type | None, CheckedFunction | None] = {}

    def of_frame(frame: FrameType) -> CheckedFunction | None:
        owner = _owner(frame)
        if owner not in read:
            signature = signature_of(function, owner)
            read[owner] = CheckedFunction(signature) if signature.annotated else None
        return read[owner]

    return of_frame


def _owner(frame: FrameType) -> type | None:
    code = frame.f_code
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount and code.co_varnames[0] == "self" else None
    return None if first is None else type(first)


def _function_of_code(frame: FrameType) -> FunctionType | None:
    code = frame.f_code
    node = None
    if "<locals>" not in code.co_qualname:
        scope: Any = frame.f_globals
        for part in code.co_qualname.split("."):
            node = scope.get(part)
            scope = getattr(node, "__dict__", {})
        node = getattr(node, "__func__", None) or getattr(node, "fget", None) or node
        while node is not None and getattr(node, "__code__", None) is not code:
            node = getattr(node, "__wrapped__", None)
    if node is None:
        # No name leads to a local function, or to one behind a decorator. The function is then what refers to the code.
        node = next((referrer for referrer in gc.get_referrers(code) if isinstance(referrer, FunctionType)), None)
    return node


class Watch:
    """Checks annotated functions while it is entered, in the thread that entered it.

    Args:
        own: files that count as the user's.
        names_per_record: whether each record has names of its own, so that equal names of two records may differ.
        about: file and line of the function whose contract is proved.

    Attributes:
        unreadable: the error of an annotation of that function that cannot be evaluated, if there is one.
        violations: the violations, in order.
        calls: pairs of a user's function and a place in the user's code that calls it, which measure how far a trace
            got. A loop or recursion that runs longer at larger sizes adds none.
        codes: the codes of the user's functions that ran, by `id`.
        calls_at_violation: the number of these pairs at the first violation.
        space: the space of the trace's sizes, if they are symbolic.
        endless: the endless recursion of the trace, if there was one; the program may have caught the error.
    """

    # The matching policy under which records share their names with the function that takes them.
    _shared = PROOF

    def __init__(
        self, own: frozenset[str] = frozenset(), *, names_per_record: bool = False, about: tuple[str, int] = ("", 0)
    ):
        self.own = own
        self.policy = UNSHARED if names_per_record else self._shared
        self.about = about
        self.unreadable: AnnotationError | None = None
        self.violations: list[Violation] = []
        self.calls: set[tuple[int, int, int]] = set()
        # By identity, since code objects of two files are equal if their text is; held, for their `id` in `calls`.
        self.codes: dict[int, CodeType] = {}
        self._callers: dict[int, CodeType] = {}
        self.calls_at_violation: int | None = None
        self.space: Space | None = None
        self.endless: Endless | None = None
        self._depths = Depths()
        # Running calls, and suspended generators.
        self._open: dict[FrameType, tuple[CheckedFunction, Bindings]] = {}
        self._suspended: dict[FrameType, tuple[CheckedFunction, Bindings]] = {}
        self._whose = CodeOwners(own)

    def __enter__(self) -> Watch:
        self._following = following(self)
        self._following.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._following.__exit__(*raised)

    def ignores(self, code: CodeType) -> bool:
        # Libraries define base classes of the user's records, so their constructors are followed.
        whose = self._whose.of(code)
        return whose == "plain" or (whose == "library" and code.co_name != "__init__")

    def wants(self, frame: FrameType) -> bool:
        # A record is checked when its constructor returns, which may be an `__init__` that a library defines.
        return frame in self._open or (
            frame.f_code.co_name == "__init__" and self._whose[file_of_init(frame)] != "plain"
        )

    def bindings_of(self, frame: FrameType) -> Bindings | None:
        """The bindings of the dims in a running call of an annotated function; None if it is not watched."""
        opened = self._open.get(frame)
        return None if opened is None else opened[1]

    def called(self, frame: FrameType, *, thrown: bool) -> None:
        if self._whose.of(frame.f_code) == "user":
            self._called(frame, thrown)

    def reads(self, code: CodeType) -> bool:
        return False

    def at_line(self, frame: FrameType) -> None:
        pass

    def _called(self, frame: FrameType, thrown: bool) -> None:
        if frame in self._suspended:
            if not thrown:  # an exception is thrown into a generator that is closed
                self._open[frame] = self._suspended.pop(frame)
            return
        # The place in the user's code that the call comes from, through the frames of libraries.
        outer = frame.f_back
        while outer is not None and self._whose.of(outer.f_code) != "user":
            outer = outer.f_back
        site = (id(frame.f_code), *((0, 0) if outer is None else (id(outer.f_code), outer.f_lasti)))
        self.calls.add(site)
        self.codes[id(frame.f_code)] = frame.f_code
        if outer is not None:
            self._callers[id(outer.f_code)] = outer.f_code
        try:
            self._depths.called(site, frame)
        except Endless as endless:
            # Kept as well as raised: a program that catches RecursionError would go on, and its result would count.
            self.endless = self.endless or endless
            raise
        try:
            watched = watched_of_code(frame)
        except AnnotationError:
            return
        if watched is None:
            return
        arguments = frame.f_locals  # read once: Python collects the dict anew at each access
        bindings = self.bindings_of_call(watched, arguments)
        try:
            _refuse_stack(arguments.get("self"), watched.signature.function, bindings)
            for parameter in watched.signature.parameters:
                if parameter.name in arguments:
                    self._argument(parameter, arguments[parameter.name], bindings, watched)
            settle(bindings, finally_=False)
        except Mismatch as mismatch:
            self._violated(watched.signature.function, mismatch)
        except AnnotationError as error:
            return self._cannot_read(watched, error)
        self._open[frame] = watched, bindings

    def bindings_of_call(self, watched: CheckedFunction, arguments: dict[str, Any]) -> Bindings:
        """The bindings at the start of a call: the dims of the instance, then integer arguments named like a dim."""
        signature = watched.signature
        first = signature.parameters[0].name if signature.parameters else ""
        record = arguments.get(first) if first == "self" else None
        by_name = dict(arguments)
        bindings = Bindings(Slot("argument", "", signature.function, Anything()), lambda: by_name)
        if form_of_value(record) not in (None, TYPEDDICT) and signature.function.__name__ != "__init__":
            own = dims_of_instance(record, PROOF)
            bindings.sizes.update(own.sizes)
            bindings.origins.update(own.origins)
            bindings.variadics.update(own.variadics)
        bind_numbers(bindings, {name: value for name, value in arguments.items() if name in watched.names})
        return bindings

    def _argument(self, parameter: Parameter, value: Any, bindings: Bindings, watched: CheckedFunction) -> None:
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            values = list(value)
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            values = list(value.values())
        else:
            # `x: Float[Array, "n"] = None` is common, and means that None is allowed.
            if value is None and parameter.default is None:
                return
            values = [value]
        slot, check = watched.argument(parameter, self.policy)
        if check is None:
            return
        for item in values:
            bindings.slot, bindings.path = slot, ()
            try:
                check(item, bindings)
            except Mismatch as mismatch:
                if not _is_wrapper(mismatch):
                    raise

    def ended(self, frame: FrameType, how: Ending, value: Any) -> None:
        opened = self._open.pop(frame, None)
        if how == "raises":
            return
        if frame.f_code.co_name == "__init__":
            self._constructed(frame)
        elif opened is not None:
            # The generator's own dims stay bound until it resumes, so each value is checked with those of its
            # arguments.
            if how == "yield":
                self._suspended[frame] = opened
            self._result(frame, how, value, *opened)

    def _result(
        self,
        frame: FrameType,
        role: Literal["return", "yield"],
        value: Any,
        watched: CheckedFunction,
        bindings: Bindings,
    ) -> None:
        slot, check = watched.result(role, self.policy)
        bindings.slot, bindings.path = slot, ()
        try:
            if check is not None:
                check(value, bindings)
            # An expression such as `2*n` may wait for a name that a later value binds. A name that nothing binds is an
            # error of the annotation, which only the proof of that function reports.
            settle(bindings, finally_=role == "return" and watched.place == self.about)
            if role == "return":
                # The call may have changed the objects among its arguments.
                for name in frame.f_code.co_varnames[: frame.f_code.co_argcount]:
                    if form_of_value(argument := frame.f_locals.get(name)) is OBJECT:
                        self.check_module(argument)
        except Mismatch as mismatch:
            self._violated(watched.signature.function, mismatch)
        except AnnotationError as error:
            self._cannot_read(watched, error)

    def _cannot_read(self, watched: CheckedFunction, error: AnnotationError) -> None:
        if self.unreadable is None and watched.place == self.about:
            self.unreadable = error

    def _constructed(self, frame: FrameType) -> None:
        code = frame.f_code
        record = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        cls = type(record)
        # `super().__init__()` returns before the record is complete; only the class's own constructor completes it.
        if not has_own_dims(cls) or getattr(cls.__init__, "__code__", None) is not code:
            return
        if is_users(file_of(cls), self.own):
            named = names_of_class(cls)
            parameters = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
            arguments = {name: frame.f_locals.get(name) for name in parameters if name in named}
            sizes = {name: value for name, value in arguments.items() if is_size(value)}
            note_sizes(record, sizes)
            self._check(_converted(record), whole=True, sizes=sizes)

    def check_module(self, record: Any) -> None:
        """Checks the fields of a record or object of the user's against their annotations; see `check_instance`."""
        self._check(record)

    def _check(self, record: Any, *, whole: bool = False, sizes: Mapping[str, Any] | None = None) -> None:
        if not is_users(file_of(type(record)), self.own):
            return
        try:
            check_instance(record, PROOF, whole=whole, arguments=sizes)
        except AnnotationError:
            return
        except Mismatch as mismatch:
            self._violated(type(record), mismatch)

    def _violated(self, owner: Any, mismatch: Mismatch) -> None:
        if type(mismatch.value).__module__ == names.TREE_AT:
            return  # a property that `eqx.tree_at` reads, of a record whose leaves it has replaced by markers
        if _is_wrapper(mismatch):
            return
        if self.calls_at_violation is None:
            self.calls_at_violation = len(self.calls)
            # Questions that are asked from here on may come from a value that is wrong already.
            if self.space is not None:
                self.space.is_wrong = True
        file, line = place_of(owner)
        violation = Violation(
            getattr(owner, "__qualname__", str(owner)),
            file,
            line,
            f"{mismatch.slot.role} {mismatch.slot.name}".strip(),
            describe(mismatch),
            sizes_of(mismatch),
            inside_of(mismatch),
            mismatch.reason,
            wants_subclass(mismatch),
            type(mismatch.value) in (dict, list, tuple),
            # The search for a common mistake compares sizes, and would ask symbolic ones what no program asked.
            likely_fix(mismatch) if self.space is None else None,
        )
        if violation.place not in {violation.place for violation in self.violations}:
            self.violations.append(violation)


class AsJaxtyping(Watch):
    """A watch that checks as jaxtyping would: neither instances nor integers bind dims, and records share none."""

    _shared = UNSHARED

    def bindings_of_call(self, watched: CheckedFunction, arguments: dict[str, Any]) -> Bindings:
        by_name = dict(arguments)
        return Bindings(Slot("argument", "", watched.signature.function, Anything()), lambda: by_name)

    def check_module(self, record: Any) -> None:
        """Does nothing, since jaxtyping checks a record only when it is made."""


def _refuse_stack(record: Any, method: Any, bindings: Bindings) -> None:
    """Refuses a stack of records as the `self` of a public method; other mismatches of `self` are reported elsewhere.

    Raises:
        Mismatch: if `self` is a stack.
    """
    name = method.__name__
    if not isinstance(record, Module) or (name.startswith("_") and name != "__call__"):
        return  # private methods are not checked at run time either
    try:
        solution = check_instance(record, PROOF)
    except (Mismatch, AnnotationError):
        return
    bindings.slot, bindings.path = Slot("argument", "self", method, RecordOf(type(record))), ()
    refuse_stack(solution, record, record_plan(type(record), PROOF), bindings)


def _is_wrapper(mismatch: Mismatch) -> bool:
    """Whether a field of an installed package is annotated as an array and holds an object that wraps one.

    Packages wrap arrays (with a constraint, as "not trained") and leave the annotation as it was. That is no violation.
    """
    if mismatch.slot.role != "field" or is_users(file_of(mismatch.slot.owner)):
        return False
    plain = is_array(mismatch.value) or isinstance(mismatch.value, _VALUES)
    return holds_arrays(mismatch.annotation) and not plain


_VALUES = (bool, int, float, complex, str, tuple, list, dict, type(None))


def _converted(record: Any) -> Any:
    """A record whose constructor has just returned, with its fields converted as equinox is about to convert them."""
    fields = getattr(type(record), "__dataclass_fields__", {}) if isinstance(record, eqx.Module) else {}
    converters = {name: field.metadata.get("converter") for name, field in fields.items()}
    if not any(converters.values()):
        return record
    made = object.__new__(type(record))
    for name, value in vars(record).items():
        converter = converters.get(name)
        with contextlib.suppress(Exception):  # equinox runs the same converter in a moment, and raises
            object.__setattr__(made, name, value if converter is None else converter(value))
    return made
