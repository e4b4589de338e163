"""The file format of checkpoints: safetensors, with a digest and the kinds of arrays in the metadata.

https://github.com/huggingface/safetensors: a length, a JSON header (for each array its dtype, shape and place; a
mapping of strings under `__metadata__`), then the bytes of the arrays, one after the other. The `safetensors` library
validates headers. Reading and writing are written here, because the library takes all arrays at once as pointers into
host memory, and returns arrays at addresses that JAX has to copy. This module reads and writes one array at a time, in
chunks, and hashes the chunks on the way.

Words: an *entry* is one array in a file; its *kind* is the dtype that the user knows it by ("float32", "key<fry>",
"Python int"), which the dtype of the *stored* array does not always tell. A *foreign* file has no digest: another
program wrote it.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import jax.numpy as jnp
import numpy as np
from weft.core.errors import WeftError

VERSION = 1
CHUNK = 1 << 23
# The safetensors library refuses longer headers.
LONGEST_HEADER = 100_000_000
_NO_DIGEST = "0" * 64
# NumPy's limits for the axes and the bytes of an array.
_MOST_AXES, _MOST_BYTES = 64, 2**63 - 1
# safetensors' names of the dtypes that NumPy and JAX have too.
_NAMES: dict[np.dtype[Any], str] = {
    **{np.dtype(f"{sign}int{bits}"): f"{sign.upper() or 'I'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{np.dtype(f"float{bits}"): f"F{bits}" for bits in (16, 32, 64)},
    np.dtype(bool): "BOOL",
    np.dtype(np.complex64): "C64",
    np.dtype(jnp.bfloat16): "BF16",
    np.dtype(jnp.float8_e4m3fn): "F8_E4M3",
    np.dtype(jnp.float8_e5m2): "F8_E5M2",
    np.dtype(jnp.float8_e4m3fnuz): "F8_E4M3FNUZ",
    np.dtype(jnp.float8_e5m2fnuz): "F8_E5M2FNUZ",
    np.dtype(jnp.float8_e8m0fnu): "F8_E8M0",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
# Kinds come from files and are passed to `np.dtype`, which evaluates some texts as Python literals and parses others to
# structures. Only plain names get there.
_PLAIN = re.compile(r"[<>|]?[A-Za-z]\w{0,20}(\[\w{1,8}\])?", re.ASCII)
PYTHON = "Python "
# The dtype that holds a Python number.
NUMBER_DTYPES: dict[str, Any] = {"bool": np.bool_, "int": np.int64, "float": np.float64, "complex": np.complex128}


class CheckpointError(WeftError, ValueError):
    """Raised for a file that is not a checkpoint, is damaged, or holds another tree."""


class _AbsentError(CheckpointError, FileNotFoundError):
    """Raised for a path where nothing is."""


class _FolderError(CheckpointError, IsADirectoryError):
    """Raised for a folder where a file is needed."""


def absent(path: Path) -> CheckpointError:
    """Makes the error for a path where nothing is; it names what is near."""
    folder = next(folder for folder in path.absolute().parents if folder.is_dir())
    similar = difflib.get_close_matches(path.absolute().relative_to(folder).parts[0], os.listdir(folder), 3)
    return _AbsentError(
        f"there is no checkpoint at {path}",
        fix=f"did you mean {' or '.join(str(folder / name) for name in similar)}?"
        if similar
        else "pass the path of a save",
    )


def brief(text: str, letters: int = 300) -> str:
    """Cuts a line for an error: names come from files, and may be of any length."""
    return text if len(text) <= letters else f"{text[: letters - 3]}..."


def dtype_of(kind: str) -> np.dtype[Any] | None:
    """Returns the dtype of a kind's items; None for random keys and for strings that are not a kind."""
    name = kind.removeprefix(PYTHON)
    if not _PLAIN.fullmatch(name):
        return None
    try:
        dtype = jnp.dtype(NUMBER_DTYPES.get(name, name) if name != kind else kind)
    except (TypeError, ValueError):
        return None
    return None if dtype.hasobject else dtype


@dataclass(frozen=True)
class Content:
    """An array to be written as an entry.

    Attributes:
        kind: the dtype that the user knows it by.
        shape: the shape that the user knows it by.
        stored_dtype, stored_shape: those of the array that is stored.
        array: makes that array, in host memory; called once, when it is written.
        weak: whether its dtype yields to others in arithmetic, as that of a Python number does.
    """

    kind: str
    shape: tuple[int, ...]
    stored_dtype: np.dtype[Any]
    stored_shape: tuple[int, ...]
    array: Callable[[], np.ndarray[Any, Any]]
    weak: bool = False


