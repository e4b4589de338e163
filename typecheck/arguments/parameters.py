"""The arguments for a call of a signature, in order: each by its annotation, its default or its name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from weft.typecheck.arguments.builder import Builder, Scope, Unbuildable
from weft.typecheck.arguments.uses import strings_compared
from weft.typecheck.arguments.values import BY_NAME, holds_objects, integer, is_last
from weft.typecheck.language.annotations import (
    NONE,
    Anything,
    Instance,
    LiteralOf,
    OneOf,
    Variable,
    holds_arrays,
    members_of,
)
from weft.typecheck.language.dims import SymbolicDim, VariadicDim
from weft.typecheck.language.forms import OBJECT, form_of
from weft.typecheck.language.key_names import is_key_by_name, with_keys
from weft.typecheck.language.names import names_in, names_of_class, names_of_fields, names_of_signature, shapes_in
from weft.typecheck.language.signatures import Parameter, Signature


def string_of(builder: Builder, place: str, scope: Scope, *default: str | None) -> Any:
    """A string that the body compares the parameter with, or a made-up one if the body compares it with no string."""
    name = place.removeprefix(scope.path)
    known = tuple(dict.fromkeys((*default, *strings_compared(scope.function, name))))
    if not known and not builder.makes_up:
        raise Unbuildable(f"{place}: its annotation allows any str, and the body compares it with no string")
    if not known:
        # The parameter's name, so that a dict of results shows which argument a made-up string came from.
        builder.texts[place] = re.sub(r"\W+", "_", name).strip("_")
        return builder.texts[place]
    return builder.one_of(place, known)


def build_arguments(
    builder: Builder, signature: Signature, scope: Scope, passed: Mapping[str, Any] | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments for a call of a signature; the arguments in `passed` are used as they are.

    Raises:
        Unbuildable: naming the first argument that its annotation does not determine.
    """
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    scope.function = signature.function
    # Expressions in braces may read parameters that are built later, or that stay at their default.
    for parameter in signature.parameters:
        if not parameter.required and parameter.default is not inspect.Parameter.empty:
            scope.values.setdefault(parameter.name, parameter.default)
    dims = names_of_signature(signature) | (_dims_of_owner(signature) if scope.path else frozenset())
    if not scope.path:
        builder.written |= _variadics_written(signature)
    built: dict[str, list[Any]] = {}
    read = _read_by_holes(signature)
    for parameter in sorted(with_keys(signature.parameters), key=lambda one: _turn(one, read)):
        if is_key_by_name(parameter) and parameter.name not in (passed or {}):
            builder.by_name.add(scope.path + parameter.name)
        built[parameter.name] = _values(builder, parameter, scope, dims, passed or {})
        for value in built[parameter.name]:
            scope.values[parameter.name] = value
    for parameter in signature.parameters:
        for value in built[parameter.name]:
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                kwargs.update(value)
            elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                kwargs[parameter.name] = value
            else:
                args.append(value)
    return tuple(args), kwargs


def _variadics_written(signature: Signature) -> frozenset[str]:
    """The `*name`s that a function's own annotations write; unlike a record's, they are promises to the caller."""
    annotations = (signature.returns, *(parameter.annotation for parameter in signature.parameters))
    dims = (dim for annotation in annotations for shape in shapes_in(annotation) for dim in shape.dims)
    return frozenset(dim.name for dim in dims if isinstance(dim, VariadicDim) and dim.name)


def _dims_of_owner(signature: Signature) -> frozenset[str]:
    if signature.owner is None:
        return frozenset()
    form = form_of(signature.owner)
    if form is None:
        return frozenset()
    return names_of_class(signature.owner) if form is OBJECT else names_of_fields(signature.owner)


def _values(
    builder: Builder, parameter: Parameter, scope: Scope, dims: frozenset[str], passed: Mapping[str, Any]
) -> list[Any]:
    name, place, annotation = parameter.name, scope.path + parameter.name, parameter.annotation
    if name in passed:
        return [passed[name]]
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        builder.vague.add(f"**{place}")
        return []
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        # `*args` of unknown values may be empty; two of a known kind show a function that mixes them up.
        if isinstance(annotation, Anything):
            return []
        return [builder.build(annotation, f"{place}[{number}]", scope) for number in range(2)]
    if parameter.required:
        return [_required(builder, parameter, place, scope)]
    return [_defaulted(builder, parameter, place, scope, dims)]


def _required(builder: Builder, parameter: Parameter, place: str, scope: Scope) -> Any:
    if isinstance(parameter.annotation, Anything) and not isinstance(parameter.annotation, Variable):
        if parameter.name in BY_NAME:
            return BY_NAME[parameter.name](builder, place, scope)
        raise Unbuildable(f"{place}: it has no annotation and no default")
    return builder.build(parameter.annotation, place, scope)


def _defaulted(builder: Builder, parameter: Parameter, place: str, scope: Scope, dims: frozenset[str]) -> Any:
    """The value for a parameter with a default: arrays present and absent, flags both ways, sizes as sizes."""
    default, annotation = parameter.default, parameter.annotation
    if isinstance(default, bool):
        return builder.one_of(place, (default, not default))
    members = members_of(annotation)
    # In `ArrayLike` the bool is one kind of number among others, and no flag.
    if default is None and Instance(bool) in members and Instance(float) not in members:
        return builder.one_of(place, (None, False, True))
    # `def f(x, width=64)` with a dim `width`: at 64 only, equal sizes would hide a mixed-up axis.
    if isinstance(default, int) and parameter.name in dims:
        return integer(builder, parameter.name, scope)
    if isinstance(annotation, LiteralOf):
        others = tuple(value for value in annotation.values if value != default)
        return builder.one_of(place, (default, *others))
    if Instance(str) in members_of(annotation) and (default is None or isinstance(default, str)):
        return string_of(builder, place, scope, default)
    if not holds_arrays(annotation) and not holds_objects(annotation):
        return default
    if default is None and isinstance(annotation, OneOf):  # the option `given` covers None already
        annotation = OneOf(tuple(one for one in annotation.members if one != NONE))
    builder.optional[f"{place} given"] = names_in(annotation)
    if builder.choose(f"{place} given", 2) == 1:
        return default
    try:
        return builder.build(annotation, place, scope)
    except Unbuildable:  # the program without this argument can still be judged
        return default


def _read_by_holes(signature: Signature) -> frozenset[str]:
    """The parameters that expressions in the annotations of other parameters read: `"{shape[0]} d"`."""
    shapes = [shape for one in signature.parameters for shape in shapes_in(one.annotation)]
    arguments = (dim.arguments for shape in shapes for dim in shape.dims if isinstance(dim, SymbolicDim))
    return frozenset().union(*arguments)


def _turn(parameter: Parameter, read: frozenset[str]) -> int:
    """The order in which a parameter is built: flags and parameters that holes read first, optimizers and such last."""
    if isinstance(parameter.default, bool) or parameter.name in read:
        return 0
    return 2 if is_last(parameter.annotation) else 1
