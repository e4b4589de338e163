"""LossScale: scales the loss so that small gradients do not vanish in float16."""

from __future__ import annotations

from typing import Annotated, Any, Self, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from weft.core.records.kinds import OptState
from weft.core.records.module import Module, static
from weft.modules.construct import ConfigError, check_positive
from weft.modules.dtypes import is_of
from weft.modules.learning.tree import map as map_arrays

T = TypeVar("T")


class LossScale(Module):
    """A factor for the loss that adapts: it grows while gradients are finite, and shrinks when they are not.

    Float16 has no positive numbers below 6e-8; the gradients of a loss that was multiplied by a factor stay above that.
    bfloat16 has the exponents of float32 and needs no factor. The training loop carries the record like the optimizer:

        (_, (value, after)), gradient = weft.value_and_grad(scaled, has_aux=True)(model, x)
        gradient, finite, scaling = scaling.unscaled(gradient)
        model, opt = weft.cond(finite, lambda: opt.update(model, gradient, state_of=after), lambda: (model, opt))

    where `scaled` returns `scaling.scaled(value), (value, after)`. A step whose gradient is not finite changes nothing.

    Args:
        scale: the first factor; by default the largest power of two that float16 has.
        interval: the number of finite steps in a row after which the factor grows.
        growth, backoff: the numbers by which the factor is multiplied when it grows, and when it shrinks; 1 keeps it.
        minimum: the smallest factor.

    Raises:
        ConfigError: if an option is out of range.

    >>> scaling = LossScale(1024.0, interval=2)
    >>> gradient, finite, scaling = scaling.unscaled({"w": jnp.array([2048.0, jnp.inf])})
    >>> gradient["w"].tolist(), bool(finite), float(scaling.scale)
    ([2.0, inf], False, 512.0)

    Source: Micikevicius et al., "Mixed Precision Training", 2018; `flax.training.dynamic_scale`.
    """

    scale: Annotated[Float[Array, ""], OptState]
    finite_steps: Annotated[Int[Array, ""], OptState]
    interval: int = static()
    growth: float = static()
    backoff: float = static()
    minimum: float = static()

    def __init__(
        self,
        # Not 2**16: the first cotangent of a loss in float16 would overflow, whose largest number is 65504.
        scale: float = 2.0**15,
        *,
        interval: int = 2000,
        growth: float = 2.0,
        backoff: float = 0.5,
        minimum: float = 1.0,
    ):
        check_positive("LossScale", interval=interval)
        if not (scale >= minimum > 0 and growth >= 1 and 0 < backoff <= 1):
            raise ConfigError(
                "LossScale needs growth >= 1, backoff <= 1, a positive minimum and scale >= minimum",
                at=f"scale={scale}, growth={growth}, backoff={backoff}, minimum={minimum}",
            )
        self.scale, self.finite_steps = jnp.asarray(scale, jnp.float32), jnp.zeros((), jnp.int32)
        self.interval, self.growth, self.backoff, self.minimum = interval, growth, backoff, minimum

    def scaled(self, loss: Float[Array, ""]) -> Float[Array, ""]:
        """Returns the loss times the factor, in float32 or wider; differentiate this value."""
        return jnp.asarray(loss, jnp.promote_types(jnp.result_type(loss), jnp.float32)) * self.scale

    def unscaled(self, gradient: T) -> tuple[T, Bool[Array, ""], Self]:  # weft: skip(of any tree)
        """Returns the gradient of the loss, from the gradient of the scaled loss.

        Args:
            gradient: any tree; its dtypes are kept, so parameters should be float32, as those of a `Policy` are.

        Returns:
            The gradient, whether all of its numbers are finite, and the successor, whose factor follows from that.
        """

        def divided(leaf: Any) -> Any:
            return (leaf / self.scale).astype(leaf.dtype) if is_of(jnp.inexact, leaf) else leaf

        leaves = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(gradient) if is_of(jnp.inexact, leaf)]
        finite = jnp.all(jnp.stack(leaves)) if leaves else jnp.asarray(True)
        return map_arrays(divided, gradient, filter=...), finite, self._after(finite)

    def _after(self, finite: Bool[Array, ""]) -> Self:
        steps = jnp.where(finite, self.finite_steps + 1, 0)
        grows = steps >= self.interval
        grown = jnp.where(grows, self.scale * self.growth, self.scale)
        # A model that never overflows would let the factor grow to infinity, and infinity times `backoff` stays
        # infinity.
        grown = jnp.where(jnp.isfinite(grown), grown, self.scale)
        shrunk = jnp.maximum(self.scale * self.backoff, self.minimum)
        return self.replace(scale=jnp.where(finite, grown, shrunk), finite_steps=jnp.where(grows, 0, steps))
