"""Writes the results of a migration: a diff, and the files, all of them or none."""

from __future__ import annotations

import contextlib
import difflib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path


def diff(name: str, before: bytes, after: bytes) -> str:
    """Makes a unified diff of a file, for `git apply` or `patch -p1`."""
    old, new = (data.decode("utf-8", "surrogateescape").splitlines(keepends=True) for data in (before, after))
    lines = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def write(files: Mapping[Path, tuple[bytes, bytes]]) -> None:
    """Replaces files atomically, with their modes; if one cannot be replaced, the others are restored.

    Args:
        files: for each path its old and new content.

    Raises:
        OSError: if a file has changed since it was read, or cannot be written.
    """
    with contextlib.ExitStack() as stack:
        # All new files are written next to the old ones first, so that a full disk leaves every old file as it is.
        ready = {path: stack.enter_context(_temporary(path, after)) for path, (_, after) in files.items()}
        for path, (before, _) in files.items():
            # An editor may have saved the file while the migration was computed: its change would be lost.
            if path.read_bytes() != before:
                raise OSError(f"{path}: it has changed since it was read")
            # `os.replace` needs write permission for the folder only, so it would replace a file that is read-only on
            # purpose.
            if not os.access(path, os.W_OK):
                raise PermissionError(f"{path}: it cannot be written")
        done: list[Path] = []
        try:
            for path, new in ready.items():
                os.replace(new, path)
                done.append(path)
        except OSError:
            for path in done:
                # The old content is still in memory, so the files that were replaced already get it back.
                path.write_bytes(files[path][0])
            raise


@contextlib.contextmanager
def _temporary(path: Path, data: bytes) -> Iterator[Path]:
    # The temporary file lies in the target's folder, because `os.replace` is atomic within one file system only.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    new = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        # `mkstemp` creates files with mode 600; an executable script would lose its mode.
        shutil.copymode(path, new)
        yield new
    finally:
        new.unlink(missing_ok=True)
