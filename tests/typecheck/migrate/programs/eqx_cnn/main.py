import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import jax
import jax.numpy as jnp
import optax
from equinox import apply_updates, filter, filter_jit, filter_value_and_grad, is_array
from jaxtyping import Array, Float, Int
from model import CNN


def loss(model: CNN, x: Float[Array, "b 1 6 6"], y: Int[Array, "b"]) -> tuple[Float[Array, ""], Float[Array, "b 3"]]:
    logits = jax.vmap(model)(x)
    return -jnp.mean(jnp.take_along_axis(logits, y[:, None], axis=1)), logits


def make_step(optimizer: optax.GradientTransformation):
    @filter_jit
    def step(model: CNN, state: optax.OptState, x: Float[Array, "b 1 6 6"], y: Int[Array, "b"]):
        (value, logits), grads = filter_value_and_grad(loss, has_aux=True)(model, x, y)
        updates, state = optimizer.update(grads, state, filter(model, is_array))
        return apply_updates(model, updates), state, value, logits

    return step


optimizer = optax.sgd(0.1, momentum=0.9)
model = CNN(jax.random.key(0))
state = optimizer.init(filter(model, is_array))
step = make_step(optimizer)
x, y = jax.random.normal(jax.random.key(1), (6, 1, 6, 6)), jnp.arange(6) % 3
for _ in range(4):
    model, state, value, logits = step(model, state, x, y)
    print(value, logits[0, 0])
print(len(jax.tree.leaves(model)), model.rate)


@filter_jit
def accuracy(model, x, y):
    return jnp.mean(jnp.argmax(jax.vmap(model)(x), axis=1) == y)


print(accuracy(model, x, y))
