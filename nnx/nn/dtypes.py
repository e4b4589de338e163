"""Which dtype a layer computes in: `canonicalize_dtype` and `promote_dtype`, and how ops take the latter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from weft.modules.ops import as_array, compute_dtype, promote
from weft.nnx.types import Dtype as Dtype

T = TypeVar("T", bound=tuple[Any, ...])


def canonicalize_dtype(*args: Any, dtype: Any = None, inexact: bool = True) -> Any:
    """The dtype to compute in.

    Args:
        args: arrays and what can become one; `None`s do not count.
        dtype: what was asked for, if anything.
        inexact: whether integers must become floats.

    Raises:
        ValueError: if an integer dtype was asked for where only an inexact one makes sense.

    >>> canonicalize_dtype(1, None, dtype=None).name
    'float32'
    """
    return compute_dtype(*(as_array(arg) for arg in args if arg is not None), dtype=dtype, inexact=inexact)


def promote_dtype(args: T, /, *, dtype: Any = None, inexact: bool = True) -> T:
    """Arrays cast to the one dtype that they are computed in; `None` stays `None`.

    Args:
        args: a tuple of arrays.
        dtype, inexact: as in `canonicalize_dtype`.

    >>> import jax.numpy as jnp
    >>> [array.dtype.name for array in promote_dtype((jnp.arange(2), jnp.ones(2)), dtype=jnp.bfloat16)]
    ['bfloat16', 'bfloat16']
    """
    return cast(T, tuple(promote(*args, dtype=dtype, inexact=inexact)))


# What `promote_dtype` was when it was read: others change functions in place, and then expect to be called.
_CODES = [function.__code__ for function in (promote_dtype, canonicalize_dtype)]


def as_promotion(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function like `promote_dtype` as ops take it: with each array an argument."""
    if function is promote_dtype and [promote_dtype.__code__, canonicalize_dtype.__code__] == _CODES:
        return promote
    return lambda *arrays, **options: function(arrays, **options)
