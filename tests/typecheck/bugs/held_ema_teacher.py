"""A teacher that follows a student, both modules."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class Projector(eqx.Module):
    weight: Float[Array, "z d"]

    def __init__(self, d: int, z: int, *, key: PRNGKeyArray):
        self.weight = jax.random.normal(key, (z, d))

    def __call__(self, x: Float[Array, "d"]) -> Float[Array, "z"]:
        return self.weight @ x


def consistency(student: Projector, teacher: Projector, x: Float[Array, "b d"]) -> Float[Array, "b"]:
    a, b = jax.vmap(student)(x), jax.lax.stop_gradient(jax.vmap(teacher)(x))
    return jnp.sum((a - b) ** 2, axis=1)  # bug: return jnp.sum((a - b) ** 2, axis=0)


entry = consistency


def sample():
    net = Projector(4, 4, key=jax.random.key(0))
    return consistency(net, net, jnp.ones((4, 4)))
