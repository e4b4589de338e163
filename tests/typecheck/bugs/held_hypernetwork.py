"""A hypernetwork that writes the weights of a small linear layer."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def generate(z: Float[Array, "z"], w: Float[Array, "z i*o"], x: Float[Array, "b i"], out: Float[Array, "o"]) -> Float[Array, "b o"]:
    kernel = (z @ w).reshape(x.shape[-1], out.shape[0])  # bug: kernel = (z @ w).reshape(out.shape[0], x.shape[-1])
    return x @ kernel + out


entry = generate


def sample():
    return generate(jnp.ones(3), jnp.ones((3, 16)), jnp.ones((2, 4)), jnp.ones(4))
