"""Rngs: named streams of random keys.

A stream holds a key and a count. Drawing folds the count into the key and adds one to it, so that a stream is state
like any other: two Variables, `RngKey` and `RngCount`, tagged with the stream's name. Methods named like the functions
of `jax.random` draw a key and call them; those named like initializers give initializers that draw one when called.
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
# Those whose names jax.random has too (normal, uniform, ...) are left to it.
_INITIALIZERS = (
    "delta_orthogonal", "glorot_normal", "glorot_uniform", "he_normal", "he_uniform", "kaiming_normal",
    "kaiming_uniform", "lecun_normal", "lecun_uniform", "variance_scaling", "xavier_normal", "xavier_uniform",
)  # fmt: skip


class InvalidRngError(WeftError, ValueError):
    """What is neither a seed nor a random key."""


class NoStreamError(WeftError, AttributeError):
    """A stream that was never given, where there is no default one."""

    def _message(self) -> str:
        return self.what


class NoStreamKeyError(WeftError, KeyError):
    """The same, asked for as an item."""

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


def _with_random_methods(cls: Any) -> Any:
    for name in _RANDOM:
        setattr(cls, name, _random_method(getattr(random, name)))
    for name in _INITIALIZERS:
        setattr(cls, name, _initializer_method(getattr(initializers, name)))
    return cls


def as_shape(shape: Shape) -> tuple[int, ...]:
    """A size, or a tuple of them, as a shape."""
    return (shape,) if isinstance(shape, int) else shape


@jax.jit
def _draw(key: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    return random.fold_in(key, count), count + jnp.uint32(1)


_untouched = watch(_draw)


@_with_random_methods
class RngStream(Pytree):
    """One stream of keys.

    Args:
        key: a seed, a typed key (or an array of them), or an old-style `uint32` key.
        tag: the stream's name.

    Raises:
        ValueError: if the key is none of these.

    >>> stream = RngStream(0, tag="params")
    >>> first, second = stream(), stream()
    >>> bool(first == second), int(stream.count[...])
    (False, 2)
    """

    def __init__(self, key: jax.Array | int, *, tag: str):
        if isinstance(key, int):
            key = random.key(key)
        elif isinstance(key, jax.Array) and key.dtype == jnp.uint32:
            key = random.wrap_key_data(key)
        if not isinstance(key, jax.Array) or not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            raise InvalidRngError(f"Invalid rng value: {key}", fix="give a seed, or a key from jax.random.key")
        self.tag = tag
        self.key = RngKey(key, tag=tag)
        self.count = RngCount(jnp.zeros(key.shape, dtype=jnp.uint32), tag=tag)

    def __call__(self) -> jax.Array:
        """The next key."""
        if is_plain(self):
            return draw_by(self, _draw)
        self.count._check_can_update()
        key, count = self.key[...], self.count[...]
        # An old-style key, which a user may have put here, is an array too.
        if key.ndim and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            raise InvalidRngError(
                f"a stream gives a single key, but {self.tag!r} holds a key array of shape {key.shape}",
                fix="map over it (nnx.vmap), or put back what it was split from (nnx.restore_rngs)",
            )
        key = random.fold_in(key, count)
        self.count[...] += 1
        return key

    def split(self, k: Shape) -> RngStream:
        """A stream over an array of new keys of this shape.

        >>> stream = RngStream(0, tag="noise")
        >>> stream.split(3).key.shape, stream.fork().key.shape, stream.broadcast(2).key.shape, int(stream.count[...])
        ((3,), (), (2,), 3)
        """
        return type(self)(random.split(self(), k), tag=self.tag)

    def fork(self, *, split: Shape | None = None) -> RngStream:
        """A stream over a new key."""
        if split is not None:
            _warn_split_argument()
        key = self()
        return type(self)(key if split is None else random.split(key, split), tag=self.tag)

    def broadcast(self, k: Shape) -> RngStream:
        """A stream over one new key, repeated to this shape."""
        key = self()
        return type(self)(jnp.broadcast_to(key, as_shape(k) + key.shape), tag=self.tag)


# Functions, since a stream's public methods are the names that flax's streams have: `tabulate` has a row for each call.


def is_plain(stream: RngStream) -> bool:
    """Whether a stream has one key and one count, arrays outside of traces, without hooks; and JAX is untouched."""
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
    """What a compiled function makes of a plain stream's key and count, which gives the next count too."""
    stream.count._check_can_update()
    value, count = make(stream.key._raw_value, stream.count._raw_value)
    stream.count.set_raw_value(count)
    return value


