"""Slips: the functions that recognise the mistakes of `fixes`; each returns words for the fix, or None."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from weft.core.definitions import same_name
from weft.core.frames import Frame, current_frames
from weft.core.interpreter.rides import Carry
from weft.core.records.leaves import is_array
from weft.core.records.successors import how_to_unpack, pair_in_words
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import ArrayOf, Instance, RecordOf, TupleOf, members_of
from weft.typecheck.language.dims import AnyDim, Dim, FixedDim, NamedDim, SymbolicDim, VariadicDim
from weft.typecheck.matching.bindings import Bindings, Mismatch

# The transforms whose frames have a `length`, to which an extra axis is compared.
LOOPS = ("scan", "while_loop", "fori_loop", "associative_scan", "lax_map")
Words = Mapping[str, Any]

# ---- what a mismatch is about ----------------------------------------------------------------------------------------


def _frame(*names: str) -> Frame | None:
    """The innermost running frame of one of these transforms; None if there is none."""
    # The innermost transform counts: it is the one whose axes the failing function sees.
    return next((frame for frame in reversed(current_frames()) if frame.transform in names), None)


def _detail(frame: Frame | None, name: str) -> Any:
    return None if frame is None else dict(frame.details).get(name)


def _size(dim: Dim, bindings: Bindings) -> Any:
    """The size that a dim must have; None if it is free."""
    match dim:
        case FixedDim(size=size):
            return size
        case NamedDim(name=name):
            return bindings.sizes.get(name)
        case SymbolicDim():
            # An expression with an unbound name is as free as that name.
            try:
                return dim.evaluate(bindings.sizes, bindings.arguments())
            except AnnotationError:
                return None
        case _:
            return None


def _fits(dims: tuple[Dim, ...], shape: tuple[Any, ...], bindings: Bindings) -> bool:
    """Whether a shape fits dims without a variadic one, as far as their sizes are known."""
    known = (_size(dim, bindings) for dim in dims)
    return len(dims) == len(shape) and all(
        expected is None or expected == size for expected, size in zip(known, shape, strict=True)
    )


class _Axes(NamedTuple):
    """The annotated dims of an array, without a variadic one, and its actual shape."""

    dims: tuple[Dim, ...]
    shape: tuple[Any, ...]


def _axes(miss: Mismatch) -> _Axes | None:
    """The dims and shape of the array that a mismatch is about; None if it is not about an array."""
    if not isinstance(miss.annotation, ArrayOf) or not is_array(miss.value):
        return None
    dims = tuple(dim for dim in miss.annotation.shape.dims if not isinstance(dim, VariadicDim))
    return _Axes(dims, tuple(miss.value.shape))


def _surplus_axes(miss: Mismatch, count: int) -> _Axes | None:
    """The dims and shape of an array that has `count` axes too many; None for any other, and for a variadic dim."""
    axes = _axes(miss)
    if axes is None or miss.annotation.shape.variadic is not None or len(axes.shape) != len(axes.dims) + count:
        return None
    return axes


# ---- rank ------------------------------------------------------------------------------------------------------------


def trailing_one(miss: Mismatch) -> Words | None:
    """Recognises `(b, 1)` where `(b,)` is expected, as a layer with one output returns it."""
    axes = _surplus_axes(miss, 1)
    return {} if axes and axes.shape[-1] == 1 and _fits(axes.dims, axes.shape[:-1], miss.bindings) else None


def lacks_one(miss: Mismatch) -> Words | None:
    """Recognises `(b,)` where `(b, 1)` is expected."""
    axes = _surplus_axes(miss, -1)
    fits = axes and _size(axes.dims[-1], miss.bindings) == 1 and _fits(axes.dims[:-1], axes.shape, miss.bindings)
    return {} if fits else None


def _extra_axis(miss: Mismatch) -> Words | None:
    """Recognises one axis too many in front; not for a return value, which no caller can map over."""
    axes = _surplus_axes(miss, 1) if miss.slot.role != "return" else None
    return {} if axes and _fits(axes.dims, axes.shape[1:], miss.bindings) else None


def of_stack(miss: Mismatch) -> Words | None:
    """Recognises one axis too many in front of a field's array, as the arrays of a stack have it."""
    return _extra_axis(miss) if miss.slot.role in ("field", "config") else None


def _leading(miss: Mismatch) -> Any:
    """The size of the first surplus axis of a value; None if it has none."""
    if miss.reason == "batched":
        return miss.expected[0] if miss.stacked is None else None
    return miss.value.shape[0] if _extra_axis(miss) is not None else None


