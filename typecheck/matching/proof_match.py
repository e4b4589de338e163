"""Matching for proofs: a value against its annotation, with the names that a whole call shares.

The runtime checks ask each record for its own dims only. A proof asks for more: one name has one size across the call,
so NamedTuples, TypedDicts and plain dataclasses share the names of the function that they are given to. A Module's
names are its own (two layers of one class differ in size), unless `Dims` links them.

Records inside a list, a mapping or a pytree keep
theirs, too: there are several of them.

Only what can hold an array is looked at; the rest of a hint is beartype's.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any, cast

import equinox as eqx
import jax
from weft.core.records.kinds import NO_ROLE, Role, field_roles
from weft.core.records.module import Module
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import (
    Annotation,
    ArrayOf,
    BatchedOf,
    BoxOf,
    Instance,
    LiteralOf,
    MappingOf,
    OneOf,
    RecordOf,
    SequenceOf,
    TreeOf,
    TupleOf,
    record_form,
)
from weft.typecheck.language.dims import Dim, FixedDim, NamedDim, Shape, SymbolicDim, UnboundDim, VariadicDim
from weft.typecheck.language.objects import is_box_class, is_object, layer_of, sizes_of_object, unboxed
from weft.typecheck.language.signatures import Field, Signature, fields_of, signature_of
from weft.typecheck.language.symbolic import is_symbolic
from weft.typecheck.matching.arrays import array_check, settle
from weft.typecheck.matching.bindings import Bindings, Mismatch, Origin, Slot
from weft.typecheck.matching.records import MAY_BE_STACKED, is_made_of_fields
from weft.typecheck.matching.stacks import Row, Solution, Stack, leading, row, solve

_check_of = functools.cache(array_check)


def match(annotation: Annotation, value: Any, bindings: Bindings, apart: bool = False) -> None:
    """Checks a value, binding the names that are free.

    Args:
        annotation: what it should be.
        value: anything; tracers and abstract arrays are arrays.
        bindings: the scope.
        apart: whether every record in it keeps its names to itself.

    Raises:
        Mismatch: for the first thing in it that is not as annotated.
    """
    match annotation:
        case ArrayOf():
            _check_of(annotation)(unboxed(value), bindings)
        case BoxOf(cls, inner):
            if not isinstance(value, cls):
                raise Mismatch("class", annotation, value, bindings)
            match(inner, unboxed(value), bindings, apart)
        case OneOf():
            _match_one_of(annotation, value, bindings, apart)
        case TupleOf() | SequenceOf() | MappingOf():
            _match_container(annotation, value, bindings, apart)
        case TreeOf():
            _match_tree(annotation, value, bindings)
        case BatchedOf():
            _match_batched(annotation, value, bindings, apart)
        case RecordOf():
            _match_record(annotation, value, bindings, apart)
        case Instance(cls) if cls is type(None) and value is not None:
            raise Mismatch("class", annotation, value, bindings)
        case _:
            pass


def settled(bindings: Bindings, finally_: bool = False) -> None:
    """Checks the expressions that waited for their names; what nothing ever binds is an error at the end only."""
    settle(bindings, finally_=finally_)


def _match_one_of(annotation: OneOf, value: Any, bindings: Bindings, apart: bool) -> None:
    failures: list[Mismatch] = []
    for member in annotation.members:
        if not _could_be(member, value):
            continue
        kept, path = bindings.snapshot(), bindings.path
        try:
            return match(member, value, bindings, apart)
        except Mismatch as mismatch:
            failures.append(mismatch)
            bindings.restore(kept)
            bindings.path = path
    if failures:
        # The member that got furthest says most: right rank but a wrong size, before a wrong rank or class.
        raise max(
            failures,
            key=lambda one: (
                ("class", "dtype", "rank", "size").index(one.reason)
                if one.reason in ("class", "dtype", "rank", "size")
                else -1
            ),
        )
    raise Mismatch("class", annotation, value, bindings)


def _could_be(member: Annotation, value: Any) -> bool:
    match member:
        case Instance(cls):
            return isinstance(value, cls) or (
                cls in (int, float, complex) and (type(value) is int or is_symbolic(value))
            )
        case LiteralOf(values):
            return any(value is one or value == one for one in values if type(one) is type(value))
        case _:
            return True


def _inside(bindings: Bindings, part: Any, annotation: Annotation, value: Any, apart: bool) -> None:
    path = bindings.path
    bindings.path = (*path, part)
    match(annotation, value, bindings, apart)
    bindings.path = path


def _match_container(annotation: TupleOf | SequenceOf | MappingOf, value: Any, bindings: Bindings, apart: bool) -> None:
    match annotation:
        case TupleOf(items):
            if not isinstance(value, tuple) or len(value) != len(items):
                raise Mismatch("class", annotation, value, bindings)
            for number, (item, one) in enumerate(zip(items, value, strict=True)):
                _inside(bindings, number, item, one, apart)
        case SequenceOf(cls, item):
            if not isinstance(value, cls):
                raise Mismatch("class", annotation, value, bindings)
            for number, one in enumerate(value):
                _inside(bindings, number, item, one, True)
        case MappingOf(cls, _, item):
            if not isinstance(value, cls):
                raise Mismatch("class", annotation, value, bindings)
            for key, one in value.items():
                _inside(bindings, key, item, one, True)


def _match_tree(annotation: TreeOf, value: Any, bindings: Bindings) -> None:
    leaves, treedef = jax.tree.flatten(value, is_leaf=lambda node: _is_leaf_of(annotation.leaf, node))
    names = annotation.structure
    if len(names) == 1 and names[0] != "..." and bindings.structures.setdefault(names[0], treedef) != treedef:
        raise Mismatch("structure", annotation, value, bindings, detail=f"not the structure that {names[0]} has")
    outer = bindings.leaf
    for number, leaf in enumerate(leaves):
        bindings.leaf = f"{outer}{number}."
        _inside(bindings, number, annotation.leaf, leaf, True)
    bindings.leaf = outer


def _is_leaf_of(annotation: Annotation, node: Any) -> bool:
    return isinstance(annotation, RecordOf) and isinstance(node, annotation.cls)


def _match_batched(annotation: BatchedOf, value: Any, bindings: Bindings, apart: bool) -> None:
    with leading(annotation.axes, bindings):
        match(annotation.inner, value, bindings, apart)


def _match_record(annotation: RecordOf, value: Any, bindings: Bindings, apart: bool) -> None:
    if annotation.form == "typeddict":
        if not isinstance(value, Mapping):
            raise Mismatch("class", annotation, value, bindings)
        missing = [field.name for field in fields_of(annotation.cls) if field.required and field.name not in value]
        if missing:
            raise Mismatch("keys", annotation, value, bindings, detail=f"without {', '.join(map(repr, missing))}")
    elif not isinstance(value, annotation.cls):
        raise Mismatch("class", annotation, value, bindings)
    if annotation.form not in ("module", "object"):
        scope = Bindings(bindings.slot, bindings.arguments) if apart else bindings
        scope.path, scope.lead, scope.stack = bindings.path, bindings.lead, bindings.stack
        for field, one in record_values(annotation.cls, value):
            _inside(scope, field.name, field.annotation, one, apart)
        return
    solution = solve_record(value, bindings.stack)
    if bindings.slot.role not in MAY_BE_STACKED:
        _refuse_stack(solution, annotation, value, bindings)
    bind_numbers(solution.bindings, numbers_of(value))
    for child, dim in annotation.dims.links if annotation.dims else ():
        _match_link(child, dim, solution.bindings, annotation, value, bindings)


def _refuse_stack(solution: Solution, annotation: RecordOf, value: Any, bindings: Bindings) -> None:
    # A module of NNX may well run its own stack, by `nnx.scan` in a method.
    if solution.axes and not is_object(value):
        axes = ",".join(map(str, solution.axes))
        raise Mismatch("batched", annotation, value, bindings, detail=f"a stack, with the leading axes ({axes})")


def refuse_stack(record: Any, method: Any, bindings: Bindings) -> None:
    """Refuses a stack as the `self` of a public method of records; what else is wrong with it is not said here.

    Raises:
        Mismatch: if it is one.
    """
    name = method.__name__
    if not isinstance(record, Module) or (name.startswith("_") and name != "__call__"):
        return  # as at run time, where only these are checked
    annotation = RecordOf(type(record), "module")
    try:
        solution = solve_record(record)
    except (Mismatch, AnnotationError):
        return
    bindings.slot, bindings.path = Slot("argument", "self", method, annotation), ()
    _refuse_stack(solution, annotation, record, bindings)


def _match_link(child: str, dim: Dim, own: Bindings, annotation: RecordOf, value: Any, bindings: Bindings) -> None:
    size = own.sizes.get(child)
    if size is None:
        return
    match dim:
        case FixedDim(expected):
            pass
        case NamedDim(name):
            expected = bindings.sizes.setdefault(name, size)
        case SymbolicDim():
            try:
                expected = dim.evaluate(bindings.sizes, bindings.arguments())
            except UnboundDim:
                return
        case _:
            return
    if expected != size:
        raise Mismatch("size", annotation, value, bindings, dim=dim, expected=expected, detail=f"its {child} is {size}")


def record_values(cls: type, value: Any) -> Iterable[tuple[Field, Any]]:
    """The annotated fields of a record that are set, with their values."""
    for field in fields_of(cls):
        if isinstance(value, Mapping):
            if field.name in value:
                yield field, value[field.name]
        else:
            one = getattr(value, field.name, _UNSET)
            if one is not _UNSET:
                yield field, one


_UNSET = object()


def dims_of_record(value: Any) -> Bindings:
    """The dims that a Module's fields bind; fields that contradict each other are `check_record`'s to report."""
    try:
        bindings = solve_record(value).bindings
    except (Mismatch, AnnotationError):
        bindings = _start(value, {})
        for one in _rows(value, whole=True, outer=None):
            bindings.slot, bindings.path = one.slot, ()
            kept = bindings.snapshot()
            try:
                one.check(one.value, bindings)
                settled(bindings)
            except (Mismatch, AnnotationError):
                bindings.restore(kept)
    bind_numbers(bindings, numbers_of(value))
    return bindings


def check_record(value: Any, whole: bool = False, given: Mapping[str, Any] | None = None) -> Mismatch | None:
    """The first field of a Module that is not what it is annotated as, or contradicts another.

    What its constructor was `given` stands for the dims of the same names: `Linear(inp, out)` of a field `"inp out"`.

    A record without some of its leaves, such as a part of a split one or a gradient, is as good as a whole one, unless
    `whole` says that it was just made. A stack of records is as good as one, unless a written constructor made it.
    """
    try:
        solution = solve_record(value, whole=whole, given=given)
        if whole and not is_made_of_fields(type(value)):
            bindings = Bindings(Slot("field", "", type(value), RecordOf(type(value), "module")))
            _refuse_stack(solution, RecordOf(type(value), "module"), value, bindings)
    except Mismatch as mismatch:
        return mismatch
    return None


def solve_record(
    value: Any, outer: Stack | None = None, *, whole: bool = False, given: Mapping[str, Any] | None = None
) -> Solution:
    """The dims of a record, and the stack that it is, if it is one.

    Raises:
        Mismatch: if its fields fit neither as those of one record, nor as a stack's.
    """
    rows = _rows(value, whole, outer)
    return solve(rows, lambda: _start(value, given or {}), outer, shares=not whole, last=False)


def _start(value: Any, given: Mapping[str, Any]) -> Bindings:
    bindings = Bindings(Slot("field", "", type(value), RecordOf(type(value), "module")), lambda: {"self": value})
    named = names_of_fields(type(value))
    bind_numbers(bindings, {name: one for name, one in {**given, **numbers_of(value)}.items() if name in named})
    return bindings


def _rows(value: Any, whole: bool, outer: Stack | None) -> list[Row]:
    roles = field_roles(type(value)) if isinstance(value, eqx.Module) else {}
    around = NO_ROLE if outer is None else outer.role
    rows: list[Row] = []
    for field, one in record_values(type(value), value):
        if one is None and not whole and isinstance(value, eqx.Module):
            continue
        role = Role(cast(Any, type(one))) if is_box_class(type(one)) else roles.get(field.name, NO_ROLE)
        slot = Slot("field", field.name, type(value), field.annotation)
        rows.append(row(slot, one, functools.partial(match, field.annotation), role.inside(around)))
    return rows


def numbers_of(value: Any) -> dict[str, Any]:
    """The numbers among a record's fields; for an object, among its attributes and what it was made of."""
    fields = {field.name: one for field, one in record_values(type(value), value)}
    return {**fields, **sizes_of_object(value)} if is_object(value) else fields


