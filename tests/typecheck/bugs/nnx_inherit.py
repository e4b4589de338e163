"""A base class with a hook that subclasses fill in."""

import abc

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Policy(nnx.Module, abc.ABC):
    @abc.abstractmethod
    def logits(self, x: Float[Array, "b o"]) -> Float[Array, "b a"]: ...

    def entropy(self, x: Float[Array, "b o"]) -> Float[Array, "b"]:
        logp = nnx.log_softmax(self.logits(x))
        return -(jnp.exp(logp) * logp).sum(-1)


class LinearPolicy(Policy):
    def __init__(self, o: int, a: int, *, rngs: nnx.Rngs | None = None):
        self.layer = nnx.Linear(o, a, rngs=rngs or nnx.Rngs(0))
        self.temperature = nnx.Param(jnp.ones(a))

    def logits(self, x: Float[Array, "b o"]) -> Float[Array, "b a"]:
        return self.layer(x) / self.temperature  # bug: return self.layer(x) / self.temperature[:, None]


entry = LinearPolicy


def sample():
    return LinearPolicy(3, 4).entropy(jnp.ones((4, 3)))
