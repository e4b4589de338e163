"""Converts leaves to stored arrays and back: arrays, random keys and Python numbers.

A restored leaf has the type of the leaf in `like`: a NumPy array, a Python number, or a JAX array or key with the
sharding on which the user put the leaf of `like`.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike
from weft.core.edge._jax import key_impl_of
from weft.core.records.leaves import NUMBERS
from weft.modules.checkpoints.format import NUMBER_DTYPES, PYTHON, CheckpointError, Content, Entry, Target, dtype_of
from weft.modules.construct import is_key

_CATEGORIES = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)

Cast = np.dtype[Any] | Literal["like"] | None


def kind_of(value: Any) -> str:
    """Returns the kind of a leaf: its dtype, or "Python int" and the like.

    >>> kind_of(1), kind_of(jnp.ones(2)), kind_of(jax.random.key(0))
    ('Python int', 'float32', 'key<fry>')
    """
    return f"{PYTHON}{type(value).__name__}" if type(value) in NUMBERS else str(value.dtype)


def as_leaf(value: Any) -> Any:
    """Converts a leaf that has a `__jax_array__` but no dtype to an array; returns any other leaf as it is."""
    return value if type(value) in NUMBERS or hasattr(value, "dtype") else jnp.asarray(value)


def show_type(kind: str, shape: tuple[int, ...]) -> str:
    """Formats a kind and a shape: `float32[2,3]`."""
    return kind if kind.startswith(PYTHON) else f"{kind}[{','.join(map(str, shape))}]"


def data_type(key: Any) -> jax.ShapeDtypeStruct:
    return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(key.shape, key.dtype))


# --- saving ----------------------------------------------------------------------------------------------------------


def content_of(value: Any, name: str, *, whole: bool = True) -> Content:  # weft: skip(of any leaf)
    """Returns the array to store for a leaf.

    Args:
        value: the leaf.
        name: its path, for errors.
        whole: whether to refuse an array of which other processes hold a part.

    Raises:
        CheckpointError: if the leaf cannot be stored; the error names it.
    """
    if type(value) in NUMBERS:
        # A Python integer has any size: one that does not fit int64 is stored as its bytes.
        if type(value) is int and not -(2**63) <= value < 2**63:
            size = value.bit_length() // 8 + 1
            number = np.frombuffer(value.to_bytes(size, "little", signed=True), np.uint8)
        else:
            number = np.asarray(value, NUMBER_DTYPES[type(value).__name__])
        return Content(kind_of(value), (), number.dtype, number.shape, lambda: number)
    value = as_leaf(value)
    _refuse_unstorable(value, name, whole)
    weak = bool(getattr(value, "weak_type", False))
    if is_key(value):
        # NumPy has no random keys, so a key's data is stored, and its kind tells the implementation.
        data = data_type(value)
        dtype, shape = np.dtype(data.dtype), data.shape
        return Content(kind_of(value), value.shape, dtype, shape, lambda: in_host_memory(jax.random.key_data(value)))
    return Content(kind_of(value), value.shape, value.dtype, value.shape, lambda: in_host_memory(value), weak)


def _refuse_unstorable(value: Any, name: str, whole: bool) -> None:
    """Refuses a leaf without a value, and an array of which this process holds only a part although it needs all.

    Raises:
        CheckpointError: naming the leaf.
    """
    problem = fix = None
    if isinstance(value, Tracer):
        problem, fix = "an array that is being traced has no value to store", "save outside of jit and other transforms"
    elif isinstance(value, jax.ShapeDtypeStruct):
        problem, fix = "a ShapeDtypeStruct has no value to store", "save arrays"
    elif isinstance(value, jax.Ref):
        problem, fix = "a mutable array cannot be stored", "save its value, ref[...]"
    elif isinstance(value, np.ma.MaskedArray):
        problem, fix = "an array with a mask cannot be stored", "save its data and its mask"
    elif getattr(value, "dtype", None) == np.dtype(object) or getattr(getattr(value, "dtype", None), "hasobject", 0):
        problem, fix = "an array of Python objects cannot be stored", "cast it"
    elif isinstance(value, jax.Array):
        if value.is_deleted():
            problem, fix = "this array was donated or deleted", "save what the call returned that it was donated to"
        elif whole and not (value.is_fully_addressable or value.is_fully_replicated):
            problem = "this process holds only a part of this array"
            fix = "save it with weft.Checkpoints, which writes each process's part"
    if problem is not None:
        raise CheckpointError(problem, at=name, fix=fix)


def in_host_memory(value: Any) -> np.ndarray[Any, Any]:
    """Returns a leaf's values as a NumPy array."""
    value = as_leaf(value)
    if not isinstance(value, jax.Array):
        return np.asarray(value)
    # A JAX array caches the host copy that `np.asarray` makes, so after a save a model would take its size in host
    # memory, too. A second handle of the same buffer caches the copy instead, and is dropped.
    if value.is_fully_replicated:
        return np.asarray(value.addressable_data(0))
    # Shard by shard, for the same reason: as a whole, the array would cache its copy.
    whole = np.empty(value.shape, value.dtype)
    for shard in value.addressable_shards:
        if shard.replica_id == 0:
            whole[shard.index] = np.asarray(shard.data.addressable_data(0))
    return whole


# --- loading ---------------------------------------------------------------------------------------------------------


