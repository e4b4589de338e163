"""A transform made again of the same function, with the same options, does not trace and compile again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import weft


class Net(weft.Module):
    weight: jax.Array
    rate: float = 0.5

    def __call__(self, x: Any) -> Any:
        COUNT.append(self.rate)
        return self.weight * x * self.rate

    def loss(self, x: Any) -> Any:
        COUNT.append(self.rate)
        return jnp.sum(self.weight * x)


COUNT: list[Any] = []


def traced(run: Callable[[], Any], times: int = 3) -> int:
    COUNT.clear()
    for _ in range(times):
        run()
    return len(COUNT)


def double(x: Any, by: Any = 2) -> Any:
    COUNT.append("double")
    return x * by


def add(carry: Any, x: Any) -> Any:
    COUNT.append("add")
    return carry + x, x


X = jnp.ones(3)
AGAIN: dict[str, Callable[[], Any]] = {
    "jit": lambda: weft.jit(double)(X),
    "jit with options": lambda: weft.jit(double, static_argnames="by", donate_argnums=())(X, by=3),
    "jit with options in a dict": lambda: weft.jit(double, compiler_options={"xla_embed_ir_in_executable": True})(X),
    "jit of what is jitted": lambda: weft.jit(weft.jit(double))(X),
    "jit of what JAX jitted": lambda: weft.jit(jax.jit(double))(X),
    "jit of a wrapper": lambda: weft.jit(functools.wraps(double)(lambda x: weft.jit(double)(x)))(X),
    "jit inside of jit": lambda: jax.jit(lambda x: weft.jit(double)(x))(X),
    "scan": lambda: weft.scan(add)(jnp.float32(0), X),
    "scan with axes": lambda: weft.scan(add, in_axes=(weft.Carry, 0), reverse=True)(jnp.float32(0), X),
    "pmap": lambda: weft.pmap(double)(X),
    "map": lambda: weft.lax_map(double, X),
    "cond": lambda: weft.cond(True, double, double, X),
    "fori_loop": lambda: weft.fori_loop(0, 3, double, 1),
}


@pytest.mark.parametrize("name", AGAIN)
def test_it_is_traced_as_often_as_if_it_were_made_once(name: str):
    jax.clear_caches()
    once = traced(AGAIN[name], 1)
    assert traced(AGAIN[name], 3) == 0
    assert once >= 1


def test_a_closure_counts_as_itself_where_it_is_used_again():
    scale = 3.0

    def scaled(x: Any) -> Any:
        COUNT.append("scaled")
        return x * scale

    assert traced(lambda: weft.jit(scaled)(X)) == 1
    assert traced(lambda: weft.scan(lambda c, x: add(c, x), length=3)(jnp.float32(0), X)) == 3


OPTIONS = [{"keep_unused": True}, {"inline": True}, {"donate_argnums": 0}, {"static_argnums": 1}]


@pytest.mark.parametrize("options", OPTIONS)
def test_other_options_are_another_transform(options: dict[str, Any]):
    seen: list[bool] = []

    def times(x: Any, n: Any) -> Any:
        seen.append(isinstance(n, int))
        return x * n

    for kwargs in ({}, options, {}, options):
        assert weft.jit(times, **kwargs)(jnp.ones(2), 2).tolist() == [2.0, 2.0]
    assert seen == [False, "static_argnums" in options]


def test_options_are_told_apart_by_type():
    assert weft.vmap(lambda x: x, in_axes=0)(X).shape == (3,)
    step = functools.partial(weft.scan, length=3, in_axes=(weft.Carry,), out_axes=weft.Carry)
    assert float(step(lambda c: c + 1, unroll=1)(0.0)) == float(step(lambda c: c + 1, unroll=True)(0.0)) == 3.0


def test_a_successor_of_the_record_that_is_the_function_is_not_compiled_again():
    nets = [Net(jnp.float32(i)) for i in range(1, 4)]
    assert traced(lambda: [weft.jit(net)(2.0) for net in nets]) == 1
    assert [float(weft.jit(net)(2.0)) for net in nets] == [1.0, 2.0, 3.0]
    assert traced(lambda: [weft.jit(net.loss)(2.0) for net in nets]) == 1
    assert [float(weft.jit(net.loss)(2.0)) for net in nets] == [2.0, 4.0, 6.0]


def test_a_record_of_another_configuration_is():
    values = [float(weft.jit(Net(jnp.float32(1), rate))(2.0)) for rate in (0.25, 0.5, 0.25)]
    assert values == [0.5, 1.0, 0.5]


def test_two_methods_of_one_record_are_two_functions():
    net = Net(jnp.full(2, 3.0))
    assert weft.jit(net)(1.0).shape == (2,)
    assert weft.jit(net.loss)(1.0).shape == ()
    assert weft.vmap(net, in_axes=0)(X).shape == (3, 2)


def test_methods_of_plain_objects_see_their_own_object():
    class Trainer:
        def __init__(self, rate: float):
            self.rate = rate

        def step(self, x: Any) -> Any:
            return x * self.rate

    assert [float(weft.jit(Trainer(rate).step)(2.0)) for rate in (1.0, 2.0, 3.0)] == [2.0, 4.0, 6.0]


def test_a_function_that_closes_over_a_tracer_is_traced_in_each_trace(checking_leaks: Any):
    box: list[Any] = []

    def body(i: Any, c: Any) -> Any:
        return c + box[0]

    def outer(x: Any) -> Any:
        box.append(x)
        y = weft.fori_loop(0, 2, body, x)
        box.clear()
        return y

    with checking_leaks():
        assert float(jax.jit(outer)(1.0)) == 3.0
        assert float(jax.jit(lambda x: outer(x) + 1)(2.0)) == 7.0
