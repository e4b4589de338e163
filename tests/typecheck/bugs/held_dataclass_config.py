"""A two-layer network whose parameters are a plain dataclass."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@dataclass
class Params:
    w1: Float[Array, "i h"]
    b1: Float[Array, "h"]
    w2: Float[Array, "h o"]


def forward(params: Params, x: Float[Array, "b i"]) -> Float[Array, "b o"]:
    hidden = jax.nn.gelu(x @ params.w1 + params.b1)
    return hidden @ params.w2  # bug: return hidden @ params.w2.T


entry = forward


def sample():
    return forward(Params(jnp.ones((3, 4)), jnp.ones(4), jnp.ones((4, 4))), jnp.ones((2, 3)))
