"""A contrastive loss between two encoders."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Encoder(nnx.Module):
    def __init__(self, d: int, k: int, *, rngs: nnx.Rngs):
        self.linear = nnx.Linear(d, k, rngs=rngs)

    def __call__(self, x: Float[Array, "b d"]) -> Float[Array, "b k"]:
        y = self.linear(x)
        return y / jnp.linalg.norm(y, axis=-1, keepdims=True)


def similarities(images: Float[Array, "b k"], texts: Float[Array, "b k"]) -> Float[Array, "b b"]:
    return images @ texts.T  # bug: return images.T @ texts


def clip_loss(encoder: Encoder, images: Float[Array, "b d"], texts: Float[Array, "b d"]) -> Float[Array, ""]:
    logits = similarities(encoder(images), encoder(texts))
    labels = jnp.arange(logits.shape[0])
    picked = jax.nn.log_softmax(logits)[labels, labels]
    return -jnp.mean(picked)


entry = clip_loss


def sample():
    return clip_loss(Encoder(3, 4, rngs=nnx.Rngs(0)), jnp.ones((4, 3)), jnp.ones((4, 3)))
