"""A linear layer of groups, each with its own weight."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class GroupedLinear(eqx.Module):
    weight: Float[Array, "groups inp out"]
    groups: int = eqx.field(static=True)

    def __init__(self, groups: int, inp: int, out: int, *, key: PRNGKeyArray):
        self.weight = jax.random.normal(key, (groups, inp, out))
        self.groups = groups

    def __call__(self, x: Float[Array, "b groups*inp"]) -> Float[Array, "b groups*out"]:
        b = x.shape[0]
        y = jnp.einsum("bgi,gio->bgo", x.reshape(b, self.groups, -1), self.weight)
        return y.reshape(b, -1)  # bug: return y.swapaxes(1, 2).reshape(b, -1)


entry = GroupedLinear


def sample():
    return GroupedLinear(2, 3, 4, key=jax.random.key(0))(jnp.ones((5, 6)))