def of_loop(miss: Mismatch) -> Words | None:
    """Recognises an extra axis as long as the running loop: a scanned argument that was passed as carry."""
    loop, size = _frame(*LOOPS), _leading(miss)
    return {"loop": loop.transform, "size": size} if loop and size and _detail(loop, "length") == size else None


def of_mapped(miss: Mismatch) -> Words | None:
    """Recognises an extra axis as long as the one that a transform maps over: the argument was not mapped."""
    mapped, size = _frame("vmap", "pmap", "shard_map"), _leading(miss)
    return {"map": mapped.transform, "size": size} if mapped and size and _detail(mapped, "size") == size else None


def batch(miss: Mismatch) -> Words | None:
    """Recognises one axis too many in front, as a batch has it where a single example is annotated."""
    # A scalar's annotation has no axes: `""`.
    return {"dims": f"batch {miss.annotation.shape}".strip()} if _extra_axis(miss) is not None else None


def lacks_first(miss: Mismatch) -> Words | None:
    """Recognises one axis too few, in front."""
    axes = _surplus_axes(miss, -1)
    return {"dim": repr(str(axes.dims[0]))} if axes and _fits(axes.dims[1:], axes.shape, miss.bindings) else None


def axis_removed(miss: Mismatch) -> Words | None:
    """Recognises a missing axis that a transform has mapped over or scanned."""
    words, frame = lacks_first(miss), _frame("vmap", "pmap", "scan", "lax_map")
    # Outside of a transform the caller left the axis out, which another row says.
    if words is None or frame is None:
        return None
    size = _detail(frame, "size") or _detail(frame, "length")
    return {**words, "by": frame.transform, "size": f" of size {size}" if size is not None else ""}


def lacks_last(miss: Mismatch) -> Words | None:
    """Recognises one axis too few, at the end."""
    axes = _surplus_axes(miss, -1)
    return {"dim": repr(str(axes.dims[-1]))} if axes and _fits(axes.dims[:-1], axes.shape, miss.bindings) else None


# ---- size ------------------------------------------------------------------------------------------------------------


def shards(miss: Mismatch, *, whole: bool) -> Words | None:
    """Recognises the size of a whole array where a shard's is expected, or the reverse."""
    axes, frame = _axes(miss), _frame("shard_map")
    if axes is None or frame is None or miss.axis is None or miss.slot.role == "return":
        return None
    mesh: dict[str, int] = _detail(frame, "mesh")
    size, expected = axes.shape[miss.axis], miss.expected
    # All axes of the mesh first, then fewer: a size of 8 on a mesh of 2 by 4 is most likely split over both.
    for names in (names for count in range(len(mesh), 0, -1) for names in itertools.combinations(mesh, count)):
        shards = math.prod(mesh[name] for name in names)
        if shards > 1 and (size == expected * shards if whole else size * shards == expected):
            over = ", ".join(map(repr, names))
            return {"axis": miss.axis, "shards": shards, "over": over, "size": size, "expected": expected}
    return None


def transposed(miss: Mismatch) -> Words | None:
    """Recognises a value whose axes fit in another order."""
    # A transposed matrix binds its first axis before the second fails: with that size known, no transpose would fit.
    axes, origins, others = _axes(miss), miss.bindings.origins, Bindings(miss.slot, miss.bindings.arguments)
    others.sizes = {
        name: size
        for name, size in miss.bindings.sizes.items()
        if name not in origins or origins[name].value is not miss.value
    }
    if axes is None or miss.annotation.shape.variadic is not None or not 2 <= len(axes.shape) <= 4:
        return None
    dims, shape = axes
    # At most one dim may be free: with two, almost any order of the axes would fit.
    if len(dims) != len(shape) or sum(_size(dim, others) is not None for dim in dims) < len(dims) - 1:
        return None
    orders = itertools.permutations(range(len(shape)))
    order = next((order for order in orders if _fits(dims, tuple(shape[i] for i in order), others)), None)
    return None if order is None else {"order": ", ".join(map(str, order))}


