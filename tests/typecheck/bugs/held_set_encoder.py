"""DeepSets with an optional mask, as an equinox module built by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class DeepSet(eqx.Module):
    phi: eqx.nn.Linear
    rho: eqx.nn.Linear

    def __init__(self, features: int, hidden: int, out: int, *, key):
        k1, k2 = jax.random.split(key)
        self.phi = eqx.nn.Linear(features, hidden, key=k1)
        self.rho = eqx.nn.Linear(hidden, out, key=k2)

    def __call__(self, x: Float[Array, "n features"], mask: Bool[Array, "n"] | None = None) -> Float[Array, "out"]:
        h = jax.nn.relu(jax.vmap(self.phi)(x))
        if mask is not None:
            h = h * mask[:, None]  # bug: h = h * mask
        return self.rho(h.sum(axis=0))


entry = DeepSet(3, 4, 2, key=jax.random.key(0))


def sample():
    return entry(jnp.ones((4, 3)), jnp.ones(4, bool))
