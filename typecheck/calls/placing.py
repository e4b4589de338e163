"""Placing: arrays of a trace, constrained to lie on a mesh as the rules in force say for the names of their dims.

The checks say which dims an array has. An array whose annotation is known is placed by it. A tuple, a union or a plain
record is checked once more, by checks that note the arrays that they meet. What fits no annotation stays as it is,
since the contract has refused it already, or contracts are off.

Annotations of weft's own layers name no dims that a rule could mean: `in` and `out` of a `Linear` are whatever axes
the record around it has.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, cast

import jax
from weft.core.frames import owner_of
from weft.core.hooks import object_layer
from weft.core.logical_axes import FREE, AxisRules, placing, rules_in_force
from weft.core.records.kinds import field_roles, names_its_axes
from weft.typecheck.calls.plans import FunctionPlan, Row
from weft.typecheck.errors import AnnotationError, ContractError
from weft.typecheck.language.annotations import ArrayOf, holds_arrays
from weft.typecheck.language.dims import Dim, NamedDim, Shape, VariadicDim
from weft.typecheck.matching.bindings import Bindings, Mismatch, Slot
from weft.typecheck.matching.record_plans import RecordPlan
from weft.typecheck.messages.explain import place_of
from weft.typecheck.messages.sources import locate

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
    return placed, {name: _placed(rules, plan.named.get(name, plan.rest[1]), value) for name, value in kwargs.items()}


def place_result(row: Row | None, value: Any) -> Any:
    """What a function returns, yields or is sent, with its arrays placed if rules are in force."""
    rules = rules_in_force()
    if rules is None or row is None or not _names_axes(row.slot.owner):
        return value
    return _placed(rules, row, value)


def place_fields(rules: AxisRules, record: Any, plan: RecordPlan) -> None:
    """Places the arrays in the fields of a record that has just been made."""
    values = plan.form.values(record)
    for field in plan.inside:
        value = values.get(field.slot.name)
        new = _placed(rules, Row(field.slot, field.own), value)
        if new is not value:
            object.__setattr__(record, field.slot.name, new)


def _placed(rules: AxisRules, row: Row | None, value: Any) -> Any:
    """A value with its arrays placed by the annotation of its row; the same object if none moves."""
    if row is None:
        return value
    slot, check = row
    if isinstance(slot.annotation, ArrayOf):
        return _array(rules, slot, slot.annotation.shape, value) if placing(value) else value
    if not holds_arrays(slot.annotation):
        return value
    met: list[tuple[Any, Slot, Shape]] = []
    bindings = Bindings(slot)
    bindings.met, bindings.numpy, bindings.sparse = met, True, True
    with contextlib.suppress(Mismatch, AnnotationError):
        check(value, bindings)
    # By identity, as several members of a union may meet an array, the last of which fits.
    last = {id(array): (slot, shape, array) for array, slot, shape in met if placing(array)}
    new = {key: _array(rules, *meeting) for key, meeting in last.items()}
    if all(new[key] is array for key, (_, _, array) in last.items()):
        return value
    return jax.tree.map(
        lambda leaf: new.get(id(leaf), leaf),
        value,
        # An object that is mutable would be another one after its parts were put together again.
        is_leaf=lambda node: id(node) in new or object_layer(type(node)) is not None,
    )


def _array(rules: AxisRules, slot: Slot, shape: Shape, value: Any) -> Any:
    """An array placed by the names of its axes; the array itself if its annotation gives it none."""
    names = _declared(slot, value.ndim) or axis_names(shape, value.ndim)
    # What does not fit has been refused, or contracts are off.
    if len(names) != value.ndim or (slot.role == "field" and not names_its_axes(slot.owner, slot.name)):
        return value

    def otherwise(lies: Any, should: Any) -> ContractError:
        return ContractError(
            f"{place_of(slot)} lies as {lies} on the mesh, and by its annotation as {should}",
            at=locate(slot),
            fix="divide it so where it is made (jax.sharding.reshard), correct the rules, or leave out strict=True",
        )

    return rules.place(value, names, lambda: f"{place_of(slot)} ({locate(slot)})", otherwise)


def _declared(slot: Slot, rank: int) -> tuple[str | None, ...] | None:
    """The names that `Sharded` on a field gives the axes of its array."""
    owner: Any = slot.owner
    if slot.role != "field" or not dataclasses.is_dataclass(owner):
        return None
    role = field_roles(cast("type", owner)).get(slot.name)
    return None if role is None or role.axes.names is None else role.axes.of_rank(rank)


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


def _names_axes(function: Any) -> bool:
    """Whether the dims of a function are names of axes."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code is None or owner_of(code.co_filename) in _NAMING
