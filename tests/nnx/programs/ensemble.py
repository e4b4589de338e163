"""An ensemble by vmap: made, trained and evaluated with one axis, statistics kept apart from parameters."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

MEMBERS = 3


class Member(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Linear(1, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.second = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        return self.second(jnp.tanh(self.norm(self.first(x))))


@nnx.split_rngs(splits=MEMBERS)
@nnx.vmap(in_axes=0, out_axes=0)
def make(rngs: nnx.Rngs):
    return Member(rngs)


@nnx.vmap(in_axes=(0, None), out_axes=1)
def predict(model, x):
    return model(x)


@nnx.jit
def train_step(model, optimizer, x, y):
    def loss_fn(model):
        out = predict(model, x)
        return ((out - y[:, None]) ** 2).mean()

    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads)
    return loss


model = make(nnx.Rngs(0))
print("kernel:", model.first.kernel.shape, "mean:", model.norm.mean.shape)
optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
x = jnp.linspace(-1, 1, 16)[:, None]
for step in range(20):
    loss = train_step(model, optimizer, x, jnp.sin(3 * x))
    if step % 5 == 4:
        print(f"step {step}: {loss:.4f}")

model.eval()
out = predict(model, x)
print("spread of the members:", [round(value, 4) for value in out.std(1)[::5, 0].tolist()])

axes = nnx.StateAxes({nnx.Param: 0, ...: None})


@nnx.vmap(in_axes=(axes, 0), out_axes=0)
def with_shared_statistics(model, x):
    return model(x)


state = nnx.state(model, nnx.BatchStat)
nnx.update(model, jax.tree.map(lambda leaf: leaf.mean(0), state))
per_member = with_shared_statistics(model, jnp.stack([x[:4]] * MEMBERS))
print("shared statistics:", per_member.shape, [round(value, 4) for value in per_member.mean((1, 2)).tolist()])
