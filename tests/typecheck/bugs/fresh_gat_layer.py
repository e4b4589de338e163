"""Dense graph attention with several heads."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class GATLayer(eqx.Module):
    w: Float[Array, "heads inp feat"]
    a_src: Float[Array, "heads feat"]
    a_dst: Float[Array, "heads feat"]

    def __init__(self, inp: int, feat: int, heads: int, key: jax.Array):
        k1, k2, k3 = jax.random.split(key, 3)
        self.w = jax.random.normal(k1, (heads, inp, feat))
        self.a_src = jax.random.normal(k2, (heads, feat))
        self.a_dst = jax.random.normal(k3, (heads, feat))

    def __call__(
        self, x: Float[Array, "nodes inp"], adj: Bool[Array, "nodes nodes"]
    ) -> Float[Array, "nodes heads*feat"]:
        h = jnp.einsum("ni,hif->nhf", x, self.w)
        src = jnp.einsum("nhf,hf->hn", h, self.a_src)
        dst = jnp.einsum("nhf,hf->hn", h, self.a_dst)
        e = jax.nn.leaky_relu(src[:, :, None] + dst[:, None, :], 0.2)
        att = jax.nn.softmax(jnp.where(adj, e, -1e9), axis=-1)
        out = jnp.einsum("hnm,mhf->nhf", att, h)  # bug: out = jnp.einsum("hnm,mhf->hnf", att, h)
        return out.reshape(x.shape[0], -1)


entry = GATLayer


def sample():
    return GATLayer(3, 4, 2, jax.random.key(0))(jnp.ones((5, 3)), jnp.ones((5, 5), bool))
