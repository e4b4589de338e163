"""Matches the arrays of a checkpoint with the leaves of a tree, and finds options that would resolve mismatches.

No array is read before everything fits. The advice in an error was tried: the fewest options of the call with which
nothing would mismatch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypedDict

import jax
import numpy as np
from jax.typing import DTypeLike
from weft.core.logical_axes import rules_in_force
from weft.core.paths import Path, format_path
from weft.core.records.leaves import Leaf, iter_leaves
from weft.core.records.partition import take_apart, with_leaves
from weft.modules.checkpoints.configuration import Description, configuration, difference, is_empty_field, show
from weft.modules.checkpoints.format import CheckpointError, Entry, Target, brief, dtype_of
from weft.modules.checkpoints.leaves import Cast, as_leaf, kind_of, needs_x64, placement, show_type, target_of
from weft.modules.checkpoints.names import Rename, around, is_inside, refuse_two_at_one_path, renamed

# Lines of one error: a wrong tree mismatches at every leaf, and nobody reads a thousand lines.
_LINES = 8

Read = Callable[[Mapping[str, Target], Mapping[str, Any]], dict[str, Any]]


class LoadOptions(TypedDict, total=False):
    """The keyword arguments of all functions that load, except `partial`, which decides what they return."""

    rename: Rename | None
    dtype: DTypeLike | Literal["like"] | None
    strict: bool


class LoadReport(NamedTuple):
    """The paths and names that a partial load left out.

    Attributes:
        missing: the paths of `like` for which the file has no array; these leaves are taken from `like`.
        left_over: the names in the file for which `like` has no leaf.

    >>> report = LoadReport(missing=("head",), left_over=())
    >>> [name for name in report.missing if not name.startswith("head")]
    []
    """

    missing: tuple[str, ...]
    left_over: tuple[str, ...]


@dataclass(frozen=True)
class StoredLeaves:
    """The contents of a checkpoint.

    Attributes:
        place: its file or folder, for messages.
        entries: its arrays and numbers.
        configuration: the configuration that was saved, by path; empty in a checkpoint of another program.
        described: whether it tells kinds. In other checkpoints keys and numbers are stored as plain arrays.
    """

    place: str
    entries: Sequence[Entry]
    configuration: Mapping[str, Description]
    described: bool


@dataclass(frozen=True)
class Options:
    """The options of `load_checkpoint`."""

    rename: Rename | None = None
    cast: Cast = None
    partial: bool = False
    strict: bool = True


class Match(NamedTuple):
    """A match: targets by path, a line for each mismatch, and the names in the file that are not used."""

    targets: dict[str, Target]
    lines: list[str]
    left_over: tuple[str, ...]


def _on_mesh(like: Any) -> Any:
    """A tree whose arrays lie as the rules in force say, where the user has not put them anywhere."""
    rules = rules_in_force()
    if rules is None:
        return like
    places = {leaf.path: leaf.value for leaf in iter_leaves(rules.shardings(like))}
    placed: dict[Path, Any] = {}
    for path, value in ((leaf.path, leaf.value) for leaf in iter_leaves(like)):
        if isinstance(value, jax.Array | jax.ShapeDtypeStruct) and placement(value) is None:
            placed[path] = jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=places[path])
    return with_leaves(like, placed)


def loaded(
    offer: StoredLeaves, like: Any, options: Options, read: Read, check: Callable[[], None] = lambda: None
) -> Any:
    """Loads a checkpoint into a tree like another one; with `partial`, returns a `LoadReport` as well.

    Args:
        offer: the contents of the checkpoint.
        like: as for `load_checkpoint`.
        options: the options of the call.
        read: makes the leaves for targets; its arguments are the targets and the leaves of `like`, by path.
        check: called before an error about a tree that does not fit: a damaged file is told as damaged.

    Raises:
        CheckpointError: if something does not fit; the error names paths.
    """
    like = _on_mesh(like)
    structure, leaves = take_apart(like)
    wanted = {name: as_leaf(leaf.value) for name, leaf in by_name(leaves).items()}
    here: dict[str, Description] = {}
    if offer.configuration and options.strict:
        here = configuration(like, wanted)
    targets, lines, left_over = fit(offer, wanted, here, options)
    if lines:
        check()
        more = [f"and {len(lines) - _LINES} more"] if len(lines) > _LINES else []
        raise CheckpointError(
            f"{offer.place} holds another tree than the one to load into",
            at=[*map(brief, lines[:_LINES]), *more],
            fix=_advice(offer, wanted, here, options),
        )
    # JAX would read float64 as float32 with a warning at most, and a resumed run would differ.
    _refuse_narrowing(targets, wanted)
    values = read(targets, wanted)
    tree = structure.build([values.get(name, value) for name, value in wanted.items()])
    if not options.partial:
        return tree
    return tree, LoadReport(tuple(name for name in wanted if name not in values), left_over)


def by_name(leaves: Iterable[Leaf]) -> dict[str, Leaf]:
    """Returns leaves by their formatted paths.

    Raises:
        CheckpointError: if two have one.
    """
    by_name: dict[str, Leaf] = {}
    twice: list[str] = []
    for leaf in leaves:
        name = format_path(leaf.path)
        if name == "__metadata__":
            raise CheckpointError("safetensors reserves this name", at=name, fix="rename it")
        if name in by_name:
            twice.append(name)
        by_name[name] = leaf
    if twice:
        raise CheckpointError("two arrays have the same path", at=twice, fix="rename one")
    return by_name


# --- what fits -------------------------------------------------------------------------------------------------------


def fit(offer: StoredLeaves, wanted: Mapping[str, Any], here: Mapping[str, Description], options: Options) -> Match:
    """Finds the target of each wanted leaf, and all mismatches."""
    names = {**dict.fromkeys(entry.name for entry in offer.entries), **offer.configuration}
    paths = renamed(options.rename, names, offer.place)
    chosen = {entry.name: paths[entry.name] for entry in offer.entries}
    refuse_two_at_one_path(chosen, offer.place)
    # Two names at one path were refused above, so no entry overwrites another here.
    entries = {path: entry for entry in offer.entries if (path := chosen[entry.name]) is not None}
    lines: list[str] = []
    if options.strict and offer.configuration:
        # If one of the two has an array and the other has configuration, such as None, the loop below reports it.
        saved = {name: value for name, value in offer.configuration.items() if paths[name] not in wanted}
        # The default `dtype` of an Embed was the table's, which files from before still tell; now it is None.
        for path, entry in entries.items():
            there, name = (text.removesuffix("embedding") + "dtype" for text in (entry.name, path))
            if path.endswith("embedding") and saved.get(there) == f"dtype {entry.kind}" and here.get(name) == "None":
                del saved[there]
        differing = {path: value for path, value in here.items() if path not in entries}
        lines += differing_configuration(
            saved, differing, paths, only_common=options.partial or options.rename is not None
        )
    targets: dict[str, Target] = {}
    for name in sorted({*wanted, *entries}):
        both = name in wanted and name in entries
        target = target_of(entries[name], wanted[name], options.cast, described=offer.described) if both else None
        if target is not None:
            targets[name] = target
        elif both or not options.partial:
            entry = entries.get(name)
            saved_text = _show(offer.configuration.get(name)) if entry is None else show_type(entry.kind, entry.shape)
            saved_text += f" (in the file: {entry.name})" if entry is not None and entry.name != name else ""
            wanted_text = (
                show_type(kind_of(wanted[name]), np.shape(wanted[name])) if name in wanted else _show(here.get(name))
            )
            lines.append(f"{name}: {saved_text}, not {wanted_text}")
    left_over = sorted(name for name, path in chosen.items() if path not in wanted)
    return Match(targets, lines, tuple(left_over))


def differing_configuration(
    saved: Mapping[str, Description],
    here: Mapping[str, Description],
    paths: Mapping[str, str | None],
    *,
    only_common: bool,
) -> list[str]:
    """Returns a line for each path at which configuration differs; paths inside of such a path get none."""
    # A container around renamed names has other children than before, so it is not compared.
    changed = around(paths)
    moved: dict[str, Description] = {}
    # Explicitly renamed names are sorted last, so that at a path that two names claim the renamed one wins.
    for name in sorted(saved, key=lambda name: paths[name] != name):
        path = paths[name]
        if path is not None and (path != name or name not in changed):
            moved[path] = saved[name]
    lines: list[str] = []
    last: str | None = None
    for path in sorted({*moved, *here}):
        missing = path not in moved or path not in here
        if (missing and only_common) or (last is not None and is_inside(path, last)):
            continue
        # A class may gain an optional field: files from before it have nothing there, and still load.
        if path not in moved and is_empty_field(path, here):
            continue
        first_difference = difference(moved.get(path), here.get(path))
        if first_difference is not None:
            inside, there, own = first_difference
            place = f"{path}, in {'.'.join(inside)}" if inside else path
            lines.append(f"{place}: {_show(there)}, not {_show(own)}")
            last = path
    return lines


def _show(description: Description | None) -> str:
    return brief("nothing" if description is None else show(description), 200)


def _refuse_narrowing(targets: Mapping[str, Target], wanted: Mapping[str, Any]) -> None:
    wide = [f"{name}: {target.dtype}" for name, target in targets.items() if needs_x64(target, wanted[name])]
    if wide:
        raise CheckpointError(
            "JAX would narrow these arrays to 32 bits",
            at=wide,
            fix='jax.config.update("jax_enable_x64", True), or load into arrays of 32 bits with dtype="like"',
        )


# --- what would fit --------------------------------------------------------------------------------------------------


def _advice(offer: StoredLeaves, wanted: Mapping[str, Any], here: Mapping[str, Description], options: Options) -> str:
    """Returns the fewest options to change so that nothing mismatches and at least half of the smaller tree loads.

    If no options are enough, they are tried together with the saved shapes.
    """

    def mends(options: Options, wanted: Mapping[str, Any]) -> bool:
        try:
            match = fit(offer, wanted, here, options)
        except CheckpointError:
            return False
        # `partial=True` makes any two trees fit, by loading nothing: such advice is no help.
        return not match.lines and 2 * len(match.targets) >= min(len(wanted), len(offer.entries))

    changes = list(_changes(offer, wanted, options))
    others = {entry.name: entry for entry in offer.entries if _has_other_shape(entry, wanted.get(entry.name))}
    # Tried last: another shape means another model, for which no option of the call helps.
    stand_ins = {name: jax.ShapeDtypeStruct(entry.shape, dtype_of(entry.kind)) for name, entry in others.items()}
    for replaced in ({}, stand_ins) if stand_ins else ({},):
        reshape = [_show_stand_in(others, wanted)] if replaced else []
        # Without a change of options and with the same shapes it does not fit: that is why advice is needed.
        for count in range(0 if replaced else 1, len(changes) + 1):
            for chosen in itertools.combinations(changes, count):
                changed = replace(options, **{name: value for name, value, _ in chosen})
                if mends(changed, {**wanted, **replaced}):
                    passed = [f"pass {', and '.join(text for _, _, text in chosen)}"] if chosen else []
                    return "; ".join(reshape + passed)
    return "load it into a tree that is constructed like the saved one"


def _show_stand_in(others: Mapping[str, Entry], wanted: Mapping[str, Any]) -> str:
    entry = next(iter(others.values()))
    make = "np.zeros" if isinstance(wanted[entry.name], np.ndarray) else "jax.ShapeDtypeStruct"
    stand_in = f'{make}({entry.shape}, "{entry.kind}")'
    return (
        f"load it into a tree with the saved shapes, where {stand_in} may stand for an array, as at {brief(entry.name)}"
    )


def _changes(offer: StoredLeaves, wanted: Mapping[str, Any], options: Options) -> Iterator[tuple[str, Any, str]]:
    """Yields each change of an option that may help: its name in `Options`, the value, and how to write it."""
    if options.strict and offer.configuration:
        yield "strict", False, "strict=False, which takes the configuration of the tree that you load into"
    if options.cast is None:
        yield "cast", "like", 'dtype="like", which casts what was saved to the dtypes of the tree that you load into'
    rename = _likely_rename(offer, wanted) if options.rename is None else None
    # Names come from files and may be of any length; an advice is one line.
    if rename is not None and len(f"rename={rename}") <= 200:
        yield "rename", rename, f"rename={rename}"
    if not options.partial:
        yield "partial", True, "partial=True, which loads what both have and returns a report of the rest, too"


def _likely_rename(offer: StoredLeaves, wanted: Mapping[str, Any]) -> dict[str, str] | None:
    """Returns a renaming of the first unused name to the first missing path, without the end that the two share."""
    saved = [entry.name for entry in offer.entries]
    name = min(set(saved) - wanted.keys(), default=None)
    path = min(wanted.keys() - set(saved), default=None)
    if name is None or path is None:
        return None
    same = 0
    while same < min(len(name), len(path)) and name[-1 - same] == path[-1 - same]:
        same += 1
    # Names are cut where a part of the path begins.
    while same and (name[-same] not in ".[" or path[-same] not in ".["):
        same -= 1
    return {name[: len(name) - same]: path[: len(path) - same]}


def _has_other_shape(entry: Entry, like: Any) -> bool:
    is_array = isinstance(like, np.ndarray | jax.Array | jax.ShapeDtypeStruct) and dtype_of(entry.kind) is not None
    return is_array and entry.kind == kind_of(like) and entry.shape != tuple(like.shape)
