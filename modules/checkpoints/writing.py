"""The writer of a run's folder: one process, or one set of processes, at a time.

Orbax writes each step under a temporary name and then moves it. The next writer removes the files of a killed writer;
readers remove nothing. A lock on a file in the folder tells whether there is a writer: the kernel releases it when the
process ends. A step that is to be deleted is first moved to `.deleted`, so that no listing shows a step of which some
files are deleted already.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from weft.modules.checkpoints.atomic import is_still, lock
from weft.modules.checkpoints.format import CheckpointError, brief
from weft.modules.checkpoints.manifests import ARRAYS, MANIFEST, orbax

LOCK, DELETED = ".writer", ".deleted"
# Orbax's threads log a failure, with tracebacks, that `wait` or `close` then raises.
_LOGGED = ("_SignalingThread.run() raised", "] Failed to run ", "Save Finalize thread")


class Writer:
    """The writer of a folder: Orbax's manager, and the lock.

    Args:
        folder: the folder; it is made if it does not exist.
        keep: as for `Checkpoints`.

    Raises:
        CheckpointError: if another process writes to the folder, naming that process; if it cannot be written to.
    """

    def __init__(self, folder: Path, keep: int | None):
        self._place = folder
        logging.getLogger("absl").addFilter(_is_news)
        self._path, self._deleted = folder / LOCK, folder / DELETED
        with self._writing():
            folder.mkdir(parents=True, exist_ok=True)
            # One process holds the lock for all: the others share the folder, and would lock each other out.
            self._lock, holder = _locked(self._path) if jax.process_index() == 0 else (None, None)
            is_locked = holder is not None
            # All processes go on, or none of them does.
            if jax.process_count() > 1:
                is_locked = bool(np.any(multihost_utils.process_allgather(np.asarray(is_locked))))
            if is_locked:
                raise CheckpointError(
                    "another weft.Checkpoints writes to this folder",
                    at=f"{folder}: {holder or 'see the error of the first process'}",
                    fix="end or close that one first, or give each run a folder of its own; to read is always allowed",
                )
            self._sweeper = ThreadPoolExecutor(1)
            try:
                self.manager = _manager(folder, keep)
            except BaseException:
                self._unlock()
                raise
            self.sweep()

    def save(self, step: int, arrays: dict[str, Any], manifest: dict[str, Any]) -> None:
        """Begins to write a step."""
        ocp, self._place = orbax(), self._path.parent / str(step)
        args = {MANIFEST: ocp.args.JsonSave(manifest)}
        if arrays:  # Orbax writes no tree without arrays
            args[ARRAYS] = ocp.args.PyTreeSave(arrays)
        # `Checkpoints.save` has found no folder of this step. If the manager still lists it, a user has removed it by
        # hand, and the manager's cached list is old.
        if step in self.manager.all_steps():
            self.manager.reload()
        with self._writing():
            self.manager.save(step, args=ocp.args.Composite(**args), force=True)

    def wait(self) -> None:
        """Waits for the step that is being written."""
        with self._writing():
            self.manager.wait_until_finished()
        self.sweep()

    def sweep(self) -> None:
        """Begins to delete the steps in `.deleted`."""
        if jax.process_index() == 0:
            # In a thread, because the deletion of a large step may take long, and training need not wait for it.
            self._sweeper.submit(_empty, self._deleted)

    def close(self) -> None:
        """Waits for writing and deleting to end, and releases the folder for other writers."""
        try:
            with self._writing():
                self.manager.close()
        finally:
            self.sweep()
            self._sweeper.shutdown()
            self._unlock()

    @contextlib.contextmanager
    def _writing(self) -> Generator[None]:
        try:
            yield
        except CheckpointError:
            raise
        except Exception as error:  # of Orbax, TensorStore or the file system
            # TensorStore's text goes from the names of files to why they could not be written.
            reason = str(error).strip().partition(" [tensorstore_spec")[0].rpartition('": ')[2]
            raise CheckpointError(
                "this checkpoint was not written",
                at=f"{self._place}: {brief(reason)}",
                fix="make room, or a folder that can be written to, and save again; the steps before it are complete",
            ) from error

    def _unlock(self) -> None:
        if self._lock is None:
            return
        for remove in (self._deleted.rmdir, self._path.unlink):
            with contextlib.suppress(OSError):
                remove()
        os.close(self._lock)


def _is_news(record: logging.LogRecord) -> bool:
    return not (record.exc_info and any(text in record.getMessage() for text in _LOGGED))


class FailingAtExit:
    """A standard error that cannot be flushed when the interpreter ends, whose exit code is then 120.

    Python has no other way to end with an error once it has begun to end: it prints exceptions of functions that it
    calls at exit, and goes on, and `os._exit` would leave out such functions of others.
    """

    def __init__(self, stream: Any):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def flush(self) -> None:
        self._stream.flush()
        if sys.is_finalizing():
            raise OSError("a checkpoint was not written")


def _manager(folder: Path, keep: int | None) -> Any:
    ocp = orbax()
    registry = ocp.DefaultCheckpointHandlerRegistry()
    for item, save, restore, handler in (
        (ARRAYS, ocp.args.PyTreeSave, ocp.args.PyTreeRestore, ocp.PyTreeCheckpointHandler()),
        (MANIFEST, ocp.args.JsonSave, ocp.args.JsonRestore, ocp.JsonCheckpointHandler()),
    ):
        registry.add(item, save, handler)
        registry.add(item, restore, handler)
    # `todelete_subdir` moves a step before deleting it: a listing must not show a step that is half deleted.
    options = ocp.CheckpointManagerOptions(max_to_keep=keep, cleanup_tmp_directories=True, todelete_subdir=DELETED)
    return ocp.CheckpointManager(folder, options=options, handler_registry=registry)


def _locked(path: Path) -> tuple[int | None, str | None]:
    """Takes the lock of a folder: returns (descriptor, None), or (None, the process that holds the lock).

    On a file system without locks this always succeeds.
    """
    while True:
        # Opened without truncating: the file may contain the name of the process that has the lock.
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        if lock(descriptor, wait=False) is False:
            holder = os.read(descriptor, 300).decode(errors="replace") or "a process that does not say who it is"
            os.close(descriptor)
            return None, holder
        if is_still(descriptor, path):
            os.truncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
            return descriptor, None
        # The last owner removed the file between the two steps, so this lock is on a file without a name.
        os.close(descriptor)


def _empty(folder: Path) -> None:
    # The folder itself stays, because Orbax may move another step into it at any moment.
    for child in folder.iterdir() if folder.is_dir() else ():
        shutil.rmtree(child, ignore_errors=True)