@dataclass(frozen=True)
class Entry:
    """One array of a checkpoint: its name, its kind, shape and weakness as in `Content`, and the place of its bytes."""

    name: str
    kind: str
    shape: tuple[int, ...]
    weak: bool = False
    begin: int = 0
    end: int = 0

    @property
    def size(self) -> int:
        return self.end - self.begin

    @property
    def is_number(self) -> bool:
        """Whether it is a Python number, and not an array."""
        return self.kind.startswith(PYTHON)


@dataclass(frozen=True)
class Target:
    """The array that an entry is read into.

    Attributes:
        entry: the entry.
        shape: the shape of the array.
        dtype: the dtype of the array.
        source: the dtype of the bytes in the file, if they are to be cast item by item.
    """

    entry: Entry
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    source: np.dtype[Any] | None = None

    @property
    def read_size(self) -> int:
        """The number of bytes that are read for the array."""
        return math.prod(self.shape) * (self.source or self.dtype).itemsize


# --- writing ---------------------------------------------------------------------------------------------------------


def write(  # weft: skip(it writes a file)
    file: BinaryIO, contents: Mapping[str, Content], metadata: Mapping[str, str]
) -> None:
    """Writes a whole file; each array is made when it is written, and dropped before the next.

    Args:
        file: a new file.
        contents: what to store, by name.
        metadata: strings to store in the header.

    Raises:
        CheckpointError: if the header would be longer than readers of the format allow.
    """
    # The longest items first, as the library orders them: each array then starts at a multiple of its item size, so
    # that readers can map the file without a copy.
    contents = dict(sorted(contents.items(), key=lambda item: -item[1].stored_dtype.itemsize))
    header = _header(contents, metadata)
    digest = hashlib.sha256(header)
    file.write(header)
    for content in contents.values():
        for chunk in _chunks(content.array()):
            digest.update(chunk)
            file.write(chunk)
    # The digest covers the header with zeros in this place, so that it can be written after the last array.
    file.seek(header.index(_NO_DIGEST.encode()))
    file.write(digest.hexdigest().encode())