def cast_of(dtype: DTypeLike | Literal["like"] | None) -> Cast:
    """Reads the option `dtype` of `load_checkpoint`.

    Raises:
        CheckpointError: if it is not a floating dtype.
    """
    if dtype is None or (isinstance(dtype, str) and dtype == "like"):
        return dtype
    try:
        wanted = jnp.dtype(dtype)
    except TypeError:
        wanted = None
    if wanted is None or not jnp.issubdtype(wanted, jnp.floating):
        raise CheckpointError(
            f"dtype={dtype!r} is not a floating dtype",
            fix='pass a floating dtype, to which all floating arrays are cast, or dtype="like"',
        )
    return wanted


def target_of(  # weft: skip(of any leaf)
    entry: Entry, like: Any, cast: Cast, *, described: bool
) -> Target | None:
    """Returns the array to read an entry into for a leaf of `like`; None if the entry does not fit the leaf.

    Args:
        entry: an entry of the file.
        like: an array, a key, a number, or a `ShapeDtypeStruct` for one.
        cast: the option `dtype` of `load_checkpoint`.
        described: whether the file tells kinds. In other files keys and numbers are stored as plain arrays.
    """
    source = dtype_of(entry.kind)
    if type(like) in NUMBERS or (entry.is_number and isinstance(like, jax.ShapeDtypeStruct)):
        return _number_target(entry, like, cast, source, described)
    if is_key(like):
        data = data_type(like)
        stored = (kind_of(like), like.shape) if described else (str(data.dtype), data.shape)
        return Target(entry, data.shape, np.dtype(data.dtype)) if (entry.kind, entry.shape) == stored else None
    if entry.shape != tuple(like.shape):
        return None
    dtype = np.dtype(like.dtype)
    # Casts stay within a category: floats that become integers would lose their fractions silently.
    if source is not None and cast == "like" and _category(source) == _category(dtype):
        pass
    elif isinstance(cast, np.dtype) and _category(source) == _category(dtype) == jnp.floating:
        dtype = cast
    elif entry.kind != kind_of(like):
        return None
    return Target(entry, entry.shape, dtype, None if entry.kind == str(dtype) else source)


def _number_target(entry: Entry, like: Any, cast: Cast, source: Any, described: bool) -> Target | None:
    wanted = type(like).__name__ if type(like) in NUMBERS else None
    if entry.is_number:
        # `jax.eval_shape` makes a number abstract, and then `like` tells only the category of its dtype.
        alike = _category(source) == _category(like.dtype) and not like.shape if wanted is None else False
        fits = alike or entry.kind == f"{PYTHON}{wanted}"
    else:
        own = np.dtype(NUMBER_DTYPES[wanted or "int"])
        alike = entry.kind == str(own) or (cast == "like" and _category(source) == _category(own))
        fits = not described and entry.shape == () and alike
    return Target(entry, (entry.size,), np.dtype(np.uint8)) if fits else None


def _category(dtype: Any) -> Any:
    return None if dtype is None else next((each for each in _CATEGORIES if jnp.issubdtype(dtype, each)), None)


def needs_x64(target: Target, like: Any) -> bool:  # weft: skip(of any leaf)
    """Whether JAX, without `jax_enable_x64`, would narrow the array that is read."""
    of_jax = not isinstance(like, (np.ndarray, np.generic)) and not target.entry.is_number
    return of_jax and type(like) not in NUMBERS and jax.dtypes.canonicalize_dtype(target.dtype) != target.dtype


def restored(array: Any, target: Target, like: Any) -> Any:  # weft: skip(it reads bytes)
    """Makes a leaf from the array that was read for it: a NumPy array, whose memory it may adopt, or a placed array."""
    if target.dtype == np.uint8 and (type(like) in NUMBERS or target.entry.is_number):
        data, kind = array.tobytes(), target.entry.kind
        is_int = kind == f"{PYTHON}int"
        return int.from_bytes(data, "little", signed=True) if is_int else np.frombuffer(data, dtype_of(kind))[0].item()
    if isinstance(like, np.ndarray | np.generic):
        return array if isinstance(like, np.ndarray) else array[()]
    # Not `jnp.asarray`, which copies.
    where = placement(like)
    if is_key(like):
        wrap = functools.partial(jax.random.wrap_key_data, impl=key_impl_of(like.dtype))
        # `wrap_key_data` takes a local array, which is then moved. This cannot reach the devices of other processes.
        if where is None or where.is_fully_addressable:
            key = wrap(jax.device_put(array))
            return key if where is None else jax.device_put(key, where)
        # On devices of several processes: each process has read the whole array, as `jit` expects of NumPy arrays.
        return jax.jit(wrap, out_shardings=where)(array)
    placed = array if isinstance(array, jax.Array) else jax.device_put(array, where)
    if not target.entry.weak or target.source is not None:
        return placed
    # No public function of JAX makes a weakly typed array from a strongly typed one, so the primitive is bound.
    return jax.lax.convert_element_type_p.bind(placed, new_dtype=placed.dtype, weak_type=True, sharding=None)


def placement(like: Any) -> Any:
    """Returns the sharding on which the user put an array; None if the user did not choose one."""
    # An uncommitted array lies on the default device by chance. Restored there on purpose, it could not be combined
    # with arrays of other devices.
    if isinstance(like, Tracer) or (isinstance(like, jax.Array) and not like.committed):
        return None
    sharding = getattr(like, "sharding", None)
    try:
        return sharding if sharding is None or sharding.device_set else None
    except ValueError:  # of an abstract mesh, which has no devices
        return None
