"""Checkpoints: a tree of records in one safetensors file.

Every array is stored under its path; what is not an array is structure, and comes from the tree that one loads into.
The header also holds a digest, so that a damaged file is found out. A checkpoint is written beside its target and then
moved over it: a reader sees the old one or the new one, never a part.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from weft.core.errors import WeftError
from weft.core.leaves import Leaf
from weft.core.partition import Structure, take_apart
from weft.core.paths import format_path

T = TypeVar("T")

# safetensors' names of the dtypes that JAX has too.
_NAMES = {
    **{np.dtype(f"{sign}int{bits}"): f"{sign.upper() or 'I'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{np.dtype(f"float{bits}"): f"F{bits}" for bits in (16, 32, 64)},
    np.dtype(bool): "BOOL",
    np.dtype(np.complex64): "C64",
    np.dtype(jnp.bfloat16): "BF16",
    np.dtype(jnp.float8_e4m3fn): "F8_E4M3",
    np.dtype(jnp.float8_e5m2): "F8_E5M2",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


class CheckpointError(WeftError, ValueError):
    """A file that is no checkpoint, is damaged, or is one of another tree."""


def save_checkpoint(path: str | os.PathLike[str], tree: Any) -> None:
    """Writes the arrays of a tree, all or nothing.

    Args:
        path: the file; its folder must exist.
        tree: records and containers. Random keys are stored as their data.

    Raises:
        OSError: if it cannot be written; what was there before is untouched.
        CheckpointError: if a dtype cannot be stored.

    >>> from tempfile import TemporaryDirectory
    >>> folder = TemporaryDirectory()
    >>> file = Path(folder.name, "state.safetensors")
    >>> save_checkpoint(file, {"w": jnp.arange(3), "step": 7})
    >>> load_checkpoint(file, {"w": jnp.zeros(3, int), "step": 0})
    {'step': 7, 'w': Array([0, 1, 2], dtype=int32)}
    >>> folder.cleanup()
    """
    leaves = take_apart(tree)[1]
    blob = _encode(dict(zip(_names(leaves), (_stored(leaf.value) for leaf in leaves), strict=True)))
    path = Path(path)
    with _temporary(path) as (file, name):
        file.write(blob)
        file.flush()
        os.fsync(file.fileno())
        os.replace(name, path)


def load_checkpoint(path: str | os.PathLike[str], like: T) -> T:
    """Reads a checkpoint into the structure of a tree.

    Args:
        path: what `save_checkpoint` wrote.
        like: a tree of the same structure, shapes and dtypes; its arrays may be `jax.ShapeDtypeStruct`s.

    Raises:
        OSError: if it cannot be read.
        CheckpointError: if it is no checkpoint, is damaged, or does not fit, naming the paths.
    """
    arrays = _decode(Path(path).read_bytes(), str(path))
    structure, leaves = take_apart(like)
    _check_fit(arrays, leaves, str(path))
    return _rebuild(structure, leaves, arrays)


def _check_fit(arrays: Mapping[str, np.ndarray], leaves: list[Leaf], path: str) -> None:
    expected = dict(zip(_names(leaves), (_stored_type(leaf.value) for leaf in leaves), strict=True))
    found = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    differing = [
        f"{name}: {_describe(found.get(name))}, not {_describe(expected.get(name))}"
        for name in sorted({*expected, *found})
        if expected.get(name) != found.get(name)
    ]
    if differing:
        more = [f"and {len(differing) - 8} more"] if len(differing) > 8 else []
        raise CheckpointError(
            f"{path} holds another tree",
            at=differing[:8] + more,
            fix="load it into a tree of the structure, shapes and dtypes that were saved",
        )


def _describe(kind: tuple[tuple[int, ...], np.dtype] | None) -> str:
    return "nothing" if kind is None else f"{kind[1].name}[{','.join(map(str, kind[0]))}]"


def _rebuild(structure: Structure, leaves: list[Leaf], arrays: Mapping[str, np.ndarray]) -> Any:
    names = _names(leaves)
    return structure.build([_restored(arrays[name], leaf.value) for name, leaf in zip(names, leaves, strict=True)])


def _names(leaves: list[Leaf]) -> list[str]:
    names = [format_path(leaf.path) for leaf in leaves]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise CheckpointError("two arrays have one path", at=twice, fix="rename one")
    return names


def _is_key(value: Any) -> bool:
    return jnp.issubdtype(getattr(value, "dtype", np.dtype(object)), jax.dtypes.prng_key)


def _stored(value: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(value) if _is_key(value) else value)


def _stored_type(value: Any) -> tuple[tuple[int, ...], np.dtype]:
    stored = jax.eval_shape(jax.random.key_data, value) if _is_key(value) else value
    return np.shape(stored), np.dtype(stored.dtype if hasattr(stored, "dtype") else np.asarray(stored).dtype)


def _restored(array: np.ndarray, like: Any) -> Any:
    if type(like) in (bool, int, float, complex):
        return type(like)(array.item())
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(like))
    return array if isinstance(like, np.ndarray | np.generic) else jnp.asarray(array)


# --- the file format: safetensors, https://github.com/huggingface/safetensors ---------------------------------------


def _encode(arrays: Mapping[str, np.ndarray]) -> bytes:
    header: dict[str, Any] = {}
    chunks: list[bytes] = []
    offset = 0
    for name, array in arrays.items():
        if array.dtype not in _NAMES:
            raise CheckpointError(f"safetensors cannot store {array.dtype}", at=name, fix="cast it")
        chunks.append(np.ascontiguousarray(array).tobytes())
        end = offset + len(chunks[-1])
        header[name] = {"dtype": _NAMES[array.dtype], "shape": array.shape, "data_offsets": [offset, end]}
        offset = end
    data = b"".join(chunks)
    header["__metadata__"] = {"sha256": _digest(header, data)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def _digest(header: Mapping[str, Any], data: bytes) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode() + data).hexdigest()


def _decode(blob: bytes, path: str) -> dict[str, np.ndarray]:
    size = int.from_bytes(blob[:8], "little")
    try:
        header = json.loads(blob[8 : 8 + size].decode())
        digest = header.pop("__metadata__")["sha256"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{path} is not a checkpoint", fix="pass a file that save_checkpoint wrote") from None
    data = blob[8 + size :]
    if digest != _digest(header, data):
        raise CheckpointError(f"{path} is damaged: its contents do not match its digest", fix="use another checkpoint")
    return {
        name: np.frombuffer(data[slice(*entry["data_offsets"])], _DTYPES[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in header.items()
    }


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[tuple[Any, Path]]:
    """A new file in the same folder, which is gone afterwards unless it was moved."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as file:
            yield file, temporary
    finally:
        temporary.unlink(missing_ok=True)
