"""Checks of keys, sizes and options that the constructors of layers share."""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.export import is_symbolic_dim
from jaxtyping import Array, Key
from weft.core.errors import AxisError, WeftError
from weft.core.records.keys import Keys, SeedError
from weft.core.records.module import Module
from weft.core.records.successors import refuse_pair

# `jax.nn.initializers` are untyped; they all are (key, shape, dtype) -> Array.
Initializer = Any
KeyLike = Key[Array, ""]


class SharedConstructor(Module):
    """Base of layers that share a constructor: `class Conv1d(ConvOfRank, init=False)` inherits its base's.

    A class that only inherits a constructor would have a dataclass's constructor for static checkers; `init=False` says
    that it has none.
    """

    def __init_subclass__(cls, *, init: bool = True, **options: Any):
        super().__init_subclass__(**options)
        if not init:
            # A copy of the function with the subclass's name, because Python's errors about arguments name the
            # function: `Conv1d()` must not complain about `ConvOfRank.__init__`.
            base: Any = cls.__init__
            code, names = base.__code__, base.__globals__
            own: Any = FunctionType(code, names, base.__name__, base.__defaults__, base.__closure__)
            own.__kwdefaults__, own.__annotations__ = base.__kwdefaults__, base.__annotations__
            own.__module__, own.__qualname__ = base.__module__, f"{cls.__qualname__}.__init__"
            cls.__init__ = own


class ConfigError(WeftError, ValueError):
    """Raised for an option of a layer that has no meaning."""

    of_layer = True


def is_key(value: Any) -> bool:
    """Whether a value is a typed key, or an array of them; it may be abstract.

    >>> is_key(jax.random.key(0)), is_key(jnp.zeros(2, jnp.uint32))
    (True, False)
    """
    return jnp.issubdtype(getattr(value, "dtype", np.dtype(object)), jax.dtypes.prng_key)


def check_key(key: KeyLike | None, layer: str) -> None:  # weft: skip(it refuses)
    """Refuses any key but one typed key.

    Raises:
        SeedError: above all for a `Keys` record: a constructor cannot return its successor, so the next layer would
            draw the same numbers from it.
    """
    if isinstance(key, Keys):
        raise SeedError(
            f"{layer} takes a typed key, not a Keys record: it could not hand back the successor, and the next layer "
            "made from the same Keys would have the same parameters",
            fix='key, keys = keys.next("params"), in this order; then key=key',
        )
    # Old keys are uint32 arrays, which any other array may be taken for; typed keys cannot be confused with data.
    if not is_key(key):
        raise SeedError(
            f"{layer} draws its parameters from a typed key, not from {_name(key)}",
            fix=f"{layer}(..., key=jax.random.key(seed))",
        )
    shape = getattr(key, "shape", ())
    if shape:
        raise SeedError(
            f"{layer} draws its parameters from one typed key, not from an array of them of shape {shape}",
            fix=f"pass one of them; weft.vmap(lambda key: {layer}(..., key=key))(keys) makes one layer for each key",
        )


def _name(value: object) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {value!r}"[:60]


def option_dtype(dtype: Any) -> np.dtype | None:
    """Normalises a dtype for a static field: all spellings of a dtype must give layers with equal treedefs."""
    return None if dtype is None else jnp.dtype(dtype)


def per_axis(value: int | Sequence[int], rank: int, option: str) -> tuple[int, ...]:
    """Expands an option to one number for each spatial axis.

    Raises:
        ConfigError: if there are too many or too few numbers, or a number is not a positive integer.

    >>> per_axis(2, 3, "strides")
    (2, 2, 2)
    """
    numbers = (value,) * rank if isinstance(value, int | np.integer) else tuple(value)
    if len(numbers) != rank:
        raise ConfigError(f"{option} has {len(numbers)} numbers for {rank} spatial axes: {numbers}")
    if not all(is_count(number) and number > 0 for number in numbers):
        raise ConfigError(f"{option} must be positive integers, not {value}")
    return numbers


def check_positive(layer: str, **sizes: int) -> None:
    """Refuses sizes that are not positive integers.

    Raises:
        ConfigError: naming the layer and the size.
    """
    for name, size in sizes.items():
        if not is_count(size):
            raise ConfigError(f"{layer}: {name} must be an integer, not {size!r}")
        # A symbolic dimension is at least 1, so this comparison has an answer for it.
        if not size > 0:
            raise ConfigError(f"{layer}: {name} must be positive, not {size}")


def is_count(value: Any) -> bool:
    """Whether a value may be a size: an integer, also a traced one, or a symbolic dimension of `jax.export`."""
    return hasattr(value, "__index__") or is_symbolic_dim(value)


def check_single(layer: object, kernel: Any, rank: int) -> None:
    """Refuses to call a stack of layers as one layer, which contracts cannot tell where a window has any rank.

    Raises:
        AxisError: naming the stack's axes.
    """
    lead = kernel.shape[: kernel.ndim - rank]
    if lead:
        raise AxisError(
            f"this is a stack of layers, {type(layer).__qualname__} with the leading axes {lead}, called as one layer",
            at=f"kernel: {jax.typeof(kernel)}",
            fix="map over it with weft.vmap or weft.scan (axis 0)",
        )


def check_space(x: Any, rank: int) -> None:
    """Refuses an input with fewer axes than a window's and one of features.

    Raises:
        AxisError: naming both.
    """
    refuse_pair(x, "a layer with a window")
    if len(np.shape(x)) <= rank:
        raise AxisError(
            f"a window of {rank} axes needs {rank} spatial axes and one of features, not {len(np.shape(x))} axes",
            at=f"x: {np.shape(x)}",
            fix="channels come last: (*batch, *space, features)",
        )


def check_features(layer: object, x: Any, features: int) -> None:
    """Refuses an input whose last axis has another size than a layer's features.

    Raises:
        AxisError: naming both.
    """
    refuse_pair(x, type(layer).__qualname__)
    shape = np.shape(x)
    if not shape or shape[-1] != features:
        actual = shape[-1] if shape else "none"
        raise AxisError(
            f"{type(layer).__qualname__} takes {features} features on the last axis, not {actual}",
            at=f"x: {jax.typeof(x)}",
            fix="check the output of the layer before, or this layer's size; a missing or extra axis causes this, too",
        )
