"""Recurrent layers in an `nnx.List`, each with a carry of its own."""

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Layer(nnx.Module):
    def __init__(self, d: int, *, rngs: nnx.Rngs):
        self.wx = nnx.Linear(d, d, rngs=rngs)
        self.wh = nnx.Linear(d, d, use_bias=False, rngs=rngs)

    def __call__(self, h: Float[Array, "b d"], x: Float[Array, "b d"]) -> Float[Array, "b d"]:
        return jnp.tanh(self.wx(x) + self.wh(h))


class Deep(nnx.Module):
    def __init__(self, layers: int, d: int, *, rngs: nnx.Rngs):
        self.layers = nnx.List([Layer(d, rngs=rngs) for _ in range(layers)])

    def __call__(
        self, carry: Float[Array, "layers b d"], x: Float[Array, "b d"]
    ) -> tuple[Float[Array, "layers b d"], Float[Array, "b d"]]:
        states = []
        for layer, h in zip(self.layers, carry, strict=True):
            x = layer(h, x)
            states.append(x)
        return jnp.stack(states), x  # bug: return jnp.stack(states, axis=1), x


entry = Deep


def sample():
    return Deep(3, 4, rngs=nnx.Rngs(0))(jnp.ones((3, 3, 4)), jnp.ones((3, 4)))
