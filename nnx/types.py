"""Types for annotations of layers and paths. flax's modules import them from `flax.typing`, and programs from those."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from weft.core.paths import Path

PathParts = Path
Leaf = Any

Array = jax.Array | Any
Dtype = jax.typing.DTypeLike | Any
Shape = Sequence[int]
Initializer = jax.nn.initializers.Initializer | Callable[..., Any]

PrecisionLike = (
    str | jax.lax.Precision | tuple[str, str] | tuple[jax.lax.Precision, jax.lax.Precision] | None
)  # what JAX takes as `precision`
DotGeneralT = Callable[..., Any]
ConvGeneralDilatedT = Callable[..., Any]
EinsumT = Callable[..., Any]

PaddingLike = str | int | Sequence[int | tuple[int, int]]
LaxPadding = str | Sequence[tuple[int, int]]