def _warn_split_argument() -> None:
    warnings.warn("the argument 'split' of fork() is deprecated, use split()", DeprecationWarning, stacklevel=3)


@_with_random_methods
class Rngs(Pytree):
    """Named streams of keys.

    A stream that was not given is the `default` one, if there is that.

    Args:
        default: the seed or key of the default stream, or a mapping of names to seeds and keys.
        rngs: seeds, keys or streams by name.

    Raises:
        ValueError: for a seed that is none.
        AttributeError, KeyError: by name or by item, for a stream that is not there, without a default one.

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
            setattr(self, tag, RngStream(key.key.get_value() if isinstance(key, RngStream) else key, tag=tag))

    def _get_stream(self, name: str, error_type: type[Exception]) -> Any:
        streams = attributes_of(self)
        stream = streams.get(name, streams.get("default"))
        if stream is None:
            error = NoStreamKeyError if error_type is KeyError else NoStreamError
            raise error(f"No RngStream named {name!r} found in Rngs.", fix="give it, or a default: Rngs(0)")
        return stream

    def __getitem__(self, name: str) -> Any:
        return self._get_stream(name, KeyError)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self._get_stream(name, AttributeError)

    def __call__(self) -> jax.Array:
        """The next key of the default stream."""
        return self.default()

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.items())

    def __len__(self) -> int:
        return sum(1 for _ in self.items())

    def __contains__(self, name: Any) -> bool:
        return name in attributes_of(self)

    def items(self) -> Iterator[tuple[str, RngStream]]:
        """(name, stream) for each.

        >>> [(name, int(stream.count[...])) for name, stream in Rngs(0, dropout=1).items()]
        [('dropout', 0), ('default', 0)]
        """
        return (pair for pair in list(attributes_of(self).items()) if isinstance(pair[1], RngStream))

    def _each(self, rules: Any, act: Callable[[RngStream, Any], RngStream], otherwise: Any) -> Rngs:
        """New streams: `act(stream, shape)` by the first rule whose filter matches, `otherwise(stream)` without any."""
        tests = [(to_predicate(filter), shape) for filter, shape in rules_of(rules).items()]
        streams: dict[str, RngStream] = {}
        for name, stream in self.items():
            shape = next((shape for test, shape in tests if test((), stream)), None)
            streams[name] = otherwise(stream) if shape is None else act(stream, shape)
        return Rngs(**streams)

    def split(self, k: Mapping[Filter, Shape | None] | Shape) -> Rngs:
        """New streams over arrays of keys.

        Args:
            k: the shape of the arrays, or one by filter; `None`, or no match, leaves a stream as it is.

        >>> rngs = Rngs(params=1, dropout=2).split({"params": 5, ...: None})
        >>> rngs.params.key.shape, rngs.dropout.key.shape
        ((5,), ())
        """
        return self._each(k, RngStream.split, lambda stream: stream)

    def broadcast(self, k: Mapping[Filter, Shape | None] | Shape | None) -> Rngs:
        """New streams over one key each, repeated to a shape. See `split`."""
        return self._each(k, RngStream.broadcast, lambda stream: stream)

    def fork(self, /, *, split: Mapping[Filter, Shape] | Shape | None = None) -> Rngs:
        """New streams over new keys.

        >>> rngs = Rngs(params=1)
        >>> bool(rngs.fork().params() == rngs.params())
        False
        """
        if split is not None:
            _warn_split_argument()
        return self._each(split, RngStream.split, RngStream.fork)


def rules_of(k: Any) -> Mapping[Any, Any]:
    """Shapes by filter, of one for all."""
    return {...: k} if k is None or isinstance(k, int | tuple) else k
