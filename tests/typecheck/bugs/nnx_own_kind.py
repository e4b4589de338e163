"""A queue of negatives in a Variable of its own kind."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Queue(nnx.Variable[nnx.A]):
    """What is kept of former batches."""


class Moco(nnx.Module):
    queue: Queue[Float[Array, "k d"]]

    def __init__(self, i: int, d: int, k: int, rngs: nnx.Rngs):
        self.encoder = nnx.Linear(i, d, rngs=rngs)
        self.queue = Queue(rngs.normal((k, d)))

    def __call__(self, x: Float[Array, "b i"], y: Float[Array, "b i"]) -> Float[Array, "b k+1"]:
        q, keys = self.encoder(x), jax.lax.stop_gradient(self.encoder(y))
        positive = (q * keys).sum(-1, keepdims=True)
        negative = q @ self.queue[...].T
        self.queue[...] = jnp.concatenate([keys, self.queue[...]])[: self.queue.shape[0]]
        return jnp.concatenate([positive, negative], axis=1)  # bug: return jnp.concatenate([positive, negative.T], axis=1)


entry = Moco


def sample():
    return Moco(3, 4, 5, nnx.Rngs(0))(jnp.ones((5, 3)), jnp.ones((5, 3)))