def bind_numbers(bindings: Bindings, values: Mapping[str, Any]) -> None:
    """Lets an integer parameter or config field stand for the dim of its name, as any reader takes it."""
    for name, value in values.items():
        if isinstance(value, bool) or not (isinstance(value, int) or is_symbolic(value)):
            continue
        if name not in bindings.sizes:
            bindings.sizes[name] = value
            bindings.origins[name] = Origin(bindings.slot, (), None, value)


@functools.cache
def names_of_fields(cls: type) -> frozenset[str]:
    """The dims that the fields of a class name."""
    return frozenset().union(*(names_in(field.annotation) for field in fields_of(cls)))


@functools.cache
def dims_in(cls: type) -> frozenset[str]:
    """The dims that the fields and methods of a class name."""
    layer = layer_of(cls)
    own = [base for base in cls.__mro__ if layer is None or not base.__module__.startswith(layer.package)]
    functions = [inspect.unwrap(value) for base in own for value in vars(base).values() if callable(value)]
    found = names_of_fields(cls)
    for function in functions:
        if isinstance(function, FunctionType) and function.__annotations__:
            with contextlib.suppress(AnnotationError):
                found |= names_of_signature(signature_of(function, cls))
    return found


def names_of_signature(signature: Signature) -> frozenset[str]:
    """The dims that a function's annotations name."""
    return frozenset().union(names_in(signature.returns), *(names_in(p.annotation) for p in signature.parameters))


