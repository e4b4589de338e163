"""Keys: a record of named random streams.

A *stream* is a base key and a count; a *draw* is `fold_in(key, count)`, and the successor's count is one higher, so
that no two draws of a stream are equal. The keys are those of `flax.nnx.Rngs` for the same seeds. `Keys` is an
immutable record like any other: a function takes it as an argument and returns its successor.

    keys = Keys(0, dropout=1)               # a default stream, and one of its own for "dropout"
    key, keys = keys.next("dropout")
    key, keys = keys.next("noise")          # no such stream: the default one is drawn from

Forgetting the successor repeats a draw. `debug_keys()` (or `WEFT_DEBUG_KEYS=1`) turns that into an error.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from types import EllipsisType
from typing import Annotated, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, UInt32
from weft.core.errors import AxisError, WeftError
from weft.core.records.draws import debug_keys, draw
from weft.core.records.kinds import RngCount, RngKey
from weft.core.records.module import Module
from weft.core.records.successors import successor_last

__all__ = ["KeyStream", "Keys", "SeedError", "StreamError", "debug_keys"]

DEFAULT = "default"


class SeedError(WeftError, TypeError):
    """A value cannot be the seed of a random stream."""

    of_layer = True


class StreamError(WeftError, LookupError):
    """There is no random stream of this name, and no default stream."""


class KeyStream(Module):
    """One random stream.

    Attributes:
        key: the base key, which never changes. Leading axes come from `Keys.fork`.
        count: how many keys were drawn.

    >>> stream = Keys(0).streams["default"]
    >>> stream.key.shape, stream.count.item()
    ((), 0)
    """

    key: Annotated[Key[Array, "*axes"], RngKey]
    count: Annotated[UInt32[Array, "*axes"], RngCount]


Seed = int | Key[Array, ""] | KeyStream
Sizes = int | tuple[int, ...] | None


class Keys(Module):
    """Named random streams; a name without a stream draws from the default stream.

    Args:
        default: the seed of the default stream: an integer, a typed key (`jax.random.key`), or a `KeyStream`. A
            mapping gives several streams at once.
        streams: the seeds of other streams, by name.

    Raises:
        SeedError: if a seed is anything else, a legacy `uint32[2]` key included.

    >>> keys = Keys(0, dropout=1)
    >>> first, keys = keys.next("dropout")
    >>> second, keys = keys.next("dropout")
    >>> bool(first == second), int(keys.streams["dropout"].count)
    (False, 2)
    """

    streams: dict[str, KeyStream]

    def __init__(self, default: Seed | Mapping[str, Seed] | None = None, /, **streams: Seed):
        seeds: dict[str, Any] = dict(default) if isinstance(default, Mapping) else {}
        if default is not None and not isinstance(default, Mapping):
            seeds[DEFAULT] = default
        twice = sorted(seeds.keys() & streams.keys())
        if twice:
            raise SeedError(f"two seeds for one stream: {', '.join(map(repr, twice))}", fix="give each stream one seed")
        seeds |= streams
        # Sorted, as JAX returns dicts: otherwise a record would print differently after a transform.
        self.streams = {name: _stream(name, seeds[name]) for name in sorted(seeds)}

    def next(self, name: str = DEFAULT) -> tuple[Key[Array, ""], Keys]:
        """Draws a key: `key, keys = keys.next("dropout")`.

        Args:
            name: the stream; the default stream stands in for one that does not exist.

        Returns:
            The key, and the successor.

        Raises:
            StreamError: if there is neither such a stream nor a default one.
            AxisError: if the stream was forked and this is not inside a `vmap` over it.
            KeyReuseError: under `debug_keys()`, if the same draw was made before.
        """
        name = self._resolve(name)
        stream = self.streams[name]
        if stream.count.ndim:
            raise AxisError(
                f"stream {name!r} holds {stream.count.shape} keys, and a draw takes one",
                at=f"Keys.streams[{name!r}].key",
                fix="draw inside a vmap over the forked Keys",
            )
        draw(name, stream.key, stream.count)
        key = jax.random.fold_in(stream.key, stream.count)
        successor = KeyStream(stream.key, stream.count + 1)
        return key, self.replace(streams={**self.streams, name: successor})

    def __call__(self, name: str = DEFAULT) -> tuple[Key[Array, ""], Keys]:
        """The same as `next`, so that a `thread` handle draws with `key = t.keys("dropout")`."""
        return self.next(name)

    def split(self, size: int | tuple[int, ...], name: str = DEFAULT) -> tuple[Key[Array, "*size"], Keys]:
        """Draws once and splits the draw: `stacked, keys = keys.split(8, "noise")`.

        Returns:
            Keys stacked along leading axes, and the successor.

        >>> noise, keys = Keys(0, noise=1).split(3, "noise")
        >>> noise.shape, int(keys.streams["noise"].count)
        ((3,), 1)
        """
        key, successor = self.next(name)
        return jax.random.split(key, size), successor

    @successor_last
    def fork(self, sizes: Sizes | Mapping[str | EllipsisType, Sizes] = None) -> tuple[Keys, Keys]:
        """Branches off streams of their own: `forked, keys = keys.fork(8)`.

        Every stream draws once, and the draw is the base key of the forked stream, whose count starts at zero.

        Args:
            sizes: the leading axes of the forked streams, for `vmap` or `scan` to map over; `None` for no axis. A
                mapping gives sizes by stream, `...` standing for those that it does not name (`None` if left out).

        Returns:
            The forked keys, and the successor.

        Raises:
            StreamError: if a mapping names a stream that does not exist.

        >>> forked, keys = Keys(0, noise=1).fork({"noise": 8})
        >>> forked.streams["noise"].key.shape, forked.streams["default"].key.shape
        ((8,), ())
        """
        by_name: Mapping[Any, Sizes] = sizes if isinstance(sizes, Mapping) else {...: sizes}
        for name in by_name:
            if name is not ... and name not in self.streams:
                raise self._no_stream(name, "fork only the streams that there are, or `...` for the rest")
        forked: dict[str, KeyStream] = {}
        successor = self
        for name in self.streams:
            key, successor = successor.next(name)
            size = by_name.get(name, by_name.get(...))
            forked[name] = _fresh(key if size is None else jax.random.split(key, size))
        return self.replace(streams=forked), successor

    def __contains__(self, name: object) -> bool:
        return name in self.streams

    def _resolve(self, name: str) -> str:
        if name in self.streams:
            return name
        if DEFAULT in self.streams:
            return DEFAULT
        raise self._no_stream(name, f"add it, Keys(..., {name}=seed), or a default stream, Keys(seed, ...)")

    def _no_stream(self, name: object, fix: str) -> StreamError:
        return StreamError(f"no random stream {name!r}", at=f"the streams are {list(self.streams)}", fix=fix)


def _stream(name: str, seed: Any) -> KeyStream:
    """The stream of a seed; a `SeedError` names the stream of a value that is none."""
    if isinstance(seed, KeyStream):
        return seed
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        return _fresh(jax.random.key(operator.index(cast(int, seed))))
    dtype: Any = getattr(seed, "dtype", None)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return _fresh(cast(Array, seed))
    if dtype is not None and jnp.issubdtype(dtype, jnp.integer) and cast(Any, seed).ndim == 0:
        return _fresh(jax.random.key(seed))
    legacy = dtype == jnp.uint32 and getattr(seed, "shape", ())[-1:] == (2,)
    name_of_seed = f"a {type(seed).__name__}" + ("" if dtype is None else f" of {dtype}")
    raise SeedError(
        f"{'a legacy uint32 key' if legacy else name_of_seed} cannot seed stream {name!r}",
        fix="wrap it with jax.random.wrap_key_data, or make keys with jax.random.key"
        if legacy
        else "use an integer or a typed key, jax.random.key(seed)",
    )


def _fresh(key: Array) -> KeyStream:
    return KeyStream(key, jnp.zeros(key.shape, jnp.uint32))  # pyright: ignore[reportUnknownMemberType]
