"""An `nnx.dataclass`."""

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


@nnx.dataclass
class Affine(nnx.Module):
    w: nnx.Param[Float[Array, "i o"]]
    b: nnx.Param[Float[Array, "o"]]
    gain: float = 1.0

    def __call__(self, x: Float[Array, "n i"]) -> Float[Array, "n o"]:
        return self.gain * (x @ self.w) + self.b  # bug: return self.gain * (x @ self.w) + self.b[:, None]


entry = Affine


def sample():
    return Affine(nnx.Param(jnp.ones((3, 4))), nnx.Param(jnp.ones(4)))(jnp.ones((4, 3)))
