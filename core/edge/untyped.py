"""JAX as `Any`, for strict checking.

Many of JAX's public functions are annotated in part (`fun: Callable`, `device=None`), and a strict checker reports
every use of them. Where that happens, call them through here: it says that the value is unchecked, which is the truth.
Types (`jax.Array`, `jax.ShapeDtypeStruct`) still come from `jax` itself.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import jax as _jax
import jax.numpy as _jnp

jax: Any = _jax
jnp: Any = _jnp
lax: Any = _jax.lax

# How `jit(inline=)` leaves a function's equations in the outer jaxpr; since JAX 0.11 `True` means as MLIR is made.
INLINED: Any = _jax.Inline.JAX_EARLY if hasattr(_jax, "Inline") else True


def is_tuple(value: object) -> TypeGuard[tuple[Any, ...]]:
    """`isinstance(value, tuple)`, after which the elements are `Any` rather than unknown."""
    return isinstance(value, tuple)
