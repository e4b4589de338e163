"""Chooses the dtype in which a layer computes.

Layers have three dtypes. Parameters are stored in `param_dtype`. Products accumulate and return `out_dtype`. A layer
computes in, and its result has,

1. the `dtype` that the user gave it;
2. without one, within a function under a `Policy`, the dtype of the policy;
3. otherwise the dtype to which its inputs and its parameters promote, and at least a float.

Statistics, scales of quantised weights, caches and the integers that a table is looked up by have no say in it. A
float32 statistic that had one turned all layers after it into float32. Layers without parameters return the dtype of
their input.

The dtype of a policy is a setting, and not a field of the layers, so that it holds for whatever meets a layer: noise
drawn as float32 within the function, and a model in its closure.
"""

from __future__ import annotations

from typing import Any, TypeVar, overload

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Shaped
from weft.core.edge.contexts import compute_context
from weft.core.records.leaves import is_array
from weft.core.records.successors import refuse_pair
from weft.modules.construct import ConfigError

T = TypeVar("T")


def compute_dtype(*arrays: Any, dtype: Any = None, inexact: bool = True) -> Any:
    """Returns the dtype to compute in.

    Args:
        arrays: inputs and parameters; `None`s do not count.
        dtype: what the user asked for, if anything. Without it, a policy's dtype takes the place of every floating one.
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
        # Complex numbers stay: there are none of 16 bits.
        if compute_context.value is not None and jnp.issubdtype(dtype, jnp.floating):
            dtype = compute_context.value
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


def is_of(category: Any, value: Any) -> bool:
    """Whether it is an array whose dtype is of a category, such as `jnp.inexact`.

    >>> is_of(jnp.inexact, jnp.ones(2)), is_of(jnp.inexact, 1.0)
    (True, False)
    """
    return is_array(value) and jnp.issubdtype(value.dtype, category)


def in_policy(tree: T) -> T:
    """Returns a loop's carry in the dtype of the policy around the call: its layers return that, and it must stay."""
    if compute_context.value is None:
        return tree
    dtype = jnp.dtype(compute_context.value)
    return jax.tree.map(lambda leaf: cast(leaf, dtype) if is_of(jnp.floating, leaf) else leaf, tree)


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
