"""Chooses the dtype in which a layer computes.

Layers have three dtypes. Parameters are stored in `param_dtype`. The layer computes in `dtype`; by default that is the
dtype to which inputs and parameters promote, and at least a float. Products accumulate and return `out_dtype`.
"""

from __future__ import annotations

from typing import Any, overload

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Shaped
from weft.core.records.successors import refuse_pair
from weft.modules.construct import ConfigError


def compute_dtype(*arrays: Any, dtype: Any = None, inexact: bool = True) -> Any:
    """Returns the dtype to compute in.

    Args:
        arrays: inputs and parameters; `None`s do not count.
        dtype: what the user asked for, if anything.
        inexact: whether integers must become floats.

    Raises:
        ConfigError: if an integer dtype was asked for where only an inexact one makes sense.

    >>> compute_dtype(jnp.zeros(2, jnp.bfloat16), jnp.zeros(2, jnp.float32)).name
    'float32'
    """
    if dtype is None:
        dtypes = {array.dtype for array in arrays if array is not None}
        # Arrays of one dtype are the common case, and to look is much cheaper than JAX's promotion, which each eager
        # call of a layer would pay.
        dtype = dtypes.pop() if len(dtypes) == 1 else jnp.result_type(*(a for a in arrays if a is not None))
        if inexact and not jnp.issubdtype(dtype, jnp.inexact):
            dtype = jnp.promote_types(jnp.float32, dtype)
    elif inexact and not jnp.issubdtype(dtype, jnp.inexact):
        raise ConfigError(f"a computation's dtype must be floating-point, not {jnp.dtype(dtype).name}")
    return jnp.dtype(dtype)


@overload
def cast(array: Shaped[Array, "*shape"], dtype: DTypeLike) -> Shaped[Array, "*shape"]: ...
@overload
def cast(array: None, dtype: DTypeLike) -> None: ...
def cast(array: Shaped[Array, "*shape"] | None, dtype: DTypeLike) -> Shaped[Array, "*shape"] | None:
    """Returns an array in a dtype; an array that has the dtype already comes back without an equation.

    >>> cast(jnp.ones(2), jnp.bfloat16).dtype.name
    'bfloat16'
    """
    # A weakly typed array has the right dtype and would still yield to others in the next product.
    if array is None or (array.dtype == dtype and not getattr(array, "weak_type", False)):
        return array
    return lax.convert_element_type(array, dtype)


def promote(*arrays: Any, dtype: Any = None, inexact: bool = True) -> list[Any]:
    """Casts arrays to the dtype in which they are computed together; `None` stays `None`.

    Raises:
        ConfigError: for a dtype that is not inexact, where an inexact one is wanted.

    >>> [a.dtype.name for a in promote(jnp.arange(2), jnp.ones(2), dtype=jnp.bfloat16)]
    ['bfloat16', 'bfloat16']
    """
    converted = [None if array is None else as_array(array) for array in arrays]
    dtype = compute_dtype(*converted, dtype=dtype, inexact=inexact)
    return [cast(array, dtype) for array in converted]


def as_array(value: ArrayLike) -> Array:
    """Converts a value to a JAX array; an array or tracer comes back unchanged.

    Raises:
        SuccessorError: for the pair that a stateful call returns, which was not unpacked.

    >>> as_array([1.0, 2.0]).shape
    (2,)
    """
    if isinstance(value, jax.Array):
        return value
    refuse_pair(value, "a layer")
    return jnp.asarray(value)
