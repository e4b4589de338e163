"""Faults in programs that mix transforms, libraries and both layers, and right programs of the same kinds."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import weft
from jax.sharding import AxisType, PartitionSpec
from weft import nnx

X = jnp.array([1.0, 2.0, 0.0, 4.0])
D = PartitionSpec("d")


def sharded(local, out_specs=D):
    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
    return weft.jit(jax.shard_map(local, mesh=mesh, in_specs=D, out_specs=out_specs))


def branch_in_scan_in_shard():
    def local(x):
        def turn(total, v):
            return jax.lax.cond(v > 0, lambda v: total + v, lambda v: total + jnp.log(v), v), None  # here

        return jax.lax.scan(turn, jnp.sum(x) * 0, x)[0][None]

    return sharded(local), (jnp.ones(8).at[5].set(0.0),)


def scan_in_while():
    def step(x):
        def outer(state):
            i, total = state

            def inner(total, v):
                return total + 1 / (v - i), None  # here

            return i + 1, jax.lax.scan(inner, total, x)[0]

        return jax.lax.while_loop(lambda state: state[0] < 4, outer, (0.0, 0.0))[1]

    return weft.jit(step), (jnp.array([10.0, 2.0, 30.0]),)


def chain_with_clip():
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1))

    def step(x, state):
        gradient = jax.grad(lambda x: jnp.sqrt((x**2).sum()))(x)  # here
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(x, updates), state

    return weft.jit(step), (jnp.zeros(3), optimizer.init(jnp.zeros(3)))


class Block(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(3, 3, rngs=rngs)

    def __call__(self, x):
        return jnp.log(nnx.relu(self.linear(x)))  # here


def objects_in_scan_over_layers():
    make = nnx.split_rngs(splits=3)(nnx.vmap(Block, in_axes=0, out_axes=0))

    @nnx.jit
    def step(layers, x):
        return nnx.scan(lambda x, layer: layer(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, layers)

    return step, (make(nnx.Rngs(0)), jnp.ones((2, 3)))


@jax.custom_vjp
def _twisted(x):
    return jax.checkpoint(lambda x: jnp.sin(x) * x)(x)


def _twisted_backward(x, g):
    return (jax.checkpoint(lambda x: g * jnp.arccos(x))(x),)  # here


_twisted.defvjp(lambda x: (_twisted(x), x), _twisted_backward)


def remat_in_custom_vjp():
    return weft.jit(jax.grad(lambda x: _twisted(x).sum())), (X,)


def loss_scaling():
    def step(w, x):
        def loss(w):
            half = x.astype(jnp.float16) @ w.astype(jnp.float16)
            return (half.astype(jnp.float32) ** 2).mean() * 2.0**24  # here

        return jax.tree.map(lambda g: g / 2.0**24, jax.grad(loss)(w))

    return weft.jit(step), (jnp.ones((4, 4)) * 10, jnp.ones((4, 4)) * 10)


def scores_in_brain_float():
    def step(q, k):
        scores = jnp.einsum("bqd,bkd->bqk", q, k) * jnp.bfloat16(1e30)  # here
        return jax.nn.softmax(scores).sum()

    return weft.jit(step), (jnp.full((2, 3, 4), 1e5, jnp.bfloat16),) * 2


def variance_by_moments():
    def step(x):
        mean = x.mean(0)
        variance = (x * x).mean(0) - mean * mean
        return ((x - mean) / jnp.sqrt(variance - 1e-6)).sum()  # here

    return weft.jit(step), (jnp.ones((5, 3)),)


class Cell(weft.Module):
    w: jax.Array

    def __call__(self, h, x):
        return jnp.exp(h * self.w) + x  # here


def recurrent_record():
    def step(cell, xs):
        def loss(cell):
            run = weft.scan(lambda h, x: (cell(h, x), None))
            return weft.vmap(lambda x: run(jnp.zeros(()), x)[0])(xs).sum()

        return weft.value_and_grad(loss)(cell)

    return weft.jit(step), (Cell(jnp.array(3.0)), jnp.zeros((2, 9)).at[1].set(1.0))


def newton_of_examples():
    def root(a):
        def turn(state):
            i, x = state
            return i + 1, x - (x**2 - a) / (2 * x)  # here

        return jax.lax.while_loop(lambda state: state[0] < 5, turn, (0, a))[1]

    return weft.jit(weft.vmap(root)), (X,)


def running_statistics():
    class Scale(nnx.Module):
        def __init__(self):
            self.w, self.count = nnx.Param(jnp.ones(3)), nnx.BatchStat(jnp.zeros(()))

    @nnx.jit
    def step(model, x):
        model.w[...] = model.w[...] * 0.9 + x / model.count[...]  # here
        model.count[...] += 1

    return step, (Scale(), jnp.ones(3))


FAULTS: dict[Callable[[], Any], tuple[str, ...]] = {
    branch_in_scan_in_shard: ("log of 0", "iteration 1 of 2", "shard 2 of 4", "cond(branch 0)"),
    scan_in_while: ("div of 1 by 0", "while_loop(iteration 2 of 4) > scan(iteration 1 of 3)"),
    chain_with_clip: ("derivative of sqrt",),
    objects_in_scan_over_layers: ("log of 0", "(Block.__call__)", "scan(iteration 0 of 3)"),
    remat_in_custom_vjp: ("acos of 2 gives nan", "in the backward pass", "remat"),
    loss_scaling: ("overflow", "float16", "in the backward pass"),
    scores_in_brain_float: ("overflow", "bfloat16"),
    variance_by_moments: ("sqrt of -", "gives nan", "in the forward pass"),
    recurrent_record: ("exp of", "overflow", "Cell (Cell.__call__)", "vmap(example 1 of 2)"),
    newton_of_examples: ("div of 0 by 0", "while_loop(iteration 0 of 5)", "vmap(example 2 of 4)"),
    running_statistics: ("div of 1 by 0", "reaches: model.w"),
}


@pytest.mark.parametrize("make", FAULTS, ids=lambda make: make.__name__)
def test_a_fault_in_a_mixed_program_is_told_at_its_line(make: Callable[[], Any]):
    step, arguments = make()
    with pytest.raises(weft.errors.NonFiniteError) as caught:
        weft.debug.nonfinite(step)(*arguments)
    text = str(caught.value)
    around = {objects_in_scan_over_layers: Block, remat_in_custom_vjp: _twisted_backward, recurrent_record: Cell}
    lines, start = inspect.getsourcelines(around.get(make, make))
    line = next(i for i, line in enumerate(lines, start) if line.rstrip().endswith("# here"))
    assert f"test_mixed_programs.py:{line}: " in text, text
    for fragment in FAULTS[make]:
        assert fragment in text, text


def largest_in_shards():
    local = lambda x: jax.lax.pmax(jnp.where(x > 0, jnp.log(x), -1.0), "d")  # noqa: E731
    return sharded(local, PartitionSpec()), (jnp.ones(8).at[5].set(0.0),)


def beams():
    def step(scores):
        top, index = jax.lax.top_k(jnp.where(scores > 0, scores, -jnp.inf), 2)
        return jnp.exp(top - top.max()), index

    return weft.jit(step), (X,)


def attention_in_blocks():
    def turn(carry, k, q):
        largest, total = carry
        scores = jnp.where(k > 1, q * k, -jnp.inf)
        new = jnp.maximum(largest, scores)
        safe = jnp.where(jnp.isinf(new), 0, new)
        return (new, total * jnp.exp(largest - safe) + jnp.exp(scores - safe)), None

    def loss(q, k):
        start = jnp.full(q.shape, -jnp.inf), jnp.zeros(q.shape)
        total = jax.lax.scan(lambda carry, k: turn(carry, k, q), start, k)[0][1]
        return (total / jnp.where(total == 0, 1, total)).sum()

    return weft.jit(jax.value_and_grad(loss)), (X, jnp.array([0.0, 2.0, 3.0]))


def clipped_zeros():
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.1))
    return weft.jit(optimizer.update), (jnp.zeros(3), optimizer.init(jnp.zeros(3)), jnp.ones(3))


def skipped_update():
    def step(w):
        gradient = jax.grad(lambda w: ((w.astype(jnp.float16) * 1000) ** 2).astype(jnp.float32).sum())(w)
        is_right = jnp.isfinite(gradient).all()
        return jnp.where(is_right, w - gradient, w), is_right

    return weft.jit(step), (jnp.ones(3) * 100,)


def nearest_neighbours():
    def distances(x):
        return jnp.where(jnp.eye(4, dtype=bool), jnp.inf, jnp.abs(x[:, None] - x))

    return weft.jit(jax.value_and_grad(lambda x: distances(x).min(1).sum())), (X,)


def masked_attention_of_objects():
    attention = nnx.MultiHeadAttention(2, 4, decode=False, rngs=nnx.Rngs(0))
    mask = jnp.tril(jnp.ones((3, 3), bool))

    @nnx.jit
    def step(attention, x):
        return nnx.value_and_grad(lambda attention: attention(x, mask=mask).sum())(attention)

    return step, (attention, jnp.ones((1, 3, 4)))


def branches_of_examples():
    def loss(x):
        return weft.vmap(lambda x: jax.lax.cond(x > 0, jnp.log, lambda x: x, x))(x).sum()

    return weft.jit(jax.grad(loss)), (X,)


def loops_that_end_early():
    def example(n):
        turn = lambda state: (state[0] + 1, state[1] + 1 / (3 - state[0]))  # noqa: E731
        return jax.lax.while_loop(lambda state: state[0] < n, turn, (0, 0.0))[1]

    return weft.jit(weft.vmap(example)), (jnp.array([1, 2, 3]),)


def entropy():
    def step(x):
        p = x / x.sum()
        return -jnp.sum(jnp.where(p > 0, p * jnp.log(jnp.where(p > 0, p, 1)), 0.0))

    return weft.jit(step), (X,)


RIGHT = (
    largest_in_shards,
    beams,
    attention_in_blocks,
    clipped_zeros,
    skipped_update,
    nearest_neighbours,
    masked_attention_of_objects,
    branches_of_examples,
    loops_that_end_early,
    entropy,
)


@pytest.mark.parametrize("make", RIGHT, ids=lambda make: make.__name__)
def test_no_alarm_in_a_right_mixed_program(make: Callable[[], Any]):
    step, arguments = make()
    outputs = weft.debug.nonfinite(step)(*arguments)
    plain, arguments = make()
    for ours, theirs in zip(jax.tree.leaves(outputs), jax.tree.leaves(plain(*arguments)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
