"""Writes and reads the manifest of a folder's checkpoint, which maps the arrays in Orbax's files to paths of the tree.

A checkpoint without a manifest was written by another program, such as flax: its arrays are matched by name.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from weft.core.edge import trees
from weft.core.edge.trees import key_part
from weft.core.errors import MissingExtraError
from weft.core.paths import format_path
from weft.core.records.leaves import NUMBERS, iter_leaves
from weft.modules.checkpoints.configuration import Description, configuration, is_description
from weft.modules.checkpoints.fitting import by_name
from weft.modules.checkpoints.format import PYTHON, CheckpointError, Entry, Target, absent, cast, empty
from weft.modules.checkpoints.leaves import content_of, in_host_memory, placement, restored
from weft.modules.construct import is_key

Keys = tuple[str, ...]

FORMAT = 1
ARRAYS, MANIFEST = "arrays", "manifest"

# floor: Orbax walks trees recursively, which Python 3.11 does not do much deeper.
_DEEPEST = 100
# Bytes below which an array is copied to the host at once: that takes less time than Orbax's handling of a JAX array.
_SMALL = 1 << 16
# Characters that have a meaning in Orbax's file names or cannot be in them, and strings that would be read as integers.
_SPECIAL = re.compile(r"[%./\[\x00-\x1f\ud800-\udfff]|^\d(?=\d*$)|^-(?=\d+$)")
_INDEX = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class OrbaxEntry(Entry):
    """An array or a number in a checkpoint of Orbax.

    Attributes:
        keys: the path of the array in Orbax's tree.
        raw: whether the array is stored as bytes, because Orbax does not know its dtype.
        number: the Python number, if the entry is one.
    """

    keys: Keys = ()
    raw: bool = False
    number: complex | None = None


def entry_of(target: Target) -> OrbaxEntry:
    """Returns the entry of a target, which is one of Orbax's in all functions of this module."""
    assert isinstance(target.entry, OrbaxEntry)
    return target.entry


# ---- what is written -------------------------------------------------------------------------------------------------


