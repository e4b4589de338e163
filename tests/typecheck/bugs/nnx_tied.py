"""Two modules that share a Variable, and a model that knows its parts' parent."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from weft import nnx


class Tied(nnx.Module):
    table: nnx.Param[Float[Array, "vocab d"]]

    def __init__(self, vocab: int, d: int, *, rngs: nnx.Rngs):
        self.table = nnx.Param(rngs.params.normal((vocab, d)))
        self.head = nnx.Dict(table=self.table)
        self.mix = nnx.Linear(d, d, rngs=rngs)

    def __call__(self, ids: Int[Array, "b s"]) -> Float[Array, "b s vocab"]:
        x = self.mix(self.table[ids])
        return x @ self.head.table[...].T  # bug: return x @ self.head.table[...]


def step(model: Tied, optimizer: nnx.ModelAndOptimizer[Tied], ids: Int[Array, "b s"]) -> Float[Array, ""]:
    def loss(model: Tied) -> Float[Array, ""]:
        return model(ids).mean()

    value, grads = nnx.value_and_grad(loss)(optimizer.model)
    optimizer.update(grads)
    return value


entry = step


def sample():
    import optax

    model = Tied(4, 4, rngs=nnx.Rngs(0))
    return step(model, nnx.ModelAndOptimizer(model, optax.sgd(0.1)), jnp.zeros((2, 3), int))
