"""JAX as `Any`, for strict checking.

Many of JAX's public functions are annotated in part (`fun: Callable`, `device=None`), and a strict checker reports
every use of them. Such functions are called through the names here, which say openly that nothing is checked.
Types (`jax.Array`, `jax.ShapeDtypeStruct`) still come from `jax` itself.
"""

from __future__ import annotations

from typing import Any

import jax as _jax
import jax.numpy as _jnp

jax: Any = _jax
jnp: Any = _jnp
lax: Any = _jax.lax

# floor: the value of `jit(inline=)` by which a function's equations are put into the outer jaxpr. Since JAX 0.11 `True`
# inlines only in MLIR, so that jaxprs had an additional call.
INLINED: Any = _jax.Inline.JAX_EARLY if hasattr(_jax, "Inline") else True
