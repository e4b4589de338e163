"""What a folder's checkpoint holds beside its arrays: the manifest, and which array of Orbax's is which of the tree's.

What has no manifest was written by another program, such as flax: its arrays go by their names.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from weft.core.edge._jax import key_impl_of
from weft.core.paths import format_path
from weft.core.records.leaves import NUMBERS, Leaf, iter_leaves
from weft.modules.checkpoints.checkpoint import by_name
from weft.modules.checkpoints.configuration import configuration, is_description
from weft.modules.checkpoints.format import CheckpointError
from weft.modules.checkpoints.leaves import as_leaf, is_key, kind_of, placement, refuse_unstorable, show_type

Keys = tuple[str, ...]

FORMAT = 1
ARRAYS, MANIFEST = "arrays", "manifest"


@dataclass(frozen=True)
class Entry:
    """An array of a checkpoint: where Orbax has it, and what it is."""

    keys: Keys
    kind: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return show_type(self.kind, self.shape)


# ---- what is written -------------------------------------------------------------------------------------------------


def content(tree: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays of a tree as Orbax takes them, and the manifest."""
    leaves = by_name(leaf for leaf in iter_leaves(tree) if leaf.dynamic)
    told = {path: description for path, description in configuration(tree).items() if path not in leaves}
    numbers = {name: _number(leaf.value) for name, leaf in leaves.items() if type(leaf.value) in NUMBERS}
    arrays = {name: leaf for name, leaf in leaves.items() if name not in numbers}
    entries: dict[str, Any] = {}
    nested: dict[str, Any] = {}
    for name, leaf in arrays.items():
        value = as_leaf(leaf.value)
        refuse_unstorable(value, name, whole=False)
        entries[name] = {
            "keys": (keys := _keys_of(leaf)),
            "dtype": kind_of(value),
            "shape": list(value.shape),
            "kind": leaf.kind.__name__,
        }
        _set(nested, keys, jax.random.key_data(value) if is_key(value) else _owned(value), name)
    return nested, {"format": FORMAT, "configuration": told, "numbers": numbers, "arrays": entries}


def _owned(value: Any) -> Any:
    # NumPy's arrays are written by a thread, and may be changed in place meanwhile.
    return np.array(value) if isinstance(value, np.ndarray | np.generic) else value


def _number(value: complex) -> list[str]:
    return [type(value).__name__, repr(value)]


def _keys_of(leaf: Leaf) -> Keys:
    # A tree that is one array has no name, and Orbax wants one.
    return tuple(map(str, leaf.path)) or ("root",)


def _set(nested: dict[str, Any], keys: Keys, value: Any, name: str) -> None:
    for key in keys[:-1]:
        nested = nested.setdefault(key, {})
    if keys[-1] in nested:
        raise CheckpointError("two arrays have one name", at=name, fix='rename one: Orbax tells 0 and "0" not apart')
    nested[keys[-1]] = value


# ---- what is read ----------------------------------------------------------------------------------------------------


