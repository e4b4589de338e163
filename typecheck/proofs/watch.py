"""Watching a trace: every annotated function of the user's that runs during it is checked, decorated or not.

The interpreter's profile hook says which functions run, with which arguments, and what they return. So local functions,
methods, and records built on the way are held to their annotations without anybody changing the program. What does not
hold is written down, and the trace goes on: later findings are worth having too.

*User's* is every file outside the standard library, the installed packages, and weft's own machinery; a file that is
itself being verified always counts.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import inspect
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, Literal

import jax
from weft.core.paths import format_path
from weft.core.records.module import Module
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import ANYTHING, Annotation, Anything, RecordOf, StreamOf
from weft.typecheck.language.dims import VariadicDim
from weft.typecheck.language.forms import OBJECT, TYPEDDICT, form_of_value, has_own_dims
from weft.typecheck.language.names import names_of_class, names_of_signature
from weft.typecheck.language.objects import is_size, note_sizes
from weft.typecheck.language.signatures import Parameter, Signature, signature_of
from weft.typecheck.matching.arrays import settle
from weft.typecheck.matching.bindings import Bindings, Mismatch, Slot
from weft.typecheck.matching.compiling import Check, check_of
from weft.typecheck.matching.policies import APART, PROOF, Policy
from weft.typecheck.matching.record_plans import record_plan
from weft.typecheck.matching.records import check_instance, dims_of_instance, refuse_stack
from weft.typecheck.matching.scopes import bind_numbers
from weft.typecheck.matching.words import axes_in_words, in_words


@dataclass(frozen=True)
class Violation:
    """A contract that did not hold at some sizes.

    Attributes:
        function: the function or class whose annotation it is.
        file, line: where it is defined.
        where: which annotation: "argument x", "return", "field weight".
        message: what was expected and what was found.
        sizes: the two sizes that should have been one, if that is what is wrong.
        called_from: file and line of the user's code that passed the value.
    """

    function: str
    file: str
    line: int
    where: str
    message: str
    sizes: tuple[int, ...] = ()
    called_from: tuple[str, int] | None = None

    @property
    def place(self) -> tuple[str, int, str]:
        """What makes two findings one."""
        return (self.file, self.line, self.where)


class Watched:
    """A function whose calls are checked: its signature, and the checks of it, made when they are first asked for."""

    def __init__(self, signature: Signature):
        self.signature = signature
        self.names = names_of_signature(signature)
        self.place = place_of(signature.function)
        self._checks: dict[tuple[Policy, str], tuple[Slot, Check | None]] = {}

    def argument(self, parameter: Parameter, policy: Policy) -> tuple[Slot, Check | None]:
        """What is asked of an argument."""
        return self._row("argument", parameter.name, parameter.annotation, policy)

    def result(self, role: Literal["return", "yield"], policy: Policy) -> tuple[Slot, Check | None]:
        """What is asked of a result, or of what a generator yields."""
        return self._row(role, "", _annotation_of_result(self.signature, role), policy)

    def _row(
        self, role: Literal["argument", "return", "yield"], name: str, annotation: Annotation, policy: Policy
    ) -> tuple[Slot, Check | None]:
        key = policy, f"{role} {name}"
        if key not in self._checks:
            slot = Slot(role, name, self.signature.function, annotation)
            self._checks[key] = slot, check_of(annotation, policy)
        return self._checks[key]


@functools.cache
def _library_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    roots = {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], *site.getsitepackages()}
    weft = Path(__file__).parents[2]
    roots |= {str(weft / part) for part in ("core", "transforms", "typecheck", "nnx")}
    return tuple(str(Path(root)) + "/" for root in roots)


@functools.cache
def is_users(filename: str, own: frozenset[str] = frozenset()) -> bool:
    """Whether a file holds user's code."""
    if filename == "<string>":  # what dataclasses generate
        return False
    return filename in own or (not filename.startswith("<") and not filename.startswith(_library_roots()))


