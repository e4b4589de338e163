"""Checkpoints of a run in a folder, by Orbax: sharded arrays, many processes, written asynchronously.

`save_checkpoint` writes one file from one process. Here each process writes the parts of arrays that its devices hold,
and reads the parts that they shall hold, so a checkpoint can be loaded onto another mesh or by another number of
processes. Orbax writes each step to a temporary folder and then renames it, so that a step is complete or absent.

A *manifest* (JSON) is stored with the arrays: the kind and the path of each array, Python numbers, and the
configuration, which is compared with the tree to load into, as for files. A checkpoint without a manifest was written
by another program, such as flax: its arrays are read by their names.
"""

from __future__ import annotations

import atexit
import collections
import functools
import importlib
import operator
import os
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

import jax
from jax.typing import DTypeLike
from weft.core.tracebacks import cutting
from weft.modules.checkpoints.fitting import LoadOptions, LoadReport, Options, StoredLeaves, loaded
from weft.modules.checkpoints.format import CheckpointError, absent
from weft.modules.checkpoints.leaves import cast_of
from weft.modules.checkpoints.manifests import ARRAYS, MANIFEST, content, entries_in, orbax, read_arrays, read_manifest
from weft.modules.checkpoints.names import Rename
from weft.modules.checkpoints.writing import FailingAtExit, Writer

T = TypeVar("T")

# Checkpoints that are not closed. A weak set, so that it keeps no run alive.
_open: weakref.WeakSet[Checkpoints] = weakref.WeakSet()
# The errors of last saves that no call was there to raise.
_lost: list[str] = []
# The writers of checkpoints that were garbage-collected without `close`. The next call closes them, or the end of the
# program, and not the collector: it runs in the middle of any function, which may hold a lock that closing takes, such
# as that of thread pools. The program hung.
_dropped: collections.deque[Writer] = collections.deque()


def _close_dropped() -> None:
    while _dropped:
        _last_save(_dropped.popleft().close)


def _finish() -> None:
    for unfinished in (*_dropped, *_open):
        # Each process would wait for the others in `close`, and one that failed never comes.
        _last_save(unfinished.close if jax.process_count() == 1 else unfinished.wait)
    if _lost:
        sys.stderr = FailingAtExit(sys.stderr)


def _last_save(end: Callable[[], None]) -> None:
    """Ends a last save; its failure is a line on standard error now, and the exit code of the program later."""
    try:
        end()
    except Exception as error:
        _lost.append("; ".join(line.strip() for line in f"weft.CheckpointError: {error}".splitlines()))
        print(_lost[-1], file=sys.stderr)


@functools.cache
def _finish_at_exit() -> None:
    # Python forbids new work to thread pools before `atexit` runs, and Orbax writes in such: the last save of a program
    # that ends without `close` would be lost. These functions come before that, the last that was registered first;
    # without them nothing is worse than in Orbax.
    importlib.import_module("concurrent.futures.thread")
    getattr(threading, "_register_atexit", atexit.register)(_finish)


