"""The first numbers of a layer's parameters.

A layer that is made outside of traces divides its key, an operation for each part, and asks initialisers for numbers,
half a dozen operations for each. For initialisers that give the same bits when they are compiled as a whole, all of it
is one compiled call, unless other code has put functions of its own in the place of what they reach of JAX.

Most models make an initialiser anew for each layer, so that its identity says nothing. What does is its *make*: what it
closes over.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.nn.initializers import ones, variance_scaling, zeros
from weft.core.caches import cached_by
from weft.core.edge.untyped import INLINED
from weft.core.makeup import closed_over, has_hash
from weft.modules.construct import Initializer, KeyLike, check_key
from weft.modules.untouched import watch

# What an initialiser of JAX's `variance_scaling` closes over. One that closes over anything else is called as it is.
_SCALING = ("batch_axis", "distribution", "in_axis", "mode", "out_axis", "scale")
_scaling: Any = variance_scaling(1.0, "fan_in", "uniform")
_scaling_code: Any = _scaling.__code__
# Not `"normal"`: its numbers are products with two constants, of which the compiler makes one, and rounds once.
_SAME_BITS = ("truncated_normal", "uniform")

# An initialiser, a shape and a dtype.
Wanted = tuple[Initializer, tuple[int, ...], Any]


def make_of(init: Any) -> Hashable | None:
    """What tells an initialiser from those that give other numbers, or None if it has to be called as it is.

    >>> make_of(variance_scaling(2.0, "fan_in", "uniform")), make_of(variance_scaling(1.0, "fan_in", "normal"))
    (((), 'uniform', -2, 'fan_in', -1, 2.0), None)
    """
    if init is zeros or init is ones:
        return init
    if getattr(init, "__code__", None) is not _scaling_code or _scaling_code.co_freevars != _SCALING:
        return None
    values = tuple(tuple(value) if isinstance(value, list) else value for value in closed_over(init).values())
    return values if values[_SCALING.index("distribution")] in _SAME_BITS and has_hash(values) else None


def of_make(make: Any) -> Initializer:
    """An initialiser of this make."""
    return make if make is zeros or make is ones else variance_scaling(**dict(zip(_SCALING, make, strict=True)))


def has_same_bits(shape: Sequence[int], dtype: Any) -> bool:
    """Whether numbers of this shape and dtype are the same when what draws them is compiled."""
    return all(type(size) is int for size in shape) and jnp.issubdtype(dtype, jnp.floating)


def draw(  # weft: skip(the shapes are arguments)
    key: KeyLike | None, layer: str, *wanted: Wanted | None, keyless: bool = False
) -> list[Any]:
    """A layer's parameters, each by a key of its own.

    Args:
        key: a typed key, which is split into as many as there are places.
        layer: its name, for errors.
        wanted: for each place an initialiser, a shape and a dtype, or None where there is nothing.
        keyless: whether the key may be None, as it is for initialisers that use none.

    Returns:
        An array for each place, or None.

    Raises:
        SeedError: if the key is anything else.

    >>> kernel, bias = draw(jax.random.key(0), "Linear", (ones, (2, 3), jnp.float32), None)
    >>> kernel.shape, bias
    ((2, 3), None)
    """
    if key is not None or not keyless:
        check_key(key, layer)
    makes = tuple(None if one is None else _compilable(*one) for one in wanted)
    if isinstance(key, Tracer) or ... in makes or not _untouched()():
        return _each(key, wanted)
    return _compiled(makes)(key)


def parameter_keys(key: KeyLike | None, count: int, layer: str = "a layer") -> list[Any]:
    """Keys for the parts of a layer.

    Args:
        key: a typed key, which is split.
        count: how many parts there are.
        layer: its name, for errors.

    Raises:
        SeedError: if it is anything else.
    """
    check_key(key, layer)
    return _split(key, count) if isinstance(key, Tracer) or not _untouched()() else _compiled_split(count)(key)


def _split(key: Any, count: int) -> list[Any]:
    return list(jax.random.split(key, count))


def _each(key: Any, wanted: Sequence[Wanted | None]) -> list[Any]:
    keys = [None] * len(wanted) if key is None else _split(key, len(wanted))
    return [None if one is None else one[0](own, *one[1:]) for one, own in zip(wanted, keys, strict=True)]


def _of_makes(key: Any, makes: Sequence[Any]) -> list[Any]:
    return _each(key, [None if one is None else (of_make(one[0]), *one[1:]) for one in makes])


def _compilable(init: Initializer, shape: tuple[int, ...], dtype: Any) -> Any:
    """The make of what is wanted, with its shape and dtype; `...` if it has to be called as it is."""
    make = make_of(init) if has_same_bits(shape, dtype) else None
    return ... if make is None else (make, shape, jnp.dtype(dtype))


@functools.cache
def _untouched() -> Callable[[], bool]:
    return watch(_of_makes)  # which reaches all of them: one look for whatever is compiled here


@cached_by("initialisers, shapes and dtypes", most=512)
def _compiled(makes: tuple[Any, ...]) -> Callable[[Any], list[Any]]:
    # Inline: in a trace that a key from outside is used in, the equations stand as if they were written there.
    return jax.jit(functools.partial(_of_makes, makes=makes), inline=INLINED)


@cached_by("number of keys")
def _compiled_split(count: int) -> Callable[[Any], list[Any]]:
    return jax.jit(functools.partial(_split, count=count), inline=INLINED)
