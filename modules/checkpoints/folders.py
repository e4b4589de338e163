"""Checkpoints of a run in a folder, by Orbax: of sharded arrays, from many processes, written behind the run's back.

`save_checkpoint` writes one file from one process. Here each process writes what its devices hold, and reads what they
are to hold, so a checkpoint can be loaded onto another mesh or another number of processes. Orbax writes each step
beside its place and moves it there: a step is whole, or is not there.

Beside the arrays lies a *manifest* (JSON): the kind of each array, its path, Python numbers, and the configuration,
which is compared with the tree that one loads into, as for files. What has no manifest was written by another program,
such as flax: its arrays are read by their names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

import jax
import numpy as np
from weft.core.paths import format_path
from weft.core.records.leaves import NUMBERS, Leaf, iter_leaves
from weft.core.records.partition import take_apart
from weft.modules.checkpoints.checkpoint import LoadReport, by_name, differing_configuration, misfit
from weft.modules.checkpoints.configuration import configuration, is_description
from weft.modules.checkpoints.format import CheckpointError
from weft.modules.checkpoints.leaves import as_leaf, is_key, kind_of, placement, refuse_unstorable, show_type
from weft.modules.checkpoints.names import Rename, refuse_two_at_one_path, renamed

T = TypeVar("T")
Keys = tuple[str, ...]

_FORMAT = 1
_ARRAYS, _MANIFEST = "arrays", "manifest"


@dataclass(frozen=True)
class _Entry:
    """An array of a checkpoint: where Orbax has it, and what it is."""

    keys: Keys
    kind: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return show_type(self.kind, self.shape)


class Checkpoints:
    """The checkpoints of a run: `checkpoints.save(step, state)`, and `state = checkpoints.restore(state)` to go on.

    A save returns as soon as the arrays are copied to the memory of the host, and is written by a thread; the next one
    waits for it. A process that is killed leaves the last step that was written whole. In several processes, all make
    the same calls.

    Args:
        folder: of this run; made if it is not there. Each step is a folder in it.
        keep: how many steps are kept, the newest; None for all.

    Raises:
        ModuleNotFoundError: without Orbax (`pip install weft[orbax]`).

    >>> import jax.numpy as jnp
    >>> from tempfile import TemporaryDirectory
    >>> folder = TemporaryDirectory()
    >>> with Checkpoints(folder.name, keep=2) as checkpoints:
    ...     for step in range(3):
    ...         checkpoints.save(step, {"w": jnp.full(2, step), "epoch": step})
    ...     checkpoints.steps, checkpoints.restore({"w": jnp.zeros(2, int), "epoch": 0})
    ([1, 2], {'epoch': 2, 'w': Array([2, 2], dtype=int32)})
    >>> folder.cleanup()

    Source: Orbax, https://github.com/google/orbax.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: int | None = None):
        ocp = _orbax()
        if keep is not None and keep < 1:
            raise CheckpointError(f"keep={keep} would keep no checkpoint", fix="keep=None keeps all, keep=1 the newest")
        self.folder = Path(folder).absolute()
        self._manager: Any = ocp.CheckpointManager(
            self.folder,
            options=ocp.CheckpointManagerOptions(max_to_keep=keep, cleanup_tmp_directories=True),
            handler_registry=_registry(),
        )

    @property
    def steps(self) -> list[int]:
        """The steps that there are, once what is being written is there."""
        self.wait()
        self._manager.reload()
        return sorted(self._manager.all_steps())

    @property
    def latest(self) -> int | None:
        """The newest step, if there is one."""
        return max(self.steps, default=None)

    def save(self, step: int, tree: Any) -> None:
        """Writes a tree as a step; what it holds may be changed or donated as soon as this returns.

        Args:
            step: its number.
            tree: records and containers, as for `save_checkpoint`; arrays may lie on the devices of many processes.

        Raises:
            CheckpointError: if something in it cannot be stored, naming its path; if the step is there already.
            Exception: what has gone wrong with the last save, in its thread.
        """
        ocp = _orbax()
        self.wait()
        if step in self._manager.all_steps():
            raise CheckpointError(
                f"there is a checkpoint of step {step} already", at=str(self.folder), fix="save a later step"
            )
        arrays, manifest = _content(tree)
        args = {_ARRAYS: ocp.args.PyTreeSave(arrays), _MANIFEST: ocp.args.JsonSave(manifest)}
        self._manager.save(step, args=ocp.args.Composite(**args), force=True)

    @overload
    def restore(
        self,
        like: T,
        step: int | None = None,
        *,
        rename: Rename | None = None,
        partial: Literal[False] = False,
        strict: bool = True,
    ) -> T: ...
    @overload
    def restore(
        self,
        like: T,
        step: int | None = None,
        *,
        rename: Rename | None = None,
        partial: Literal[True],
        strict: bool = True,
    ) -> tuple[T, LoadReport]: ...
    def restore(
        self,
        like: Any,
        step: int | None = None,
        *,
        rename: Rename | None = None,
        partial: bool = False,
        strict: bool = True,
    ) -> Any:
        """Reads a step into the structure of a tree.

        Args:
            like: a tree of the same structure, shapes and dtypes; its arrays may be `jax.ShapeDtypeStruct`s. Each goes
                where the one of `like` lies, on whatever mesh, and each process reads its part only.
            step: which; by default the newest.
            rename, partial, strict: as for `load_checkpoint`. Of what a partial load does not want nothing is read.

        Returns:
            The tree; with `partial=True` the tree and a `LoadReport`.

        Raises:
            CheckpointError: if there is no such step, or it does not fit, naming paths.
        """
        steps = self.steps
        chosen = max(steps, default=None) if step is None else step
        if chosen not in steps:
            raise CheckpointError(
                "there is no checkpoint" if step is None else f"there is no checkpoint of step {step}",
                at=f"{self.folder} holds steps {steps}",
                fix="save one first, or pass the folder and the step of one that is there",
            )
        place = self.folder / str(chosen)
        return load_orbax(place, like, rename=rename, partial=partial, strict=strict)

    def wait(self) -> None:
        """Waits until what was saved is written.

        Raises:
            Exception: what has gone wrong with it.
        """
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits, and ends the threads."""
        self._manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@overload
def load_orbax(
    path: str | os.PathLike[str],
    like: T,
    *,
    rename: Rename | None = None,
    partial: Literal[False] = False,
    strict: bool = True,
) -> T: ...
@overload
def load_orbax(
    path: str | os.PathLike[str], like: T, *, rename: Rename | None = None, partial: Literal[True], strict: bool = True
) -> tuple[T, LoadReport]: ...
@overload
def load_orbax(
    path: str | os.PathLike[str], like: T, *, rename: Rename | None = None, partial: bool, strict: bool = True
) -> T | tuple[T, LoadReport]: ...
def load_orbax(  # weft: skip(it reads a folder)
    path: str | os.PathLike[str],
    like: T,
    *,
    rename: Rename | None = None,
    partial: bool = False,
    strict: bool = True,
) -> T | tuple[T, LoadReport]:
    """Reads one checkpoint of Orbax's, also of another program, such as flax.

    Args:
        path: the folder of a step, or what `orbax.checkpoint.StandardCheckpointer` and its like have written.
        like, rename, partial, strict: as for `Checkpoints.restore`. Names of other programs are written as paths
            (`layers[0].kernel`); the `value` at the end of each that `flax.nnx` writes is left out.

    Returns:
        The tree; with `partial=True` the tree and a `LoadReport`.

    Raises:
        CheckpointError: if it is no checkpoint, or does not fit, naming paths.
        ModuleNotFoundError: without Orbax (`pip install weft[orbax]`).

    >>> import jax.numpy as jnp
    >>> from tempfile import TemporaryDirectory
    >>> folder = TemporaryDirectory()
    >>> with Checkpoints(folder.name) as checkpoints:
    ...     checkpoints.save(7, {"body": jnp.ones(2), "head": jnp.ones(3)})
    >>> load_orbax(f"{folder.name}/7", {"head": jnp.zeros(3)}, partial=True)
    ({'head': Array([1., 1., 1.], dtype=float32)}, LoadReport(missing=(), left_over=('body',)))
    >>> folder.cleanup()
    """
    folder = Path(path).absolute()
    manifest = _read_manifest(folder)
    source = folder / _ARRAYS if (folder / _ARRAYS).is_dir() else folder
    saved = _entries_of(manifest) if manifest is not None else _entries_in(source)
    numbers: dict[str, Any] = {} if manifest is None else manifest["numbers"]
    told: dict[str, Any] = {} if manifest is None else manifest["configuration"]
    paths = renamed(rename, [*saved, *numbers, *told], str(folder))
    refuse_two_at_one_path({name: paths[name] for name in (*saved, *numbers)}, str(folder))
    found: dict[str, Any] = {}
    for name, entry in {**saved, **numbers}.items():
        if (place := paths[name]) is not None:
            found[place] = entry
    structure, leaves = take_apart(like)
    wanted = {name: as_leaf(leaf.value) for name, leaf in by_name(leaves).items()}
    lines = _differing(found, wanted, partial, own=manifest is not None)
    if strict and manifest is not None:
        here = {place: one for place, one in configuration(like).items() if place not in wanted}
        lines = differing_configuration(told, here, paths, partial or rename is not None) + lines
    if lines:
        raise misfit(str(folder), lines)
    values = _read(source, {name: found[name] for name in wanted if name in found}, wanted)
    tree = structure.build([values.get(name, value) for name, value in wanted.items()])
    if not partial:
        return tree
    return tree, LoadReport(tuple(name for name in wanted if name not in found), tuple(sorted(found.keys() - wanted)))


# ---- what is written -------------------------------------------------------------------------------------------------


def _content(tree: Any) -> tuple[dict[str, Any], dict[str, Any]]:
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
    return nested, {"format": _FORMAT, "configuration": told, "numbers": numbers, "arrays": entries}


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


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    if not folder.is_dir():
        raise CheckpointError("there is no checkpoint of Orbax here", at=str(folder), fix="pass the folder of a step")
    if not (folder / _MANIFEST).is_dir():
        return None
    ocp = _orbax()
    try:
        with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as reader:
            manifest = reader.restore(folder / _MANIFEST)
        if manifest["format"] > _FORMAT:
            raise CheckpointError("this checkpoint is of a newer format", at=str(folder), fix="update weft")
        if not all(map(is_description, manifest["configuration"].values())):
            raise ValueError("configuration")
        manifest["numbers"] = {name: _NUMBERS[kind](text) for name, (kind, text) in manifest["numbers"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError("the manifest is damaged", at=f"{folder}: {error!r:.200}") from error
    return manifest


_NUMBERS = {"bool": lambda text: text == "True", "int": int, "float": float, "complex": complex}


def _entries_of(manifest: Mapping[str, Any]) -> dict[str, _Entry]:
    return {
        name: _Entry(tuple(one["keys"]), one["dtype"], tuple(one["shape"])) for name, one in manifest["arrays"].items()
    }


def _entries_in(source: Path) -> dict[str, _Entry]:
    """The arrays of another program's checkpoint, by names that are written as paths."""
    ocp = _orbax()
    try:
        with ocp.PyTreeCheckpointer() as reader:
            tree = reader.metadata(source).item_metadata.tree
    except (FileNotFoundError, ValueError, AttributeError) as error:
        raise CheckpointError("this is no checkpoint of Orbax's", at=f"{source}: {error!r:.200}") from error
    found = list(_arrays_in(tree, ()))
    of_variables = bool(found) and all(keys[-1] == "value" for keys, _ in found)
    named: dict[str, _Entry] = {}
    for keys, value in found:
        parts = [int(key) if key.isdigit() else key for key in (keys[:-1] if of_variables else keys)]
        named[format_path(tuple(parts))] = _Entry(keys, str(value.dtype), tuple(value.shape))
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


