"""Atomic replacement: writes a file next to its target, and then moves it over the target.

A reader, a second writer, or the next process after a crash sees the old file or the new one, never a part of it:

- the bytes are on the disk before the move, and the move before the writer returns (`fsync` of the file, then of its
  folder);
- a killed writer leaves a *stray*, an incomplete file that may be as large as a checkpoint. The next writer of the same
  target removes it. A lock tells whether the writer of a stray still runs: each writer holds a lock on its file, and
  the kernel releases the lock when the process ends. Process ids would not do, because they are used again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # not on Windows, where a file that is open cannot be removed
    fcntl = None


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yields a new file that replaces `path` when the block succeeds, and is removed when the block fails.

    For a link, its target is replaced. The new file gets the mode and owner of the old one.

    Raises:
        OSError: if it cannot be written; what was there before is untouched.
    """
    target = Path(os.path.realpath(path))
    if target.is_symlink():  # `realpath` gives up at a circle of links
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    before = _status(target)
    _clear_strays(target)
    file, temporary = _create(target, before)
    try:
        with file:
            yield file
            file.flush()
            # Without this, a crash of the machine may leave the new name with an empty file: the move can reach the
            # disk first.
            os.fsync(file.fileno())
            # Moved while it is open: once it is closed its lock is gone, and another writer would remove it as a stray.
            # Windows cannot move an open file, and has no such locks.
            if fcntl is not None:
                os.replace(temporary, target)
        if fcntl is None:
            os.replace(temporary, target)
        _sync_folder(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _stray_prefix(target: Path) -> str:
    """Returns the prefix of the names of a target's strays. Names have 255 bytes at most, so a long name is hashed."""
    name = os.fsencode(target.name)
    return f".{target.name}." if len(name) < 200 else f".{hashlib.sha256(name).hexdigest()}."


def _status(target: Path) -> os.stat_result | None:
    try:
        status = target.stat()
    except FileNotFoundError:
        return None
    # Checked before anything is written: the final move would fail only after minutes of writing.
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    if not stat.S_ISREG(status.st_mode):  # a pipe or a device would be gone afterwards
        raise OSError(errno.EINVAL, "not a regular file", str(target))
    return status


def _create(target: Path, before: os.stat_result | None) -> tuple[BinaryIO, Path]:
    # Created with the old mode. If the mode were set later, another user could open the file in between, and an open
    # file stays readable whatever its mode becomes.
    mode = 0o666 if before is None else stat.S_IMODE(before.st_mode) & 0o777
    while True:
        temporary = target.with_name(f"{_stray_prefix(target)}{os.getpid()}-{secrets.token_hex(4)}")
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
        descriptor = os.open(temporary, flags, mode)
        try:
            lock(descriptor, wait=True)
            # Another writer may have taken it for a stray in the moment before the lock.
            if not is_still(descriptor, temporary):
                os.close(descriptor)
                continue
            if before is not None:
                _take_over(descriptor, before)
            return os.fdopen(descriptor, "wb"), temporary
        except BaseException:
            os.close(descriptor)
            temporary.unlink(missing_ok=True)
            raise


def _take_over(descriptor: int, before: os.stat_result) -> None:
    if not hasattr(os, "fchown"):
        return
    mode = stat.S_IMODE(before.st_mode)
    status = os.fstat(descriptor)
    if (status.st_uid, status.st_gid) != (before.st_uid, before.st_gid):
        try:
            os.fchown(descriptor, before.st_uid, before.st_gid)
        except PermissionError:
            # The file keeps the writer's group, whose members were not meant to have the old group's permissions.
            mode &= ~0o070
    os.fchmod(descriptor, mode)


def is_still(descriptor: int, path: Path) -> bool:
    """Whether an open file still has the name under which it was opened."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def lock(descriptor: int, *, wait: bool) -> bool | None:
    """Takes the lock on a file; returns whether this process has it now, or None if there are no locks here."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return True


def _clear_strays(target: Path) -> None:
    stray = re.compile(rf"{re.escape(_stray_prefix(target))}\d+-[0-9a-f]{{8}}")
    try:
        names = os.listdir(target.parent)
    except PermissionError:  # a folder may be writable without being listable
        return
    for name in filter(stray.fullmatch, names):
        path = target.with_name(name)
        # Another process may remove the stray, or be writing it, at any moment.
        with contextlib.suppress(OSError):
            if fcntl is None:
                path.unlink()
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                # The lock is free only if the writer is dead: the kernel releases it with the process.
                if lock(descriptor, wait=False):
                    path.unlink()
            finally:
                os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    if not hasattr(os, "O_DIRECTORY"):  # Windows cannot open a folder
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        # The file has its name by now; some file systems cannot sync a folder and say so.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
