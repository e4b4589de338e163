"""Grouped projections in one weft module."""

import jax
import jax.numpy as jnp
import weft
from jaxtyping import Array, Float


class GroupedProjection(weft.Module):
    kernel: Float[Array, "groups inp out"]
    bias: Float[Array, "groups out"]

    def __call__(self, x: Float[Array, "*batch groups*inp"]) -> Float[Array, "*batch groups*out"]:
        groups, inp, out = self.kernel.shape
        xg = x.reshape(*x.shape[:-1], groups, inp)  # bug: xg = x.reshape(*x.shape[:-1], inp, groups).swapaxes(-1, -2)
        y = jnp.einsum("...gi,gio->...go", xg, self.kernel) + self.bias
        return y.reshape(*x.shape[:-1], groups * out)


entry = GroupedProjection


def sample():
    return GroupedProjection(jnp.ones((2, 3, 4)), jnp.ones((2, 4)))(jnp.ones((5, 6)))
