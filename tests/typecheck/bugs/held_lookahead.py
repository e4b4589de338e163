"""A weft module that carries slow weights beside fast ones."""

from typing import Self

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft.core import Module


class Lookahead(Module):
    fast: Float[Array, "i o"]
    slow: Float[Array, "i o"]
    rate: float = 0.5

    def __call__(self, x: Float[Array, "b i"]) -> Float[Array, "b o"]:
        return x @ self.slow

    def update(self, grads: Float[Array, "i o"]) -> Self:
        fast = self.fast - 0.1 * grads
        slow = self.slow + self.rate * (fast - self.slow)
        return self.replace(fast=fast, slow=slow)  # bug: return self.replace(fast=fast, slow=slow.T)


entry = Lookahead(jnp.ones((4, 4)), jnp.ones((4, 4)))


def sample():
    return entry.update(jnp.ones((4, 4)))(jnp.ones((2, 4)))
