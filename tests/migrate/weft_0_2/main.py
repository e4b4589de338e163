"""A program as it was written for weft 0.2; `weft migrate` moves it, and then it prints what it printed."""

import io

import jax
import jax.numpy as jnp
import optax
import weft
import weft as w
from weft import All, AxisError, Inside, Param, drop, inference, select
from weft import (
    ConfigError,  # of layers
    Linear,
    Not,
    PathContains as Containing,
    merge,
    split,
)
from weft.core import FilterError
from weft.metrics import Average, MetricError
from weft.transforms import map as each
from weft.typecheck import ContractError, mode

mlp = weft.MLP(2, 4, 1, key=jax.random.key(0))
decayed = weft.tree.mask(mlp, Not(Containing("bias")))
opt = weft.Optimizer(mlp, optax.adamw(0.1, mask=decayed), wrt=weft.All(weft.Param, w.Not(weft.Inside("layers[0]"))))


def loss(mlp, x: "weft.jax.Array"):
    return jnp.sum(mlp(x) ** 2)


structure, params, rest = weft.split(mlp, All(Param, Inside("layers[2]")), ...)
assert jax.tree.structure(merge(structure, params, rest)) == jax.tree.structure(weft.merge(*split(mlp)))
moved = weft.update(mlp, jax.tree.map(jnp.zeros_like, params))
print(len(jax.tree.leaves(weft.changes(mlp, moved))), len(jax.tree.leaves(select(moved, weft.Param))))

net = weft.StatefulSequential(Linear(2, 3, key=jax.random.key(1)), weft.BatchNorm(3), weft.Dropout(0.5))
y, _ = inference(net)(jnp.ones((2, 2)))
assert weft.training(weft.inference(net)).layers[2].inference is False
print(drop(weft.inference(net)(jnp.ones((2, 2))))[0].shape == y.shape)

for make, error in [
    (lambda: Linear(2, -1, key=jax.random.key(0)), ConfigError),
    (lambda: weft.vmap(jnp.add)(jnp.ones(2), jnp.ones(3)), AxisError),
    (lambda: weft.select(mlp, "nothing"), FilterError),
    (lambda: Average().update(nothing=1), MetricError),
    (lambda: weft.cond(True, lambda: 1, lambda: 1.5), weft.BranchError),
]:
    try:
        make()
    except error as caught:
        print(type(caught).__name__)

with mode("on"), weft.explain_retraces(file=io.StringIO()), weft.debug_keys():
    print(weft.map(lambda x: 2 * x, xs=jnp.arange(3)).tolist(), each(lambda x: x, jnp.arange(2)).tolist())
    print(
        int(w.fori_loop(0, 3, lambda i, c: c + i, init=0)),
        int(weft.while_loop(cond_fun=lambda c: c < 9, body_fun=lambda c: 2 * c, init=1)),
    )
print(ContractError.__name__, isinstance(Param, weft.Filter), weft.ops.avg_pool(jnp.ones((1, 4, 1)), (2,)).shape)


def noted(x):
    with weft.scope("inner"):
        return weft.sow("x", x)


print(sorted(weft.capture(noted)(1.0)[1]))
