"""A training step that updates the model in place, and reports a loss for each example."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from weft import nnx


class Classifier(nnx.Module):
    def __init__(self, d: int, classes: int, *, rngs: nnx.Rngs):
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.linear = nnx.Linear(d, classes, rngs=rngs)

    def __call__(self, x: Float[Array, "b d"]) -> Float[Array, "b classes"]:
        return self.linear(self.dropout(x))


@nnx.jit
def train_step(
    model: Classifier, optimizer: nnx.Optimizer, x: Float[Array, "b d"], labels: Int[Array, "b"]
) -> tuple[Float[Array, ""], Float[Array, "b"]]:
    def loss_fn(model):
        logits = jax.nn.log_softmax(model(x))
        losses = -jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]  # bug: losses = -jnp.sum(logits * jax.nn.one_hot(labels, logits.shape[0]), axis=1)
        return losses.mean(), losses

    (loss, losses), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model)
    optimizer.update(model, grads)
    return loss, losses


entry = train_step


def sample():
    import optax

    model = Classifier(3, 4, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    return train_step(model, optimizer, jnp.ones((4, 3)), jnp.zeros(4, int))