def _differing(found: Mapping[str, Any], wanted: Mapping[str, Any], partial: bool, *, own: bool) -> list[str]:
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
    if not isinstance(entry, _Entry):
        return type(entry) is type(like)
    if type(like) in NUMBERS:
        return False
    if is_key(like) and not own:
        data = _key_data(like)
        return (entry.kind, entry.shape) == (str(data.dtype), data.shape)
    return (entry.kind, entry.shape) == (kind_of(like), tuple(like.shape))


def _key_data(key: Any) -> jax.ShapeDtypeStruct:
    return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(key.shape, key.dtype))


def _read(source: Path, entries: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: entry for name, entry in entries.items() if not isinstance(entry, _Entry)}
    arrays = {name: entry for name, entry in entries.items() if isinstance(entry, _Entry)}
    if not arrays:
        return values
    ocp = _orbax()
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
    with ocp.PyTreeCheckpointer() as reader:
        args = ocp.args.PyTreeRestore(item=item, restore_args=restore, partial_restore=True)
        read = reader.restore(source, args=args)
    return values | {name: _placed(_at(read, entry.keys), wanted[name]) for name, entry in arrays.items()}


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
        key = jax.random.wrap_key_data(jax.device_put(value), impl=like.dtype)
        where = placement(like)
        return key if where is None else jax.device_put(key, where)
    return value if isinstance(value, jax.Array) else jax.device_put(value)


# ---- Orbax -----------------------------------------------------------------------------------------------------------


def _orbax() -> Any:
    try:
        import orbax.checkpoint
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("checkpoints in folders need Orbax: pip install weft[orbax]") from error
    return orbax.checkpoint


def _registry() -> Any:
    ocp = _orbax()
    registry = ocp.DefaultCheckpointHandlerRegistry()
    arrays, manifest = ocp.PyTreeCheckpointHandler(), ocp.JsonCheckpointHandler()
    for item, save, restore, handler in (
        (_ARRAYS, ocp.args.PyTreeSave, ocp.args.PyTreeRestore, arrays),
        (_MANIFEST, ocp.args.JsonSave, ocp.args.JsonRestore, manifest),
    ):
        registry.add(item, save, handler)
        registry.add(item, restore, handler)
    return registry
