"""Files that somebody forged, loaded in every way: each is loaded, or ends in a `CheckpointError`.

    python tests/modules/checkpoints/hostile.py

It prints how many files there are, how many loads were tried, and each load that ended in another error or asked for
memory that the file does not fill: the process may have no more than a few GiB.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import weft


def written(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def signed(header, data=b"", **metadata):
    """A file with a digest that holds, whatever is in it."""
    zeros = "0" * 64
    whole = written({"__metadata__": {"sha256": zeros, "weft": "1", **metadata}, **header}, data)
    return whole.replace(zeros.encode(), hashlib.sha256(whole).hexdigest().encode())


def entry(begin=0, end=4, dtype="F32", shape=(1,)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def told(kind, shape, data=b"1234", **metadata):
    """One array of bytes, of which a file says what it is."""
    kinds = json.dumps({"a": [kind, list(shape)]})
    return signed({"a": entry(0, len(data), "U8", [len(data)])}, data, kinds=kinds, **metadata)


# Whoever loads them is told so.
FORGED = {
    "empty": b"",
    "no header": b"\0" * 8,
    "a length beyond the file": b"\xff" * 8 + b"{}",
    "no JSON": written(b"nonsense"),
    "not UTF-8": written(b'{"\xff": 1}'),
    "a list": written([]),
    "nested deeply": written(b"[" * 100_000),
    "objects nested deeply": written(b'{"a":' * 100_000),
    "a number that Python refuses": written(
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], "x": %s}}' % (b"9" * 5000), b"1234"
    ),
    "no shape": written({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, b"1234"),
    "no dtype": written({"a": {"shape": [1], "data_offsets": [0, 4]}}, b"1234"),
    "no offsets": written({"a": {"dtype": "F32", "shape": [1]}}, b"1234"),
    "an entry that is a number": written({"a": 3}),
    "a shape of texts": written({"a": entry(shape=["1"])}, b"1234"),
    "a negative size": written({"a": entry(shape=[-1])}, b"1234"),
    "a size beyond the bytes": written({"a": entry(shape=[2])}, b"1234"),
    "a size that overflows": written({"a": entry(shape=[2**62, 2**62])}, b"1234"),
    "a dtype that is none": written({"a": entry(dtype="F31")}, b"1234"),
    "negative offsets": written({"a": entry(-4, 0)}, b"1234"),
    "offsets that are reversed": written({"a": entry(4, 0)}, b"1234"),
    "offsets beyond the file": written({"a": entry(0, 8, shape=[2])}, b"1234"),
    "three offsets": written({"a": {**entry(), "data_offsets": [0, 2, 4]}}, b"1234"),
    "entries that overlap": written({"a": entry(), "b": entry()}, b"1234"),
    "a gap between entries": written({"a": entry(), "b": entry(8, 12)}, b"123412341234"),
    "bytes behind the last entry": written({"a": entry()}, b"12345"),
    "metadata that is no mapping": written({"__metadata__": [], "a": entry()}, b"1234"),
    "metadata that is no text": written({"__metadata__": {"sha256": 3}, "a": entry()}, b"1234"),
    "a version without a digest": written({"__metadata__": {"weft": "1"}, "a": entry()}, b"1234"),
    "a version that is no number": signed({"a": entry()}, b"1234", weft="one"),
    "a digest of another length": written({"__metadata__": {"weft": "1", "sha256": ""}, "a": entry()}, b"1234"),
    "kinds that are no JSON": signed({"a": entry()}, b"1234", kinds="{"),
    "kinds that are a list": signed({"a": entry()}, b"1234", kinds="[]"),
    "kinds nested deeply": signed({"a": entry()}, b"1234", kinds="[" * 50_000),
    "kinds without shapes": signed({"a": entry()}, b"1234", kinds='{"a": "float32"}'),
    "kinds with shapes of texts": signed({"a": entry()}, b"1234", kinds='{"a": ["float32", ["1"]]}'),
    "kinds of another size": signed({"a": entry(0, 2, "U8", [2])}, b"12", kinds='{"a": ["float32", [1]]}'),
    "weak that is a mapping": signed({"a": entry()}, b"1234", weak="{}"),
    "configuration that is no description": signed({"a": entry()}, b"1234", configuration='{"": 3}'),
    "configuration nested deeply": signed(
        {"a": entry()}, b"1234", configuration='{"": ' + '{"name": "a", "parts": {"": ' * 400 + '""' + "}}" * 400 + "}"
    ),
}

# What is wrong with these depends on what they are loaded into; some can be loaded.
FORGED_FOR_WHO_LOADS_THEM = {
    "more items than bytes": told("float32", [2**40]),
    "more keys than bytes": told("key<fry>", [2**40]),
    "a key without bytes": told("key<fry>", [], b""),
    "keys of no implementation": told("key<zzz>", []),
    "a negative size that is told": told("float32", [-1]),
    "a size that is true": told("float32", [True]),
    "a size that overflows as it is told": told("float32", [2**70]),
    "a size of thousands of digits": signed({"a": entry()}, b"1234", kinds='{"a": ["float32", [%s]]}' % ("9" * 5000)),
    "nothing times too much": told("float32", [0, 2**70], b""),
    "nothing times too much elsewhere": written({"a": entry(0, 0, shape=[0, 2**62])}),
    "a hundred axes": written({"a": entry(shape=[1] * 100)}, b"1234"),
    "too many axes that are told": told("float32", [1] * 65),
    "objects": told("object", [1], b"12345678"),
    "objects by their letter": told("O", [1], b"12345678"),
    "a structure of objects": told("f4,O", [1], b"12345678"),
    "texts": told("<U1", [1]),
    "void": told("V4", [1]),
    "no kind": told("", [1]),
    "a kind that NumPy evaluates": told(",", [1]),
    "a kind of many brackets": told("(" * 10_000, [1]),
    "a kind of many commas": told("f4," * 100_000, [1]),
    "a kind that is an array": told("(1000000,1000000)f4", [1]),
    "a kind with a null": told("\0", [1]),
    "dates": told("datetime64[ns]", [1], b"12345678"),
    "a long double": told("float128", [2**36], b"1" * 16),
    "a complex number of too many bytes": told("complex128", [1]),
    "a Python float of four bytes": told("Python float", []),
    "a Python float of twelve bytes": told("Python float", [], b"1234" * 3),
    "a Python bool of no bytes": told("Python bool", [], b""),
    "a Python int of no bytes": told("Python int", [], b""),
    "a Python int of a shape": told("Python int", [2**50]),
    "a Python nonsense": told("Python f4", []),
    "numbers of four bits": written({"a": entry(0, 1, "F4", [2])}, b"1"),
    "numbers of six bits": written({"a": entry(0, 3, "F6_E2M3", [4])}, b"123"),
    "two arrays of one name": written(
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, '
        b'"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}',
        b"12345678",
    ),
    "a name that is no text": written(b'{"\\ud800": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', b"1234"),
    "no name": written({"": entry()}, b"1234"),
    "a name that is no path": written({"a[": entry()}, b"1234"),
    "a name of many parts": written({"a." * 20_000 + "b": entry()}, b"1234"),
    "a name of many indices": written({"a[0]" * 20_000: entry()}, b"1234"),
    "a name with a number of thousands of digits": written({"a." + "9" * 5000: entry()}, b"1234"),
    "a name with a digit that is no number": written({"a.\u00b2": entry()}, b"1234"),
    "weak that holds lists": signed({"a": entry()}, b"1234", weak='[["a"]]'),
    "a bool that is two, and weak": signed({"a": entry(0, 1, "BOOL", [1])}, b"\2", weak='["a"]'),
    "a version of thousands of digits": written(
        {"__metadata__": {"sha256": "0" * 64, "weft": "9" * 5000}, "a": entry()}, b"1234"
    ),
    "a version in other digits": written(
        {"__metadata__": {"sha256": "0" * 64, "weft": "\u0663"}, "a": entry()}, b"1234"
    ),
    "a digest of other letters": written(
        {"__metadata__": {"sha256": "\u00e9" * 64, "weft": "1"}, "a": entry()}, b"1234"
    ),
    "configuration at what is no path": signed({"a": entry()}, b"1234", configuration='{"[[[": "1", "a..b": "2"}'),
    "configuration of odd names": signed(
        {"a": entry()}, b"1234", configuration='{"<root>": {"name": "::"}, "b": {"name": ""}, "c": {"name": "os:sep"}}'
    ),
    "configuration that is no number": signed({"a": entry()}, b"1234", configuration='{"<root>": "nan"}'),
    "a header longer than the file": (99_000_000).to_bytes(8, "little") + b"{}",
}

KEY = jax.random.key(0)
LIKE: dict[str, Any] = {
    "an array": jnp.zeros(1),
    "an integer": 3,
    "a float": 1.0,
    "a bool": True,
    "a key": KEY,
    "an array of NumPy": np.zeros(1),
    "a large array": jax.ShapeDtypeStruct((2**40,), jnp.float32),
    "many keys": jax.ShapeDtypeStruct((2**40,), KEY.dtype),
    "an abstract number": jax.ShapeDtypeStruct((), jnp.int32),
    "bools": jnp.zeros(1, bool),
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"dtype": "like"},
    {"strict": False, "partial": True},
    {"dtype": "bfloat16", "strict": False},
]


def loads(file: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every way to load a file."""
    for name, like in LIKE.items():
        for options in OPTIONS:
            yield (
                f"load_checkpoint of {name}, {options}",
                lambda like=like, options=options: weft.load_checkpoint(file, {"a": like}, **options),
            )
    model = weft.Linear(1, 1, key=KEY)
    for options in ({}, {"strict": False}, {"strict": False, "rename": {"a": "bias"}}):
        yield f"import_weights, {options}", lambda options=options: weft.import_weights(model, file, **options)


def check(file: Path) -> list[str]:
    """The loads that end in anything but a tree or a `CheckpointError` that one can read."""
    wrong: list[str] = []
    for name, load in loads(file):
        try:
            load()
        except weft.CheckpointError as error:
            if len(str(error)) > 3000 + len(str(file)):
                wrong.append(f"{name}: {len(str(error))} letters")
        except BaseException as error:
            wrong.append(f"{name}: {error!r:.200}")
    return wrong


def main() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    files = {**FORGED, **FORGED_FOR_WHO_LOADS_THEM}
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "state.safetensors")
        for name, forged in files.items():
            file.write_bytes(forged)
            count += sum(1 for _ in loads(file))
            for line in check(file):
                print(f"{name}: {line}")
    print(f"{len(files)} files, {count} loads tried")


if __name__ == "__main__":
    main()
