"""`inspect_checkpoint` and the command `weft inspect`: what a checkpoint holds, without a tree to load it into."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from weft.modules.checkpoints import format as form
from weft.modules.checkpoints.checkpoint import offer_of
from weft.modules.checkpoints.configuration import show
from weft.modules.checkpoints.folders import offer_in, place_of
from weft.modules.checkpoints.leaves import show_type


class StoredArray(NamedTuple):
    """The dtype and the shape of an array in a checkpoint; the dtype of a Python number is `Python int` or the like."""

    dtype: str
    shape: tuple[int, ...]


class CheckpointContents(NamedTuple):
    """What a checkpoint holds; printed, a table with a line for each entry.

    Attributes:
        place: the file, or the folder of the step.
        arrays: the arrays and numbers, by path.
        configuration: classes, containers and values of fields as text, by path; empty if another program wrote it.
    """

    place: str
    arrays: dict[str, StoredArray]
    configuration: dict[str, str]

    def __str__(self) -> str:
        rows = {name: show_type(array.dtype, array.shape) for name, array in self.arrays.items()}
        width = max(map(len, [*rows, *self.configuration]), default=0)
        lines = [f"{name:{width}}  {text}" for name, text in [*rows.items(), *self.configuration.items()]]
        lines.insert(len(rows), f"\nconfiguration of {len(self.configuration)} paths" if self.configuration else "")
        return "\n".join([f"{len(rows)} arrays in {self.place}", *lines]).rstrip()


def inspect_checkpoint(  # weft: skip(it reads a file)
    path: str | os.PathLike[str], step: int | None = None
) -> CheckpointContents:
    """Returns the names, dtypes, shapes and configuration in a checkpoint; it reads no array, and needs no tree.

    Args:
        path: a file of `save_checkpoint` or another safetensors file, the folder of a run (`Checkpoints`), or a folder
            that Orbax wrote.
        step: the step of a run; by default the newest.

    Raises:
        CheckpointError: if there is no checkpoint, or its header or manifest is damaged. The arrays are not checked.
        OSError: if it cannot be read.

    >>> from tempfile import TemporaryDirectory
    >>> from weft.modules import Linear, save_checkpoint
    >>> import jax
    >>> with TemporaryDirectory() as folder:
    ...     save_checkpoint(f"{folder}/a", {"layer": Linear(2, 3, key=jax.random.key(0), use_bias=False), "step": 7})
    ...     contents = inspect_checkpoint(f"{folder}/a")
    >>> contents.arrays["layer.kernel"], contents.arrays["step"].dtype, contents.configuration["layer"]
    (StoredArray(dtype='float32', shape=(2, 3)), 'Python int', 'weft:Linear')
    """
    place = Path(path).absolute()
    if place.is_dir():
        is_step = any((place / file).is_file() for file in ("_CHECKPOINT_METADATA", "_METADATA"))
        offer, _ = offer_in(place if is_step and step is None else place_of(place, step))
    else:
        with form.opened(place) as source:
            offer = offer_of(source)
    arrays = {entry.name: StoredArray(entry.kind, entry.shape) for entry in offer.entries}
    told = {path: show(description) for path, description in sorted(offer.configuration.items())}
    return CheckpointContents(offer.place, dict(sorted(arrays.items())), told)


def main(arguments: Sequence[str]) -> int:
    """Runs `weft inspect`."""
    parser = argparse.ArgumentParser("weft inspect", description="What a checkpoint holds: arrays and configuration.")
    parser.add_argument("path", help="a safetensors file, the folder of a run, or a folder that Orbax wrote")
    parser.add_argument("--step", type=int, help="the step of a run (default: the newest)")
    options = parser.parse_args(arguments)
    try:
        print(inspect_checkpoint(options.path, options.step))
    except (form.CheckpointError, OSError, ImportError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0
