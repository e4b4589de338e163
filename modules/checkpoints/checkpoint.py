"""Checkpoints: a tree of records in one safetensors file.

Every array, and every Python number outside of records, is *data*: stored under its path, and restored. What else a
tree is made of is *configuration* (see `checkpoint_configuration`): stored as text and compared with the tree that one
loads into, from which it comes. The header also holds a digest, so that a damaged file is found out
(`checkpoint_format`), and a file is written beside its target and then moved over it (`checkpoint_atomic`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, overload

import numpy as np
from jax.typing import DTypeLike
from weft.core.paths import format_path
from weft.core.records.leaves import Leaf, iter_leaves
from weft.core.records.partition import take_apart
from weft.modules.checkpoints import format as form
from weft.modules.checkpoints.atomic import replacing
from weft.modules.checkpoints.configuration import (
    Description,
    configuration,
    difference,
    is_description,
    is_empty_field,
    show,
)
from weft.modules.checkpoints.format import CheckpointError, Entry, Source, Target
from weft.modules.checkpoints.leaves import (
    as_leaf,
    cast_of,
    content_of,
    kind_of,
    needs_x64,
    restored,
    show_type,
    target_of,
)
from weft.modules.checkpoints.names import Rename, around, is_inside, refuse_two_at_one_path, renamed

T = TypeVar("T")

# As many lines of one error as one reads.
_LINES = 8


class LoadReport(NamedTuple):
    """What a partial load did not do.

    Attributes:
        missing: the paths of `like` that the file has nothing for; they are as `like` has them.
        left_over: the names in the file that `like` has no place for.

    >>> report = LoadReport(missing=("head",), left_over=())
    >>> [name for name in report.missing if not name.startswith("head")]
    []
    """

    missing: tuple[str, ...]
    left_over: tuple[str, ...]


def save_checkpoint(path: str | os.PathLike[str], tree: Any) -> None:
    """Writes a tree, all or nothing; one array at a time passes through the memory of the host.

    Arrays are stored bit for bit under their paths, and so are Python numbers outside of records. Everything else is
    configuration: it is stored as text, for `load_checkpoint` to compare.

    Args:
        path: the file; its folder must exist. Of a link the target is written; a file that is there already passes on
            its mode.
        tree: records and containers. Random keys are stored as their data.

    Raises:
        OSError: if it cannot be written; what was there before is untouched.
        CheckpointError: if something in it cannot be stored, naming its path.

    >>> import jax.numpy as jnp
    >>> from tempfile import TemporaryDirectory
    >>> folder = TemporaryDirectory()
    >>> file = Path(folder.name, "state.safetensors")
    >>> save_checkpoint(file, {"w": jnp.arange(3), "step": 7})
    >>> load_checkpoint(file, {"w": jnp.zeros(3, int), "step": 0})
    {'step': 7, 'w': Array([0, 1, 2], dtype=int32)}
    >>> folder.cleanup()

    Source: the format, https://github.com/huggingface/safetensors.
    """
    leaves = by_name(leaf for leaf in iter_leaves(tree) if leaf.dynamic)
    contents = {name: content_of(leaf.value, name) for name, leaf in leaves.items()}
    told = {path: description for path, description in configuration(tree).items() if path not in leaves}
    with replacing(path) as file:
        form.write(file, contents, {"configuration": json.dumps(told)})


@overload
def load_checkpoint(
    path: str | os.PathLike[str],
    like: T,
    *,
    rename: Rename | None = None,
    dtype: DTypeLike | Literal["like"] | None = None,
    partial: Literal[False] = False,
    strict: bool = True,
) -> T: ...


@overload
def load_checkpoint(
    path: str | os.PathLike[str],
    like: T,
    *,
    rename: Rename | None = None,
    dtype: DTypeLike | Literal["like"] | None = None,
    partial: Literal[True],
    strict: bool = True,
) -> tuple[T, LoadReport]: ...


@overload
def load_checkpoint(
    path: str | os.PathLike[str],
    like: T,
    *,
    rename: Rename | None = None,
    dtype: DTypeLike | Literal["like"] | None = None,
    partial: bool,
    strict: bool = True,
) -> T | tuple[T, LoadReport]: ...


def load_checkpoint(  # weft: skip(it reads a file)
    path: str | os.PathLike[str],
    like: T,
    *,
    rename: Rename | None = None,
    dtype: DTypeLike | Literal["like"] | None = None,
    partial: bool = False,
    strict: bool = True,
) -> T | tuple[T, LoadReport]:
    """Reads a checkpoint, or another safetensors file, into the structure of a tree.

    Args:
        path: what `save_checkpoint` wrote, or a safetensors file of another program, which says nothing of
            configuration and has no digest.
        like: a tree of the same structure, shapes and dtypes; its arrays and keys may be `jax.ShapeDtypeStruct`s, as
            `jax.eval_shape` makes them. An array goes where the one of `like` was put on purpose: to its device or
            sharding.
        rename: from names in the file to paths in `like`, as errors print them. A mapping holds names, or the
            beginnings of names up to a dot or a bracket (`{"encoder": "model.encoder"}`; an empty text stands for the
            root); the longest that fits is used, and what none fits keeps its name. A function is called with each
            name, of arrays and, in weft's own files, of configuration. What becomes None is left out. Configuration is
            compared at the paths that both have then, except for the containers around what was renamed.
        dtype: None loads only what has the dtype of `like`. A floating dtype is given to every floating array, and that
            of `like` does not matter then. "like" casts what the file holds to the dtypes of `like`, floats to floats
            and integers to integers that can hold them.
        partial: loads what the file and `like` both have, and returns a report of the rest. Shapes and dtypes must fit
            still, and so must the configuration at the paths that both have.
        strict: compares the configuration: the numbers, texts, functions and dtypes of records, their classes, and
            containers. A field that is None in `like` may be missing in the file, which was then written before the
            class had it. With False nothing of it is compared, and **that of `like` is taken**. (What changes as
            training goes on, such as a step, belongs into an array, or beside the records as a Python number.)

    Returns:
        The tree; with `partial=True` the tree and a `LoadReport`.

    Raises:
        OSError: if it cannot be read.
        CheckpointError: if it is no checkpoint, is damaged, comes from a newer format, or does not fit, naming paths.

    >>> import jax.numpy as jnp
    >>> from tempfile import TemporaryDirectory
    >>> folder = TemporaryDirectory()
    >>> file = Path(folder.name, "old.safetensors")
    >>> save_checkpoint(file, {"encoder": jnp.ones(2, jnp.bfloat16), "head": jnp.ones(3)})
    >>> like = {"body": jnp.zeros(2), "new": jnp.zeros(1)}
    >>> load_checkpoint(file, like, rename={"encoder": "body"}, dtype="like", partial=True)[1]
    LoadReport(missing=('new',), left_over=('head',))
    >>> folder.cleanup()

    Source: the format, https://github.com/huggingface/safetensors.
    """
    cast = cast_of(dtype)
    structure, leaves = take_apart(like)
    wanted = {name: as_leaf(leaf.value) for name, leaf in by_name(leaves).items()}
    with form.opened(Path(path)) as source:
        saved = _saved_configuration(source)
        paths = renamed(rename, {**dict.fromkeys(entry.name for entry in source.entries), **saved}, source.path)
        entries = _renamed_entries(source, paths)
        targets = {
            name: target_of(entries[name], value, cast, described=bool(source.version))
            for name, value in wanted.items()
            if name in entries
        }
        lines = _differing_data(entries, wanted, targets, partial)
        if strict and saved:
            told = {place: one for place, one in configuration(like).items() if place not in wanted}
            lines = differing_configuration(saved, told, paths, partial or rename is not None) + lines
        values, used = _read_fitting(source, targets, wanted, lines)
    tree = structure.build([values.get(name, value) for name, value in wanted.items()])
    if not partial:
        return tree
    left_over = sorted({entry.name for entry in source.entries} - used)
    return tree, LoadReport(tuple(name for name in wanted if name not in values), tuple(left_over))


def by_name(leaves: Iterable[Leaf]) -> dict[str, Leaf]:
    """Leaves by their paths in words.

    Raises:
        CheckpointError: if two have one.
    """
    by_name: dict[str, Leaf] = {}
    twice: list[str] = []
    for leaf in leaves:
        name = format_path(leaf.path)
        if name == "__metadata__":
            raise CheckpointError("safetensors takes this name for itself", at=name, fix="rename it")
        if name in by_name:
            twice.append(name)
        by_name[name] = leaf
    if twice:
        raise CheckpointError("two arrays have one path", at=twice, fix="rename one")
    return by_name


def _saved_configuration(source: Source) -> dict[str, Description]:
    saved = source.told("configuration", {})
    if not all(map(is_description, saved.values())):
        raise source.damaged()
    return saved


def _renamed_entries(source: Source, paths: Mapping[str, str | None]) -> dict[str, Entry]:
    chosen = {entry.name: paths[entry.name] for entry in source.entries}
    refuse_two_at_one_path(chosen, source.path)
    return {path: entry for entry in source.entries if (path := chosen[entry.name]) is not None}


# --- what does not fit -----------------------------------------------------------------------------------------------


def _differing_data(
    entries: Mapping[str, Entry], wanted: Mapping[str, Any], targets: Mapping[str, Target | None], partial: bool
) -> list[str]:
    names = targets if partial else {*wanted, *entries}
    return [
        f"{name}: {_show_entry(entries.get(name), name)}, not {_show_like(wanted, name)}"
        for name in sorted(names)
        if targets.get(name) is None
    ]


def _show_entry(entry: Entry | None, name: str) -> str:
    if entry is None:
        return "nothing"
    return show_type(entry.kind, entry.shape) + ("" if entry.name == name else f" (in the file: {entry.name})")


def _show_like(wanted: Mapping[str, Any], name: str) -> str:
    return show_type(kind_of(wanted[name]), np.shape(wanted[name])) if name in wanted else "nothing"


def differing_configuration(
    saved: Mapping[str, Description],
    here: Mapping[str, Description],
    paths: Mapping[str, str | None],
    only_common: bool,
) -> list[str]:
    """A line for each path at which configuration differs, but none for what is inside of such a path."""
    # What holds something that was renamed is another container by that.
    changed = around(paths)
    moved: dict[str, Description] = {}
    # Said explicitly, a path counts for more than one that was merely kept: those come last.
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
        if path not in moved and is_empty_field(path, here):
            continue
        line = _difference_at(path, moved.get(path), here.get(path))
        if line is not None:
            lines.append(line)
            last = path
    return lines


def _difference_at(path: str, saved: Description | None, here: Description | None) -> str | None:
    if saved is None or here is None:
        return f"{path}: {_show(saved)}, not {_show(here)}"
    found = difference(saved, here)
    if found is None:
        return None
    inside, saved, here = found
    place = f"{path}, in {'.'.join(inside)}" if inside else path
    return f"{place}: {_show(saved)}, not {_show(here)}"


def _show(description: Description | None) -> str:
    text = "nothing" if description is None else show(description)
    return text if len(text) <= 200 else f"{text[:197]}..."


def misfit(path: str, lines: list[str]) -> CheckpointError:
    """The error that says at which paths a checkpoint does not fit."""
    more = [f"and {len(lines) - _LINES} more"] if len(lines) > _LINES else []
    return CheckpointError(
        f"{path} holds another tree",
        at=lines[:_LINES] + more,
        fix="load it into a tree that is made as the saved one was, or say how to make it fit with rename=, dtype=, "
        "partial=True or strict=False",
    )


def _refuse_narrowing(targets: Mapping[str, Target], wanted: Mapping[str, Any]) -> None:
    wide = [f"{name}: {target.dtype}" for name, target in targets.items() if needs_x64(target, wanted[name])]
    if wide:
        raise CheckpointError(
            "JAX would narrow these arrays to 32 bits",
            at=wide,
            fix='jax.config.update("jax_enable_x64", True), or load into arrays of 32 bits with dtype="like"',
        )


def _read_fitting(
    source: Source, targets: Mapping[str, Target | None], wanted: Mapping[str, Any], lines: list[str]
) -> tuple[dict[str, Any], set[str]]:
    """The values of all targets by path, and the names in the file that they come from; nothing if anything differs."""
    if lines:
        # What does not fit may have been damaged, and then that is what should be said.
        source.check()
        raise misfit(source.path, lines)
    fitting = {name: target for name, target in targets.items() if target is not None}
    _refuse_narrowing(fitting, wanted)
    return _read(source, fitting, wanted), {target.entry.name for target in fitting.values()}


def _read(source: Source, targets: Mapping[str, Target], wanted: Mapping[str, Any]) -> dict[str, Any]:
    names = {target.entry.name: name for name, target in targets.items()}
    values: dict[str, Any] = {}
    for target, array in source.read(targets.values()):
        name = names[target.entry.name]
        values[name] = restored(array, target, wanted[name])
    return values
