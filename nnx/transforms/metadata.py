"""transform_metadata, add_axis, remove_axis: keep what Variables say of their axes in step with a vmap or scan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Unpack, overload

import jax
from jax.sharding import PartitionSpec
from weft.core.interpreter.rides import axis_of, read_step
from weft.nnx.crossing.apart import take_apart
from weft.nnx.crossing.prefixes import rides_of
from weft.nnx.crossing.references import References
from weft.nnx.errors import AxisError, StructureError
from weft.nnx.missing import MISSING
from weft.nnx.transforms._wrap import boundary_of, decorate
from weft.nnx.transforms.keywords import MetadataKeywords
from weft.nnx.variable.sharding import PARTITION_NAME
from weft.nnx.variable.variable import VARIABLE_TYPES
from weft.transforms.transformed import named_like

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

# Metadata that names the axes of a value.
_NAMED: Any = (tuple, PartitionSpec)


@overload
def transform_metadata(f: F, **options: Unpack[MetadataKeywords]) -> F: ...
@overload
def transform_metadata(**options: Unpack[MetadataKeywords]) -> Callable[[F], F]: ...
def transform_metadata(
    f: Any = MISSING,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    partition: str | None = None,
    graph: bool | None = None,
) -> F | Callable[[F], F]:
    """Adds and removes an axis in the metadata of Variables; goes inside the transform that does so to their values.

    Args:
        f: of one example.
        in_axes: as given to the transform around it.
        out_axes: likewise.
        partition: the axis' name in `out_sharding`.
        graph: whether objects are graphs (the default) or trees.

    Source: the semantics of `flax.nnx.transform_metadata`.

    >>> import jax
    >>> from weft import nnx
    >>> @nnx.vmap
    ... @nnx.transform_metadata(partition="layers")
    ... def layer(key):
    ...     metadata = {"out_sharding": (None, "model"), "eager_sharding": False}
    ...     return nnx.Linear(2, 3, kernel_metadata=metadata, rngs=nnx.Rngs(key))
    >>> layer(jax.random.split(jax.random.key(0), 4)).kernel.out_sharding
    ('layers', None, 'model')
    """
    boundary = boundary_of("transform_metadata", graph, None)
    metadata = {PARTITION_NAME: partition}
    return decorate(f, lambda function: with_metadata_axes(function, in_axes, out_axes, metadata, boundary))


def with_metadata_axes(
    function: Callable[..., Any], in_axes: Any, out_axes: Any, metadata: Mapping[str, Any], boundary: References
) -> Callable[..., Any]:
    """A function with the metadata hooks around it; the function itself if there is no metadata to pass."""
    if not metadata:
        return function

    def transformed(*args: Any, **kwargs: Any) -> Any:
        entered = _each(boundary, in_axes, args, lambda variable, axis: _without_axis(variable, axis, metadata), {})
        out = function(*args, **kwargs)
        # Put back after the function: inside, the Variables have one axis less, and so have their names.
        done = _each(boundary, in_axes, args, lambda variable, axis: _with_axis(variable, axis, metadata), {})
        # What the function put another Variable in the place of is the caller's still, unless updates reach it.
        for number, (variable, axis) in entered.items():
            if axis is not None and number not in done:
                _with_axis(variable, axis, metadata)
        # An argument that is returned too has its axis by now.
        _each(boundary, out_axes, out, lambda variable, axis: _with_axis(variable, axis, metadata), done)
        return out

    return named_like(function, transformed)


def add_axis(tree: T, index: int, transform_metadata: Mapping[Any, Any]) -> T:
    """Names a new axis in the metadata of the Variables in a tree, in place, and calls their hooks.

    Args:
        tree: a Variable, a state, or any pytree of Variables; everything else in it stays as it is.
        index: where the axis is.
        transform_metadata: the axis' name under `PARTITION_NAME`, and others by the metadata that they go into.

    Returns:
        The tree.

    Raises:
        ValueError: if `transform_metadata` does not name the axis.

    >>> from weft import nnx
    >>> kernel = nnx.Param(0.0, out_sharding=("in", "out"), eager_sharding=False)
    >>> add_axis(kernel, 0, {nnx.PARTITION_NAME: "layers"}).out_sharding
    ('layers', 'in', 'out')
    """
    return _on_variables(tree, lambda variable: _with_axis(variable, index, transform_metadata))


def remove_axis(tree: T, index: int, transform_metadata: Mapping[Any, Any]) -> T:
    """Takes an axis out of the metadata of the Variables in a tree, in place, and calls their hooks. See `add_axis`.

    Raises:
        ValueError: if the axis at this index has another name, or `transform_metadata` does not name it.

    >>> from weft import nnx
    >>> kernel = nnx.Param(0.0, out_sharding=("layers", "in"), eager_sharding=False)
    >>> remove_axis(kernel, 0, {nnx.PARTITION_NAME: "layers"}).out_sharding
    ('in',)
    """
    return _on_variables(tree, lambda variable: _without_axis(variable, index, transform_metadata))


def _on_variables(tree: T, act: Callable[[Any], None]) -> T:
    def visit(leaf: Any) -> Any:
        if type(leaf) in VARIABLE_TYPES:
            act(leaf)
        return leaf

    return jax.tree.map(visit, tree, is_leaf=lambda leaf: type(leaf) in VARIABLE_TYPES)


def _with_axis(variable: Any, axis: int, metadata: Mapping[str, Any]) -> None:
    """Names a new axis in `out_sharding` and in the other tuples that the metadata names, and calls the hooks."""

    def named(fields: tuple[Any, ...], value: Any, _: str) -> tuple[Any, ...]:
        # Axes at the end may be left unnamed.
        padded = (*fields, *(None,) * (axis - len(fields)))
        return (*padded[:axis], value, *padded[axis:])

    _rename(variable, metadata, named)
    variable.add_axis(axis, metadata[PARTITION_NAME])


def _without_axis(variable: Any, axis: int, metadata: Mapping[str, Any]) -> None:
    def unnamed(fields: tuple[Any, ...], value: Any, name: str) -> tuple[Any, ...]:
        if not -len(fields) <= axis < len(fields) or fields[axis] != value:
            raise AxisError(
                f"Expected to remove {value!r} at index {axis} from {fields!r}",
                at=f"{type(variable).__name__}, metadata {name!r}",
                fix="name the axis in the Variable's metadata, or map the Variable over None",
            )
        kept = list(fields)
        del kept[axis]
        return tuple(kept)

    _rename(variable, metadata, unnamed)
    variable.remove_axis(axis, metadata[PARTITION_NAME])


def _rename(variable: Any, metadata: Mapping[str, Any], change: Callable[[Any, Any, str], tuple[Any, ...]]) -> None:
    """Changes each tuple of axes' names that a Variable has under a name of the metadata."""
    for name, value in _names(metadata).items():
        fields: Any = variable.get_metadata(name, None)
        if fields and isinstance(fields, _NAMED):
            variable.set_metadata(name, change(fields, value, name))


