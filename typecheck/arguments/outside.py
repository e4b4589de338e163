"""Arrays that a function closes over or finds in its module, made abstract like its arguments.

A matrix of 8 by 8 in a closure would tie two dims to one size and hide their confusion. So arrays in cells and globals
take sizes of their own while the function is traced: by their annotation where the module gives one, else each axis by
itself, to be joined with the dims that the program uses it with. So do integers that are called like a dim. NumPy
arrays stay as they are: they are often tables that the program computes with in Python.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CellType, FunctionType
from typing import Any

import jax
from jax.core import Tracer
from weft.core.makeup import closed_over, globals_read
from weft.typecheck.arguments.abstract_copies import abstract_copy
from weft.typecheck.arguments.builder import Builder, Scope
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import ArrayOf
from weft.typecheck.language.forms import has_own_dims
from weft.typecheck.language.names import names_of_signature
from weft.typecheck.language.objects import opened
from weft.typecheck.language.reading import Scope as Names
from weft.typecheck.language.reading import read
from weft.typecheck.language.signatures import signature_of


def outside_values(function: Any) -> dict[str, Any]:
    """The values in a function's closure, and the globals that it or a nested function reads, by name."""
    return globals_read(function) | closed_over(function) if hasattr(function, "__code__") else {}


def abstract_outside(function: FunctionType, builder: Builder) -> dict[str, Any]:
    """Abstract versions of the arrays, and of records with arrays, in a function's closure and globals.

    An integer that is called like a dim of its signature is that dim.
    """
    outside = outside_values(function)
    arrays = {
        name: _abstract(name, value, function, builder)
        for name, value in outside.items()
        # A tracer in a closure belongs to a trace that is still running, and a wrapped function is code, not data.
        if (isinstance(value, jax.Array) or has_own_dims(type(value))) and not isinstance(value, Tracer)
        if jax.tree.leaves(opened(value)) and not hasattr(value, "__wrapped__")
    }
    dims = names_of_signature(signature_of(function))
    # A global integer named like a dim must follow the size of the dim, as the arrays do.
    return arrays | {name: builder.size(name, Scope()) for name in sorted(dims) if type(outside.get(name)) is int}


def _abstract(name: str, value: Any, function: FunctionType, builder: Builder) -> Any:
    if has_own_dims(type(value)):
        return abstract_copy(builder, value, name)
    annotation = _annotation_of(name, function)
    if annotation is not None and len(annotation.shape.dims) == value.ndim and annotation.shape.variadic is None:
        return jax.ShapeDtypeStruct(builder.shape(annotation.shape, name, Scope()), value.dtype)
    # An axis of size 1 is there to broadcast: with another size the program would fail for no fault of its own.
    shape = tuple(
        builder.keyed(f"{name}.{axis}", f"{name}.{axis}", Scope(contract=f"{name}.{axis}"), original=size)
        if size > 1
        else 1
        for axis, size in enumerate(value.shape)
    )
    return jax.ShapeDtypeStruct(shape, value.dtype)


def _annotation_of(name: str, function: FunctionType) -> ArrayOf | None:
    module = sys.modules.get(function.__module__)
    # Only a module's annotation of the global is read: `WEIGHTS: Float[Array, "n n"]` says that both axes are one dim.
    hint = getattr(module, "__annotations__", {}).get(name)
    if hint is None:
        return None
    try:
        annotation = read(hint, Names(vars(module)))
    except AnnotationError:
        return None
    return annotation if isinstance(annotation, ArrayOf) else None


def with_outside(function: FunctionType) -> Callable[..., Any]:
    """The function with an argument in front: the values of its closure and globals, as a dict by name."""
    free = function.__code__.co_freevars

    def call(outside: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        # The copy has cells of its own: the original cells are shared with every closure over the same names. Globals
        # are swapped in place and not copied, because the functions that this one calls read the same globals.
        cells = tuple(
            CellType(outside[name]) if name in outside else cell
            for name, cell in zip(free, function.__closure__ or (), strict=True)
        )
        copy = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
        copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, function.__annotations__
        with _globals(function, {name: value for name, value in outside.items() if name not in free}):
            return copy(*args, **kwargs)

    return call


@contextlib.contextmanager
def _globals(function: FunctionType, values: Mapping[str, Any]) -> Iterator[None]:
    """Replaces globals of a module for the length of a `with` block; trials take turns, so no other sees them."""
    module = function.__globals__
    before = {name: module[name] for name in values}
    module.update(values)
    try:
        yield
    finally:
        module.update(before)