def names_in(annotation: Annotation, seen: frozenset[type] = frozenset()) -> frozenset[str]:
    """The dims that an annotation names, those of the records that share the scope included."""
    match annotation:
        case ArrayOf(_, _, shape):
            return _names_in_shape(shape)
        case OneOf(members) | TupleOf(members):
            return frozenset().union(*(names_in(one, seen) for one in members))
        case SequenceOf(_, item) | MappingOf(_, _, item) | TreeOf(item):
            return names_in(item, seen)
        case BoxOf(_, inner):
            return names_in(inner, seen)
        case BatchedOf(inner, axes):
            return names_in(inner, seen) | _names_in_shape(axes)
        case RecordOf(cls, form) if form not in ("module", "object") and cls not in seen:
            return frozenset().union(*(names_in(field.annotation, seen | {cls}) for field in fields_of(cls)))
        case _:
            return frozenset()


def products_in(signature: Signature) -> tuple[tuple[str, ...], ...]:
    """The dims of a signature that are products of names, such as `h*c`, as those names in order."""
    owner = signature.owner
    fields = fields_of(owner) if owner is not None and record_form(owner) is not None else ()
    annotations = (signature.returns, *(p.annotation for p in signature.parameters), *(f.annotation for f in fields))
    texts = [
        dim.text for one in annotations for shape in _shapes(one) for dim in shape.dims if isinstance(dim, SymbolicDim)
    ]
    split = dict.fromkeys(tuple(text.split("*")) for text in texts)
    orders = [names for names in split if all(name.isidentifier() for name in names)]
    # A program that writes `h*w` here and `w*h` there knows of both.
    return tuple(one for one in orders if not any(other != one and sorted(other) == sorted(one) for other in orders))


def _shapes(annotation: Annotation, seen: frozenset[type] = frozenset()) -> Iterable[Shape]:
    match annotation:
        case ArrayOf(_, _, shape):
            yield shape
        case OneOf(members) | TupleOf(members):
            for one in members:
                yield from _shapes(one, seen)
        case SequenceOf(_, item) | MappingOf(_, _, item) | TreeOf(item) | BatchedOf(item):
            yield from _shapes(item, seen)
        case RecordOf(cls) if cls not in seen:
            for field in fields_of(cls):
                yield from _shapes(field.annotation, seen | {cls})
        case BoxOf(_, inner):
            yield from _shapes(inner, seen)
        case _:
            return


def _names_in_shape(shape: Shape) -> frozenset[str]:
    names: set[str] = set()
    for dim in shape.dims:
        if isinstance(dim, NamedDim):
            names.add(dim.name)
        elif isinstance(dim, VariadicDim) and dim.name:
            names.add("*" + dim.name)
        elif isinstance(dim, SymbolicDim):
            names |= dim.names
    return frozenset(names)
