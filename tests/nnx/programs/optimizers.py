"""Optimizers subclassed and wrapped: scaling, SAM, Lookahead, injected hyperparameters, two optimizers, L-BFGS."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx


class ScaledOptimizer(nnx.Optimizer):
    def __init__(self, model, tx, *, wrt=nnx.Param, scale=1.0):
        super().__init__(model, tx, wrt=wrt)
        self.scale = scale
        self.skipped = nnx.Variable(jnp.array(0))

    def update(self, model, grads, **kw):
        n = optax.global_norm(grads)
        self.skipped[...] += (n > 100).astype(int)
        super().update(model, jax.tree.map(lambda g: g * self.scale, grads), **kw)


class SAM(nnx.Module):
    def __init__(self, model, tx, rho=0.05):
        self.opt = nnx.Optimizer(model, tx, wrt=nnx.Param)
        self.rho = rho

    def step(self, model, loss):
        g = nnx.grad(loss)(model)
        n = optax.global_norm(g)
        old = jax.tree.map(lambda x: x, nnx.state(model, nnx.Param))
        nnx.update(model, jax.tree.map(lambda p, g: p + self.rho * g / n, nnx.state(model, nnx.Param), g))
        l, g2 = nnx.value_and_grad(loss)(model)
        nnx.update(model, old)
        self.opt.update(model, g2)
        return l


class Lookahead(nnx.Module):
    def __init__(self, model, tx, k=2, alpha=0.5):
        self.fast = nnx.Optimizer(model, tx, wrt=nnx.Param)
        self.slow = nnx.data(jax.tree.map(jnp.copy, nnx.pure(nnx.state(model, nnx.Param))))
        self.k = k
        self.alpha = alpha
        self.n = nnx.Variable(jnp.array(0))

    def update(self, model, g):
        self.fast.update(model, g)
        self.n[...] += 1
        sync = self.n[...] % self.k == 0
        p = nnx.pure(nnx.state(model, nnx.Param))
        slow = jax.tree.map(lambda s, f: s + self.alpha * (f - s), self.slow, p)
        self.slow = jax.tree.map(lambda a, b: jnp.where(sync, a, b), slow, self.slow)
        nnx.update(model, jax.tree.map(lambda s, f: jnp.where(sync, s, f), slow, p))


def make():
    r = nnx.Rngs(0)
    return nnx.Sequential(nnx.Linear(2, 4, rngs=r), nnx.tanh, nnx.Linear(4, 1, rngs=r))


x = jax.random.normal(jax.random.key(0), (8, 2))


def loss(m):
    return ((m(x) - x[:, :1]) ** 2).mean()


m = make()
o = ScaledOptimizer(m, optax.chain(optax.clip(1.0), optax.sgd(0.1, momentum=0.9)), scale=2.0)
s = nnx.jit(lambda m, o: o.update(m, nnx.grad(loss)(m)))
[s(m, o) for _ in range(3)]
print(loss(m), o.step, o.skipped[...], type(o).__mro__[1].__name__)
m = make()
sam = SAM(m, optax.adam(0.05))
st = nnx.jit(lambda m, s: s.step(m, loss))
print([f"{st(m, sam):.5f}" for _ in range(3)])
m = make()
la = Lookahead(m, optax.sgd(0.1))
st = nnx.jit(lambda m, l: l.update(m, nnx.grad(loss)(m)))
[st(m, la) for _ in range(4)]
print(loss(m), la.n[...], jax.tree.structure(la.slow).num_leaves)
m = make()
sched = optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 10)
o = nnx.Optimizer(m, optax.inject_hyperparams(optax.adamw)(learning_rate=sched), wrt=nnx.Param)
st = nnx.jit(lambda m, o: (o.update(m, nnx.grad(loss)(m)), o.opt_state.hyperparams["learning_rate"] * 1)[1])
print([f"{st(m, o):.4f}" for _ in range(4)])
m = make()
a = nnx.Optimizer(m, optax.sgd(0.1), wrt=nnx.All(nnx.Param, nnx.PathContains(0)))
b = nnx.Optimizer(m, optax.adam(0.1), wrt=nnx.All(nnx.Param, nnx.PathContains(2)))


@nnx.jit
def both(m, a, b):
    g = nnx.grad(loss)(m)
    ga, gb = nnx.split_state(g, nnx.PathContains(0), ...)
    a.update(m, ga)
    b.update(m, gb)


both(m, a, b)
print(loss(m), a.step[...], len(jax.tree.leaves(b.opt_state)))
l = nnx.Optimizer(m, optax.lbfgs(memory_size=3), wrt=nnx.Param)


@nnx.jit
def lb(m, o):
    gd, _p, r = nnx.split(m, nnx.Param, ...)

    def f(p):
        return loss(nnx.merge(gd, p, r))

    v, g = nnx.value_and_grad(loss)(m)
    o.update(m, g, grad=g, value=v, value_fn=f)
    return v


print([f"{lb(m, l):.5f}" for _ in range(3)])
o.tx = optax.sgd(1e-3)
print(type(o.opt_state).__name__)
print(nnx.state(a, nnx.OptState))