def content(tree: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the arrays of a tree as Orbax takes them, and the manifest."""
    leaves = by_name(leaf for leaf in iter_leaves(tree) if leaf.dynamic)
    numbers: dict[str, Any] = {}
    entries: dict[str, Any] = {}
    nested: dict[str, Any] = {}
    for name, leaf in leaves.items():
        if type(leaf.value) in NUMBERS:
            # As text, because JSON has neither complex numbers nor infinities.
            numbers[name] = _number(leaf.value)
            continue
        stored = content_of(leaf.value, name, whole=False)
        raw = not _is_known(stored.stored_dtype)
        # A tree that is a single array has an empty path, and Orbax needs a name.
        keys = tuple(map(_key_of, leaf.path)) or ("root",)
        keys = keys if len(keys) <= _DEEPEST else (*keys[: _DEEPEST - 1], "%%".join(keys[_DEEPEST - 1 :]))
        entries[name] = {"keys": keys, "dtype": stored.kind, "shape": stored.shape, "kind": leaf.kind.__name__}
        entries[name] |= {"weak": True} if stored.weak else {}
        entries[name] |= {"raw": True} if raw else {}
        if 0 not in stored.stored_shape:  # Orbax cannot write an array without items
            _set(nested, keys, _written(leaf.value, name, raw))
    told = configuration(tree, leaves)
    return nested, {"format": FORMAT, "configuration": told, "numbers": numbers, "arrays": entries}


def _number(value: complex) -> list[str]:
    # Python refuses to print an integer of more than 4300 digits in decimal, but not in hexadecimal.
    if isinstance(value, int) and value.bit_length() > 10_000:
        return [type(value).__name__, hex(value)]
    return [type(value).__name__, repr(value)]


def _key_of(part: Any) -> str:
    """Encodes a part of a path for Orbax's names, so that different paths never give one name."""
    if not isinstance(part, str):
        return str(part) if type(part) is int else "[" + _escaped(repr(part))
    return _escaped(part) or "%-"


def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _set(nested: dict[str, Any], keys: Keys, value: Any) -> None:
    for key in keys[:-1]:
        nested = nested.setdefault(key, {})
    nested[keys[-1]] = value


def _is_known(dtype: np.dtype[Any]) -> bool:
    """Whether TensorStore, which writes for Orbax, knows a dtype."""
    import tensorstore

    try:
        return bool(tensorstore.dtype(dtype.name).numpy_dtype == dtype)
    except (TypeError, ValueError):
        return False


def _written(value: Any, name: str, raw: bool) -> Any:
    """Returns the array to pass to Orbax: a sharded JAX array, or a NumPy array, which Orbax copies at once."""
    if is_key(value):
        value = jax.random.key_data(value)
    # Raw bytes are made on the host, which needs the whole array in this process.
    if isinstance(value, jax.Array) and raw and not (value.is_fully_addressable or value.is_fully_replicated):
        raise CheckpointError(
            f"Orbax cannot write {value.dtype}, and this process cannot convert the array: others hold parts of it",
            at=name,
            fix="save it in another dtype: astype(jnp.float32), or astype(jnp.uint8) for integers",
        )
    # Orbax takes twice as long for a small JAX array as for a NumPy array. A large one stays a JAX array, so that
    # saving does not wait for a copy, and so does a sharded one, of which each device or process writes its own part.
    divided = isinstance(value, jax.Array) and (jax.process_count() > 1 or len(value.sharding.device_set) > 1)
    if isinstance(value, jax.Array) and not raw and (divided or value.nbytes > _SMALL):
        return value
    array = in_host_memory(value)
    return np.array(array[..., None], order="C").view(np.uint8) if raw else array


# ---- what is read ----------------------------------------------------------------------------------------------------


def read_manifest(folder: Path) -> tuple[list[OrbaxEntry], dict[str, Description]] | None:
    """Reads the entries and the configuration of a checkpoint of weft; None if another program wrote it."""
    if not folder.exists():
        raise absent(folder)
    if not folder.is_dir():
        raise CheckpointError(
            "this is a file, and no folder of Orbax", at=str(folder), fix="load_checkpoint reads files"
        )
    if not (folder / MANIFEST).is_dir():
        return None
    ocp = orbax()
    try:
        with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as reader:
            manifest = reader.restore(folder / MANIFEST)
        # Checked before anything else is read: a newer format may have given the other entries another meaning.
        if manifest["format"] > FORMAT:
            raise CheckpointError("this checkpoint is of a newer format", at=str(folder), fix="update weft")
        if not all(map(is_description, manifest["configuration"].values())):
            raise ValueError("configuration")
        numbers = [
            OrbaxEntry(name, f"{PYTHON}{kind}", (), number=_NUMBERS[kind](text))
            for name, (kind, text) in manifest["numbers"].items()
        ]
        arrays = [_array_entry(name, told) for name, told in manifest["arrays"].items()]
        return numbers + arrays, manifest["configuration"]
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OSError) as error:
        raise CheckpointError(
            "the manifest is damaged", at=f"{folder}: {error!r:.200}", fix="restore another step"
        ) from error


_NUMBERS = {"bool": lambda text: text == "True", "int": lambda text: int(text, 0), "float": float, "complex": complex}


def _array_entry(name: str, told: Mapping[str, Any]) -> OrbaxEntry:
    keys, shape, kind = tuple(told["keys"]), tuple(told["shape"]), told["dtype"]
    if not (keys and all(isinstance(key, str) for key in (*keys, kind)) and all(type(size) is int for size in shape)):
        raise ValueError(name)
    return OrbaxEntry(name, kind, shape, bool(told.get("weak")), keys=keys, raw=bool(told.get("raw")))


