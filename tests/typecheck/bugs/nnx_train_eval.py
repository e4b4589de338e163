"""A model with modes, batch statistics and dropout, and an evaluation of it."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from weft import nnx


class Net(nnx.Module):
    def __init__(self, d: int, h: int, c: int, *, rngs: nnx.Rngs):
        self.l1 = nnx.Linear(d, h, rngs=rngs)
        self.bn = nnx.BatchNorm(h, use_running_average=False, rngs=rngs)
        self.do = nnx.Dropout(0.2, rngs=rngs)
        self.l2 = nnx.Linear(h, c, rngs=rngs)

    def __call__(self, x: Float[Array, "b d"]) -> Float[Array, "b c"]:
        return self.l2(self.do(nnx.relu(self.bn(self.l1(x)))))


def train_step(model: Net, optimizer: nnx.Optimizer, x: Float[Array, "b d"], y: Int[Array, "b"]) -> Float[Array, ""]:
    model.train()

    def loss_fn(model: Net) -> Float[Array, ""]:
        one_hot = jax.nn.one_hot(y, 10)
        logp = jax.nn.log_softmax(model(x))
        return -(one_hot[:, : logp.shape[1]] * logp).sum(-1).mean()

    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads)
    return loss


@nnx.jit
def evaluate(model: Net, x: Float[Array, "n b d"], y: Int[Array, "n b"]) -> Float[Array, "n"]:
    model.eval()

    @nnx.scan(in_axes=(None, 0, 0), out_axes=0)
    def run(model, x, y):
        return (model(x).argmax(-1) == y).mean()  # bug: return (model(x).argmax(-1) == y).mean(keepdims=True)

    return run(model, x, y)


entry = evaluate


def sample():
    return evaluate(Net(3, 4, 10, rngs=nnx.Rngs(0)), jnp.ones((2, 5, 3)), jnp.zeros((2, 5), int))
