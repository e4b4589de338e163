"""Gradients accumulated over microbatches: by optax, by a scan that carries a State, and by adding States in Python."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx


def make():
    r = nnx.Rngs(0)
    return nnx.Sequential(nnx.Linear(3, 5, rngs=r), nnx.tanh, nnx.Linear(5, 1, rngs=r))


X = jax.random.normal(jax.random.key(0), (8, 3))
Y = X[:, :1] * 2


def loss(m, x, y):
    return ((m(x) - y) ** 2).mean()


m1 = make()
o1 = nnx.Optimizer(m1, optax.MultiSteps(optax.sgd(0.1), every_k_schedule=4), wrt=nnx.Param)


@nnx.jit
def s1(m, o, x, y):
    l, g = nnx.value_and_grad(loss)(m, x, y)
    o.update(m, g)
    return l


for i in range(8):
    s1(m1, o1, X[2 * (i % 4) : 2 * (i % 4) + 2], Y[2 * (i % 4) : 2 * (i % 4) + 2])
m2 = make()
o2 = nnx.Optimizer(m2, optax.sgd(0.1), wrt=nnx.Param)


@nnx.jit
def s2(m, o, X, Y):
    zero = jax.tree.map(jnp.zeros_like, nnx.state(m, nnx.Param))

    @nnx.scan(in_axes=(None, nnx.Carry, 0, 0), out_axes=(nnx.Carry, 0))
    def acc(m, g, x, y):
        l, gi = nnx.value_and_grad(loss)(m, x, y)
        return jax.tree.map(jnp.add, g, gi), l

    g, ls = acc(m, zero, X.reshape(4, 2, 3), Y.reshape(4, 2, 1))
    o.update(m, jax.tree.map(lambda g: g / 4, g))
    return ls.mean()


print(*[f"{s2(m2, o2, X, Y):.5f}" for _ in range(2)])
m3 = make()
o3 = nnx.Optimizer(m3, optax.sgd(0.1), wrt=nnx.Param)
gfn = nnx.jit(nnx.grad(loss))
for _ in range(2):
    total = None
    for i in range(4):
        g = gfn(m3, X[2 * i : 2 * i + 2], Y[2 * i : 2 * i + 2])
        total = g if total is None else jax.tree.map(lambda a, b: a + b, total, g)
    o3.update(m3, jax.tree.map(lambda g: g / 4, total))
for a, b in [(m1, m2), (m2, m3)]:
    print(jax.tree.all(jax.tree.map(lambda x, y: bool(jnp.allclose(x, y, atol=1e-5)), nnx.state(a), nnx.state(b))))
print(type(total).__name__, total["layers"][0]["bias"])
print(o1.opt_state.mini_step, o1.step, o3.step)
print(jax.tree.map(jnp.shape, g))
