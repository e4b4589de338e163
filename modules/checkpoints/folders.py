"""Checkpoints of a run in a folder, by Orbax: of sharded arrays, from many processes, written behind the run's back.

`save_checkpoint` writes one file from one process. Here each process writes what its devices hold, and reads what they
are to hold, so a checkpoint can be loaded onto another mesh or another number of processes. Orbax writes each step
beside its place and moves it there: a step is whole, or is not there.

Beside the arrays lies a *manifest* (JSON): the kind of each array, its path, Python numbers, and the configuration,
which is compared with the tree that one loads into, as for files. What has no manifest was written by another program,
such as flax: its arrays are read by their names.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import threading
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

import jax
from weft.core.records.partition import take_apart
from weft.modules.checkpoints.checkpoint import LoadReport, by_name, differing_configuration, misfit
from weft.modules.checkpoints.configuration import configuration
from weft.modules.checkpoints.format import CheckpointError
from weft.modules.checkpoints.leaves import as_leaf
from weft.modules.checkpoints.manifests import (
    ARRAYS,
    MANIFEST,
    content,
    differing,
    entries_in,
    entries_of,
    orbax,
    read_arrays,
    read_manifest,
    registry,
)
from weft.modules.checkpoints.names import Rename, refuse_two_at_one_path, renamed

T = TypeVar("T")

# The folders that somebody may still write to.
_open: weakref.WeakSet[Checkpoints] = weakref.WeakSet()


def _finish() -> None:
    for checkpoints in list(_open):
        # Closing waits for the other processes, one of which may have failed.
        if jax.process_count() == 1:
            checkpoints.close()
        else:
            checkpoints.wait()


@functools.cache
def _finish_at_exit() -> None:
    # Python forbids new work to thread pools before `atexit` runs, and Orbax writes in such: the last save of a program
    # that ends without `close` would be lost. These functions come before that, the last that was registered first;
    # without them nothing is worse than in Orbax.
    importlib.import_module("concurrent.futures.thread")
    getattr(threading, "_register_atexit", atexit.register)(_finish)


class Checkpoints:
    """The checkpoints of a run: `checkpoints.save(step, state)`, and `state = checkpoints.restore(state)` to go on.

    A save returns as soon as the arrays are copied to the memory of the host, and is written by a thread; the next one
    waits for it, and so does the program's end. A process that is killed leaves the last step that was written whole.
    In several processes, all make the same calls.

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
        ocp = orbax()
        if keep is not None and keep < 1:
            raise CheckpointError(f"keep={keep} would keep no checkpoint", fix="keep=None keeps all, keep=1 the newest")
        self.folder = Path(folder).absolute()
        self._manager: Any = ocp.CheckpointManager(
            self.folder,
            options=ocp.CheckpointManagerOptions(max_to_keep=keep, cleanup_tmp_directories=True),
            handler_registry=registry(),
        )
        _open.add(self)
        _finish_at_exit()

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
        ocp = orbax()
        self.wait()
        if step in self._manager.all_steps():
            raise CheckpointError(
                f"there is a checkpoint of step {step} already", at=str(self.folder), fix="save a later step"
            )
        arrays, manifest = content(tree)
        args = {ARRAYS: ocp.args.PyTreeSave(arrays), MANIFEST: ocp.args.JsonSave(manifest)}
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
        """Waits, and ends the threads. A program that ends without it waits, too."""
        _open.discard(self)
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
    manifest = read_manifest(folder)
    source = folder / ARRAYS if (folder / ARRAYS).is_dir() else folder
    saved = entries_of(manifest) if manifest is not None else entries_in(source)
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
    lines = differing(found, wanted, partial, own=manifest is not None)
    if strict and manifest is not None:
        here = {place: one for place, one in configuration(like).items() if place not in wanted}
        lines = differing_configuration(told, here, paths, partial or rename is not None) + lines
    if lines:
        raise misfit(str(folder), lines)
    values = read_arrays(source, {name: found[name] for name in wanted if name in found}, wanted)
    tree = structure.build([values.get(name, value) for name, value in wanted.items()])
    if not partial:
        return tree
    return tree, LoadReport(tuple(name for name in wanted if name not in found), tuple(sorted(found.keys() - wanted)))
