"""Transforms that keep the signatures of the functions they are given, and a stacked record with its own type."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import weft
from jaxtyping import Array, Float, Int
from weft import Param
from weft.typecheck import Batched, contract, mode

from ensemble.layers import Encoder, Linear, make_encoder


@contract
def loss(encoder: Encoder, x: Float[Array, "batch width"]) -> tuple[Float[Array, ""], Encoder]:
    y, after = encoder(x)
    return jnp.mean(y**2), after


@weft.jit
def train_step(encoder: Encoder, x: Float[Array, "batch width"], rate: float = 0.1) -> tuple[Encoder, Float[Array, ""]]:
    (value, after), gradient = weft.value_and_grad(loss, has_aux=True)(encoder, x)

    def descend(leaf: Array, slope: Array) -> Array:
        return leaf - rate * slope

    parameters = weft.tree.select(after, Param)
    return weft.tree.update(after, jax.tree.map(descend, parameters, gradient)), value


def make_ensemble(size: int, out: int, width: int) -> Batched[Linear, "members"]:
    def make(scale: Float[Array, ""]) -> Linear:
        return Linear(scale * jnp.ones((out, width)), None)

    return weft.vmap(make)(jnp.arange(float(size)))


def apply_one(layer: Linear, x: Float[Array, "in"]) -> Float[Array, "out"]:
    return layer(x)


@contract
def apply_ensemble(layers: Batched[Linear, "members"], x: Float[Array, "members in"]) -> Float[Array, "members out"]:
    return weft.vmap(apply_one)(layers, x)


def evaluate() -> Int[Array, ""]:
    encoder = make_encoder(3, 4)
    x = jnp.ones((2, 3))
    encoder, value = train_step(encoder, x)
    encoder, value = train_step(encoder, x, rate=0.01)
    with mode("strict"):
        outputs = apply_ensemble(make_ensemble(2, 3, 4), jnp.ones((2, 4)))
    doubled = encoder.replace(up=encoder.up.without_bias())
    assert doubled.norm.momentum == 0.9
    return jnp.isfinite(value + outputs.sum()).astype(int)
