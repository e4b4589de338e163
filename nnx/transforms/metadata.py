"""transform_metadata, add_axis, remove_axis: add or remove an axis in `out_sharding` when a transform does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Unpack, overload

import jax
from jax.sharding import PartitionSpec
from weft.core.interpreter.rides import axis_of, read_step
from weft.nnx.crossing.flattening import take_apart
from weft.nnx.crossing.prefixes import rides_of
from weft.nnx.crossing.references import References
from weft.nnx.errors import MISSING, AxisError, StructureError
from weft.nnx.transforms._wrap import boundary_of, decorate
from weft.nnx.transforms.keywords import MetadataKeywords
from weft.nnx.variable.sharding import PARTITION_NAME
from weft.nnx.variable.variable import VARIABLE_TYPES
from weft.transforms.transformed import named_like

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

# The types of metadata that name the axes of a value; other entries are left alone.
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
    """Adds and removes the mapped axis in the metadata of Variables; it goes inside the transform, around `f`.

    Args:
        f: the function of one example.
        in_axes: the `in_axes` of the transform around it.
        out_axes: the `out_axes` of the transform around it.
        partition: the name of the mapped axis in `out_sharding`.
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
    """Wraps a function, so that its Variables' metadata lacks the mapped axis inside, and has it again outside."""
    # Without names there is nothing to rename, and each call would walk over its arguments in order to find that out.
    if not metadata:
        return function

    def name(variable: Any, axis: int) -> None:
        _with_axis(variable, axis, metadata)

    def transformed(*args: Any, **kwargs: Any) -> Any:
        entered = _each(boundary, in_axes, args, lambda variable, axis: _without_axis(variable, axis, metadata), {})
        out = function(*args, **kwargs)
        # Inside the function the Variables have one axis less, and so must their names; afterwards both have it again.
        # What the function has put into a tree does not leave, so there the Variables that entered are all.
        named_again = _each(boundary, in_axes, args, name, {}) if boundary.graph else {}
        # The function may have replaced a Variable by a new one. The old one is still the caller's, and needs its axis.
        for number, (variable, axis) in entered.items():
            if axis is not None and number not in named_again:
                name(variable, axis)
        # A Variable of the arguments that is also returned has its axis already.
        _each(boundary, out_axes, out, name, entered | named_again)
        return out

    return named_like(function, transformed)


def add_axis(tree: T, index: int, transform_metadata: Mapping[Any, Any]) -> T:
    """Adds an axis to the metadata of all Variables in a tree, in place, and calls their `on_add_axis` hooks.

    Args:
        tree: a Variable, a State, or any pytree; only its Variables are changed.
        index: the position of the new axis.
        transform_metadata: the axis' name under `PARTITION_NAME`; further entries name it in other metadata.

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
    """Removes an axis from the metadata of all Variables in a tree, in place. See `add_axis`.

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
    """Inserts an axis into `out_sharding`, and into the other tuples that the metadata names; calls the hooks."""

    def named(fields: tuple[Any, ...], value: Any, _: str) -> tuple[Any, ...]:
        # Trailing axes may be unnamed: ("in",) is short for ("in", None).
        padded = (*fields, *(None,) * (axis - len(fields)))
        return (*padded[:axis], value, *padded[axis:])

    _rename(variable, metadata, named)
    variable.add_axis(axis, metadata[PARTITION_NAME])


def _without_axis(variable: Any, axis: int, metadata: Mapping[str, Any]) -> None:
    def unnamed(fields: tuple[Any, ...], value: Any, name: str) -> tuple[Any, ...]:
        # By name and not by position alone: if `in_axes` and the names disagree, the name of another axis would be
        # lost.
        if not -len(fields) <= axis < len(fields) or fields[axis] != value:
            raise AxisError(
                f"Expected to remove {value!r} at index {axis} from {fields!r}",
                at=f"{type(variable).__name__}, metadata {name!r}",
                fix="name the axis in the Variable's metadata, or map the Variable over None",
            )
        names = list(fields)
        del names[axis]
        return tuple(names)

    _rename(variable, metadata, unnamed)
    variable.remove_axis(axis, metadata[PARTITION_NAME])


def _rename(variable: Any, metadata: Mapping[str, Any], change: Callable[[Any, Any, str], tuple[Any, ...]]) -> None:
    """Maps each tuple of axis names in a Variable's metadata by `change`."""
    for name, value in _names(metadata).items():
        fields: Any = variable.get_metadata(name, None)
        if fields and isinstance(fields, _NAMED):
            variable.set_metadata(name, change(fields, value, name))


def _names(metadata: Mapping[str, Any]) -> dict[str, Any]:
    if PARTITION_NAME not in metadata:
        raise StructureError(
            f"transform_metadata does not name the axis: {dict(metadata)}",
            fix="name it: transform_metadata={nnx.PARTITION_NAME: 'layers'}",
        )
    others = {name: value for name, value in metadata.items() if name != PARTITION_NAME}
    return {"out_sharding": metadata[PARTITION_NAME], **others}


def _each(
    boundary: References, axes: Any, tree: Any, apply: Callable[[Any, int], None], done: Mapping[int, Any]
) -> dict[int, tuple[Any, int | None]]:
    """Calls `apply` once for each Variable with an axis. Returns all Variables of `tree` with their axes, by `id`."""
    flattened = take_apart(boundary.graph, tree)
    rides = map(axis_of, rides_of(boundary.graph, axes, flattened, read_step, "axes"))
    # Plain arrays have no metadata. By `id` and not by path: a shared Variable gets or loses its axis once.
    reached: dict[int, Any] = {
        id(leaf.holder): (leaf.holder, axis)
        for leaf, axis in zip(flattened.leaves, rides, strict=True)
        if leaf.kind in VARIABLE_TYPES
    }
    for number, (variable, axis) in reached.items():
        if axis is not None and number not in done:
            apply(variable, axis)
    return reached
