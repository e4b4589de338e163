"""The arguments for a call of a signature, in order: each by its annotation, its default or its name."""

from __future__ import annotations

import enum
import inspect
import re
import textwrap
import types
from collections.abc import Mapping, Sequence
from typing import Any

from weft.typecheck.arguments.asked import OTHER
from weft.typecheck.arguments.builder import ITEMS, Builder, Scope, Unbuildable
from weft.typecheck.arguments.uses import strings_compared
from weft.typecheck.arguments.values import BY_NAME, holds_objects, integer, is_last
from weft.typecheck.language.annotations import (
    NONE,
    Annotation,
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
from weft.typecheck.language.names import (
    fields_in_holes,
    names_of_class,
    names_of_fields,
    names_of_signature,
    shapes_in,
)
from weft.typecheck.language.signatures import Parameter, Signature


def string_of(builder: Builder, place: str, scope: Scope) -> Any:
    """A string that the body compares the parameter with, or a made-up one if the body compares it with no string."""
    known = strings_compared(scope.function, place.removeprefix(scope.path))
    if not known and not builder.makes_up:
        raise Unbuildable(f"{place}: its annotation allows any str, and the body compares it with no string")
    return _text(builder, place, scope, known)


def _text(builder: Builder, place: str, scope: Scope, usual: tuple[Any, ...]) -> Any:
    """A text that notes what is asked of it: one of the usual ones, if there are any, or a made-up one."""
    # The parameter's name, so that a dict of results shows which argument a made-up string came from.
    made_up = re.sub(r"\W+", "_", place.removeprefix(scope.path)).strip("_")
    text = builder.value(place, *(usual if any(usual) else (*usual, made_up)))
    if text is not None and str.__str__(text) in {OTHER, made_up}.difference(usual):
        builder.texts[place] = str.__str__(text)
    return text


def _listed(default: Any, members: Sequence[Annotation]) -> list[Any]:
    """The values that an annotation lists, or that its classes list; nothing where it allows more than these."""
    if isinstance(default, bool):
        return [True, False]
    listed = list[Any]()
    # In `ArrayLike` the bool is one kind of number among others, and no flag.
    is_flag = default is None and Instance(float) not in members
    for member in members:
        cls = member.cls if isinstance(member, Instance) else None
        if isinstance(member, LiteralOf):
            listed += member.values
        elif isinstance(cls, type) and issubclass(cls, enum.Enum):
            listed += cls
        elif cls is bool and is_flag:
            listed += (False, True)
    return [*listed, *(one for one in (None,) if listed and NONE in members)]


def build_arguments(
    builder: Builder, signature: Signature, scope: Scope, passed: Mapping[str, Any] | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments for a call of a signature; the arguments in `passed` are used as they are.

    Raises:
        Unbuildable: naming the first argument that its annotation does not determine.
    """
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    scope.function, scope.owner = signature.function, signature.owner
    # Expressions in braces may read parameters that are built later, or that stay at their default.
    for parameter in signature.parameters:
        if not parameter.required and parameter.default is not inspect.Parameter.empty:
            scope.values.setdefault(parameter.name, parameter.default)
    dims = names_of_signature(signature) | (_dims_of_owner(signature) if scope.path else frozenset())
    if not scope.path:
        builder.written |= _variadics_written(signature)
    # The annotation of a field reads another field as `{self.width}`, before there is a record.
    fields = scope.values.setdefault("self", types.SimpleNamespace()) if signature.owner is not None else None
    built: dict[str, list[Any]] = {}
    read = _read_by_holes(signature)
    for parameter in sorted(with_keys(signature.parameters), key=lambda one: _turn(one, read)):
        if is_key_by_name(parameter) and parameter.name not in (passed or {}):
            builder.by_name.add(scope.path + parameter.name)
        built[parameter.name] = _values(builder, parameter, scope, dims, passed or {})
        for value in built[parameter.name]:
            scope.values[parameter.name] = value
            if isinstance(fields, types.SimpleNamespace):
                setattr(fields, parameter.name, value)
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
        # `*args` of unknown values may be empty; several of a known kind show a function that mixes them up.
        if isinstance(annotation, Anything):
            return []
        count = ITEMS[builder.choose(f"{place} length", len(ITEMS))]
        return [builder.build(annotation, f"{place}[{number}]", scope) for number in range(count)]
    if parameter.required:
        return [_required(builder, parameter, place, scope)]
    return [defaulted(builder, parameter, place, scope, dims)]


def _required(builder: Builder, parameter: Parameter, place: str, scope: Scope) -> Any:
    if isinstance(parameter.annotation, Anything) and not isinstance(parameter.annotation, Variable):
        if parameter.name in BY_NAME:
            return BY_NAME[parameter.name](builder, place, scope)
        raise Unbuildable(f"{place}: it has no annotation and no default")
    return builder.build(parameter.annotation, place, scope)


def defaulted(builder: Builder, parameter: Parameter, place: str, scope: Scope, dims: frozenset[str]) -> Any:
    """The value for a parameter with a default: arrays present and absent, flags both ways, sizes as sizes.

    A text or a number notes what is asked of it. What no annotation gives other values for stays at its default, which
    the builder notes, but for the classes of other packages: what these are given by default is their own affair.
    """
    default, annotation = parameter.default, parameter.annotation
    members = members_of(annotation)
    # `def f(x, width=64)` with a dim `width`: at 64 only, equal sizes would hide a mixed-up axis.
    if type(default) is int and parameter.name in dims:
        return integer(builder, parameter.name, scope)
    listed = _listed(default, members)
    is_foreign = scope.owner is not None and builder.is_foreign(scope.owner)
    if not is_foreign:
        builder.own.add(place)
    if listed:
        return builder.one_of(place, (default, *(item for item in listed if item is not default)), _in_words)
    is_text = Instance(str) in members and (default is None or isinstance(default, str))
    known = strings_compared(scope.function, parameter.name) if is_text else ()
    if known or (not is_foreign and (is_text or type(default) in (str, int, float))):
        usual = dict.fromkeys((default, *known))
        return _text(builder, place, scope, tuple(usual)) if is_text else builder.value(place, *usual)
    if not holds_arrays(annotation) and not holds_objects(annotation):
        if not is_foreign:
            builder.fixed[place] = _in_words(default)
        return default
    if default is None and isinstance(annotation, OneOf):  # the option `given` covers None already
        annotation = OneOf(tuple(one for one in annotation.members if one != NONE))
    if builder.choose(f"{place} given", 2) == 1:
        return default
    try:
        return builder.build(annotation, place, scope)
    except Unbuildable:  # the program without this argument can still be judged
        return default


def _in_words(value: Any) -> str:
    """A value as somebody would write it who speaks of it."""
    name = str(value) if isinstance(value, enum.Enum) else getattr(value, "__name__", None)
    return textwrap.shorten(name if isinstance(name, str) else repr(value), 40, placeholder="...")


def _read_by_holes(signature: Signature) -> frozenset[str]:
    """The parameters that expressions in the annotations of other parameters read: `"{shape[0]} d"`."""
    annotations = [parameter.annotation for parameter in signature.parameters]
    dims = (dim for annotation in annotations for shape in shapes_in(annotation) for dim in shape.dims)
    arguments = (dim.arguments for dim in dims if isinstance(dim, SymbolicDim))
    return fields_in_holes(annotations).union(*arguments)


def _turn(parameter: Parameter, read: frozenset[str]) -> int:
    """The order in which a parameter is built: flags and parameters that holes read first, optimizers and such last."""
    if isinstance(parameter.default, bool) or parameter.name in read:
        return 0
    return 2 if is_last(parameter.annotation) else 1
