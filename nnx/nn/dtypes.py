"""The dtype that a layer computes in: `canonicalize_dtype` and `promote_dtype`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from weft.modules.ops import as_array, compute_dtype, promote
from weft.nnx.types import Dtype as Dtype

T = TypeVar("T", bound=tuple[Any, ...])


def canonicalize_dtype(*args: Any, dtype: Any = None, inexact: bool = True) -> Any:
    """Returns the dtype to compute in.

    Args:
        args: array-likes; Nones are ignored.
        dtype: the requested dtype, or None for the promoted one.
        inexact: whether integers must become floats.

    Raises:
        ValueError: if an integer dtype was requested, but `inexact` is True.

    >>> canonicalize_dtype(1, None, dtype=None).name
    'float32'
    """
    return compute_dtype(*(as_array(arg) for arg in args if arg is not None), dtype=dtype, inexact=inexact)


def promote_dtype(args: T, /, *, dtype: Any = None, inexact: bool = True) -> T:
    """Casts arrays to a common dtype; None stays None.

    Args:
        args: a tuple of arrays.
        dtype, inexact: as in `canonicalize_dtype`.

    >>> import jax.numpy as jnp
    >>> [array.dtype.name for array in promote_dtype((jnp.arange(2), jnp.ones(2)), dtype=jnp.bfloat16)]
    ['bfloat16', 'bfloat16']
    """
    return cast(T, tuple(promote(*args, dtype=dtype, inexact=inexact)))


# The functions' code at import. Some libraries replace a function's `__code__`, and expect layers to run the new code.
_CODES = [function.__code__ for function in (promote_dtype, canonicalize_dtype)]


def as_promotion(function: Callable[..., Any]) -> Callable[..., Any]:
    """Converts a function like `promote_dtype` to the ops' form, in which each array is an argument."""
    if function is promote_dtype and [promote_dtype.__code__, canonicalize_dtype.__code__] == _CODES:
        return promote
    # A user's function takes one tuple, as flax's does; the ops pass each array as an argument of its own.
    return lambda *arrays, **options: function(arrays, **options)
