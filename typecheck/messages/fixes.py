"""Fixes: the common slips, each recognised by its shape, with what to do about it.

A row of `SLIPS` looks at one mismatch and says a sentence or nothing; the first that speaks wins. They are guesses, and
the error calls them fixes, not causes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
from weft.core.definitions import REDEFINED, same_name
from weft.core.frames import Frame, current_frames
from weft.core.interpreter.rides import Carry
from weft.core.records.leaves import is_array
from weft.core.records.successors import apart, pair_in_words
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import ArrayOf, Instance, RecordOf, TupleOf, members_of
from weft.typecheck.language.dims import AnyDim, Dim, FixedDim, NamedDim, SymbolicDim, VariadicDim
from weft.typecheck.matching.bindings import Bindings, Mismatch

Slip = Callable[[Mismatch], str | None]
LOOPS = ("scan", "while_loop", "fori_loop", "associative_scan", "lax_map")


def likely_fix(miss: Mismatch) -> str | None:
    """The likely fix of a mismatch, if it looks like a common slip."""
    return next((text for text in (slip(miss) for slip in SLIPS) if text), None)


def _frame(*names: str) -> Frame | None:
    """The innermost open frame of one of these transforms."""
    return next((frame for frame in reversed(current_frames()) if frame.transform in names), None)


def _detail(frame: Frame, name: str) -> Any:
    return dict(frame.details).get(name)


def _size(dim: Dim, bindings: Bindings) -> Any:
    """The size that a dim must have, None if it is free."""
    match dim:
        case FixedDim(size=size):
            return size
        case NamedDim(name=name):
            return bindings.sizes.get(name)
        case SymbolicDim():
            try:
                return dim.evaluate(bindings.sizes, bindings.arguments())
            except AnnotationError:
                return None
        case _:
            return None


def _fits(dims: tuple[Dim, ...], shape: tuple[Any, ...], bindings: Bindings) -> bool:
    """Whether a shape fits dims without a variadic one, as far as sizes are known before this value was met."""
    if len(dims) != len(shape):
        return False
    known = (_size(dim, bindings) for dim in dims)
    return all(size is None or size == found for size, found in zip(known, shape, strict=True))


def _array(miss: Mismatch) -> tuple[tuple[Dim, ...], tuple[Any, ...]] | None:
    """The dims and the shape of a mismatch of one array without a variadic dim."""
    spec = miss.annotation
    if not isinstance(spec, ArrayOf) or not is_array(miss.value):
        return None
    dims = tuple(dim for dim in spec.shape.dims if not isinstance(dim, VariadicDim))
    return dims, tuple(miss.value.shape)


def _column(miss: Mismatch) -> str | None:
    """`(b,)` against `(b, 1)`."""
    found = _array(miss)
    if found is None or miss.reason != "rank" or miss.annotation.shape.variadic is not None:
        return None
    dims, shape = found
    ones = [i for i, dim in enumerate(dims) if _size(dim, miss.bindings) == 1]
    if len(shape) == len(dims) + 1 and shape[-1] == 1 and _fits(dims, shape[:-1], miss.bindings):
        return f"its last axis has size 1: drop it with {_name(miss)}[..., 0] or {_name(miss)}.squeeze(-1)"
    if len(shape) == len(dims) - 1 and ones and ones[-1] == len(dims) - 1 and _fits(dims[:-1], shape, miss.bindings):
        return f"it lacks the last axis of size 1: add it with {_name(miss)}[..., None]"
    return None


def _name(miss: Mismatch) -> str:
    name = miss.slot.name
    return name if name.isidentifier() and miss.slot.role in ("argument", "field") and name != "return" else "x"


def _extra_axis(miss: Mismatch) -> str | None:
    """A per-example function given a batch, an unmapped argument, a scanned argument passed as carry."""
    found = _array(miss)
    if (
        found is None
        or miss.reason != "rank"
        or miss.slot.role == "return"
        or miss.annotation.shape.variadic is not None
    ):
        return None
    dims, shape = found
    if len(shape) != len(dims) + 1 or not _fits(dims, shape[1:], miss.bindings):
        return None
    if miss.slot.role in ("field", "config"):
        return "all axes but the first fit; in a stack of records all arrays have it (weft.vmap over the constructor)"
    return _extra_in_transform(shape[0]) or (
        f"this per-example function was given a batch: map it over axis 0 with weft.vmap, or annotate the batch axis "
        f'("batch {miss.annotation.shape}")'
    )


def _extra_in_transform(size: Any) -> str | None:
    loop, mapped = _frame(*LOOPS), _frame("vmap", "pmap", "shard_map")
    if loop is not None and _detail(loop, "length") == size:
        return (
            f"its leading axis is as long as the {loop.transform} ({size}): it looks like a scanned argument passed as "
            "carry or broadcast; give it the scanned axis (in_axes 0) instead"
        )
    if mapped is not None and _detail(mapped, "size") == size:
        return (
            f"its leading axis is the mapped one ({mapped.transform}, size {size}), still there: "
            f"drop it by mapping this argument (in_axes 0 instead of None)"
        )
    return None


def _missing_axis(miss: Mismatch) -> str | None:
    """A missing batch axis, or one that a transform took off."""
    found = _array(miss)
    if found is None or miss.reason != "rank" or miss.annotation.shape.variadic is not None:
        return None
    dims, shape = found
    if len(shape) != len(dims) - 1:
        return None
    if _fits(dims[1:], shape, miss.bindings):
        return (
            _missing_in_transform(dims[0]) or f"the axis {str(dims[0])!r} is missing: add it with {_name(miss)}[None]"
        )
    if _fits(dims[:-1], shape, miss.bindings):
        return f"the axis {str(dims[-1])!r} is missing: add it with {_name(miss)}[..., None]"
    return None


def _missing_in_transform(dim: Dim) -> str | None:
    frame = _frame("vmap", "pmap", "scan", "lax_map")
    if frame is None:
        return None
    size = _detail(frame, "size") or _detail(frame, "length")
    took = f"{frame.transform} took an axis{f' of size {size}' if size is not None else ''} off"
    return (
        f"{took}, so this function sees one example: drop {str(dim)!r} from its annotation, "
        "or do not map this argument (in_axes None)"
    )


def _sharded(miss: Mismatch) -> str | None:
    """The whole array's size where a shard's is expected, or the reverse."""
    found, frame = _array(miss), _frame("shard_map")
    if found is None or frame is None or miss.reason != "size" or miss.axis is None or miss.slot.role == "return":
        return None
    mesh: dict[str, int] = _detail(frame, "mesh")
    size, expected = found[1][miss.axis], miss.expected
    for names in (names for count in range(len(mesh), 0, -1) for names in itertools.combinations(mesh, count)):
        shards = math.prod(mesh[name] for name in names)
        over = ", ".join(map(repr, names))
        if shards > 1 and size == expected * shards:
            return f"axis {miss.axis} is whole here, and {shards} shards long: split it over {over} in in_specs"
        if shards > 1 and size * shards == expected:
            part = f"a shard has {size} of {expected}"
            return f"axis {miss.axis} is split over {over}, so {part}: do not split it in in_specs"
    return None


def _transposed(miss: Mismatch) -> str | None:
    """Axes in another order: this value's, or those of the array that bound the dim."""
    found = _array(miss)
    if found is None or miss.reason != "size":
        return None
    dims, shape = found
    fixed = _without_own(miss)
    if miss.annotation.shape.variadic is None and 2 <= len(shape) <= 4 and len(dims) == len(shape):
        sizes = [_size(dim, fixed) for dim in dims]
        enough = sum(size is not None for size in sizes) >= len(dims) - 1
        for order in itertools.permutations(range(len(shape))):
            if enough and _fits(dims, tuple(shape[i] for i in order), fixed):
                return f"its axes look transposed: {_name(miss)}.transpose({', '.join(map(str, order))}) fits"
    return _transposed_origin(miss, shape)