def _names(metadata: Mapping[str, Any]) -> dict[str, Any]:
    if PARTITION_NAME not in metadata:
        raise StructureError(
            f"transform_metadata does not name the axis: {dict(metadata)}",
            fix="give it nnx.PARTITION_NAME: transform_metadata={nnx.PARTITION_NAME: 'layers'}",
        )
    others = {name: value for name, value in metadata.items() if name != PARTITION_NAME}
    return {"out_sharding": metadata[PARTITION_NAME], **others}


def _each(
    boundary: References, axes: Any, tree: Any, apply: Callable[[Any, int], None], done: Mapping[int, Any]
) -> dict[int, tuple[Any, int | None]]:
    """Applies a hook to each Variable that has an axis, once; gives those of the tree with their axes, by identity."""
    apart = take_apart(boundary.graph, tree)
    rides = map(axis_of, rides_of(boundary.graph, axes, apart, read_step, "axes"))
    reached: dict[int, Any] = {
        id(leaf.holder): (leaf.holder, axis) for leaf, axis in zip(apart.leaves, rides, strict=True)
    }
    reached = {number: pair for number, pair in reached.items() if type(pair[0]) in VARIABLE_TYPES}
    for number, (variable, axis) in reached.items():
        if axis is not None and number not in done:
            apply(variable, axis)
    return reached