_JAX, _STANDARD = (str(Path(str(module.__file__)).parent) + "/" for module in (jax, dis))


class _Whose(dict[str, Literal["user", "library", "plain"]]):
    """Whose code a file holds, found out at the first look-up; *plain* libraries define no records."""

    def __init__(self, own: frozenset[str]):
        self.own = own

    def __missing__(self, filename: str) -> Literal["user", "library", "plain"]:
        standard = filename.startswith(_STANDARD) and "-packages" not in filename
        plain = standard or filename.startswith(_JAX)
        self[filename] = "user" if is_users(filename, self.own) else "plain" if plain else "library"
        return self[filename]


def _file_of_init(frame: FrameType) -> str:
    """The file of a constructor; of one that dataclasses generated, that of its class."""
    filename = frame.f_code.co_filename
    return frame.f_globals.get("__file__", filename) if filename == "<string>" else filename


class Watch:
    """Checks annotated functions while it is entered, in the thread that entered it.

    Args:
        own: files that count as the user's.
        apart: whether every record keeps its names to itself.
        about: file and line of the function that it is about.

    Attributes:
        unreadable: what is wrong with an annotation of that function, if it cannot be evaluated.
        violations: what did not hold, in the order it was met.
        calls: how many of the user's functions have started; how far a trace got.
        calls_at_violation: the same, when the first violation was met.
    """

    def __init__(self, own: frozenset[str] = frozenset(), *, apart: bool = False, about: tuple[str, int] = ("", 0)):
        self.own = own
        self.policy = APART if apart else PROOF
        self.about = about
        self.unreadable: AnnotationError | None = None
        self.violations: list[Violation] = []
        self.calls = 0
        self.calls_at_violation: int | None = None
        self._open: dict[int, tuple[Watched, Bindings]] = {}
        # Generators between two values, with their frames, so that their identities stay theirs.
        self._suspended: dict[int, tuple[FrameType, tuple[Watched, Bindings]]] = {}
        self._previous: Any = None
        self._whose = _Whose(own)

    def __enter__(self) -> Watch:
        self._previous = sys.gettrace()
        sys.settrace(self._tracer())
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._previous)

    def _tracer(self) -> Callable[[FrameType, str, Any], Any]:
        """Follows calls, and the returns of those that there is something to say about, but no lines.

        It runs for every function of JAX's as well, which takes half of the time of a trial if it is slow about them:
        so it is a trace, which unlike a profile leaves out builtins and most returns.
        """
        whose = self._whose

        def called(frame: FrameType, event: str, value: Any) -> Any:
            code = frame.f_code
            if whose[code.co_filename] == "plain":
                return None
            if whose[code.co_filename] == "user":
                self._called(frame)
            if id(frame) in self._open or (code.co_name == "__init__" and whose[_file_of_init(frame)] != "plain"):
                frame.f_trace_lines = False
                return returned
            return None

        def returned(frame: FrameType, event: str, value: Any) -> Any:
            if event == "return":
                self._returned(frame, value)
            return returned

        return called

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """While it lasts, calls are not followed: for checks, whose own calls are nobody's business."""
        tracer = sys.gettrace()
        sys.settrace(None)
        try:
            yield
        finally:
            sys.settrace(tracer)

    def _called(self, frame: FrameType) -> None:
        if id(frame) in self._suspended:
            if _instruction(frame) == "RESUME":  # else it is thrown an exception, as when it is closed
                _, self._open[id(frame)] = self._suspended.pop(id(frame))
            return
        self.calls += 1
        try:
            watched = _watched_of_code(frame)
        except AnnotationError:
            return
        if watched is None:
            return
        given = frame.f_locals  # collected anew at each look
        bindings = self.bindings_of_call(watched, given)
        try:
            _refuse_stack(given.get("self"), watched.signature.function, bindings)
            for parameter in watched.signature.parameters:
                if parameter.name in given:
                    self._argument(parameter, given[parameter.name], bindings, watched)
            settle(bindings, finally_=False)
        except Mismatch as mismatch:
            self._violated(watched.signature.function, mismatch, frame)
        except AnnotationError as error:
            return self._cannot_read(watched, error)
        self._open[id(frame)] = watched, bindings

    def bindings_of_call(self, watched: Watched, arguments: dict[str, Any]) -> Bindings:
        """The scope of one call: the dims of the instance, then the integers that are called like a dim."""
        signature = watched.signature
        first = signature.parameters[0].name if signature.parameters else ""
        record = arguments.get(first) if first == "self" else None
        given = dict(arguments)
        bindings = Bindings(Slot("argument", "", signature.function, Anything()), lambda: given)
        if form_of_value(record) not in (None, TYPEDDICT) and signature.function.__name__ != "__init__":
            own = dims_of_instance(record, PROOF)
            bindings.sizes.update(own.sizes)
            bindings.origins.update(own.origins)
            bindings.variadics.update(own.variadics)
        bind_numbers(bindings, {name: one for name, one in arguments.items() if name in watched.names})
        return bindings

    def _argument(self, parameter: Parameter, value: Any, bindings: Bindings, watched: Watched) -> None:
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            values = list(value)
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            values = list(value.values())
        else:
            if value is None and parameter.default is None:
                return
            values = [value]
        slot, check = watched.argument(parameter, self.policy)
        for one in values if check is not None else ():
            bindings.slot, bindings.path = slot, ()
            check(one, bindings)

    def _returned(self, frame: FrameType, value: Any) -> None:
        opened = self._open.pop(id(frame), None)
        left = _how_left(frame)
        if left == "raises":
            return
        if frame.f_code.co_name == "__init__":
            self._constructed(frame)
        elif opened is not None:
            if left == "yield":
                self._suspended[id(frame)] = frame, opened
            self._result(frame, left, value, *opened)

    def _result(
        self, frame: FrameType, role: Literal["return", "yield"], value: Any, watched: Watched, bindings: Bindings
    ) -> None:
        slot, check = watched.result(role, self.policy)
        bindings.slot, bindings.path = slot, ()
        try:
            if check is not None:
                check(value, bindings)
            settle(bindings, finally_=role == "return" and watched.place == self.about)
            if role == "return":
                self._left(frame)
        except Mismatch as mismatch:
            self._violated(watched.signature.function, mismatch, frame)
        except AnnotationError as error:
            self._cannot_read(watched, error)

    def _cannot_read(self, watched: Watched, error: AnnotationError) -> None:
        if self.unreadable is None and watched.place == self.about:
            self.unreadable = error

    def _left(self, frame: FrameType) -> None:
        """Holds the objects that a function was given to their annotations once more: it may have changed them."""
        for name in frame.f_code.co_varnames[: frame.f_code.co_argcount]:
            if form_of_value(value := frame.f_locals.get(name)) is OBJECT:
                self.check_module(value, frame)

    def _constructed(self, frame: FrameType) -> None:
        code = frame.f_code
        record = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        cls = type(record)
        if not has_own_dims(cls) or getattr(cls.__init__, "__code__", None) is not code:
            return
        if is_users(_file_of(cls), self.own):
            given = {name: frame.f_locals.get(name) for name in code.co_varnames[1 : _count_of_parameters(code)]}
            named = names_of_class(cls)
            sizes = {name: one for name, one in given.items() if name in named and is_size(one)}
            note_sizes(record, sizes)
            self.check_module(record, frame, whole=True, given=sizes)

    def check_module(
        self,
        record: Any,
        frame: FrameType | None = None,
        *,
        whole: bool = False,
        given: Mapping[str, Any] | None = None,
    ) -> None:
        """Holds the fields of a record or object of the user's to their annotations; see `check_instance`."""
        if not is_users(_file_of(type(record)), self.own):
            return
        try:
            check_instance(record, PROOF, whole=whole, given=given)
        except AnnotationError:
            return
        except Mismatch as mismatch:
            self._violated(type(record), mismatch, frame)

    def _violated(self, owner: Any, mismatch: Mismatch, frame: FrameType | None) -> None:
        if self.calls_at_violation is None:
            self.calls_at_violation = self.calls
        file, line = place_of(owner)
        violation = Violation(
            getattr(owner, "__qualname__", str(owner)),
            file,
            line,
            f"{mismatch.slot.role} {mismatch.slot.name}".strip(),
            describe(mismatch),
            sizes_of(mismatch),
            _caller(frame, self.own),
        )
        if violation.place not in {one.place for one in self.violations}:
            self.violations.append(violation)


