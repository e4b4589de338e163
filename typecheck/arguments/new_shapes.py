"""The shapes of a generalised instance's arrays: what the annotations say at the sizes of an assignment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.typecheck.arguments.builder import Builder, Scope, Unbuildable
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import Annotation, ArrayOf, BatchedOf
from weft.typecheck.language.dims import NamedDim, VariadicDim


def new_shape(builder: Builder, annotation: Annotation, value: Any, place: str, scope: Scope) -> tuple[Any, ...]:
    """The shape that an annotation gives an array at the new sizes; the array's own shape if it declares none."""
    for member in _array_members(annotation):
        shape = member.shape
        fits = len(value.shape) >= shape.min_rank if shape.variadic is not None else len(value.shape) == len(shape.dims)
        if not fits:
            continue
        sizes: list[Any] = []
        rank = len(value.shape) - shape.min_rank
        for number, dim in enumerate(shape.dims):
            axis = len(sizes)
            if isinstance(dim, VariadicDim):
                sizes += _variadic(builder, dim, value.shape[axis : axis + rank], scope)
            # An axis of size 1 under an expression is most likely there to broadcast, so it stays 1.
            elif value.shape[axis] == 1 and not isinstance(dim, NamedDim):
                sizes.append(1)
            elif isinstance(dim, NamedDim) and dim.name not in scope.bound:
                sizes.append(value.shape[axis])
            else:
                try:
                    sizes += builder.dim(dim, f"{place}[{number}]", scope)
                except (Unbuildable, AnnotationError):  # it reads a value that the instance does not hold
                    sizes.append(value.shape[axis])
        return tuple(sizes)
    return value.shape


def _variadic(builder: Builder, dim: VariadicDim, axes: tuple[int, ...], scope: Scope) -> tuple[Any, ...]:
    """The new sizes of the axes that a variadic dim stands for; those of `...` stay as they are."""
    if dim.name is None:
        return axes
    if dim.name not in scope.variadics:
        names = [f"{dim.name}.{axis}" for axis in range(len(axes))]
        scope.variadics[dim.name] = tuple(
            builder.keyed(builder.key_of(name, scope), name, scope, original=size)
            for name, size in zip(names, axes, strict=True)
        )
    return scope.variadics[dim.name]


def _array_members(annotation: Annotation) -> Iterator[ArrayOf]:
    """The array annotations inside an annotation, with the leading axes that `Batched` declares."""
    if isinstance(annotation, BatchedOf):
        for inner in _array_members(annotation.inner):
            yield ArrayOf(inner.array_type, inner.dtype, inner.shape.under(annotation.axes))
        return
    if isinstance(annotation, ArrayOf):
        yield annotation
    for part in annotation.parts:
        yield from _array_members(part)
