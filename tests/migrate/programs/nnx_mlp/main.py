"""An MLP, trained; it says `from flax import nnx` in words, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import optax

try:
    from flax import nnx  # the library: flax.nnx
except ImportError:
    nnx = None

if TYPE_CHECKING:
    from flax.nnx import Rngs

__all__ = ["MLP", "nnx"]
NOTE = "import flax.nnx is what this program did once"


class MLP(nnx.Module):
    """Like `flax.nnx`'s own examples."""

    def __init__(self, rngs: Rngs, activation: str = "relu"):
        self.layers = nnx.List([nnx.Linear(4, 8, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)])
        self.scale: nnx.Param[jax.Array] = nnx.Param(jnp.ones(()))
        self.activation = getattr(nnx, activation)

    def __call__(self, x):
        return self.layers[1](self.activation(self.layers[0](x))) * self.scale


@nnx.jit
def step(model, optimizer, metrics, x, y):
    def loss(model):
        return jnp.mean((model(x) - y) ** 2)

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    metrics.update(loss=value)
    return value


model = MLP(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)
metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"))
x = jax.random.normal(jax.random.key(1), (16, 4))
for _ in range(10):
    print(step(model, optimizer, metrics, x, x.sum(axis=1, keepdims=True)))
print(metrics.compute()["loss"])
graphdef, params, rest = nnx.split(model, nnx.Param, ...)
print(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params)), len(jax.tree.leaves(rest)))
print(nnx.merge(graphdef, params, rest)(x[:2]).ravel())
