"""Adapters are trained, the base is frozen."""

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float
from weft import nnx


class Adapter(nnx.Module):
    def __init__(self, d: int, r: int, *, rngs: nnx.Rngs):
        self.base = nnx.Linear(d, d, rngs=rngs)
        self.down = nnx.LoRAParam(rngs.params.normal((d, r)))
        self.up = nnx.LoRAParam(jnp.zeros((r, d)))

    def __call__(self, x: Float[Array, "b d"]) -> Float[Array, "b d"]:
        return self.base(x) + (x @ self.down) @ self.up


def tune(model: Adapter, x: Float[Array, "b d"], y: Float[Array, "b d"], weight: Float[Array, "b"]) -> Float[Array, ""]:
    def loss_fn(model):
        return jnp.mean(weight * ((model(x) - y) ** 2).sum(-1))  # bug: return jnp.mean(weight * ((model(x) - y) ** 2))

    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.LoRAParam)
    loss, grads = nnx.value_and_grad(loss_fn, argnums=nnx.DiffState(0, nnx.LoRAParam))(model)
    optimizer.update(model, grads)
    return loss


entry = tune


def sample():
    return tune(Adapter(4, 2, rngs=nnx.Rngs(0)), jnp.ones((4, 4)), jnp.ones((4, 4)), jnp.ones(4))
