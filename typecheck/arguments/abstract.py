"""Calls functions on abstract arrays: shapes and dtypes go in and come out, and nothing is computed."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import jax
from weft.core.caches import cached_by
from weft.core.records.leaves import is_array
from weft.typecheck.language import objects
from weft.typecheck.language.forms import form_of


def abstractly(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls a function under `jax.eval_shape`: the arrays in its arguments and in its result are `ShapeDtypeStruct`s.

    Unlike `jax.eval_shape`, this also traces arrays inside objects and plain instances, and passes other leaves on.
    """
    leaves, treedef = jax.tree.flatten(opened((args, kwargs)))
    # A size, a string or a function among the leaves must reach the function as it is: a traced size would be an array.
    dynamic = [isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves]
    rest: list[Any] = []

    def run(arrays: list[Any]) -> list[Any]:
        source = iter(arrays)
        live = [next(source) if traced else leaf for leaf, traced in zip(leaves, dynamic, strict=True)]
        args, kwargs = closed(treedef.unflatten(live))
        out, structure = jax.tree.flatten(opened(function(*args, **kwargs)))
        # `eval_shape` may return arrays only, so the structure and the other leaves leave the trace by this list.
        rest[:] = [structure, [None if is_array(leaf) else leaf for leaf in out], [is_array(leaf) for leaf in out]]
        return [leaf for leaf in out if is_array(leaf)]

    shapes = iter(jax.eval_shape(run, [leaf for leaf, traced in zip(leaves, dynamic, strict=True) if traced]))
    structure, static, arrays = rest
    live = [next(shapes) if traced else leaf for leaf, traced in zip(static, arrays, strict=True)]
    return closed(structure.unflatten(live))


# ---------------------------------------------------------------------------------- instances that JAX takes for leaves


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class _Opened:
    """An instance of a class that JAX does not know as a pytree, as a pytree of the instance's attributes."""

    fields: dict[str, Any]
    cls: type = dataclasses.field(metadata={"static": True})


def opened(tree: Any) -> Any:
    """Returns a tree in which objects, dataclasses and plain instances are pytrees, so that their arrays are traced."""
    return _opened(tree, ())


def _opened(tree: Any, around: tuple[Any, ...]) -> Any:
    def open_leaf(leaf: Any) -> Any:
        cls = type(leaf)
        if not (dataclasses.is_dataclass(cls) or is_plain_class(cls)) or not hasattr(leaf, "__dict__"):
            return leaf
        if any(node is leaf for node in around):  # a cycle, such as a node that knows its parent: no pytree can hold it
            return leaf
        fields = {name: _opened(value, (*around, leaf)) for name, value in vars(leaf).items()}
        # A plain instance without arrays keeps its identity: a program may use it as a key or compare it by `is`.
        if not dataclasses.is_dataclass(cls) and not any(map(_is_array_or_abstract, jax.tree.leaves(fields))):
            return leaf
        return _Opened(fields, cls)

    return jax.tree.map(open_leaf, objects.opened(tree))


def closed(tree: Any) -> Any:
    """Turns a tree made by `opened` back into the instances that it stands for."""

    def close(node: Any) -> Any:
        if not isinstance(node, _Opened):
            return node
        # Not by calling the class: its `__init__` may take other arguments than the attributes, and would run again.
        instance = object.__new__(node.cls)
        for name, value in node.fields.items():
            object.__setattr__(instance, name, closed(value))
        return instance

    return objects.closed(jax.tree.map(close, tree, is_leaf=lambda node: isinstance(node, _Opened)))


def _is_array_or_abstract(leaf: Any) -> bool:
    return is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


# Instances of classes from these packages stay leaves: their attributes are private to the package.
_LIBRARIES = sys.stdlib_module_names | {"jax", "jaxlib", "numpy", "equinox", "jaxtyping", "beartype"}


@cached_by("class")
def is_plain_class(cls: type) -> bool:
    """Whether a class is user code that neither JAX nor a `Form` knows how to take apart."""
    return (
        form_of(cls) is None
        and cls.__module__.partition(".")[0] not in _LIBRARIES
        and not issubclass(cls, BaseException | type)
        and not objects.is_foreign_class(cls)
    )
