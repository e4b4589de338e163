"""Checkpoints: a tree of records in one safetensors file.

Every array, and every Python number outside of records, is *data*: stored under its path, and restored. Everything else
in a tree is *configuration* (see `configuration`): stored as text and compared with the tree that one loads into, which
supplies the values. The header also has a digest, which detects damage (`format`), and a file is written next to its
target and then moved over it (`atomic`).
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Unpack, overload

from jax.typing import DTypeLike
from weft.core.records.leaves import iter_leaves
from weft.core.tracebacks import cutting
from weft.modules.checkpoints import format as form
from weft.modules.checkpoints.atomic import replacing
from weft.modules.checkpoints.configuration import configuration, is_description
from weft.modules.checkpoints.fitting import LoadOptions, LoadReport, Options, StoredLeaves, by_name, loaded
from weft.modules.checkpoints.format import Target
from weft.modules.checkpoints.leaves import cast_of, content_of, restored
from weft.modules.checkpoints.names import Rename

T = TypeVar("T")


@cutting
def save_checkpoint(path: str | os.PathLike[str], tree: Any) -> None:
    """Writes a tree to a file atomically; host memory holds one array at a time.

    Arrays are stored bit for bit under their paths, and so are Python numbers outside of records. Everything else is
    configuration: it is stored as text, for `load_checkpoint` to compare.

    Args:
        path: the file; its folder must exist. For a link, its target is written; an existing file's mode is kept.
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
    # Names are checked before the file is created, so that a tree with two equal paths leaves the old file alone.
    leaves = by_name(leaf for leaf in iter_leaves(tree) if leaf.dynamic)
    # Contents are functions that make arrays: host memory then holds one array at a time.
    contents = {name: content_of(leaf.value, name) for name, leaf in leaves.items()}
    told = json.dumps(configuration(tree, leaves))
    with replacing(path) as file:
        form.write(file, contents, {"configuration": told})


@overload
def load_checkpoint(
    path: str | os.PathLike[str], like: T, *, partial: Literal[False] = False, **options: Unpack[LoadOptions]
) -> T: ...


@overload
def load_checkpoint(
    path: str | os.PathLike[str], like: T, *, partial: Literal[True], **options: Unpack[LoadOptions]
) -> tuple[T, LoadReport]: ...


@overload
def load_checkpoint(
    path: str | os.PathLike[str], like: T, *, partial: bool, **options: Unpack[LoadOptions]
) -> T | tuple[T, LoadReport]: ...


@cutting
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
        path: a file that `save_checkpoint` wrote, or a safetensors file of another program, which has no configuration
            and no digest.
        like: a tree of the same structure, shapes and dtypes; its arrays and keys may be `jax.ShapeDtypeStruct`s, as
            `jax.eval_shape` makes them. An array is loaded onto the device or sharding on which the user has put the
            one of `like`.
        rename: maps names in the file to paths in `like`, both as errors print them. The keys of a mapping are names,
            or beginnings of names up to a dot or a bracket (`{"encoder": "model.encoder"}`; the empty string stands for
            the root). The longest key that matches a name is used; a name without one stays. A function is called with
            each name of an array and, in weft's own files, of configuration. A name that becomes None is left out.
            Configuration is compared at the paths that both have after this, except for containers around renamed
            names.
        dtype: with None, every array must have the dtype of the one in `like`. With a floating dtype, every floating
            array is cast to it, whatever the dtype in `like`. With "like", arrays are cast to the dtypes of `like`:
            floats to floats, and integers to integers that can hold them.
        partial: loads the arrays that the file and `like` both have, and returns a report of the rest. At these paths
            shapes, dtypes and configuration must still match.
        strict: compares the configuration: the numbers, strings, functions and dtypes of records, their classes, and
            containers. A field that is None in `like` may be missing in the file: the class may have gained it later.
            With False nothing is compared, and **the tree gets the configuration of `like`**. (A number that changes
            during training, such as a step, must be an array, or a Python number outside of records.)

    Returns:
        The tree; with `partial=True` the tree and a `LoadReport`.

    Raises:
        OSError: if it cannot be read.
        CheckpointError: if the file is not a checkpoint, is damaged, has a newer format, or does not fit `like`; the
            error names paths.

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
    options = Options(rename, cast_of(dtype), partial, strict)
    with form.opened(Path(path)) as source:
        # An array that does not fit may be the result of damage. So the digest is checked before a misfit is reported.
        return loaded(offer_of(source), like, options, functools.partial(_read, source), source.check)


def offer_of(source: form.Source) -> StoredLeaves:
    """Returns the contents of a file.

    Raises:
        CheckpointError: if its configuration is damaged.
    """
    saved = source.metadata_value("configuration", {})
    if not all(map(is_description, saved.values())):
        raise source.damaged()
    return StoredLeaves(source.path, source.entries, saved, described=bool(source.version))


def _read(source: form.Source, targets: Mapping[str, Target], wanted: Mapping[str, Any]) -> dict[str, Any]:
    names = {target.entry.name: name for name, target in targets.items()}
    arrays = ((names[target.entry.name], target, array) for target, array in source.read(targets.values()))
    return {name: restored(array, target, wanted[name]) for name, target, array in arrays}