def _refuse_stack(record: Any, method: Any, bindings: Bindings) -> None:
    """Refuses a stack as the `self` of a public method of records; what else is wrong with it is not said here.

    Raises:
        Mismatch: if it is one.
    """
    name = method.__name__
    if not isinstance(record, Module) or (name.startswith("_") and name != "__call__"):
        return  # as at run time, where only these are checked
    try:
        solution = check_instance(record, PROOF)
    except (Mismatch, AnnotationError):
        return
    bindings.slot, bindings.path = Slot("argument", "self", method, RecordOf(type(record))), ()
    refuse_stack(solution, record, record_plan(type(record), PROOF), bindings)


def _count_of_parameters(code: CodeType) -> int:
    return code.co_argcount + code.co_kwonlyargcount


def _how_left(frame: FrameType) -> Literal["return", "yield", "raises"]:
    # All three are reported as a return; the instruction tells them apart.
    instruction = _instruction(frame)
    return "return" if instruction.startswith("RETURN") else "yield" if instruction == "YIELD_VALUE" else "raises"


def _instruction(frame: FrameType) -> str:
    return dis.opname[frame.f_code.co_code[frame.f_lasti]]


def _annotation_of_result(signature: Signature, role: Literal["return", "yield"]) -> Annotation:
    returns = signature.returns
    if signature.flavour == "generator" and isinstance(returns, StreamOf):
        return returns.yields if role == "yield" else returns.returns
    return returns if role == "return" and signature.flavour in ("function", "coroutine") else ANYTHING


