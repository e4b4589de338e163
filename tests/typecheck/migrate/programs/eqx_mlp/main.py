"""An MLP over equinox, trained with optax; eqx.filter_jit and the rest stand in words, too."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray


class Net(eqx.Module):
    first: eqx.nn.Linear
    second: eqx.nn.Linear
    scale: Float[Array, ""]
    width: int = eqx.field(static=True)

    def __init__(self, width: int, *, key: PRNGKeyArray):
        key1, key2 = jax.random.split(key)
        self.first = eqx.nn.Linear(4, width, key=key1)
        self.second = eqx.nn.Linear(width, 1, key=key2)
        self.scale = jnp.ones(())
        self.width = width

    def __call__(self, x: Float[Array, "4"]) -> Float[Array, "1"]:
        return self.second(jax.nn.relu(self.first(x))) * self.scale


@eqx.filter_value_and_grad
def loss(net: Net, x: Float[Array, "b 4"], y: Float[Array, "b 1"]) -> Float[Array, ""]:
    return jnp.mean((jax.vmap(net)(x) - y) ** 2)


optimizer = optax.adam(1e-2)


@eqx.filter_jit
def step(net: Net, state: optax.OptState, x: Float[Array, "b 4"], y: Float[Array, "b 1"], times: int):
    value = jnp.zeros(())
    for _ in range(times):
        value, grads = loss(net, x, y)
        updates, state = optimizer.update(grads, state, eqx.filter(net, eqx.is_inexact_array))
        net = eqx.apply_updates(net, updates)
    return value, net, state


net = Net(8, key=jax.random.PRNGKey(0))
state = optimizer.init(eqx.filter(net, eqx.is_inexact_array))
x = jax.random.normal(jax.random.key(1), (16, 4))
for _ in range(5):
    value, net, state = step(net, state, x, x.sum(axis=1, keepdims=True), 2)
    print(value)
net = eqx.tree_at(lambda net: net.scale, net, jnp.full((), 2.0))
print(net(x[0]), len(jax.tree.leaves(net)), net.width)
print("eqx.filter_jit")