def read_manifest(folder: Path) -> dict[str, Any] | None:
    if not folder.is_dir():
        raise CheckpointError("there is no checkpoint of Orbax here", at=str(folder), fix="pass the folder of a step")
    if not (folder / MANIFEST).is_dir():
        return None
    ocp = orbax()
    try:
        with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as reader:
            manifest = reader.restore(folder / MANIFEST)
        if manifest["format"] > FORMAT:
            raise CheckpointError("this checkpoint is of a newer format", at=str(folder), fix="update weft")
        if not all(map(is_description, manifest["configuration"].values())):
            raise ValueError("configuration")
        manifest["numbers"] = {name: _NUMBERS[kind](text) for name, (kind, text) in manifest["numbers"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError("the manifest is damaged", at=f"{folder}: {error!r:.200}") from error
    return manifest


_NUMBERS = {"bool": lambda text: text == "True", "int": int, "float": float, "complex": complex}


def entries_of(manifest: Mapping[str, Any]) -> dict[str, Entry]:
    return {
        name: Entry(tuple(one["keys"]), one["dtype"], tuple(one["shape"])) for name, one in manifest["arrays"].items()
    }


def entries_in(source: Path) -> dict[str, Entry]:
    """The arrays of another program's checkpoint, by names that are written as paths."""
    ocp = orbax()
    try:
        with ocp.PyTreeCheckpointer() as reader:
            tree = reader.metadata(source).item_metadata.tree
    except (FileNotFoundError, ValueError, AttributeError) as error:
        # Where there is no description at all, Orbax gives None for it.
        why = "nothing says what it holds" if isinstance(error, AttributeError) else f"{error!r:.200}"
        raise CheckpointError(
            "this is no checkpoint of Orbax's, or a damaged one", at=f"{source}: {why}", fix="restore another step"
        ) from error
    found = list(_arrays_in(tree, ()))
    of_variables = bool(found) and all(keys[-1] == "value" for keys, _ in found)
    named: dict[str, Entry] = {}
    for keys, value in found:
        parts = [int(key) if key.isdigit() else key for key in (keys[:-1] if of_variables else keys)]
        named[format_path(tuple(parts))] = Entry(keys, str(value.dtype), tuple(value.shape))
    return named


def _arrays_in(node: Any, keys: Keys) -> Iterator[tuple[Keys, Any]]:
    if isinstance(node, Mapping):
        for key, child in node.items():
            yield from _arrays_in(child, (*keys, str(key)))
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for index, child in enumerate(node):
            yield from _arrays_in(child, (*keys, str(index)))
    elif hasattr(node, "shape") and hasattr(node, "dtype"):
        yield keys, node


def differing(found: Mapping[str, Any], wanted: Mapping[str, Any], partial: bool, *, own: bool) -> list[str]:
    lines: list[str] = []
    for name in sorted({*wanted, *found}):
        if name not in wanted or name not in found:
            if not partial:
                lines.append(f"{name}: {found.get(name, 'nothing')}, not {_show_like(wanted.get(name))}")
        elif not _fits(found[name], wanted[name], own):
            lines.append(f"{name}: {found[name]}, not {_show_like(wanted[name])}")
    return lines


def _show_like(value: Any) -> str:
    return "nothing" if value is None else show_type(kind_of(value), np.shape(value))


def _fits(entry: Any, like: Any, own: bool) -> bool:
    if not isinstance(entry, Entry):
        return type(entry) is type(like)
    if type(like) in NUMBERS:
        return False
    if is_key(like) and not own:
        data = _key_data(like)
        return (entry.kind, entry.shape) == (str(data.dtype), data.shape)
    return (entry.kind, entry.shape) == (kind_of(like), tuple(like.shape))


def _key_data(key: Any) -> jax.ShapeDtypeStruct:
    return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(key.shape, key.dtype))


def read_arrays(source: Path, entries: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: entry for name, entry in entries.items() if not isinstance(entry, Entry)}
    arrays = {name: entry for name, entry in entries.items() if isinstance(entry, Entry)}
    if not arrays:
        return values
    ocp = orbax()
    item: dict[str, Any] = {}
    restore: dict[str, Any] = {}
    for name, entry in arrays.items():
        like = wanted[name]
        shape = _key_data(like) if is_key(like) else like
        where = None if is_key(like) else placement(like)
        _set(item, entry.keys, jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=where), name)
        on_host = where is None
        args = ocp.RestoreArgs(restore_type=np.ndarray) if on_host else ocp.ArrayRestoreArgs(sharding=where)
        _set(restore, entry.keys, args, name)
    try:
        with ocp.PyTreeCheckpointer() as reader:
            args = ocp.args.PyTreeRestore(item=item, restore_args=restore, partial_restore=True)
            read = reader.restore(source, args=args)
    except (ValueError, KeyError, OSError) as error:
        raise _damaged(source, error) from error
    return values | {name: _placed(_at(read, entry.keys), wanted[name]) for name, entry in arrays.items()}


def _damaged(source: Path, error: Exception) -> CheckpointError:
    # TensorStore says all that it was given behind what is wrong.
    what, _, _ = str(error).partition(" [tensorstore_spec")
    return CheckpointError(
        "the arrays of this checkpoint cannot be read: files of it are missing or damaged",
        at=f"{source}: {what:.300}",
        fix="restore another step",
    )


def _at(nested: Any, keys: Keys) -> Any:
    for key in keys:
        nested = nested[key]
    return nested


def _placed(value: Any, like: Any) -> Any:
    if isinstance(like, np.ndarray):
        return value
    if isinstance(like, np.generic):
        return value[()]
    if is_key(like):
        wrap = functools.partial(jax.random.wrap_key_data, impl=key_impl_of(like.dtype))
        where = placement(like)
        if where is None or where.is_fully_addressable:
            key = wrap(jax.device_put(value))
            return key if where is None else jax.device_put(key, where)
        # On devices of other processes too: each has read all of it, which is what `jit` takes NumPy arrays for.
        return jax.jit(wrap, out_shardings=where)(np.asarray(value))
    return value if isinstance(value, jax.Array) else jax.device_put(value)


# ---- Orbax -----------------------------------------------------------------------------------------------------------


def orbax() -> Any:
    try:
        import orbax.checkpoint
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("checkpoints in folders need Orbax: pip install weft[orbax]") from error
    return orbax.checkpoint


def registry() -> Any:
    ocp = orbax()
    registry = ocp.DefaultCheckpointHandlerRegistry()
    arrays, manifest = ocp.PyTreeCheckpointHandler(), ocp.JsonCheckpointHandler()
    for item, save, restore, handler in (
        (ARRAYS, ocp.args.PyTreeSave, ocp.args.PyTreeRestore, arrays),
        (MANIFEST, ocp.args.JsonSave, ocp.args.JsonRestore, manifest),
    ):
        registry.add(item, save, handler)
        registry.add(item, restore, handler)
    return registry
