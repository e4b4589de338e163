"""Inherited methods: which of the arguments that a base class takes a subclass is meant to be given."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import Annotation, Anything, ArrayOf, TreeOf
from weft.typecheck.language.dims import Dim, FixedDim, NamedDim, VariadicDim
from weft.typecheck.language.signatures import Parameter, signature_of


def as_narrowed(parameter: Parameter, method: str, cls: type) -> Parameter:
    """A parameter of an inherited method, with the narrower annotation that the subclass's own methods give that name.

    A base class may call its hooks on kernels of any kind, and a subclass annotate the same hooks for graph kernels; or
    a base class passes any tree, where a subclass takes one array. The subclass's annotations say what it is for.
    """
    if method in vars(cls):
        return parameter
    # Unwrapped, since `jit` makes an object that is no function of a method.
    own = (inspect.unwrap(member) for member in vars(cls).values() if callable(member))
    for function in (one for one in own if inspect.isfunction(one) and _is_overriding(one, cls)):
        with contextlib.suppress(AnnotationError):  # reported where that method itself is judged
            for narrower in signature_of(function, cls).parameters:
                if narrower.name == parameter.name and _is_narrower(narrower.annotation, parameter.annotation):
                    return dataclasses.replace(parameter, annotation=narrower.annotation)
    return parameter


def _is_narrower(narrow: Annotation, wide: Annotation) -> bool:
    """Whether an annotation is narrower than another: a subclass, something instead of any tree, or fixed axes."""
    if _is_open(wide):
        return not _is_open(narrow)
    if isinstance(narrow, ArrayOf) and isinstance(wide, ArrayOf):
        return narrow.shape != wide.shape and _fixes_axes(narrow.shape.dims, wide.shape.dims)
    narrower, wider = (getattr(one, "cls", None) for one in (narrow, wide))
    # Not by `issubclass`, which a protocol may refuse to be asked.
    return isinstance(narrower, type) and isinstance(wider, type) and wider in narrower.__mro__[1:]


def _fixes_axes(narrow: Sequence[Dim], wide: Sequence[Dim]) -> bool:
    """Whether two shapes are alike but for axes where the first has a number and the second a name: `1`, `states`."""
    return len(narrow) == len(wide) and all(
        one == other or (isinstance(one, FixedDim) and isinstance(other, NamedDim))
        for one, other in zip(narrow, wide, strict=True)
    )


def _is_open(annotation: Annotation) -> bool:
    """Whether an annotation allows anything, any tree of anything, or any tree of arrays of any shape."""
    if not isinstance(annotation, TreeOf):
        return isinstance(annotation, Anything)
    leaf = annotation.leaf
    return isinstance(leaf, Anything) or (isinstance(leaf, ArrayOf) and leaf.shape.dims == (VariadicDim(None),))


def _is_overriding(function: Callable[..., Any], cls: type) -> bool:
    return any(function.__name__ in vars(base) for base in cls.__mro__[1:])