class Checkpoints:
    """The checkpoints of a run: `checkpoints.save(step, state)`, and `state = checkpoints.restore(state)` to go on.

    `save` returns as soon as the arrays are copied to host memory, and a thread writes them; the next `save` waits for
    that, and so does the end of the program. If the process is killed, the last complete step stays. With several
    processes, all must make the same calls.

    The first `save` makes this process the folder's writer until `close`; a folder has one writer at a time. Others may
    read at the same time: they see the complete steps, and change nothing.

    Args:
        folder: the folder of this run; the first `save` makes it. Each step is a folder in it.
        keep: how many of the newest steps are kept; None for all.

    Raises:
        CheckpointError: if the folder is a file.
        MissingExtraError: without Orbax.

    >>> import jax.numpy as jnp
    >>> from tempfile import TemporaryDirectory
    >>> folder = TemporaryDirectory()
    >>> with Checkpoints(folder.name, keep=2) as checkpoints:
    ...     for step in range(3):
    ...         checkpoints.save(step, {"w": jnp.arange(2) + step, "epoch": step})
    ...     checkpoints.steps, checkpoints.restore({"w": jnp.zeros(2, int), "epoch": 0})
    ([1, 2], {'epoch': 2, 'w': Array([2, 3], dtype=int32)})
    >>> folder.cleanup()

    Source: Orbax, https://github.com/google/orbax.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: int | None = None):
        orbax()
        if keep is not None and keep < 1:
            raise CheckpointError(f"keep={keep} would keep no checkpoint", fix="keep=None keeps all, keep=1 the newest")
        self.folder = Path(folder).absolute()
        if self.folder.exists() and not self.folder.is_dir():
            raise CheckpointError(
                "this path is a file, not a folder", at=str(self.folder), fix="give each run a folder"
            )
        self._keep = keep
        self._writer: Writer | None = None
        self._end: Any = None
        self._closed = False

    @property
    def steps(self) -> list[int]:
        """The steps in the folder, after waiting for a step that is being written; none if there is no folder yet."""
        self.wait()
        return steps_in(self.folder)

    @property
    def latest(self) -> int | None:
        """The newest step; None if there is none, as in a run that begins."""
        return max(self.steps, default=None)

    @cutting
    def save(self, step: int, tree: Any) -> None:
        """Writes a tree as a step; its arrays may be changed or donated as soon as this returns.

        Args:
            step: its number, 0 or more.
            tree: records and containers, as for `save_checkpoint`; arrays may lie on the devices of many processes.

        Raises:
            CheckpointError: if a leaf cannot be stored, naming its path; if the step exists already; if another process
                writes to the folder; if it cannot be written to; if the last save failed in its thread.
        """
        number = _number_of(step)
        if self._closed:
            raise CheckpointError(
                "these checkpoints were closed",
                at=str(self.folder),
                fix="save before close(), or open the folder again: weft.Checkpoints(folder)",
            )
        if number in self.steps:
            raise CheckpointError(
                f"there is a checkpoint of step {number} already", at=str(self.folder), fix="save a later step"
            )
        # A step that a killed process left incomplete: Orbax would take the folder for a finished one.
        if (self.folder / str(number)).exists():
            raise CheckpointError(
                f"there is a part of a checkpoint of step {number}",
                at=str(self.folder / str(number)),
                fix="remove it, or save a later step",
            )
        arrays, manifest = content(tree)
        if self._writer is None:
            self._writer = Writer(self.folder, self._keep)
            # If the object is garbage-collected without `close`, its last save is written all the same.
            self._end = weakref.finalize(self, _dropped.append, self._writer)
            # `_finish` does this at exit, in the right order: `atexit` comes too late for Orbax's threads.
            self._end.atexit = False
            _open.add(self)
            _finish_at_exit()
        self._writer.save(number, arrays, manifest)

    @overload
    def restore(
        self, like: T, step: int | None = None, *, partial: Literal[False] = False, **options: Unpack[LoadOptions]
    ) -> T: ...
    @overload
    def restore(
        self, like: T, step: int | None = None, *, partial: Literal[True], **options: Unpack[LoadOptions]
    ) -> tuple[T, LoadReport]: ...
    @cutting
    def restore(
        self,
        like: Any,
        step: int | None = None,
        *,
        rename: Rename | None = None,
        dtype: DTypeLike | Literal["like"] | None = None,
        partial: bool = False,
        strict: bool = True,
    ) -> Any:
        """Reads a step into the structure of a tree.

        Args:
            like: a tree of the same structure, shapes and dtypes; its arrays may be `jax.ShapeDtypeStruct`s. Each array
                gets the sharding of the one in `like`, on any mesh, and each process reads only its part.
            step: the step to read; by default the newest.
            rename, dtype, partial, strict: as for `load_checkpoint`. A partial load does not read the other arrays.

        Returns:
            The tree; with `partial=True` the tree and a `LoadReport`.

        Raises:
            CheckpointError: if there is no such step, or it does not fit, naming paths.
        """
        self.wait()
        return load_orbax(place_of(self.folder, step), like, rename=rename, dtype=dtype, partial=partial, strict=strict)

    def wait(self) -> None:
        """Waits until the last save is written.

        Raises:
            CheckpointError: if that save failed, as on a full disk; the steps before it are complete.
        """
        _close_dropped()
        if self._writer is not None and not self._closed:
            self._writer.wait()

    def close(self) -> None:
        """Waits, and lets others write to the folder. A program that ends without it waits, too, and if the last save
        failed, prints a line on standard error and ends with an exit code other than 0.

        Raises:
            CheckpointError: as `wait`.
        """
        self._closed = True
        _open.discard(self)
        if self._end is not None and self._end.detach() and self._writer is not None:
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def steps_in(folder: Path) -> list[int]:
    """Returns the complete steps in a folder of a run."""
    return sorted(int(place.name) for place in folder.iterdir() if _is_whole(place)) if folder.is_dir() else []


def place_of(folder: Path, step: int | None) -> Path:
    """Returns the folder of a step, by default of the newest.

    Raises:
        CheckpointError: if there is no such step.
    """
    chosen, steps = None if step is None else _number_of(step), steps_in(folder)
    if not folder.exists():
        raise absent(folder)
    chosen = max(steps, default=None) if chosen is None else chosen
    if chosen in steps:
        return folder / str(chosen)
    raise CheckpointError(
        "there is no checkpoint" if step is None else f"there is no checkpoint of step {step}",
        at=f"{folder} holds steps {steps}",
        fix="save one first, or pass the folder and the step of one that is there",
    )


def _number_of(step: Any) -> int:
    try:
        # `operator.index(True)` is 1.
        number = -1 if isinstance(step, bool) else operator.index(step)
    except TypeError:
        number = -1
    if number < 0:
        raise CheckpointError(
            f"a step must be an integer of 0 or more, not {step!r}",
            fix="pass an integer, 0 or more: checkpoints.save(0, ...)",
        )
    return number


def _is_whole(place: Path) -> bool:
    """Whether a folder is a complete checkpoint of a step."""
    is_step = place.name.isdecimal() and str(int(place.name)) == place.name
    # Orbax writes this file last and removes it first, so its presence means that the rest is there.
    files = ["_CHECKPOINT_METADATA", *([f"{MANIFEST}/metadata"] if (place / MANIFEST).is_dir() else [])]
    return is_step and all((place / file).is_file() for file in files)


@overload
def load_orbax(
    path: str | os.PathLike[str], like: T, *, partial: Literal[False] = False, **options: Unpack[LoadOptions]
) -> T: ...


@overload
def load_orbax(
    path: str | os.PathLike[str], like: T, *, partial: Literal[True], **options: Unpack[LoadOptions]
) -> tuple[T, LoadReport]: ...


@overload
def load_orbax(
    path: str | os.PathLike[str], like: T, *, partial: bool, **options: Unpack[LoadOptions]
) -> T | tuple[T, LoadReport]: ...


@cutting
def load_orbax(  # weft: skip(it reads a folder)
    path: str | os.PathLike[str],
    like: T,
    *,
    rename: Rename | None = None,
    dtype: DTypeLike | Literal["like"] | None = None,
    partial: bool = False,
    strict: bool = True,
) -> T | tuple[T, LoadReport]:
    """Reads one checkpoint of Orbax's, also of another program, such as flax.

    Args:
        path: the folder of a step, or a folder that `orbax.checkpoint.StandardCheckpointer` or a similar class wrote.
        like, rename, dtype, partial, strict: as for `Checkpoints.restore`. Names of other programs are written as paths
            (`layers[0].kernel`); the `value` at the end of each that `flax.nnx` writes is left out.

    Returns:
        The tree; with `partial=True` the tree and a `LoadReport`.

    Raises:
        CheckpointError: if it is not a checkpoint, or does not fit; the error names paths.
        MissingExtraError: without Orbax.

    >>> import jax.numpy as jnp
    >>> from tempfile import TemporaryDirectory
    >>> folder = TemporaryDirectory()
    >>> with Checkpoints(folder.name) as checkpoints:
    ...     checkpoints.save(7, {"body": jnp.ones(2), "head": jnp.ones(3)})
    >>> load_orbax(f"{folder.name}/7", {"head": jnp.zeros(3)}, partial=True)
    ({'head': Array([1., 1., 1.], dtype=float32)}, LoadReport(missing=(), left_over=('body',)))
    >>> folder.cleanup()
    """
    options = Options(rename, cast_of(dtype), partial, strict)
    offer, source = offer_in(Path(path).absolute())
    return loaded(offer, like, options, functools.partial(read_arrays, source))


def offer_in(folder: Path) -> tuple[StoredLeaves, Path]:
    """Returns the contents of one checkpoint of Orbax's, and the folder of its arrays.

    Raises:
        CheckpointError: if it is not a checkpoint, or damaged.
    """
    _close_dropped()
    manifest = read_manifest(folder)
    # Other programs have their arrays in the folder itself.
    source = folder / ARRAYS if (folder / ARRAYS).is_dir() else folder
    entries, told = (entries_in(source), {}) if manifest is None else manifest
    return StoredLeaves(str(folder), entries, told, described=manifest is not None), source
