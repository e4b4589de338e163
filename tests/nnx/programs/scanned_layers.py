"""Scan over layers with dropout and remat, a carry that is an object, and the loops."""

import jax.numpy as jnp
from flax import nnx

LAYERS = 4


class Block(nnx.Module):
    def __init__(self, features: int, *, rngs: nnx.Rngs):
        self.linear = nnx.Linear(features, features, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.calls = nnx.Variable(jnp.array(0))

    def __call__(self, x):
        self.calls[...] += 1
        return x + nnx.relu(self.dropout(self.linear(x)))


class Deep(nnx.Module):
    def __init__(self, features: int, *, rngs: nnx.Rngs):
        @nnx.split_rngs(splits=LAYERS)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def create(rngs: nnx.Rngs):
            return Block(features, rngs=rngs)

        self.blocks = create(rngs)

    def __call__(self, x):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def forward(x, block):
            return nnx.remat(lambda block, x: block(x))(block, x)

        return forward(x, self.blocks)


model = Deep(5, rngs=nnx.Rngs(0, dropout=1))
x = jnp.linspace(0, 1, 10).reshape(2, 5)
y = model(x)
print("kernel:", model.blocks.linear.kernel.shape, "calls:", model.blocks.calls[...].tolist())
print("out:", y.round(4).tolist())
grads = nnx.grad(lambda model: (model(x) ** 2).mean())(model)
per_layer = jnp.abs(grads["blocks"]["linear"]["kernel"][...]).sum((1, 2))
print("gradient:", [round(value, 4) for value in per_layer.tolist()])
print("calls:", model.blocks.calls[...].tolist())


class Counter(nnx.Module):
    def __init__(self):
        self.count = nnx.Variable(jnp.array(0))
        self.history = nnx.Variable(jnp.zeros(6))


def body(i, counter):
    counter.history[...] = counter.history.at[i].set(counter.count[...] ** 2)
    counter.count[...] += i
    return counter


counter = nnx.fori_loop(0, 6, body, Counter())
print("history:", counter.history[...].tolist(), "count:", int(counter.count[...]))
counter = nnx.while_loop(lambda c: c.count[...] < 100, lambda c: body(2, c), counter)
print("count after while:", int(counter.count[...]))


@nnx.scan(in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))
def running(counter, value):
    counter.count[...] += value
    return counter, counter.count[...]


counter, totals = running(counter, jnp.arange(4))
print("totals:", totals.tolist())