def _caller(frame: FrameType | None, own: frozenset[str]) -> tuple[str, int] | None:
    while frame is not None and not is_users(frame.f_code.co_filename, own):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


# By identity, with the code kept alive: code objects of two files are equal if the text is.
_watched: dict[int, tuple[CodeType, Callable[[FrameType], Watched | None]]] = {}


def _watched_of_code(frame: FrameType) -> Watched | None:
    """The function that a frame runs, if it has annotations."""
    code = frame.f_code
    known = _watched.get(id(code))
    if known is None:
        known = _watched[id(code)] = code, _find_function(frame)
    return known[1](frame)


def _find_function(frame: FrameType) -> Callable[[FrameType], Watched | None]:
    function = None if frame.f_code.co_name.startswith("<") else _function_of_code(frame)
    # A wrapper shows the annotations of what it wraps, which is checked when it runs itself.
    if function is None or not getattr(function, "__annotations__", None) or hasattr(function, "__wrapped__"):
        return lambda _: None
    read: dict[type | None, Watched | None] = {}

    def of_frame(frame: FrameType) -> Watched | None:
        owner = _owner(frame)
        if owner not in read:
            signature = signature_of(function, owner)
            read[owner] = Watched(signature) if signature.annotated else None
        return read[owner]

    return of_frame


def _owner(frame: FrameType) -> type | None:
    code = frame.f_code
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount and code.co_varnames[0] == "self" else None
    return None if first is None else type(first)


