"""A mixture of experts with soft gates."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Mixture(nnx.Module):
    gate: nnx.Param[Float[Array, "d e"]]
    up: nnx.Param[Float[Array, "e d f"]]
    down: nnx.Param[Float[Array, "e f d"]]

    def __init__(self, d: int, e: int, f: int, *, rngs: nnx.Rngs):
        self.gate = nnx.Param(rngs.params.normal((d, e)))
        self.up = nnx.Param(rngs.params.normal((e, d, f)))
        self.down = nnx.Param(rngs.params.normal((e, f, d)))

    def __call__(self, x: Float[Array, "t d"]) -> Float[Array, "t d"]:
        gates = jax.nn.softmax(x @ self.gate, axis=-1)
        hidden = nnx.relu(jnp.einsum("td,edf->tef", x, self.up[...]))
        return jnp.einsum("te,tef,efd->td", gates, hidden, self.down[...])  # bug: return jnp.einsum("et,tef,efd->td", gates, hidden, self.down[...])


entry = Mixture


def sample():
    return Mixture(3, 4, 5, rngs=nnx.Rngs(0))(jnp.ones((4, 3)))
