"""A program for flax.nnx that changed one import: it must pass pyright and mypy in their strict modes."""

from __future__ import annotations

from typing import Any, assert_type

import jax
import jax.numpy as jnp
from weft import nnx


class Model(nnx.Module):
    def __init__(self, features: int, *, rngs: nnx.Rngs):
        self.w = nnx.Param(jax.random.normal(rngs.params(), (features, features)))
        self.seen = nnx.Variable(jnp.zeros(()))

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.dot(x, self.w[...])

    @nnx.jit
    def compiled(self, x: jax.Array) -> jax.Array:
        return self(x)


def loss_of(model: Model, x: jax.Array) -> jax.Array:
    return jnp.mean(model(x) ** 2)


def descend(w: jax.Array, g: jax.Array) -> jax.Array:
    return w - 0.1 * g


@nnx.jit
def train_step(model: Model, x: jax.Array) -> jax.Array:
    value, grads = nnx.value_and_grad(loss_of)(model, x)
    nnx.update(model, jax.tree.map(descend, nnx.state(model, nnx.Param), grads))
    return value


@nnx.jit(static_argnames="train")
def evaluate(model: Model, x: jax.Array, *, train: bool = False) -> jax.Array:
    return model(x)


@nnx.vmap(in_axes=0, out_axes=0)
def create(rngs: nnx.Rngs) -> Model:
    return Model(4, rngs=rngs)


@nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
def forward(x: jax.Array, model: Model) -> jax.Array:
    return model(x)


@nnx.value_and_grad(has_aux=True)
def with_aux(model: Model, x: jax.Array) -> tuple[jax.Array, int]:
    return loss_of(model, x), 1


def main() -> None:
    model, x = Model(4, rngs=nnx.Rngs(0)), jnp.ones((2, 4))
    models = create(nnx.Rngs(0).fork(split=3))
    assert_type(train_step(model, x), jax.Array)
    assert_type(evaluate(model, x, train=True), jax.Array)
    assert_type(model.compiled(x), jax.Array)
    assert_type(models, Model)
    assert_type(forward(x, models), jax.Array)
    assert_type(with_aux(model, x), tuple[tuple[jax.Array, int], Any])
    assert_type(nnx.cond(True, loss_of, loss_of, model, x), jax.Array)
    assert_type(nnx.fori_loop(0, 3, lambda i, carry: carry, (model, x)), tuple[Model, jax.Array])
    assert_type(nnx.eval_shape(loss_of, model, x), jax.Array)
    assert_type(nnx.remat(loss_of)(model, x), jax.Array)
    out, pullback = nnx.vjp(loss_of, model, x)
    assert_type(out, jax.Array)
    pullback(out)


if __name__ == "__main__":
    main()