def entries_in(source: Path) -> list[OrbaxEntry]:
    """Returns the entries of a checkpoint that another program wrote; their names are spelled like paths of weft."""
    ocp = orbax()
    try:
        with ocp.PyTreeCheckpointer() as reader:
            tree = reader.metadata(source).item_metadata.tree
    except (FileNotFoundError, ValueError, AttributeError) as error:
        # Without any metadata, Orbax returns None for it.
        why = "it has no metadata" if isinstance(error, AttributeError) else f"{error!r:.200}"
        raise CheckpointError(
            "this is not a checkpoint of Orbax, or a damaged one", at=f"{source}: {why}", fix="restore another step"
        ) from error
    nodes = ((tuple(str(key_part(key)) for key in keys), node) for keys, node in trees.flatten_with_path(tree)[0])
    arrays = [(keys, node) for keys, node in nodes if hasattr(node, "shape") and hasattr(node, "dtype")]
    # flax.nnx stores each array under `value`. That part of the names is left out only if all names end with it.
    of_variables = bool(arrays) and all(keys[-1] == "value" for keys, _ in arrays)
    entries: list[OrbaxEntry] = []
    for keys, value in arrays:
        parts = [int(key) if _INDEX.fullmatch(key) else key for key in (keys[:-1] if of_variables else keys)]
        entries.append(OrbaxEntry(format_path(tuple(parts)), str(value.dtype), tuple(value.shape), keys=keys))
    return entries


def read_arrays(source: Path, targets: Mapping[str, Target], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the leaves for targets, by path."""
    item: dict[str, Any] = {}
    how: dict[str, Any] = {}
    try:
        for name, target in targets.items():
            if _is_stored(target):
                like, args = _request(target, wanted[name])
                _set(item, entry_of(target).keys, like)
                _set(how, entry_of(target).keys, args)
        restored: Any = {}
        if item:
            ocp = orbax()
            with ocp.PyTreeCheckpointer() as reader:
                # A partial restore reads only the arrays in `item`, and the others need not fit into memory.
                args = ocp.args.PyTreeRestore(item=item, restore_args=how, partial_restore=True)
                restored = reader.restore(source, args=args)
        return {name: _leaf(restored, target, wanted[name]) for name, target in targets.items()}
    except CheckpointError:
        raise
    except (ValueError, KeyError, TypeError, OSError) as error:
        # TensorStore appends its whole specification to the message.
        problem, _, _ = str(error).partition(" [tensorstore_spec")
        raise CheckpointError(
            "the arrays of this checkpoint cannot be read: files of it are missing or damaged",
            at=f"{source}: {problem:.300}",
            fix="restore another step",
        ) from error


def _is_stored(target: Target) -> bool:
    return entry_of(target).number is None and 0 not in target.entry.shape and 0 not in target.shape


def _request(target: Target, like: Any) -> tuple[Any, Any]:
    """Returns Orbax's arguments to read an array: with the sharding of `like`, or into host memory."""
    ocp = orbax()
    where = None if is_key(like) or type(like) in NUMBERS or entry_of(target).raw else placement(like)
    source, wanted = target.source, target.dtype
    # Orbax casts integers without checking whether they fit.
    may_cast = source is None or np.can_cast(source, wanted) or jax.numpy.issubdtype(wanted, np.inexact)
    if where is None or not may_cast:
        return jax.ShapeDtypeStruct(target.shape, target.dtype), ocp.RestoreArgs(restore_type=np.ndarray)
    like = jax.ShapeDtypeStruct(target.shape, target.dtype, sharding=where)
    return like, ocp.ArrayRestoreArgs(sharding=where, dtype=target.dtype)


def _leaf(stored: Any, target: Target, like: Any) -> Any:
    entry = entry_of(target)
    if entry.number is not None and target.source is None:
        return entry.number
    if not _is_stored(target):
        value = np.full(target.shape, entry.number or 0, target.source or target.dtype)
    else:
        value = functools.reduce(operator.getitem, entry.keys, stored)
        if type(like) in NUMBERS:
            return value.item()
        if entry.raw and value.dtype == np.uint8:
            value = value.view(target.source or target.dtype)[..., 0]
    if value.shape != target.shape or value.dtype not in (target.dtype, target.source):
        raise ValueError(f"{entry.name} is a {value.dtype} of shape {value.shape}")
    if value.dtype == target.dtype:
        return restored(value, target, like)
    into = empty(target.shape, target.dtype)
    cast(value, into, entry.name)
    return restored(into, target, like)


# ---- Orbax -----------------------------------------------------------------------------------------------------------


def orbax() -> Any:
    try:
        import orbax.checkpoint
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "checkpoints in folders need Orbax, which is not installed",
            fix="pip install 'weft-jax[orbax]' (orbax-checkpoint)",
        ) from error
    return orbax.checkpoint