def _header(contents: Mapping[str, Content], metadata: Mapping[str, str]) -> bytes:
    told = {
        # The first entry, so that `index` finds this placeholder and not a text of zeros in the user's metadata.
        "sha256": _NO_DIGEST,
        "weft": str(VERSION),
        # safetensors' name of a dtype tells the kind of most arrays.
        "kinds": json.dumps(
            {
                name: (content.kind, content.shape)
                for name, content in contents.items()
                if content.stored_dtype not in _NAMES or content.kind != content.stored_dtype.name
            }
        ),
        "weak": json.dumps([name for name, content in contents.items() if content.weak]),
        **metadata,
    }
    header: dict[str, Any] = {"__metadata__": told}
    offset = 0
    for name, content in contents.items():
        dtype, shape = content.stored_dtype, content.stored_shape
        end = offset + math.prod(shape) * dtype.itemsize
        # What the format has no dtype for is stored as its bytes.
        shape = shape if dtype in _NAMES else (*shape, dtype.itemsize)
        header[name] = {"dtype": _NAMES.get(dtype, "U8"), "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    # Padded with spaces, as the format asks, so that the arrays start at a multiple of 8 bytes.
    text += b" " * (-len(text) % 8)
    if len(text) > LONGEST_HEADER:
        raise CheckpointError(
            f"the header has {len(text)} bytes, and readers of safetensors accept {LONGEST_HEADER}",
            fix="save the tree in several files, or make an array of a long tuple or text in its configuration",
        )
    return len(text).to_bytes(8, "little") + text


def _chunks(array: np.ndarray[Any, Any]) -> Iterator[memoryview]:
    size = max(1, CHUNK // max(1, array.dtype.itemsize))
    # A whole copy of an array that is not contiguous would be as large as the array; its iterator copies by the chunk.
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
    for start in range(0, array.size if array.dtype.itemsize else 0, size):
        yield flat[start : start + size].view(np.uint8).data


# --- reading ---------------------------------------------------------------------------------------------------------


class Source:
    """A file that is open for reading, with a valid header.

    Attributes:
        path: the path, for messages.
        entries: the entries, in the order of their bytes.
        metadata: the strings in the header; none in a foreign file.
        version: the version of the format; 0 for weft's first files, which had no version; None for a foreign file.
    """

    def __init__(self, file: BinaryIO, path: str):
        self.path = path
        self._file: Any = file
        self._prefix = file.read(8)
        self._prefix += file.read(int.from_bytes(self._prefix, "little"))
        try:
            header: dict[str, Any] = json.loads(self._prefix[8:])
        # Deeply nested JSON from a forged file overflows the stack of Python's parser.
        except (ValueError, RecursionError) as error:  # the library skips what it does not know; Python reads it
            raise self.damaged(str(error)) from None
        self.metadata: dict[str, str] = header.pop("__metadata__", None) or {}
        self.version = self._version()
        kinds, weak = self.metadata_value("kinds", {}), set(map(str, self.metadata_value("weak", [])))
        entries = [self._entry(name, entry, kinds.get(name), name in weak) for name, entry in header.items()]
        self.entries = sorted(entries, key=lambda entry: (entry.begin, entry.end))

    def _version(self) -> int | None:
        told = self.metadata.get("weft")
        if told is None:
            return 0 if "sha256" in self.metadata else None
        # The version is text from a file: Python refuses to convert thousands of digits, and accepts `1_0`.
        if not told.isdecimal() or len(told) > 9 or "sha256" not in self.metadata:
            raise self.damaged()
        if int(told) > VERSION:
            raise CheckpointError(
                f"{self.path} has format {told}, and this version of weft reads formats up to {VERSION}",
                fix="load it with the version of weft that wrote it, or a newer one",
            )
        return int(told)

    def metadata_value(self, name: str, otherwise: Any) -> Any:
        """Returns the JSON value that the metadata has under a name."""
        if not self.version or name not in self.metadata:
            return otherwise
        try:
            value = json.loads(self.metadata[name])
        except (ValueError, RecursionError):
            raise self.damaged() from None
        if type(value) is not type(otherwise):
            raise self.damaged()
        return value

    def _entry(self, name: str, told: Mapping[str, Any], kind: Any, weak: bool) -> Entry:
        if told["dtype"] not in _DTYPES:
            raise CheckpointError(
                f"{self.path} holds an array of safetensors' dtype {told['dtype']}, which JAX does not have",
                at=name,
                fix="convert the file with the program that wrote it",
            )
        match kind:
            case None:
                kind, shape = _DTYPES[told["dtype"]].name, told["shape"]
            # `True` is an int for `isinstance`, but not a size.
            case [str(), [*shape]] if all(type(size) is int for size in shape):
                kind = kind[0]
            case _:
                raise self.damaged()
        begin, end = told["data_offsets"]
        entry = Entry(name, kind, tuple(shape), weak, begin, end)
        if not _is_possible(entry):
            raise self.damaged(f"an array of {kind:.40} with shape {entry.shape!s:.80} cannot have {entry.size} bytes")
        return entry

    def damaged(self, why: str = "its contents do not match its digest") -> CheckpointError:
        """Makes the error for a file whose bytes have changed since it was written."""
        return _refusal(self.path, self._prefix, why)

    def read(self, targets: Iterable[Target]) -> Iterator[tuple[Target, np.ndarray[Any, Any]]]:
        """Makes and fills the arrays of targets, one at a time.

        Raises:
            CheckpointError: if values do not fit the dtype that they are cast to. After the last array: if the digest
                does not match, and then none of the arrays may be used.
        """
        by_name = {target.entry.name: target for target in targets}
        # The digest covers all bytes, so a weft file is read as a whole even if only a few arrays are wanted.
        digest = self._started_digest()
        for entry in self.entries:
            target = by_name.get(entry.name)
            if target is None and digest is None:
                continue
            self._file.seek(len(self._prefix) + entry.begin)
            # A forged header may claim terabytes, so memory is allocated only for bytes that the file has.
            if target is not None and target.read_size != entry.size:
                raise self.damaged()
            array = None if target is None else empty(target.shape, target.dtype)
            for piece in self._fill(entry, target, array):
                if digest is not None:
                    digest.update(piece)
            if target is not None and array is not None:
                yield target, array
            # Without this, the loop variable keeps the array alive while the next one is allocated, and loading takes
            # the memory of two arrays.
            del array
        if digest is not None and digest.hexdigest() != self.metadata["sha256"]:
            raise self.damaged()

    def check(self) -> None:
        """Reads the whole file to check its digest.

        Raises:
            CheckpointError: if the digest does not match.
        """
        for _ in self.read(()):
            pass

    def _fill(self, entry: Entry, target: Target | None, array: Any) -> Iterator[np.ndarray[Any, Any]]:
        """Reads an entry into an array (None: discards it), and yields its bytes in chunks."""
        whole = None
        if target is not None and target.source is None:
            whole = array.reshape(-1).view(np.uint8) if entry.size else None
        for start in range(0, entry.size, CHUNK):
            length = min(CHUNK, entry.size - start)
            piece = np.empty(length, np.uint8) if whole is None else whole[start : start + length]
            if self._file.readinto(piece.data) != length:
                raise self.damaged("it ends too early")
            if target is not None and target.source is not None:
                place = slice(start // target.source.itemsize, (start + length) // target.source.itemsize)
                cast(piece.view(target.source), array.reshape(-1)[place], entry.name)
            yield piece

    def _started_digest(self) -> Any:
        if self.version is None:
            return None
        if self.version == 0:
            # Files from before there were versions hash the header without the metadata, in a spelling of its own.
            header = json.loads(self._prefix[8:])
            del header["__metadata__"]
            return hashlib.sha256(json.dumps(header, sort_keys=True).encode())
        return hashlib.sha256(self._prefix.replace(self.metadata["sha256"].encode(), _NO_DIGEST.encode(), 1))


def _is_possible(entry: Entry) -> bool:
    """Whether an array of the entry's kind and shape can exist, and has the entry's number of bytes."""
    dtype = dtype_of(entry.kind)
    if entry.is_number:
        if dtype is None or entry.shape:
            return False
        return entry.size > 0 if entry.kind == f"{PYTHON}int" else entry.size == dtype.itemsize
    if len(entry.shape) > _MOST_AXES or min(entry.shape, default=0) < 0:
        return False
    itemsize = 1 if dtype is None else dtype.itemsize
    # NumPy limits the product of all nonzero sizes, even of an array without items.
    if math.prod(size or 1 for size in entry.shape) * itemsize > _MOST_BYTES:
        return False
    # The bytes of a key or of a structured array are checked later, against the leaf that they are loaded into.
    return dtype is None or math.prod(entry.shape) * itemsize == entry.size


def cast(values: np.ndarray[Any, Any], into: np.ndarray[Any, Any], name: str) -> None:
    """Fills an array with the values of another dtype.

    Raises:
        CheckpointError: if `into` has an integer dtype that cannot hold the values.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # too large for a narrow float: infinity is the nearest value
        into[...] = values.astype(into.dtype)
    # Integers are cast back and compared, because NumPy wraps around silently.
    if not jnp.issubdtype(into.dtype, jnp.inexact) and not np.array_equal(into.astype(values.dtype), values):
        raise CheckpointError(
            f"{into.dtype} cannot hold these values of {values.dtype}",
            at=name,
            fix="load into an array of a wider dtype",
        )


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Makes an array whose memory JAX adopts on a CPU without a copy."""
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    # JAX adopts NumPy memory on the CPU if it is aligned to 64 bytes, and copies it otherwise.
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Source]:
    """Opens a file for reading.

    Raises:
        OSError: if it cannot be read; a missing file and a folder are a CheckpointError, too.
        CheckpointError: if its header is not that of a safetensors file of this length.
    """
    if not path.exists():
        raise absent(path)
    if path.is_dir():
        files = sorted(file.name for file in path.glob("*.safetensors"))
        ways = (
            f"pass its files: {', '.join(files[:5])}" if files else "weft.Checkpoints(folder).restore(like) reads a run"
        )
        raise _FolderError("this is a folder, not a file", at=str(path), fix=ways)
    if not path.is_file():
        # Opening a pipe would wait until another process writes to it, perhaps for ever.
        raise CheckpointError(f"{path} is not a regular file", fix="write its content to a file, and load that file")
    with contextlib.ExitStack() as stack:
        while True:
            file = stack.enter_context(open(path, "rb"))
            _judge(path, file)
            # The library opens files by name, and a writer may have replaced the file since it was opened here.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    break
        yield Source(file, str(path))


def _judge(path: Path, file: BinaryIO) -> None:
    """Validates a header: names, dtypes, shapes, and offsets that cover the file without gap or overlap."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy"):
            pass
    except SafetensorError as error:
        why = str(error).removeprefix("Error while deserializing header: ")
        raise _refusal(str(path), file.read(100), why) from None


def _refusal(path: str, prefix: bytes, why: str) -> CheckpointError:
    if b'"sha256"' in prefix:
        return CheckpointError(f"{path} is damaged: {why}", fix="use another checkpoint")
    fix = "pass a file that save_checkpoint wrote, or another safetensors file"
    if prefix.startswith(b"PK"):
        fix = "numpy.load or torch.load reads this archive, and import_weights takes its arrays by name"
    return CheckpointError(f"{path} is not a checkpoint: {why}", fix=fix)
