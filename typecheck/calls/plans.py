"""Plans of functions: the checks of the parameters and of the result, made once for each function.

A user's wrapper (`functools.wraps`) has the annotations of the function inside, but may pass it other arguments than it
takes itself. So the wrapper is not checked; it runs with a checked function in place of the function inside.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CellType, FunctionType
from typing import Any, NamedTuple, TypeVar

import jax
import jaxtyping
from weft.core.frames import is_users
from weft.core.hooks import call_checked
from weft.typecheck.calls.asking import asks
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import ANY_DTYPE, Annotation, ArrayOf, BatchedOf, Instance, RecordOf, StreamOf
from weft.typecheck.language.forms import DATACLASS, NAMEDTUPLE, has_own_dims
from weft.typecheck.language.signatures import Signature, fields_of, names_in, signature_of
from weft.typecheck.matching.bindings import Slot
from weft.typecheck.matching.compiling import Check, check_of
from weft.typecheck.matching.policies import RUN_TIME


class Row(NamedTuple):
    """A parameter or result that has something to check."""

    slot: Slot
    check: Check


@dataclass(frozen=True)
class FunctionPlan:
    """The checks of one function; a row is None if every value passes.

    Attributes:
        signature: the function's annotations.
        positional: the rows of the parameters that may be passed by position.
        named: the rows of the parameters that may be passed by name.
        rest: the rows of `*args` and `**kwargs`.
        returns: the row of the result.
        streams: the rows of what a generator yields, is sent and returns.
        is_method: whether the first argument is the record or object whose method it is.
        idle: whether there is nothing to check at all.
        names_shapes: whether an annotation names a shape or a dtype.
        asking: whether the function's body asks jaxtyping about dims.
        sized_by: the dims that only the result names, each with the parameter that determines its size: an `int` of
            that name, or the only plain record with that dim. Proofs do the same.
    """

    signature: Signature
    positional: tuple[Row | None, ...]
    named: Mapping[str, Row | None]
    rest: tuple[Row | None, Row | None]
    returns: Row | None
    streams: tuple[Row | None, Row | None, Row | None] | None
    is_method: bool
    idle: bool
    names_shapes: bool
    asking: bool
    sized_by: tuple[tuple[str, str], ...]


def function_plan(
    function: Callable[..., Any], owner: type | None = None, names: Mapping[str, Any] | None = None
) -> FunctionPlan:
    """The plan of a function.

    Raises:
        AnnotationError: in one line, if one of its annotations cannot be read.
    """
    signature = signature_of(function, owner, names)
    target = signature.function
    kinds = inspect.Parameter
    rows = {p.name: _row(Slot("argument", p.name, target, p.annotation), p.annotation) for p in signature.parameters}
    by_kind = {p.kind: rows[p.name] for p in signature.parameters}
    positional = tuple(
        rows[p.name] for p in signature.parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    )
    named = {
        p.name: rows[p.name]
        for p in signature.parameters
        if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    }
    returns, streams = _results(signature)
    is_method = owner is not None and has_own_dims(owner)
    idle = not any(rows.values()) and returns is None and not any(streams or ())
    rest = by_kind.get(kinds.VAR_POSITIONAL), by_kind.get(kinds.VAR_KEYWORD)
    annotations = [*(p.annotation for p in signature.parameters), signature.returns]
    shaped = any(_names_shapes(annotation, set()) for annotation in annotations)
    asking = signature.flavour == "function" and inspect.isfunction(target) and asks(target)
    sized_by = tuple(_sized_by(signature))
    return FunctionPlan(signature, positional, named, rest, returns, streams, is_method, idle, shaped, asking, sized_by)


def _sized_by(signature: Signature) -> Iterator[tuple[str, str]]:
    """The dims that only the result names, each with the one parameter that determines it (`FunctionPlan.sized_by`)."""
    parameters = signature.parameters
    named = [names_in(p.annotation, of_records=False) for p in parameters]
    for name in sorted(names_in(signature.returns, of_records=False).difference(*named)):
        integers = [p.name for p in parameters if p.name == name and p.annotation == Instance(int)]
        # Two records with the dim may differ in it, as two that are concatenated do, so neither determines the result.
        records = [p.name for p in parameters if _is_plain(p.annotation) and name in names_in(p.annotation)]
        sources = integers or records
        if len(sources) == 1:
            yield name, sources[0]


def _is_plain(annotation: Annotation) -> bool:
    return isinstance(annotation, RecordOf) and annotation.form in (DATACLASS, NAMEDTUPLE)


def _names_shapes(annotation: Annotation, seen: set[type]) -> bool:
    """Whether an annotation names a shape or a dtype somewhere, and not only the class of an array."""
    match annotation:
        case ArrayOf(dtype=dtype, shape=shape):
            return dtype != ANY_DTYPE or str(shape) != "..."
        case BatchedOf():
            return True
        case RecordOf(cls=cls):
            if cls in seen:
                return False
            seen.add(cls)
            try:
                fields = fields_of(cls)
            except (AnnotationError, TypeError):
                return False  # an unreadable field is reported where its class is checked
            return any(_names_shapes(field.annotation, seen) for field in fields)
        case _:
            return any(_names_shapes(part, seen) for part in annotation.mentions)


def _row(slot: Slot, annotation: Annotation) -> Row | None:
    check = check_of(annotation, RUN_TIME)
    return None if check is None else Row(slot, check)


def _results(signature: Signature) -> tuple[Row | None, tuple[Row | None, Row | None, Row | None] | None]:
    """The row of the result, and the rows of what a generator yields, is sent and returns, where there are any."""
    target, returns = signature.function, signature.returns
    if signature.flavour in ("generator", "async generator"):
        if not isinstance(returns, StreamOf):
            return None, None
        streams = (
            _row(Slot("yield", "yield", target, returns.yields), returns.yields),
            _row(Slot("sent", "sent", target, returns.sent), returns.sent),
            _row(Slot("return", "return", target, returns.returns), returns.returns),
        )
        return None, streams
    return _row(Slot("return", "return", target, returns), returns), None


T = TypeVar("T")


class _Note:
    """A value stored in a function's attributes, with a weak reference to that function.

    It pickles as an empty note: functions and classes of `__main__` are pickled by value, attributes included.
    """

    __slots__ = ("owner", "value")

    def __init__(self, owner: Callable[[], Any] = lambda: None, value: Any = None):
        self.owner = owner
        self.value = value

    def __reduce__(self) -> tuple[type[_Note], tuple[()]]:
        return _Note, ()


def _stored(name: str, make: Callable[[FunctionType, Sequence[Any]], T]) -> Callable[[Any, Sequence[Any]], T | None]:
    """A getter that makes a value once for each function, in the function's attributes; None for other callables.

    The value refers to the function, so a table of functions, even a weak one, would keep both alive forever.
    `functools.wraps` copies attributes, so a note of another function is ignored.
    """

    def get(function: Any, args: Sequence[Any]) -> T | None:
        if type(function) is not FunctionType:
            return None
        note = function.__dict__.get(name)
        if note is None or note.owner() is not function:
            note = function.__dict__[name] = _Note(weakref.ref(function), make(function, args))
        return note.value

    return get


def _new_plan(function: FunctionType, args: Sequence[Any]) -> FunctionPlan | None:
    """The plan of a function that has annotations of its own and something to check; else None."""
    if not _has_own_annotations(function):
        return None
    owner = owner_of(function, args)
    try:
        plan = function_plan(function, owner)
    except AnnotationError:
        raise
    except ValueError:  # the function has no signature
        return None
    return None if plan.idle else plan


# The plan of a function that the core calls; None if there is nothing to check.
plan_of = _stored("__weft_plan__", _new_plan)


def _new_wrapper(function: FunctionType, args: Sequence[Any]) -> FunctionType | None:
    """A copy of a user's wrapper that calls the function inside under its contract; None for any other function."""
    inner = getattr(function, "__wrapped__", None)
    if not isinstance(inner, FunctionType) or not is_users(function) or _has_own_annotations(function):
        return None
    cells = function.__closure__ or ()
    # Without a cell that contains the function there is nothing to replace.
    if not any(_holds(cell, inner) for cell in cells):
        return None

    @functools.wraps(inner)
    def checked(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return call_checked(inner, args, kwargs)

    # A new function with new cells: the user's own wrapper must stay as it is, for callers that weft does not see.
    replaced = tuple(CellType(checked) if _holds(cell, inner) else cell for cell in cells)
    wrapper = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, replaced)
    wrapper.__kwdefaults__, wrapper.__qualname__ = function.__kwdefaults__, function.__qualname__
    return wrapper


