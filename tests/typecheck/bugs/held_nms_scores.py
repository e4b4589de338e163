"""Pairwise IoU of boxes and the soft scores it leaves."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def iou(a: Float[Array, "n 4"], b: Float[Array, "m 4"]) -> Float[Array, "n m"]:
    low = jnp.maximum(a[:, None, :2], b[None, :, :2])
    high = jnp.minimum(a[:, None, 2:], b[None, :, 2:])
    overlap = jnp.prod(jnp.clip(high - low, 0), axis=-1)
    area_a = jnp.prod(a[:, 2:] - a[:, :2], axis=-1)
    area_b = jnp.prod(b[:, 2:] - b[:, :2], axis=-1)
    return overlap / (area_a[:, None] + area_b[None, :] - overlap)  # bug: return overlap / (area_a[None, :] + area_b[:, None] - overlap)


entry = iou


def sample():
    return iou(jnp.ones((4, 4)), jnp.ones((4, 4)))