def _channels_first(miss: Mismatch) -> str | None:
    """The size of the last axis, of which alone the annotation says something, in another one: images as NCHW."""
    found = _array(miss)
    if found is None or miss.reason != "size" or miss.annotation.shape.variadic != 0 or len(found[0]) != 1:
        return None
    places = [axis for axis, size in enumerate(found[1][:-1]) if size == miss.expected]
    if len(places) != 1 or miss.slot.role != "argument":
        return None
    moved = f"jnp.moveaxis({_name(miss)}, {places[0]}, -1)"
    return f"axis {places[0]} is of that size: if its channels or features come first, put them last, {moved}"


def _without_own(miss: Mismatch) -> Bindings:
    """The scope without what this very value bound before it failed."""
    known = Bindings(miss.slot, miss.bindings.arguments)
    known.sizes = {
        name: size
        for name, size in miss.bindings.sizes.items()
        if name not in miss.bindings.origins or miss.bindings.origins[name].value is not miss.value
    }
    return known


def _transposed_origin(miss: Mismatch, shape: tuple[Any, ...]) -> str | None:
    """The value would fit if the matrix that bound the dim were transposed."""
    if not isinstance(miss.dim, NamedDim) or miss.axis is None or not -len(shape) <= miss.axis < len(shape):
        return None
    origin = miss.bindings.origins.get(miss.dim.name)
    if origin is None or origin.axis is None or not is_array(origin.value) or origin.value is miss.value:
        return None
    bound = tuple(origin.value.shape)
    spec = origin.slot.annotation
    if len(bound) != 2 or bound[1 - origin.axis] != shape[miss.axis] or not isinstance(spec, ArrayOf):
        return None
    what, size = f"{origin.slot.role} {origin.slot.name}", shape[miss.axis]
    transpose = f"{str(spec.shape)!r} with {miss.dim}={size} fits its transpose"
    return f"{what} looks transposed: it is {list(bound)}, and {transpose}"


