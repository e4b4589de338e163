"""A model made of modules that it is given."""

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Encoder(nnx.Module):
    w: nnx.Param[Float[Array, "x z"]]

    def __init__(self, x: int, z: int, *, rngs: nnx.Rngs):
        self.w = nnx.Param(rngs.params.normal((x, z)))

    def __call__(self, inputs: Float[Array, "b x"]) -> Float[Array, "b z"]:
        return inputs @ self.w


class Decoder(nnx.Module):
    w: nnx.Param[Float[Array, "z x"]]

    def __init__(self, z: int, x: int, *, rngs: nnx.Rngs):
        self.w = nnx.Param(rngs.params.normal((z, x)))

    def __call__(self, code: Float[Array, "b z"]) -> Float[Array, "b x"]:
        return code @ self.w  # bug: return code @ self.w.T


class Auto(nnx.Module):
    def __init__(self, encoder: Encoder, decoder: Decoder):
        self.encoder, self.decoder = encoder, decoder

    def __call__(self, inputs: Float[Array, "b x"]) -> Float[Array, "b x"]:
        return self.decoder(self.encoder(inputs))


def reconstruction(model: Auto, inputs: Float[Array, "b x"]) -> Float[Array, "b"]:
    return ((model(inputs) - inputs) ** 2).sum(-1)


entry = reconstruction


def sample():
    rngs = nnx.Rngs(0)
    return reconstruction(Auto(Encoder(4, 4, rngs=rngs), Decoder(4, 4, rngs=rngs)), jnp.ones((2, 4)))
