"""Fixes: a table of common mistakes, each with advice for the error and an expression that repairs the value.

A row's `recognise` returns the words that its sentence needs, or None if the mismatch is another mistake; the first row
that recognises a mismatch is used. The sentences are guesses, so the error calls them fixes and not causes. `{x}` is
the value's name, and `mend` an expression of it, which an editor can insert where it knows the source text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from weft.core.definitions import REDEFINED
from weft.typecheck.matching.bindings import Mismatch
from weft.typecheck.messages import slips
from weft.typecheck.messages.slips import Words


class Fix(NamedTuple):
    """A likely fix of a mismatch.

    Attributes:
        text: what to do, as the end of a sentence.
        mend: an expression of `{x}` that gives the right value; empty if the value is not enough for that.
    """

    text: str
    mend: str = ""


class Row(NamedTuple):
    """A common mistake: the reasons of mismatches to look at, and the function that recognises it.

    Attributes:
        reasons: sorts of mismatches, as `matching` names them.
        recognise: returns the words of a mismatch that is this mistake; None for any other mismatch.
        text, mend: templates of the fix, to be filled with the words.
    """

    reasons: tuple[str, ...]
    recognise: Callable[[Mismatch], Words | None]
    text: str
    mend: str = ""


def likely_fix(miss: Mismatch) -> Fix | None:
    """The likely fix of a mismatch; None if no row of the table recognises it."""
    for row in ROWS:
        words = row.recognise(miss) if miss.reason in row.reasons else None
        if words is not None:
            # Inside a container, the expression would have to be put into the code that makes the container.
            mend = "" if miss.path or miss.outer else row.mend.format(x="{x}", **words)
            return Fix(row.text.format(x=_name(miss), **words), mend)
    return None


def _name(miss: Mismatch) -> str:
    # The fix is an expression to copy, so a name that is no identifier is replaced by `x`.
    name = miss.slot.name
    return name if name.isidentifier() and miss.slot.role in ("argument", "field") and name != "return" else "x"


_RANK, _SIZE, _DTYPE, _CLASS, _TYPE = ("rank",), ("size",), ("dtype",), ("class",), ("type",)
_OF_LOOP = (
    "its leading axis is as long as the {loop} ({size}): it looks like a scanned argument passed as carry or "
    "broadcast; give it the scanned axis (in_axes 0) instead"
)
_OF_MAPPED = (
    "its leading axis is as long as the axis that {map} maps over ({size}): map this argument, too "
    "(in_axes 0 instead of None)"
)
# The order matters: the first row that recognises a mismatch is used, so rows that use more facts about it come first.
ROWS = (
    Row(
        ("rank", "size", "unbatched"),
        slips.no_part_of_stack,
        "give all arrays of the stack its leading axes; an array that its records share needs a kind of its own "
        "(such as BatchStat, where the others are Params)",
    ),
    Row(("batched",), slips.of_loop, _OF_LOOP),
    Row(("batched",), slips.of_mapped, _OF_MAPPED),
    Row(
        ("batched",),
        slips.record,
        "drop the leading axis by mapping over it with weft.vmap or weft.scan (axis 0); if the function takes the "
        'whole batch, annotate it Batched[{record}, "..."]',
    ),
    Row(
        ("overmapped",),
        slips.record,
        "{by} removed an axis from a {record} for a single example: pass it unmapped (in_axes None), or stack one "
        "{record} for each example along a new axis 0",
    ),
    Row(
        ("unbatched",),
        slips.record,
        "add the leading axis: stack one record for each entry (weft.vmap over the constructor does)",
    ),
    Row(("class", "type"), slips.pair, "{unpack}"),
    # The braces in this sentence are its own, and `format` must not fill them.
    Row(_TYPE, lambda miss: {} if slips.redefined(miss) is not None else None, REDEFINED.replace("{", "{{")),
    Row(_DTYPE, slips.wanted_key, "make a typed key with jax.random.key(seed)"),
    Row(_DTYPE, slips.is_key, "it is a random key; draw from it, or annotate it Key[Array, ...] instead of {wanted}"),
    # This row recognises every wrong dtype, so it comes last among them.
    Row(_DTYPE, lambda miss: {}, "cast it with {x}.astype(...), or annotate the dtype that it should have"),
    Row(
        _CLASS,
        slips.number_in_use,
        "put an array there: record.replace({name}=jnp.full_like(record.{name}, {value})); a record that holds "
        "numbers in the places of arrays is a tree of axes, whose methods cannot be called",
    ),
    Row(
        _CLASS,
        slips.ride,
        "for a record of axes or specs, write axes({{...: {value}}}), or replace the leaves of a record: "
        "record.replace({name}={value}), jax.tree.map(lambda _: {value}, record)",
    ),
    Row(
        _CLASS,
        slips.of_numpy,
        "convert it with jnp.asarray({x}), or annotate ArrayLike instead of Array",
        "jnp.asarray({x})",
    ),
    Row(_CLASS, slips.none, "if it may be missing, annotate it `... | None`"),
    Row(
        _RANK,
        slips.trailing_one,
        "its last axis has size 1: drop it with {x}[..., 0] or {x}.squeeze(-1)",
        "{x}[..., 0]",
    ),
    Row(_RANK, slips.lacks_one, "it lacks the last axis of size 1: add it with {x}[..., None]", "{x}[..., None]"),
    Row(
        _RANK,
        slips.of_stack,
        "all axes but the first fit: in a stack of records (weft.vmap over a constructor), all arrays must have it",
    ),
    Row(_RANK, slips.of_loop, _OF_LOOP),
    Row(_RANK, slips.of_mapped, _OF_MAPPED),
    Row(
        _RANK,
        slips.batch,
        "this per-example function was given a batch: map it over axis 0 with weft.vmap, or annotate the batch axis "
        '("{dims}")',
    ),
    Row(
        _RANK,
        slips.axis_removed,
        "{by} removed an axis{size}, so this function sees one example: drop {dim} from its annotation, or do not map "
        "this argument (in_axes None)",
    ),
    Row(_RANK, slips.lacks_first, "the axis {dim} is missing: add it with {x}[None]", "{x}[None]"),
    Row(_RANK, slips.lacks_last, "the axis {dim} is missing: add it with {x}[..., None]", "{x}[..., None]"),
    Row(
        _SIZE,
        lambda miss: slips.shards(miss, whole=True),
        "axis {axis} is not split here, and as long as {shards} shards: split it over {over} in in_specs",
    ),
    Row(
        _SIZE,
        lambda miss: slips.shards(miss, whole=False),
        "axis {axis} is split over {over}, so a shard has {size} of {expected}: do not split it in in_specs",
    ),
    Row(_SIZE, slips.transposed, "its axes look transposed: {x}.transpose({order}) fits", "{x}.transpose({order})"),
    Row(_SIZE, slips.transposed_origin, "{bound} of shape {shape} looks transposed: its transpose fits {fits}"),
    Row(
        _SIZE,
        slips.channels_first,
        "axis {axis} has that size: if the channels or features come first, put them last, "
        "jnp.moveaxis({x}, {axis}, -1)",
        "jnp.moveaxis({x}, {axis}, -1)",
    ),
    Row(_SIZE, slips.size_one, "if a size of 1 may broadcast here, write '#{dim}'; else broadcast the value before"),
    Row(_TYPE, slips.no_successor, "a stateful function returns its value and its successor: return y, self"),
)
