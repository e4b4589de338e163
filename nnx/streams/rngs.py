"""Rngs: named streams of random keys.

A stream has a key and a count, in two Variables, `RngKey` and `RngCount`, tagged with the stream's name. A draw returns
the key with the count folded in, and increments the count. Methods with the names of functions of `jax.random` draw a
key and call the function; methods with the names of initializers return an initializer that draws a key when called.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import random
from jax.nn import initializers
from weft.modules.untouched import watch
from weft.nnx.errors import WeftError
from weft.nnx.modules.pytree import Pytree
from weft.nnx.objects.objects import attributes_of
from weft.nnx.states.filters import All, Filter, Not, to_predicate
from weft.nnx.variable.kinds import RngCount, RngKey, RngState
from weft.nnx.variable.metadata import HOOKS
from weft.nnx.variable.refs import is_plain_array

Shape = int | tuple[int, ...]
RngValue = int | jax.Array
NotKey = All(RngState, Not(RngKey))

_RANDOM = (
    "ball", "bernoulli", "beta", "binomial", "bits", "categorical", "cauchy", "chisquare", "choice", "dirichlet",
    "double_sided_maxwell", "exponential", "f", "gamma", "generalized_normal", "geometric", "gumbel", "laplace",
    "loggamma", "logistic", "lognormal", "maxwell", "multinomial", "multivariate_normal", "normal", "orthogonal",
    "pareto", "permutation", "poisson", "rademacher", "randint", "rayleigh", "t", "triangular", "truncated_normal",
    "uniform", "wald", "weibull_min",
)  # fmt: skip
# Without those whose names `jax.random` has too: `rngs.normal` is `jax.random.normal`, as in flax.
_INITIALIZERS = (
    "delta_orthogonal", "glorot_normal", "glorot_uniform", "he_normal", "he_uniform", "kaiming_normal",
    "kaiming_uniform", "lecun_normal", "lecun_uniform", "variance_scaling", "xavier_normal", "xavier_uniform",
)  # fmt: skip


class InvalidRngError(WeftError, ValueError):
    """Raised for a value that is neither a seed nor a random key."""


class NoStreamError(WeftError, AttributeError):
    """Raised for `rngs.name` without a stream `name` and without a default stream."""

    def _message(self) -> str:
        return self.what


class NoStreamKeyError(WeftError, KeyError):
    """Raised for `rngs["name"]` without a stream `name` and without a default stream."""

    def __str__(self) -> str:
        return self.what


def _random_method(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self(), *args, **kwargs)

    return method


def _initializer_method(constructor: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        initializer = constructor(*args, **kwargs)

        def draw(*shape_and_dtype: Any, **options: Any) -> Any:
            return initializer(self(), *shape_and_dtype, **options)

        return draw

    return method


# Generated, because flax has a method for each of these functions on both classes.
def _with_random_methods(cls: Any) -> Any:
    for name in _RANDOM:
        setattr(cls, name, _random_method(getattr(random, name)))
    for name in _INITIALIZERS:
        setattr(cls, name, _initializer_method(getattr(initializers, name)))
    return cls


def as_shape(shape: Shape) -> tuple[int, ...]:
    """Converts a size or a tuple of sizes to a shape."""
    return (shape,) if isinstance(shape, int) else shape


@jax.jit
def _draw(key: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    return random.fold_in(key, count), count + jnp.uint32(1)


_untouched = watch(_draw)


@_with_random_methods
class RngStream(Pytree):
    """A stream of random keys.

    Args:
        key: a seed, a typed key (or an array of them), or an old-style `uint32` key.
        tag: the stream's name.

    Raises:
        ValueError: if `key` is anything else.

    >>> stream = RngStream(0, tag="params")
    >>> first, second = stream(), stream()
    >>> bool(first == second), int(stream.count[...])
    (False, 2)
    """

    def __init__(self, key: jax.Array | int, *, tag: str):
        if isinstance(key, int):
            key = random.key(key)
        # An old-style key of `jax.random.PRNGKey`.
        elif isinstance(key, jax.Array) and key.dtype == jnp.uint32:
            key = random.wrap_key_data(key)
        if not isinstance(key, jax.Array) or not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            raise InvalidRngError(f"Invalid rng value: {key}", fix="pass a seed, or a key from jax.random.key")
        self.tag = tag
        self.key = RngKey(key, tag=tag)
        # A count for each key, so that a mapped stream counts along the axis of its keys.
        self.count = RngCount(jnp.zeros(key.shape, dtype=jnp.uint32), tag=tag)

    def __call__(self) -> jax.Array:
        """Draws the next key."""
        # Eagerly, folding in the count and adding one are several dispatches for each key; compiled they are one.
        if is_plain(self):
            return draw_by(self, _draw)
        self.count._check_can_update()
        key, count = self.key[...], self.count[...]
        # An old-style uint32 key has an axis, too; a user may have stored one.
        if key.ndim and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            raise InvalidRngError(
                f"a stream draws from a single key, but {self.tag!r} holds a key array of shape {key.shape}",
                fix="map over the stream (nnx.vmap), or restore the key before the split (nnx.restore_rngs)",
            )
        key = random.fold_in(key, count)
        self.count[...] += 1
        return key

    def split(self, k: Shape) -> RngStream:
        """Returns a stream with an array of new keys of shape `k`.

        >>> stream = RngStream(0, tag="noise")
        >>> stream.split(3).key.shape, stream.fork().key.shape, stream.broadcast(2).key.shape, int(stream.count[...])
        ((3,), (), (2,), 3)
        """
        return type(self)(random.split(self(), k), tag=self.tag)

    def fork(self, *, split: Shape | None = None) -> RngStream:
        """Returns a stream with a new key."""
        if split is not None:
            _warn_split_argument()
        key = self()
        return type(self)(key if split is None else random.split(key, split), tag=self.tag)

    def broadcast(self, k: Shape) -> RngStream:
        """Returns a stream with one new key, repeated to shape `k`."""
        key = self()
        return type(self)(jnp.broadcast_to(key, as_shape(k) + key.shape), tag=self.tag)


# Functions and not methods: `tabulate` records calls of public methods, and must show the rows that it shows in flax.


def is_plain(stream: RngStream) -> bool:
    """Whether a stream can draw by a compiled function: concrete scalar key and count, no hooks, JAX not replaced."""
    key, count = stream.key, stream.count
    return (
        type(key) is RngKey
        and type(count) is RngCount
        and is_plain_array(key._raw_value)
        and is_plain_array(count._raw_value)
        and key._raw_value.ndim == count._raw_value.ndim == 0
        and not any(hook in variable._nnx_metadata for variable in (key, count) for hook in HOOKS)
        and _untouched()
    )


def draw_by(stream: RngStream, make: Callable[[jax.Array, jax.Array], tuple[Any, jax.Array]]) -> Any:
    """Calls `make(key, count)` for a plain stream, stores the next count, and returns the value."""
    # Before the draw: a stream of another trace level must not draw a key without counting it.
    stream.count._check_can_update()
    value, count = make(stream.key._raw_value, stream.count._raw_value)
    stream.count.set_raw_value(count)
    return value


def _warn_split_argument() -> None:
    warnings.warn("the argument 'split' of fork() is deprecated, use split()", DeprecationWarning, stacklevel=3)


@_with_random_methods
class Rngs(Pytree):
    """Named streams of random keys.

    A name without a stream of its own gives the `default` stream, if there is one.

    Args:
        default: the seed or key of the default stream, or a mapping of names to seeds and keys.
        rngs: seeds, keys or streams by name.

    Raises:
        ValueError: for a value that is neither seed, key nor stream.
        AttributeError, KeyError: for the name of a missing stream without a default, as an attribute or an item.

    >>> rngs = Rngs(0, params=1)
    >>> rngs.params.tag, rngs.dropout.tag
    ('params', 'default')
    """

    def __init__(self, default: Any = None, **rngs: Any):
        if isinstance(default, Mapping):
            rngs = {**default, **rngs}
        elif default is not None:
            rngs["default"] = default
        for tag, key in rngs.items():
            # A stream that is passed gives its key alone: the new stream counts from zero.
            setattr(self, tag, RngStream(key.key.get_value() if isinstance(key, RngStream) else key, tag=tag))

    def _get_stream(self, name: str, error_type: type[Exception]) -> Any:
        streams = attributes_of(self)
        stream = streams.get(name, streams.get("default"))
        if stream is None:
            error = NoStreamKeyError if error_type is KeyError else NoStreamError
            raise error(f"No RngStream named {name!r} found in Rngs.", fix=f"pass {name}=seed, or a default: Rngs(0)")
        return stream

    def __getitem__(self, name: str) -> Any:
        return self._get_stream(name, KeyError)

    def __getattr__(self, name: str) -> Any:
        # Protocols of Python and libraries look up dunder names, which must not give a random stream.
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self._get_stream(name, AttributeError)

    def __call__(self) -> jax.Array:
        """Draws the next key of the default stream."""
        return self.default()

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.items())

    def __len__(self) -> int:
        return sum(1 for _ in self.items())

    def __contains__(self, name: Any) -> bool:
        return name in attributes_of(self)

    def items(self) -> Iterator[tuple[str, RngStream]]:
        """Iterates over (name, stream).

        >>> [(name, int(stream.count[...])) for name, stream in Rngs(0, dropout=1).items()]
        [('dropout', 0), ('default', 0)]
        """
        return (pair for pair in list(attributes_of(self).items()) if isinstance(pair[1], RngStream))

    def _each(self, rules: Any, act: Callable[[RngStream, Any], RngStream], otherwise: Any) -> Rngs:
        """Makes `Rngs` of `act(stream, shape)`, by the first filter that matches, or else `otherwise(stream)`."""
        tests = [(to_predicate(filter), shape) for filter, shape in rules_of(rules).items()]
        streams: dict[str, RngStream] = {}
        for name, stream in self.items():
            shape = next((shape for test, shape in tests if test((), stream)), None)
            streams[name] = otherwise(stream) if shape is None else act(stream, shape)
        return Rngs(**streams)

    def split(self, k: Mapping[Filter, Shape | None] | Shape) -> Rngs:
        """Makes `Rngs` with an array of new keys for each stream.

        Args:
            k: the shape of the arrays, for all or by filter; for None, or without a match, a stream is unchanged.

        >>> rngs = Rngs(params=1, dropout=2).split({"params": 5, ...: None})
        >>> rngs.params.key.shape, rngs.dropout.key.shape
        ((5,), ())
        """
        return self._each(k, RngStream.split, lambda stream: stream)

    def broadcast(self, k: Mapping[Filter, Shape | None] | Shape | None) -> Rngs:
        """Makes `Rngs` with one new key for each stream, repeated to a shape. See `split`."""
        return self._each(k, RngStream.broadcast, lambda stream: stream)

    def fork(self, /, *, split: Mapping[Filter, Shape] | Shape | None = None) -> Rngs:
        """Makes `Rngs` with a new key for each stream.

        >>> rngs = Rngs(params=1)
        >>> bool(rngs.fork().params() == rngs.params())
        False
        """
        if split is not None:
            _warn_split_argument()
        return self._each(split, RngStream.split, RngStream.fork)


def rules_of(k: Any) -> Mapping[Any, Any]:
    """Converts a shape for all streams to a mapping from filter to shape."""
    return {...: k} if k is None or isinstance(k, int | tuple) else k
