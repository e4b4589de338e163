"""Explain: makes the error message of a mismatch.

On one screen: the expected and the actual value, the module path and the line of the annotation, where the relevant
dims were bound, the likely fix, and the transforms. `WEFT_TYPECHECK_VERBOSE=1` adds every other bound name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from weft.core.definitions import another
from weft.core.paths import Path, format_path
from weft.core.records.leaves import is_array
from weft.typecheck.errors import AnnotationError, ContractError
from weft.typecheck.language.annotations import ArrayOf
from weft.typecheck.language.dims import Dim, NamedDim, SymbolicDim, VariadicDim
from weft.typecheck.matching.bindings import Bindings, Mismatch, Origin, Slot
from weft.typecheck.matching.words import axes_in_words, dtype_name, in_words, short_dtype
from weft.typecheck.messages.fixes import likely_fix
from weft.typecheck.messages.slips import redefined
from weft.typecheck.messages.sources import locate
from weft.typecheck.modes import verbose


def expected(annotation: Any, bindings: Bindings, value: Any = None) -> str:
    """An annotation with the sizes that are known, such as `f32[*batch,in=5]`."""
    if not isinstance(annotation, ArrayOf):
        return str(annotation)
    # The value's own dtype is shown if it fits, so that a message about a size differs in the size only.
    fits = is_array(value) and annotation.dtype.accepts(dtype_name(value.dtype))
    dtype = short_dtype(value.dtype) if fits else annotation.dtype.name
    return f"{dtype}[{','.join(_known(dim, bindings) for dim in annotation.shape.dims)}]"


def _known(dim: Dim, bindings: Bindings) -> str:
    """A dim as it is written, with its size if that is known."""
    text = str(dim)
    match dim:
        # The size of a `?n` is that of one leaf, which is not known here.
        case NamedDim(name=name, per_leaf=False) if name in bindings.sizes:
            return f"{text}={bindings.sizes[name]}"
        case VariadicDim(name=str(name), per_leaf=False) if name in bindings.variadics:
            return f"{text}={_tuple(bindings.variadics[name].shape)}"
        case SymbolicDim():
            # A dim expression with unbound names is shown as it is written.
            try:
                return f"{text}={dim.evaluate(bindings.sizes, bindings.arguments())}"
            except AnnotationError:
                return text
        case _:
            return text


def _tuple(shape: Sequence[Any]) -> str:
    return f"({axes_in_words(shape)})"


def place_of(slot: Slot, path: Path = ()) -> str:
    """A slot in words, such as `argument x of Linear.__call__`."""
    owner = getattr(slot.owner, "__qualname__", None) or type(slot.owner).__name__
    # `test_it.<locals>.Linear` says less than `Linear`, and the line of the annotation is in the error anyway.
    owner = owner.rpartition("<locals>.")[2]
    inside = format_path(path) if path else ""
    match slot.role:
        case "argument":
            return f"argument {format_path(path, slot.name)} of {owner}"
        case "return":
            return f"return value{inside} of {owner}"
        case "yield":
            return f"yielded value{inside} of {owner}"
        case "sent":
            return f"value sent to{inside} {owner}"
        case "field":
            return f"field {format_path(path, f'{owner}.{slot.name}')}"
        case "config":
            return f"config field {format_path(path, f'{owner}.{slot.name}')}"
        case "value":
            return format_path(path, slot.name or "value")


def contract_error(miss: Mismatch, *, module: str = "") -> ContractError:
    """The `ContractError` for a mismatch.

    Args:
        miss: the mismatch.
        module: the path of the module whose method was running; empty if none was.
    """
    slot, bindings = miss.slot, miss.bindings
    sentence = _SENTENCES.get(miss.reason, _plain)(miss)
    where = locate(slot)
    # `-> f32[n]` reads as in the source of a function.
    named = {"return": "-> ", "yield": "yield: ", "sent": "sent: "}.get(slot.role, slot.name and f"{slot.name}: ")
    at = [module] if module else []
    if where or slot.role != "value":  # a value that is passed to `check` has no annotation in a file
        at.append(f"{named}{slot.annotation}{f' ({where})' if where else ''}")
    # The fields around the record tell which of many layers of one class it is.
    at += [f"inside {place_of(*outer)}" for outer in miss.outer]
    names = _names_that_matter(miss)
    bound = [_bound_at(name, bindings) for name in names] + _holes_at(miss)
    if miss.stacked is not None:  # which stack the record looks like, and which array shows it
        axes, origin = miss.stacked
        shown = "" if origin is None else f", as shown by {_origin(origin)}"
        bound.append(f"the record is a stack with the leading axes {_tuple(axes)}{shown}")
    # The dim of a link was bound inside the child record, in a scope of its own.
    if miss.inner is not None and miss.detail in miss.inner.origins:
        bound.append(f"{type(miss.value).__name__}'s " + _bound_at(miss.detail, miss.inner))
    # All other names could fill a screen, so only the verbose mode lists them.
    more: list[str] = []
    if verbose():
        more = [f"also: {_bound_at(name, bindings)}" for name in bindings.origins if name not in names]
    fix = likely_fix(miss)
    return ContractError(sentence, at=at, bound=bound, fix=fix and fix.text, more=more)


def _plain(miss: Mismatch) -> str:
    """The sentence of a mismatch that has none of its own: what the value should be, and what it is."""
    place, wanted = place_of(miss.slot, miss.path), expected(miss.annotation, miss.bindings, miss.value)
    # In a stack, the message shows the array's axes with those of the stack in front.
    if miss.stacked is not None and isinstance(miss.annotation, ArrayOf):
        axes = [str(dim) for dim in miss.lead.dims] if miss.lead is not None else []
        dtype, _, dims = wanted.partition("[")
        wanted = f"{dtype}[{','.join([*axes, *filter(None, [dims.removesuffix(']')])])}]"
    # After a notebook cell has run again, two classes of one name differ: `should be Block, and is Block` says nothing.
    again = redefined(miss)
    actual = in_words(miss.value) if again is None else another(again)
    return f"{place} should be {wanted}, and is {actual}"


def _length(miss: Mismatch) -> str:
    place = place_of(miss.slot, miss.path)
    return f"{place} should have {miss.expected} items ({miss.annotation}), and has {len(miss.value)}"


def _keys(miss: Mismatch) -> str:
    return f"{place_of(miss.slot, miss.path)} should have the keys of {miss.annotation}; missing: {miss.detail}"


def _structure(miss: Mismatch) -> str:
    actual = jax.tree.structure(miss.value)
    return (
        f"{place_of(miss.slot, miss.path)} should have the structure {miss.detail} = {miss.expected}, and has {actual}"
    )


def _batched(miss: Mismatch) -> str:
    name = type(miss.value).__name__
    return (
        f"{place_of(miss.slot, miss.path)} should be a single {name}, and is a stack: "
        f"all its arrays have extra leading axes {_tuple(miss.expected)}"
    )


def _overmapped(miss: Mismatch) -> str:
    axes = "an axis" if miss.expected == 1 else f"{miss.expected} axes"
    return (
        f"{place_of(miss.slot, miss.path)} should be a whole {type(miss.value).__name__}, "
        f"and every array in it has {axes} too few"
    )


def _unbatched(miss: Mismatch) -> str:
    assert miss.lead is not None
    # Nothing declares an undeclared stack to be batched, so its array is described like any other.
    if miss.stacked is not None:
        return _plain(miss)
    axes, inner = str(miss.lead), expected(miss.annotation, miss.bindings, miss.value)
    return (
        f"{place_of(miss.slot, miss.path)} should have the leading axes {axes!r} in front of {inner}, "
        f"and is {in_words(miss.value)}"
    )


def _link(miss: Mismatch) -> str:
    assert miss.inner is not None
    assert miss.dim is not None
    place, size = place_of(miss.slot, miss.path), miss.inner.sizes[miss.detail]
    return f"{place}: its {miss.detail} should be {_known(miss.dim, miss.bindings)}, and is {size}"


_SENTENCES = {
    "length": _length,
    "keys": _keys,
    "structure": _structure,
    "batched": _batched,
    "overmapped": _overmapped,
    "unbatched": _unbatched,
    "link": _link,
}


def _names_that_matter(miss: Mismatch) -> list[str]:
    """The names of dims and structures whose origins the error shows."""
    bindings = miss.bindings
    # A wrong size needs the origin of that dim; a wrong rank needs those of all dims, to see which axis is missing.
    if miss.dim is not None:
        dims: Sequence[Dim] = (miss.dim,)
    elif isinstance(miss.annotation, ArrayOf) and miss.reason == "rank":
        dims = miss.annotation.shape.dims
    else:
        dims = ()
    names: list[str] = []
    for dim in dims:
        match dim:
            case NamedDim(name=name, per_leaf=per_leaf):
                names.append(miss.leaf + name if per_leaf else name)
            case VariadicDim(name=str(name), per_leaf=False):
                names.append("*" + name)
            case SymbolicDim(names=read):
                names += sorted(read)
            case _:
                pass
    if miss.reason == "structure":
        names.append(f"structure {miss.detail}")
    # A name without an origin was not bound, and there is no place to show. The origin of a name that was bound by the
    # very value that does not fit adds nothing to the error.
    origins = ((name, bindings.origins[name]) for name in dict.fromkeys(names) if name in bindings.origins)
    here = (miss.slot, miss.path)
    return [
        name
        for name, origin in origins
        if not (origin.value is miss.value and (origin.slot, origin.path) == here and miss.reason == "rank")
    ]


def _bound_at(name: str, bindings: Bindings) -> str:
    origin = bindings.origins[name]
    if name.startswith("structure "):
        return f"{name} is that of {_origin(origin)}"
    if name.startswith("*"):
        return f"{name} = {_tuple(bindings.variadics[name[1:]].shape)} from {_origin(origin)}"
    # The key of a `?n` has the leaf in front of a colon, which is no part of the name that the user wrote.
    return f"{name.rpartition(':')[2]} = {bindings.sizes[name]} from {_origin(origin)}"


def _holes_at(miss: Mismatch) -> list[str]:
    """Lines with the values of an expression's holes, such as a record's field for `{self.width}`."""
    if not isinstance(miss.dim, SymbolicDim):
        return []
    arguments, lines = miss.bindings.arguments(), list[str]()
    for hole in miss.dim.pieces:
        if isinstance(hole, str):
            continue
        value = miss.dim.run(hole.source, arguments)
        name, record = hole.source.removeprefix("self."), arguments.get("self")
        declared = hole.source.startswith("self.") and name in getattr(type(record), "__dataclass_fields__", {})
        where = locate(Slot("config", name, type(record), miss.annotation)) if declared else ""
        lines.append(
            f"{{{hole.source}}} = {value} from config field {type(record).__qualname__}.{name} ({where})"
            if declared
            else f"{{{hole.source}}} = {value}"
        )
    return lines


def _origin(origin: Origin) -> str:
    slot, where = origin.slot, locate(origin.slot)
    value = origin.value
    if isinstance(value, Origin):  # a linked dim: it was bound in the child, which has an origin of its own
        return f"{place_of(slot, origin.path)}, {_origin(value)}"
    # The annotation of a config field is always `int`, so only its value is worth showing.
    shown = "" if slot.role == "config" else f": {slot.annotation}"
    actual = f" is {in_words(value)}" if is_array(value) else f" = {value!r}" if slot.role == "config" else ""
    return f"{place_of(slot, origin.path)}{shown}{actual}{f' ({where})' if where else ''}"