def _holds(cell: CellType, value: object) -> bool:
    try:
        return cell.cell_contents is value
    except ValueError:  # the cell is empty: its variable is not assigned yet
        return False


# The user's wrapper with a checked function inside; None if the function is no such wrapper.
wrapper_of = _stored("__weft_wrapper__", _new_wrapper)


def _has_own_annotations(function: Any) -> bool:
    """Whether a function's annotations are its own, and not copied to a wrapper that may batch or bind arguments."""
    while hasattr(function, "__wrapped__"):
        if not function.__code__.co_filename.startswith(_TRANSPARENT):
            return False
        function = function.__wrapped__
    return isinstance(function, FunctionType)


# Wrappers that pass their arguments on unchanged: context managers on a method, and jaxtyping's own decorator.
_TRANSPARENT = (
    contextlib.__file__,
    jax.named_scope("")(lambda: None).__code__.co_filename,
    os.path.join(os.path.dirname(jaxtyping.__file__), ""),
)


def owner_of(function: FunctionType, args: Sequence[Any]) -> type | None:
    """The class whose method a function is, if it is called as one; else None."""
    if not args:
        return None
    # By the qualified name, because a plain function has no reference to the class that it was defined in.
    prefix = function.__qualname__.rpartition(".")[0]
    return next((base for base in type(args[0]).__mro__ if base.__qualname__ == prefix), None) if prefix else None