def _keepdims(miss: Mismatch) -> str | None:
    """A size of 1 where a whole axis is expected."""
    found = _array(miss)
    if found is None or miss.reason != "size" or miss.axis is None or found[1][miss.axis] != 1:
        return None
    if isinstance(miss.dim, AnyDim) or miss.dim is None:
        return None
    return f"if a size of 1 may broadcast here, write '#{str(miss.dim).lstrip('#')}'; else broadcast it before"


def _dtype(miss: Mismatch) -> str | None:
    if miss.reason != "dtype":
        return None
    wanted = miss.annotation.dtype.name
    if wanted == "Key":
        return "make a typed key with jax.random.key(seed)"
    if "prng_key" in getattr(getattr(miss.value.dtype, "type", None), "__name__", ""):
        return f"it is a random key; draw from it, or annotate it Key[Array, ...] instead of {wanted}"
    return f"cast it with {_name(miss)}.astype(...), or annotate the dtype that it should have"


def _class(miss: Mismatch) -> str | None:
    if miss.reason != "class":
        return None
    value = miss.value
    if miss.in_use:
        name = miss.slot.name
        return (
            f"put an array there: record.replace({name}=jnp.full_like(record.{name}, {value!r})); a record that holds "
            "numbers in the places of arrays is a tree of axes, and has no methods"
        )
    if miss.slot.role == "field" and _is_ride(value):
        return (
            f"for a record of axes or specs, write axes({{...: {value!r}}}), or replace what a record holds: "
            f"record.replace({miss.slot.name}={value!r}), jax.tree.map(lambda _: {value!r}, record)"
        )
    if type(value).__module__ == "numpy" or isinstance(value, bool | int | float | complex | list | tuple):
        return f"convert it with jnp.asarray({_name(miss)}), or annotate ArrayLike instead of Array"
    if value is None:
        return "if it may be missing, annotate it `... | None`"
    return None


def _pair(miss: Mismatch) -> str | None:
    """What a stateful call returns, whole, where its value is meant."""
    return apart(miss.value) if miss.reason in ("class", "type") and pair_in_words(miss.value) else None


def _redefined(miss: Mismatch) -> str | None:
    """A record made by a class that was defined again since."""
    return REDEFINED if redefined(miss) is not None else None


def redefined(miss: Mismatch) -> type | None:
    """The class of a value that is not of the class that is asked for, but of another one of that name."""
    wanted = [member.cls for member in members_of(miss.annotation) if isinstance(member, RecordOf | Instance)]
    again = miss.reason == "type" and any(same_name(one, type(miss.value)) for one in wanted)
    return type(miss.value) if again else None


def _is_ride(value: Any) -> bool:
    """Whether a value where an array should be looks like a part of a prefix: an axis, `Carry`, or a spec."""
    return type(value) is int or value is Carry or isinstance(value, jax.sharding.PartitionSpec | jax.sharding.Sharding)


def _record(miss: Mismatch) -> str | None:
    """A batched record passed to a per-example function, or the reverse."""
    name = type(miss.value).__name__
    if miss.stacked is not None:
        return _in_stack(miss, miss.stacked[0])
    if miss.reason == "batched":
        inner = _extra_in_transform(miss.expected[0])
        return inner or (
            f"drop the leading axis by mapping over it with weft.vmap or weft.scan (axis 0); "
            f'if the function takes the whole batch, annotate it Batched[{name}, "..."]'
        )
    if miss.reason == "overmapped":
        frame = _frame("vmap", "pmap", "scan", "lax_map")
        by = f"{frame.transform} " if frame else ""
        return (
            f"it is a per-example {name} that {by}took an axis off: pass it unmapped (in_axes None), "
            f"or stack one {name} for each example along a new axis 0"
        )
    if miss.reason == "unbatched":
        return "add the leading axis: stack one record for each entry (weft.vmap over the constructor does)"
    return None


def _in_stack(miss: Mismatch, axes: tuple[Any, ...]) -> str | None:
    """An array that lacks the axes of its stack, or has others."""
    found = tuple(getattr(miss.value, "shape", ()))
    if miss.reason not in ("rank", "size", "unbatched") or found[: len(axes)] == axes:
        return None
    return (
        "all arrays of a stack have the same axes in front; those that its records share are told by their kind "
        "(a BatchStat, say, beside Params)"
    )


def _successor(miss: Mismatch) -> str | None:
    if miss.reason != "type" or miss.slot.role != "return":
        return None
    if isinstance(miss.annotation, TupleOf):
        return "a stateful function returns its value and its successor: return y, self"
    return None


SLIPS: tuple[Slip, ...] = (
    _record,
    _pair,
    _redefined,
    _dtype,
    _class,
    _column,
    _extra_axis,
    _missing_axis,
    _sharded,
    _transposed,
    _channels_first,
    _keepdims,
    _successor,
)
