"""A teacher with a running centre, as in self-distillation; the step changes both networks."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Projector(nnx.Module):
    centre: nnx.BatchStat[Float[Array, "k"]]

    def __init__(self, d: int, k: int, *, rngs: nnx.Rngs):
        self.linear = nnx.Linear(d, k, rngs=rngs)
        self.centre = nnx.BatchStat(jnp.zeros(k))

    def __call__(self, x: Float[Array, "b d"]) -> Float[Array, "b k"]:
        return self.linear(x)


def distil(student: Projector, teacher: Projector, x: Float[Array, "b d"]) -> Float[Array, ""]:
    targets = teacher(x)
    loss = -jnp.mean(jnp.sum(jax.nn.softmax(targets - teacher.centre[...]) * jax.nn.log_softmax(student(x)), axis=-1))
    centre = targets.mean(axis=0)  # bug: centre = targets.mean(axis=1)
    teacher.centre[...] = 0.9 * teacher.centre[...] + 0.1 * centre
    new = jax.tree.map(lambda t, s: 0.99 * t + 0.01 * s, nnx.state(teacher, nnx.Param), nnx.state(student, nnx.Param))
    nnx.update(teacher, new)
    return loss


entry = distil


def sample():
    return distil(Projector(3, 4, rngs=nnx.Rngs(0)), Projector(3, 4, rngs=nnx.Rngs(1)), jnp.ones((4, 3)))
