"""A classifier of any size, in a loss that says which: 784 pixels, ten classes."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray


class Mlp(eqx.Module):
    w1: Float[Array, "d h"]
    w2: Float[Array, "h o"]
    def __init__(self, d: int, h: int, o: int, *, key: PRNGKeyArray):
        a, b = jax.random.split(key)
        self.w1 = jax.random.normal(a, (d, h))
        self.w2 = jax.random.normal(b, (h, o))
    def __call__(self, x: Float[Array, "d"]) -> Float[Array, "o"]:
        return jax.nn.relu(x @ self.w1) @ self.w2

def loss(model: Mlp, x: Float[Array, "b 784"], y: Int[Array, "b"]) -> Float[Array, ""]:
    logits = jax.vmap(model)(x)
    return -jnp.mean(jnp.sum(jax.nn.one_hot(y, 10) * jax.nn.log_softmax(logits), -1))  # bug: return -jnp.mean(jnp.sum(jax.nn.one_hot(y, 10) * jax.nn.log_softmax(logits), 0) * y)

entry = loss
def sample(): return loss(Mlp(784, 8, 10, key=jax.random.key(0)), jnp.ones((10, 784)), jnp.zeros(10, int))
