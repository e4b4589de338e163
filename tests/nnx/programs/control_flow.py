"""Branches, custom derivatives, switches by static arguments, metadata, views and objects made inside of transforms."""

import jax
import jax.numpy as jnp
from flax import nnx


class Gate(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.small = nnx.Linear(2, 2, rngs=rngs)
        self.large = nnx.Linear(2, 2, rngs=rngs)
        self.taken = nnx.Variable(jnp.zeros(3, int))

    def __call__(self, x):
        def go_small(self, x):
            self.taken[...] = self.taken.at[0].add(1)
            return self.small(x)

        def go_large(self, x):
            self.taken[...] = self.taken.at[1].add(1)
            return self.large(x) * 2

        return nnx.cond(x.sum() > 1, go_large, go_small, self, x)


@nnx.jit
def run(gate, x):
    return gate(x)


gate = Gate(nnx.Rngs(0))
for scale in (0.1, 1.0, 3.0):
    print(f"{scale}:", run(gate, scale * jnp.ones((1, 2))).round(4).tolist())
print("taken:", gate.taken[...].tolist())


def tally(i):
    def branch(gate):
        gate.taken[...] = gate.taken.at[i].add(10)
        return gate.taken[i]

    return branch


seen = [int(nnx.switch(i, [tally(0), tally(1), tally(2)], gate)) for i in (2, 0, 2)]
print("switch:", seen, gate.taken[...].tolist())


@nnx.custom_vjp
def clipped(module, x):
    return (module.kernel[...] * x).sum()


def clipped_fwd(module, x):
    return clipped(module, x), (module.kernel[...], x)


def clipped_bwd(residuals, cotangent):
    updates, out = cotangent
    kernel, x = residuals
    (module_updates, _) = updates
    gradient = jax.tree.map(lambda leaf: jnp.clip(out * x, -0.5, 0.5), module_updates)
    return gradient, out * kernel


class Scale(nnx.Module):
    def __init__(self):
        self.kernel = nnx.Param(jnp.arange(3.0))


clipped.defvjp(clipped_fwd, clipped_bwd)
grads = nnx.grad(clipped, argnums=nnx.DiffState(0, ...))(Scale(), jnp.array([0.1, 2.0, -3.0]))
print("custom gradient:", jax.tree.leaves(grads)[0].tolist())


@nnx.jit(static_argnums=(1,), static_argnames=("bias",))
def grow(model, count, bias=False):
    model.layers = nnx.List([nnx.Param(jnp.full((), float(i))) for i in range(count)])
    model.bias = nnx.Param(jnp.ones(2)) if bias else None
    model.first = model.layers[0]
    return nnx.Dict(made=nnx.Variable(jnp.array(count)), tied=model.layers[0])


model = nnx.Dict()
out = grow(model, 3, bias=True)
print("grown:", len(model.layers), model.bias.shape, model.first is model.layers[0], out.tied is model.first)
out = grow(model, 2)
print("again:", len(model.layers), model.bias, int(out.made[...]))

rngs = nnx.Rngs(0)
kernel_init = nnx.with_metadata(nnx.initializers.lecun_normal(), names=("in", "out"))
linear = nnx.Linear(2, 3, kernel_init=kernel_init, rngs=rngs)
print("metadata:", linear.kernel.names, linear.kernel.get_metadata("names"))
abstract = nnx.eval_shape(lambda: nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
print("abstract:", abstract.kernel.get_value())


@nnx.jit
def outer(model, x):
    @nnx.vmap(in_axes=(None, 0), graph_updates=False)
    def inner(model, x):
        return model(x)

    value, pullback = nnx.vjp(inner, model, x, graph_updates=False)
    gradients, gradient = pullback(jnp.ones_like(value))
    _, tangent = nnx.jvp(lambda x: (x**2).sum(), (x,), (jnp.ones_like(x),), graph_updates=False)
    return value, gradients.kernel[...], gradient, tangent


value, of_kernel, gradient, tangent = outer(linear, jnp.ones((2, 2)))
print("nested:", value.round(4).tolist(), of_kernel.tolist(), gradient.round(4).tolist(), f"{tangent:.4f}")

dropout = nnx.Dropout(0.5, rngs=rngs)
frozen = nnx.view(nnx.Sequential(linear, dropout), deterministic=True)
print("view:", dropout.deterministic, frozen.layers[1].deterministic, frozen.layers[0].kernel is linear.kernel)


class Watched(nnx.Module):
    def __init__(self, rngs):
        self.first, self.second = nnx.Linear(2, 2, rngs=rngs), nnx.Linear(2, 1, rngs=rngs)

    def __call__(self, x):
        x = self.perturb("hidden", self.first(x))
        self.sow(nnx.Intermediate, "hidden_size", jnp.abs(x).sum())
        return self.second(x).sum()


watched = Watched(nnx.Rngs(3))
out, intermediates = nnx.capture(watched, nnx.Intermediate)(jnp.ones((1, 2)))
print("captured:", f"{float(out):.4f}", [f"{float(leaf.sum()):.4f}" for leaf in jax.tree.leaves(intermediates)])
