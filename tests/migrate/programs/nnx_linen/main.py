import jax
import jax.numpy as jnp
from flax import linen as nn, nnx  # noqa: I001
from flax.core import freeze
from flax.nnx import bridge


class Dense(nn.Module):
    features: int

    @nn.compact
    def __call__(self, x):
        return nn.relu(nn.Dense(self.features)(x))


class Both(nnx.Module):
    def __init__(self, rngs):
        self.dense = bridge.lazy_init(bridge.ToNNX(Dense(6), rngs=rngs), jnp.ones((1, 4)))
        self.out = nnx.Linear(6, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(self.dense(x))


x = jax.random.normal(jax.random.key(0), (4, 4))
model = Both(nnx.Rngs(0))
value, grads = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
print(value, sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(grads)))
linen = Dense(3)
params = freeze(linen.init(jax.random.key(1), x))
print(linen.apply(params, x).sum())
