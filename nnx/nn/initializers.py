"""Initializers: functions of a key, a shape and a dtype. They are JAX's own, with two more constructors.

Outside traces, a layer's parameter takes two eager operations for the key and half a dozen for the numbers. `compiled`
does both in one compiled call, for initializers that give the same bits when they are compiled as a whole, as long as
no other code has replaced a function of JAX that they call.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.nn.initializers import constant as constant
from jax.nn.initializers import delta_orthogonal as delta_orthogonal
from jax.nn.initializers import glorot_normal as glorot_normal
from jax.nn.initializers import glorot_uniform as glorot_uniform
from jax.nn.initializers import he_normal as he_normal
from jax.nn.initializers import he_uniform as he_uniform
from jax.nn.initializers import kaiming_normal as kaiming_normal
from jax.nn.initializers import kaiming_uniform as kaiming_uniform
from jax.nn.initializers import lecun_normal as lecun_normal
from jax.nn.initializers import lecun_uniform as lecun_uniform
from jax.nn.initializers import normal as normal
from jax.nn.initializers import ones as ones
from jax.nn.initializers import orthogonal as orthogonal
from jax.nn.initializers import truncated_normal as truncated_normal
from jax.nn.initializers import uniform as uniform
from jax.nn.initializers import variance_scaling as variance_scaling
from jax.nn.initializers import xavier_normal as xavier_normal
from jax.nn.initializers import xavier_uniform as xavier_uniform
from jax.nn.initializers import zeros as zeros
from weft.core.caches import cached_by
from weft.modules.drawing import has_same_bits, make_of, of_make
from weft.modules.untouched import watch
from weft.nnx.variable.metadata import VariableMetadata

Initializer = Callable[..., Any]
DtypeLikeInexact = Any


def zeros_init() -> Initializer:
    """Returns the initializer `zeros`, as a constructor like `lecun_normal()`.

    >>> import jax, jax.numpy as jnp
    >>> zeros_init()(jax.random.key(0), (2,), jnp.float32).tolist()
    [0.0, 0.0]
    """
    return zeros


def ones_init() -> Initializer:
    """Returns the initializer `ones`. See `zeros_init`."""
    return ones


def reshaped(init: Initializer, flat: tuple[int, ...], key: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Calls an initializer with shape `flat`, and reshapes the result to `shape`."""
    value = init(key, flat, dtype)
    if isinstance(value, VariableMetadata):
        return dataclasses.replace(value, raw_value=jnp.reshape(value.raw_value, shape))
    return jnp.reshape(value, shape)


# Compared by value. `functools.partial` compares by identity, and each layer makes a partial of its own, so every layer
# would be a cache miss and would compile.
class _Reshaped(NamedTuple):
    make: Hashable
    flat: tuple[int, ...]


def _make_of(init: Any) -> Hashable | None:
    """A cache key for an initializer, equal for initializers with the same numbers; None if it cannot be compiled."""
    if type(init) is functools.partial and init.func is reshaped and not init.keywords and len(init.args) == 2:
        inner = _make_of(init.args[0])
        return None if inner is None else _Reshaped(inner, init.args[1])
    return make_of(init)


def _of_make(make: Any) -> Initializer:
    if isinstance(make, _Reshaped):
        return functools.partial(reshaped, _of_make(make.make), make.flat)
    return of_make(make)


def compiled(init: Any, shape: Sequence[int], dtype: Any) -> Callable[[Any, Any], Any] | None:
    """Returns a compiled function from a stream's key and count to initial numbers and the next count.

    Args:
        init: an initializer, which gets the key that the stream draws.
        shape, dtype: its further arguments.

    Returns:
        The function. None for an unknown initializer, for one whose numbers would change if compiled, and while other
        code replaces a function of JAX that it calls.

    >>> import jax, jax.numpy as jnp
    >>> make = compiled(glorot_uniform(), (2, 3), jnp.float32)
    >>> value, count = make(jax.random.key(0), jnp.uint32(4))
    >>> value.shape, int(count), compiled(normal(), (2, 3), jnp.float32)
    ((2, 3), 5, None)
    """
    make = _make_of(init)
    # XLA may merge constants, and a compiled initializer then differs from the eager one in the last bit: the same seed
    # would give another model. Such initializers are called as they are.
    if make is None or not has_same_bits(shape, dtype) or not _untouched()():
        return None
    return _compiled(make, tuple(shape), jnp.dtype(dtype))


@functools.cache
def _untouched() -> Callable[[], bool]:
    return watch(_of_make)  # `_of_make` calls every initializer, so one watch covers all


@cached_by("initializer, shape and dtype", most=512)
def _compiled(make: Any, shape: tuple[int, ...], dtype: Any) -> Callable[[Any, Any], Any]:
    init = _of_make(make)

    @jax.jit
    def drawn(key: Any, count: Any) -> Any:
        # The key as `RngStream` draws it, so that compiled and eager initial values are the same.
        return init(jax.random.fold_in(key, count), shape, dtype), count + jnp.uint32(1)

    return drawn