def transposed_origin(miss: Mismatch) -> Words | None:
    """Recognises that the matrix which bound the dim, and not this value, is transposed."""
    axes, dim = _axes(miss), miss.dim
    if axes is None or not isinstance(dim, NamedDim) or miss.axis is None:
        return None
    shape, origin = axes.shape, miss.bindings.origins.get(dim.name)
    # Only a matrix that bound the dim can be transposed: not the value itself, and no integer.
    if origin is None or origin.axis is None or not is_array(origin.value) or origin.value is miss.value:
        return None
    bound, spec = tuple(origin.value.shape), origin.slot.annotation
    inside = -len(shape) <= miss.axis < len(shape)
    if not inside or len(bound) != 2 or bound[1 - origin.axis] != shape[miss.axis] or not isinstance(spec, ArrayOf):
        return None
    value, fits = f"{origin.slot.role} {origin.slot.name}", f"{str(spec.shape)!r} with {dim}={shape[miss.axis]}"
    return {"bound": value, "shape": list(bound), "fits": fits}


def channels_first(miss: Mismatch) -> Words | None:
    """Recognises channels first, as in NCHW: of the axes before the last, one has the size expected of the last."""
    axes = _axes(miss)
    if axes is None or miss.annotation.shape.variadic != 0 or len(axes.dims) != 1 or miss.slot.role != "argument":
        return None
    # If two axes have the size, neither is more likely the channels, and no fix is better than a wrong one.
    places = [axis for axis, size in enumerate(axes.shape[:-1]) if size == miss.expected]
    return {"axis": places[0]} if len(places) == 1 else None


def size_one(miss: Mismatch) -> Words | None:
    """Recognises a size of 1 where a whole axis is expected, as `keepdims=True` leaves it."""
    axes = _axes(miss)
    if axes is None or miss.axis is None or axes.shape[miss.axis] != 1 or isinstance(miss.dim, AnyDim | None):
        return None
    return {"dim": str(miss.dim).lstrip("#")}


# ---- dtypes, classes and records -------------------------------------------------------------------------------------


def wanted_key(miss: Mismatch) -> Words | None:
    """Recognises any array where a random key is expected."""
    return {} if miss.annotation.dtype.name == "Key" else None


def is_key(miss: Mismatch) -> Words | None:
    """Recognises a random key where another array is expected."""
    name = getattr(getattr(miss.value.dtype, "type", None), "__name__", "")
    return {"wanted": miss.annotation.dtype.name} if "prng_key" in name else None


def number_in_use(miss: Mismatch) -> Words | None:
    """Recognises a number in an array's field of a record whose method is called."""
    return {"name": miss.slot.name, "value": repr(miss.value)} if miss.in_use else None


def ride(miss: Mismatch) -> Words | None:
    """Recognises an axis, `Carry` or a sharding spec in a field that should hold an array."""
    value, specs = miss.value, jax.sharding.PartitionSpec | jax.sharding.Sharding
    is_ride = type(value) is int or value is Carry or isinstance(value, specs)
    return {"name": miss.slot.name, "value": repr(value)} if is_ride and miss.slot.role == "field" else None


def of_numpy(miss: Mismatch) -> Words | None:
    """Recognises a NumPy array, a number or a list where an array of JAX is expected."""
    is_number = isinstance(miss.value, bool | int | float | complex | list | tuple)
    return {} if is_number or type(miss.value).__module__ == "numpy" else None


def none(miss: Mismatch) -> Words | None:
    """Recognises None where an array is expected."""
    return {} if miss.value is None else None


def pair(miss: Mismatch) -> Words | None:
    """Recognises the pair that a stateful call returns, where only its first part is meant."""
    return {"unpack": how_to_unpack(miss.value)} if pair_in_words(miss.value) else None


def redefined(miss: Mismatch) -> type | None:
    """The value's class, if it is an older definition of the annotated class; else None."""
    wanted = [member.cls for member in members_of(miss.annotation) if isinstance(member, RecordOf | Instance)]
    # The names are compared, because a class that was defined again is another object.
    again = miss.reason == "type" and any(same_name(cls, type(miss.value)) for cls in wanted)
    return type(miss.value) if again else None


def no_part_of_stack(miss: Mismatch) -> Words | None:
    """Recognises an array that has no leading axes, or other ones than its stack."""
    if miss.stacked is None:
        return None
    axes = miss.stacked[0]
    return {} if tuple(getattr(miss.value, "shape", ()))[: len(axes)] != axes else None


def record(miss: Mismatch) -> Words | None:
    """Recognises a record, and names the transform around it; not inside an undeclared stack."""
    frame = _frame("vmap", "pmap", "scan", "lax_map")
    by = frame.transform if frame else "a transform"
    return {"record": type(miss.value).__name__, "by": by} if miss.stacked is None else None


def no_successor(miss: Mismatch) -> Words | None:
    """Recognises a single value where a function should return a tuple."""
    return {} if miss.slot.role == "return" and isinstance(miss.annotation, TupleOf) else None
