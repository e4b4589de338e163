"""Placing: arrays of a trace, constrained to lie on a mesh as the rules in force say for the names of their dims.

The checks say which dims an array has: an array whose annotation is known is placed by it, and a tuple, a union or a
plain record is checked once more, by checks that note the arrays that they meet. What fits no annotation stays as it
is, since the contract has refused it already, or contracts are off.

Annotations of weft's own layers name no dims that a rule could mean: `in` and `out` of a `Linear` are whatever axes
the record around it has.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from weft.core.logical_axes import FREE, AxisRules, placing, rules_in_force
from weft.core.callers import owner_of, shorten
from weft.core.hooks import object_layer
from weft.core.records.kinds import field_roles
from weft.typecheck.calls.plans import FunctionPlan, Row
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import ArrayOf, holds_arrays
from weft.typecheck.language.dims import Dim, NamedDim, Shape, VariadicDim
from weft.typecheck.matching.bindings import Bindings, Mismatch, Slot
from weft.typecheck.matching.record_plans import RecordPlan
from weft.typecheck.messages.explain import place_of

# The owners of functions and records whose dims are names of axes.
_NAMING = ("user", "installed", "standard", "generated")


def place_arguments(
    rules: AxisRules, plan: FunctionPlan, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The arguments of a call with their arrays placed."""
    if not _names_axes(plan.signature.function):
        return args, kwargs
    rows = (*plan.positional, *(plan.rest[0],) * (len(args) - len(plan.positional)))
    placed = tuple(_placed(rules, row, value) for row, value in zip(rows, args, strict=False))
    return placed, {
        name: _placed(rules, plan.named.get(name, plan.rest[1]), value) for name, value in kwargs.items()
    }


def place_result(row: Row | None, value: Any) -> Any:
    """What a function returns, yields or is sent, with its arrays placed if rules are in force."""
    rules = rules_in_force()
    if rules is None or row is None or not _names_axes(row[0].owner):
        return value
    return _placed(rules, row, value)


def place_fields(rules: AxisRules, record: Any, plan: RecordPlan) -> None:
    """Places the arrays in the fields of a record that has just been made; `Sharded` on a field names its axes."""
    if not _names_axes(record.__init__) and not _names_axes(type(record)):
        return
    roles = field_roles(plan.cls) if dataclasses.is_dataclass(plan.cls) else {}
    for field, value in ((field, plan.form.values(record).get(field.slot.name)) for field in plan.inside):
        declared = roles[field.slot.name].axes if field.slot.name in roles else None
        names = None if declared is None or declared.names is None else declared.of_rank(getattr(value, "ndim", 0))
        if names is not None and field.array is not None:
            new = rules.place(value, names, lambda slot=field.slot: _where(slot)) if placing(value) else value
        else:
            new = _placed(rules, (field.slot, field.own), value)
        if new is not value:
            object.__setattr__(record, field.slot.name, new)


def _placed(rules: AxisRules, row: Row | None, value: Any) -> Any:
    if row is None:
        return value
    slot, check = row
    if isinstance(slot.annotation, ArrayOf):
        return _array(rules, slot, slot.annotation.shape, value) if placing(value) else value
    if not holds_arrays(slot.annotation):
        return value
    met: list[tuple[Any, Shape]] = []
    bindings = Bindings(slot)
    bindings.met, bindings.numpy, bindings.sparse = met, True, True
    with contextlib.suppress(Mismatch, AnnotationError):
        check(value, bindings)
    # By identity, as a union's members may meet an array one after the other, and the last of them fits.
    new = {id(array): _array(rules, slot, shape, array) for array, shape in dict_of(met) if placing(array)}
    if all(new.get(id(array), array) is array for array, _ in met):
        return value
    # An object that is mutable would be another one after its parts were put together again.
    stays = lambda node: id(node) in new or object_layer(type(node)) is not None  # noqa: E731
    return jax.tree.map(lambda leaf: new.get(id(leaf), leaf), value, is_leaf=stays)


def dict_of(met: Sequence[tuple[Any, Shape]]) -> Sequence[tuple[Any, Shape]]:
    """Each array once, with the shape that met it last."""
    return list({id(array): (array, shape) for array, shape in met}.values())


def _array(rules: AxisRules, slot: Slot, shape: Shape, value: Any) -> Any:
    return rules.place(value, axis_names(shape, value.ndim), lambda: _where(slot))


def axis_names(shape: Shape, rank: int) -> tuple[str, ...]:
    """A name for each axis of an array, as rules know them.

    >>> axis_names(Shape.parse("*batch seq 2*n #c 3"), 6)
    ('*batch', '_', 'seq', '_', '_', '_')
    """
    names = [*map(_name, shape.dims)]
    if shape.variadic is not None:
        several = rank - shape.min_rank
        names[shape.variadic : shape.variadic + 1] = [names[shape.variadic], *(FREE,) * (several - 1)][:several]
    return tuple(names)


def _name(dim: Dim) -> str:
    if isinstance(dim, NamedDim | VariadicDim) and dim.name and not (dim.broadcastable or dim.per_leaf):
        return f"*{dim.name}" if isinstance(dim, VariadicDim) else dim.name
    return FREE


def _names_axes(owner: Any) -> bool:
    function = inspect.unwrap(owner) if callable(owner) and not isinstance(owner, type) else owner
    code = getattr(function, "__code__", None)
    if code is not None:
        return owner_of(code.co_filename) in _NAMING
    return not getattr(owner, "__module__", "").startswith("weft.")


def _where(slot: Slot) -> str:
    function = getattr(slot.owner, "__wrapped__", slot.owner)
    code = getattr(function, "__code__", None) or getattr(getattr(slot.owner, "__init__", None), "__code__", None)
    line = "" if code is None else f" ({shorten(code.co_filename)}:{code.co_firstlineno})"
    return f"{place_of(slot)}{line}"
