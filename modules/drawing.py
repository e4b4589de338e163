"""Draws the initial parameters of a layer, in one compiled call where possible.

Made eagerly, a layer splits its key and runs half a dozen operations in each initialiser. If the initialisers give the
same bits when they are compiled together, one compiled call does all of it, unless other code has replaced functions of
JAX that they use.

Most models create a new initialiser for each layer, so its identity is no cache key. The cache key is its *make*: the
values that it closes over.
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

# The variables that JAX's `variance_scaling` closes over. If another version of JAX closes over others, its
# initialisers run eagerly, instead of being rebuilt from the wrong values.
_SCALING = ("batch_axis", "distribution", "in_axis", "mode", "out_axis", "scale")
_scaling: Any = variance_scaling(1.0, "fan_in", "uniform")
_scaling_code: Any = _scaling.__code__
# Not `"normal"`: it multiplies by two constants one after the other. The compiler joins them to one factor, which
# rounds once instead of twice, so compiled and eager parameters would differ in the last bit.
_SAME_BITS = ("truncated_normal", "uniform")

# An initialiser, a shape and a dtype.
Wanted = tuple[Initializer, tuple[int, ...], Any]


def make_of(init: Any) -> Hashable | None:
    """Returns the cache key of an initialiser, or None if the initialiser has to run eagerly.

    >>> make_of(variance_scaling(2.0, "fan_in", "uniform")), make_of(variance_scaling(1.0, "fan_in", "normal"))
    (((), 'uniform', -2, 'fan_in', -1, 2.0), None)
    """
    if init is zeros or init is ones:
        return init
    if getattr(init, "__code__", None) is not _scaling_code or _scaling_code.co_freevars != _SCALING:
        return None
    # Axes may be given as lists, which cannot be hashed.
    values = tuple(tuple(value) if isinstance(value, list) else value for value in closed_over(init).values())
    return values if values[_SCALING.index("distribution")] in _SAME_BITS and has_hash(values) else None


def of_make(make: Any) -> Initializer:
    """Returns an initialiser for a cache key that `make_of` returned."""
    return make if make is zeros or make is ones else variance_scaling(**dict(zip(_SCALING, make, strict=True)))


def has_same_bits(shape: Sequence[int], dtype: Any) -> bool:
    """Whether compiling the initialiser leaves the numbers of this shape and dtype unchanged, bit for bit."""
    return all(type(size) is int for size in shape) and jnp.issubdtype(dtype, jnp.floating)


def draw(  # weft: skip(the shapes are arguments)
    key: KeyLike | None, layer: str, *wanted: Wanted | None, keyless: bool = False
) -> list[Any]:
    """Draws the parameters of a layer, each with a key of its own.

    Args:
        key: a typed key, which is split into one key for each place.
        layer: its name, for errors.
        wanted: for each place an initialiser, a shape and a dtype, or None if the layer has no such parameter.
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
    makes = tuple(None if spec is None else _compilable(*spec) for spec in wanted)
    if isinstance(key, Tracer) or ... in makes or not _untouched()():
        return _each(key, wanted)
    return _compiled(makes)(key)


def parameter_keys(key: KeyLike | None, count: int, layer: str = "a layer") -> list[Any]:
    """Splits a key into keys for the parts of a layer.

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
    # A place without a parameter uses up a key, too: with and without bias, a layer has the same kernel.
    keys = [None] * len(wanted) if key is None else _split(key, len(wanted))
    return [None if draw is None else draw[0](own, *draw[1:]) for draw, own in zip(wanted, keys, strict=True)]


def _of_makes(key: Any, makes: Sequence[Any]) -> list[Any]:
    return _each(key, [None if make is None else (of_make(make[0]), *make[1:]) for make in makes])


def _compilable(init: Initializer, shape: tuple[int, ...], dtype: Any) -> Any:
    """Returns the make of an initialiser with shape and dtype; `...` if the initialiser has to run eagerly."""
    make = make_of(init) if has_same_bits(shape, dtype) else None
    return ... if make is None else (make, shape, jnp.dtype(dtype))


@functools.cache
def _untouched() -> Callable[[], bool]:
    # `_of_makes` reaches every function of JAX that is compiled here, so one check serves all layers.
    return watch(_of_makes)


@cached_by("initialisers, shapes and dtypes", most=512)
def _compiled(makes: tuple[Any, ...]) -> Callable[[Any], list[Any]]:
    # Inlined, so that in a trace the jaxpr shows the draws themselves, and not a call.
    return jax.jit(functools.partial(_of_makes, makes=makes), inline=INLINED)


@cached_by("number of keys")
def _compiled_split(count: int) -> Callable[[Any], list[Any]]:
    return jax.jit(functools.partial(_split, count=count), inline=INLINED)
