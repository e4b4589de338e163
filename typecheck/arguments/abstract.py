"""Calls on abstract arrays: shapes and dtypes go in and come out, and nothing is computed.

Arrays that a function closes over or finds in its module are made abstract like its arguments. A matrix of 8 by 8 in a
closure would tie two dims to one size and hide their confusion. So arrays in cells and globals take sizes of their own
while the function is traced. An annotation in the module says which. Without one each axis has a size of its own, to be
joined with the dims that the program uses it with. So do integers that are called like a dim. NumPy arrays stay as they
are: they are often tables that the program computes with in Python.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CellType, FunctionType
from typing import Any

import jax
from jax.core import Tracer
from weft.core.caches import cached_by
from weft.core.edge.equations import iter_equations
from weft.core.makeup import closed_over, globals_read
from weft.core.records.leaves import is_array
from weft.typecheck.arguments.abstract_copies import abstract_copy
from weft.typecheck.arguments.builder import Builder, Scope
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language import forms
from weft.typecheck.language.annotations import ArrayOf
from weft.typecheck.language.forms import form_of, has_own_dims
from weft.typecheck.language.reading import Scope as Names
from weft.typecheck.language.reading import read
from weft.typecheck.language.signatures import signature_of


def abstractly(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls a function under `jax.eval_shape`: the arrays in its arguments and in its result are `ShapeDtypeStruct`s.

    Unlike `jax.eval_shape`, this also traces arrays inside objects and plain instances, and passes other leaves on.
    """
    return abstractly_counted(function, args, kwargs)[0]


def abstractly_counted(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, int]:
    """The result of a call as of `abstractly`, and how many operations its trace has."""
    leaves, treedef = jax.tree.flatten(opened((args, kwargs)))
    # A size, a string or a function among the leaves must reach the function as it is: a traced size would be an array.
    dynamic = [isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves]
    rest: list[Any] = []

    def run(arrays: list[Any]) -> list[Any]:
        source = iter(arrays)
        live = [next(source) if traced else leaf for leaf, traced in zip(leaves, dynamic, strict=True)]
        args, kwargs = closed(treedef.unflatten(live))
        out, structure = jax.tree.flatten(opened(function(*args, **kwargs)))
        # `make_jaxpr` may return arrays only, so the structure and the other leaves leave the trace by this list.
        rest[:] = [structure, [None if is_array(leaf) else leaf for leaf in out], [is_array(leaf) for leaf in out]]
        return [leaf for leaf in out if is_array(leaf)]

    traced = [leaf for leaf, is_traced in zip(leaves, dynamic, strict=True) if is_traced]
    jaxpr, out_shapes = jax.make_jaxpr(run, return_shape=True)(traced)
    structure, static, arrays = rest
    shapes = iter(out_shapes)
    live = [next(shapes) if is_array else leaf for leaf, is_array in zip(static, arrays, strict=True)]
    # Those of its functions, loops and branches count as well.
    return closed(structure.unflatten(live)), sum(1 for _ in iter_equations(jaxpr.eqns))


# ---------------------------------------------------------------------------------- instances that JAX takes for leaves


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class _OpenedInstance:
    """An instance of a class that JAX does not know as a pytree, as a pytree of the instance's attributes."""

    fields: dict[str, Any]
    cls: type = dataclasses.field(metadata={"static": True})


def opened(tree: Any) -> Any:
    """Returns a tree in which objects, dataclasses and plain instances are pytrees, so that their arrays are traced."""
    return _opened(tree, ())


def _opened(tree: Any, around: tuple[Any, ...]) -> Any:
    """`opened`, for a tree inside the instances in `around`, which a cycle leads back to."""

    def open_leaf(leaf: Any) -> Any:
        cls = type(leaf)
        if not (dataclasses.is_dataclass(cls) or is_plain_class(cls)) or not hasattr(leaf, "__dict__"):
            return leaf
        if any(node is leaf for node in around):  # a cycle, such as a node that knows its parent: no pytree can hold it
            return leaf
        fields = {name: _opened(value, (*around, leaf)) for name, value in vars(leaf).items()}
        # A plain instance without arrays keeps its identity: a program may use it as a key or compare it by `is`.
        if not dataclasses.is_dataclass(cls) and not any(
            is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(fields)
        ):
            return leaf
        return _OpenedInstance(fields, cls)

    return jax.tree.map(open_leaf, forms.opened(tree))


def closed(tree: Any) -> Any:
    """Turns a tree made by `opened` back into the instances that it stands for."""

    def close(node: Any) -> Any:
        if not isinstance(node, _OpenedInstance):
            return node
        # Not by calling the class: its `__init__` may take other arguments than the attributes, and would run again.
        instance = object.__new__(node.cls)
        for name, value in node.fields.items():
            object.__setattr__(instance, name, closed(value))
        return instance

    return forms.closed(jax.tree.map(close, tree, is_leaf=lambda node: isinstance(node, _OpenedInstance)))


# Instances of classes from these packages stay leaves: their attributes are private to the package.
_LIBRARIES = sys.stdlib_module_names | {"jax", "jaxlib", "numpy", "equinox", "jaxtyping", "beartype"}


@cached_by("class")
def is_plain_class(cls: type) -> bool:
    """Whether a class is user code that neither JAX nor a `Form` knows how to take apart."""
    return (
        form_of(cls) is None
        and cls.__module__.partition(".")[0] not in _LIBRARIES
        and not issubclass(cls, BaseException | type)
        and not forms.is_foreign_class(cls)
    )


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
        if jax.tree.leaves(forms.opened(value)) and not hasattr(value, "__wrapped__")
    }
    dims = signature_of(function).names
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
    """The annotation that a function's module gives a global, if it is of an array and can be read; else None."""
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
