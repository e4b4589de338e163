"""Tree mode: modules as plain pytrees, updates of Variables only, gradients like their arguments."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

nnx.set_graph_mode(False)
nnx.set_graph_updates(False)


class MLP(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Linear(2, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.second = nnx.Linear(4, 1, rngs=rngs)
        self.calls = nnx.Variable(jnp.array(0))

    def __call__(self, x):
        self.calls[...] += 1
        return self.second(nnx.silu(self.norm(self.first(x))))


@nnx.jit
def train_step(model, optimizer, x, y):
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)

    def loss_fn(params, rest):
        model = nnx.merge(graphdef, params, rest)
        return ((model(x) - y) ** 2).mean()

    loss, grads = nnx.value_and_grad(loss_fn)(params, rest)
    optimizer.update(model, grads)
    return loss


model = MLP(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(0.05), wrt=nnx.Param)
x = jnp.linspace(-1, 1, 16).reshape(8, 2)
for step in range(8):
    loss = train_step(model, optimizer, x, x.sum(-1, keepdims=True))
    if step % 4 == 3:
        print(f"step {step}: {loss:.4f}")
print("calls:", int(model.calls[...]), "steps:", int(optimizer.step[...]))

grads = nnx.grad(lambda model: (model(x) ** 2).sum(), allow_int=True)(model)
size = float(jnp.abs(grads.first.kernel[...]).sum())
print("gradient:", type(grads).__name__, grads.first.kernel.shape, f"{size:.3f}")

doubled = jax.tree.map(lambda leaf: leaf * 2, model)
print("tree map:", type(doubled).__name__, bool(jnp.allclose(doubled.first.kernel[...], 2 * model.first.kernel[...])))


@nnx.vmap(in_axes=0, out_axes=0)
def make(key):
    return MLP(nnx.Rngs(key))


stacked = make(jax.random.split(jax.random.key(1), 3))
axes = nnx.prefix(stacked, {nnx.Variable: 0})
outs = nnx.vmap(lambda model, x: model(x), in_axes=(axes, None))(stacked, x)
print("ensemble:", outs.shape, stacked.calls[...].tolist())

shared = nnx.Param(jnp.ones(2))
for name, use in {
    "jit": lambda: nnx.jit(lambda a, b: a + b)(shared, shared),
    "split": lambda: nnx.split(nnx.Dict(a=shared, b=shared)),
    "vmap": lambda: nnx.vmap(lambda a, b: a + b)(shared, shared),
}.items():
    try:
        use()
    except ValueError:
        print(f"{name}: nothing may be shared")

print("compat:", nnx.compat.jit(lambda a, b: a + b)(shared, shared).tolist())
