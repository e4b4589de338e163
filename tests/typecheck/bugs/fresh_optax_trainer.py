"""A train step over an equinox model with optax."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray


class Classifier(eqx.Module):
    layers: list
    norm: eqx.nn.LayerNorm

    def __init__(self, in_size: int, width: int, n_classes: int, key: PRNGKeyArray):
        k1, k2 = jax.random.split(key)
        self.layers = [eqx.nn.Linear(in_size, width, key=k1), jax.nn.relu, eqx.nn.Linear(width, n_classes, key=k2)]
        self.norm = eqx.nn.LayerNorm(in_size)

    def __call__(self, x: Float[Array, "in_size"]) -> Float[Array, "n_classes"]:
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x)
        return x


optim = optax.adam(1e-3)


@eqx.filter_value_and_grad
def loss_fn(model: Classifier, x: Float[Array, "batch in_size"], y: Int[Array, "batch"]) -> Float[Array, ""]:
    logits = jax.vmap(model)(x)
    logp = jax.nn.log_softmax(logits, axis=-1)
    picked = jnp.take_along_axis(logp, y[:, None], axis=1)  # bug: picked = jnp.take_along_axis(logp, y[None, :], axis=1)
    return -jnp.mean(picked[:, 0])


@eqx.filter_jit
def step(
    model: Classifier, opt_state: optax.OptState, x: Float[Array, "batch in_size"], y: Int[Array, "batch"]
) -> tuple[Classifier, optax.OptState, Float[Array, ""]]:
    loss, grads = loss_fn(model, x, y)
    updates, opt_state = optim.update(grads, opt_state, model)
    return eqx.apply_updates(model, updates), opt_state, loss


entry = loss_fn


def sample():
    model = Classifier(3, 4, 5, jax.random.key(0))
    return loss_fn(model, jnp.ones((1, 3)), jnp.zeros(1, int))