def _function_of_code(frame: FrameType) -> FunctionType | None:
    code, node = frame.f_code, None
    if "<locals>" not in code.co_qualname:
        scope: Any = frame.f_globals
        for part in code.co_qualname.split("."):
            node = scope.get(part)
            scope = getattr(node, "__dict__", {})
        node = getattr(node, "__func__", None) or getattr(node, "fget", None) or node
        while node is not None and getattr(node, "__code__", None) is not code:
            node = getattr(node, "__wrapped__", None)
    if node is None:
        # A local function, or one that a decorator has hidden: whoever holds the code is the function.
        node = next((one for one in gc.get_referrers(code) if isinstance(one, FunctionType)), None)
    return node


def place_of(owner: Any) -> tuple[str, int]:
    """The file and line where a function or class is defined."""
    owner = inspect.unwrap(owner)
    code = getattr(owner, "__code__", None)
    if code is not None:
        return code.co_filename, _line_of_def(code)
    try:
        return inspect.getsourcefile(owner) or "", inspect.getsourcelines(owner)[1]
    except (OSError, TypeError):
        return "", 0


def _line_of_def(code: CodeType) -> int:
    # `co_firstlineno` is the first decorator's line; the body's first instruction sits on the `def` itself.
    lines = [line for _, _, line in code.co_lines() if line is not None and line >= code.co_firstlineno]
    return min(lines, default=code.co_firstlineno)


@functools.cache
def _file_of(cls: type) -> str:
    return getattr(sys.modules.get(cls.__module__), "__file__", None) or place_of(cls)[0]


def describe(mismatch: Mismatch) -> str:
    """One line: what was expected and what was found."""
    path = format_path(mismatch.path, "") if mismatch.path else ""
    text = f"{path}: " if path else ""
    text += f"expected {mismatch.annotation}, found {in_words(mismatch.value)}"
    if mismatch.dim is not None and mismatch.expected is not None and mismatch.reason != "link":
        text += f": {mismatch.dim} is {mismatch.expected}"
        found = None if isinstance(mismatch.dim, VariadicDim) else _found(mismatch)
        text += f", not {found}" if found is not None else ""
    detail = _DETAILS.get(mismatch.reason, _detail)(mismatch)
    return text + (f" ({detail})" if detail else "")


def _detail(mismatch: Mismatch) -> str:
    return mismatch.detail


def _link(mismatch: Mismatch) -> str:
    wanted = f"{mismatch.dim}" + (f"={mismatch.expected}" if str(mismatch.dim) != str(mismatch.expected) else "")
    return f"its {mismatch.detail} is {_linked_size(mismatch)}, and should be {wanted}"


_DETAILS: dict[str, Callable[[Mismatch], str]] = {
    "link": _link,
    "keys": lambda one: f"without {one.detail}",
    "structure": lambda one: f"not the structure that {one.detail} has",
    "batched": lambda one: f"a stack, with the leading axes ({axes_in_words(one.expected)})",
    "overmapped": lambda one: f"every array in it has {one.expected} axes too few",
}


def _linked_size(mismatch: Mismatch) -> Any:
    return None if mismatch.inner is None else mismatch.inner.sizes.get(mismatch.detail)


def _found(mismatch: Mismatch) -> Any:
    if mismatch.reason == "link":
        return _linked_size(mismatch)
    shape = getattr(mismatch.value, "shape", None)
    return shape[mismatch.axis] if shape is not None and mismatch.axis is not None else None


def sizes_of(mismatch: Mismatch) -> tuple[int, ...]:
    """The sizes that disagree."""
    if mismatch.reason == "batched":
        return tuple(one for one in mismatch.expected if isinstance(one, int))
    stacked = mismatch.stacked[0] if mismatch.stacked is not None else ()
    sizes = (mismatch.expected, *(stacked or (_found(mismatch),)))
    return sizes if all(isinstance(one, int) for one in sizes) else ()
