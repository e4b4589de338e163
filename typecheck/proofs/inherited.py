"""Inherited methods: what a subclass takes of what its base class takes."""

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
    """A parameter of an inherited method, of what the methods of the subclass take under its name, if that is narrower.

    What a base class calls on all kernels, the hooks of a subclass may take of graphs alone, and what it calls on any
    tree they may take as one array: they say what the subclass is for.
    """
    if method in vars(cls):
        return parameter
    # Under the transforms around it, too: a method that `jit` has made is no function.
    own = (inspect.unwrap(one) for one in vars(cls).values() if callable(one))
    for function in (one for one in own if inspect.isfunction(one) and _is_overriding(one, cls)):
        with contextlib.suppress(AnnotationError):  # which is said of that method
            for one in signature_of(function, cls).parameters:
                if one.name == parameter.name and _is_narrower(one.annotation, parameter.annotation):
                    return dataclasses.replace(parameter, annotation=one.annotation)
    return parameter


def _is_narrower(narrow: Annotation, wide: Annotation) -> bool:
    """Whether an annotation is of a subclass of what another is of, of something where the other is of any tree, or of
    axes of which it says more."""
    if _is_open(wide):
        return not _is_open(narrow)
    if isinstance(narrow, ArrayOf) and isinstance(wide, ArrayOf):
        return narrow.shape != wide.shape and _fixes_axes(narrow.shape.dims, wide.shape.dims)
    narrower, wider = (getattr(one, "cls", None) for one in (narrow, wide))
    # Not by `issubclass`, which a protocol may refuse to be asked.
    return isinstance(narrower, type) and isinstance(wider, type) and wider in narrower.__mro__[1:]


def _fixes_axes(narrow: Sequence[Dim], wide: Sequence[Dim]) -> bool:
    """Whether axes are like others, but some have a number where those have a name: `"1"` for `"states"`."""
    return len(narrow) == len(wide) and all(
        one == other or (isinstance(one, FixedDim) and isinstance(other, NamedDim))
        for one, other in zip(narrow, wide, strict=True)
    )


def _is_open(annotation: Annotation) -> bool:
    """Whether an annotation is of anything, or of any tree of anything, or of arrays of any shape."""
    if not isinstance(annotation, TreeOf):
        return isinstance(annotation, Anything)
    leaf = annotation.leaf
    return isinstance(leaf, Anything) or (isinstance(leaf, ArrayOf) and leaf.shape.dims == (VariadicDim(None),))


def _is_overriding(function: Callable[..., Any], cls: type) -> bool:
    return any(function.__name__ in vars(base) for base in cls.__mro__[1:])
