"""while_loop with `max_steps`: the loop of JAX where that ends in time, with a reverse mode in little memory."""

from __future__ import annotations

from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from jax import lax
from jax.experimental import checkify
from weft import BatchStat
from weft.core.errors import CarryError
from weft.transforms.loops import bounded_while


class Newton(weft.Module):
    """Newton's way to a square root, with what it does beside."""

    square: jax.Array
    steps: Annotated[jax.Array, BatchStat]
    name: str = "newton"

    def __call__(self, x: Any) -> Any:
        return (x + self.square / x) / 2, self.replace(steps=self.steps + 1)


def root(square: Any, max_steps: int | None = None, tolerance: float = 1e-6) -> Any:
    def step(carry: Any) -> Any:
        x, _, newton = carry
        y, newton = newton(x)
        return y, x, newton

    start = (square, 2 * square, Newton(square, jnp.array(0)))
    x, _, newton = weft.while_loop(
        lambda carry: jnp.abs(carry[0] - carry[1]) > tolerance * carry[0], step, start, max_steps=max_steps
    )
    return x, newton


def powers(x: Any, count: Any, max_steps: int) -> Any:
    """`x` to the power `count`, one factor at a time."""
    return weft.while_loop(
        lambda c: c["i"] < count, lambda c: {"i": c["i"] + 1, "y": c["y"] * x}, {"i": 0, "y": 1.0}, max_steps=max_steps
    )["y"]


@pytest.mark.parametrize("max_steps", [7, 16, 17, 300, 5000])
def test_a_bounded_loop_computes_what_an_unbounded_one_does(max_steps: int):
    unbounded, after = root(jnp.array(9.0))
    bounded, newton = root(jnp.array(9.0), max_steps)
    assert bounded == unbounded
    assert int(newton.steps) == int(after.steps) <= 7
    assert newton.name == "newton"


@pytest.mark.parametrize("max_steps", [1, 5, 16, 20, 257])
def test_a_loop_ends_after_max_steps(max_steps: int):
    assert int(weft.while_loop(lambda n: True, lambda n: n + 1, 0, max_steps=max_steps)) == max_steps
    assert int(weft.while_loop(lambda n: False, lambda n: n + 1, 0, max_steps=max_steps)) == 0


@pytest.mark.parametrize("max_steps", [5, 16, 300])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_reverse_mode_is_that_of_a_loop_of_known_length(count: int, max_steps: int):
    x = jnp.array(1.3)
    wanted = [jnp.array(1.0), x, x**5][min(count, 2)], [jnp.array(0.0), jnp.array(1.0), 5 * x**4][min(count, 2)]
    actual = weft.value_and_grad(lambda x: powers(x, count, max_steps))(x)
    np.testing.assert_allclose(actual, wanted, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(jax.grad(lambda x: powers(x, count, max_steps)))(x), wanted[1], rtol=1e-5)


def test_derivatives_of_all_modes_and_orders_are_there():
    def cube(x: Any) -> Any:
        return powers(x, 3, 50)

    x = jnp.array(2.0)
    np.testing.assert_allclose(weft.jvp(cube, (x,), (jnp.array(1.0),))[1], 12.0, rtol=1e-5)
    np.testing.assert_allclose(weft.grad(weft.grad(cube))(x), 12.0, rtol=1e-5)
    np.testing.assert_allclose(weft.hessian(cube)(x), 12.0, rtol=1e-5)


def test_gradients_go_to_records_in_the_carry_and_in_closures():
    linear = weft.Linear(3, 3, key=jax.random.key(0))

    def loss(linear: Any, x: Any, length: Any) -> Any:
        def step(carry: Any) -> Any:
            i, x = carry
            return i + 1, jnp.tanh(linear(x))

        return weft.while_loop(lambda c: c[0] < length, step, (0, x), max_steps=40)[1].sum()

    def unrolled(linear: Any, x: Any) -> Any:
        for _ in range(6):
            x = jnp.tanh(linear(x))
        return x.sum()

    gradients = weft.grad(loss)(linear, jnp.ones(3), jnp.array(6))
    for ours, wanted in zip(
        jax.tree.leaves(gradients), jax.tree.leaves(weft.grad(unrolled)(linear, jnp.ones(3))), strict=True
    ):
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-6)


def test_vmap_runs_until_the_last_element_ends_and_no_further():
    made = []

    def count(x: Any, length: Any) -> Any:
        def step(carry: Any) -> Any:
            jax.debug.callback(lambda: made.append(None))
            return carry[0] + 1, carry[1] * x

        return weft.while_loop(lambda c: c[0] < length, step, (0, 1.0), max_steps=4000)[1]

    x, lengths = jnp.array([1.5, 0.5, 2.0]), jnp.array([2, 9, 0])
    values_and_grads = jax.jit(jax.vmap(jax.value_and_grad(count)))(x, lengths)
    np.testing.assert_allclose(values_and_grads[0], x**lengths, rtol=1e-5)
    np.testing.assert_allclose(values_and_grads[1], lengths * x ** (lengths - 1.0), rtol=1e-5)
    made.clear()
    jax.block_until_ready(jax.jit(jax.vmap(count))(x, lengths))
    jax.effects_barrier()
    assert len(made) == 9
    twice = jax.vmap(jax.vmap(count, (0, None)), (None, 0))(x, lengths)
    np.testing.assert_allclose(twice, x ** lengths[:, None], rtol=1e-5)


def test_an_element_that_has_ended_is_not_the_end_of_others_gradients():
    # At the end of its own loop an element's body divides by zero.
    def decline(x: Any, length: Any) -> Any:
        def step(carry: Any) -> Any:
            i, y = carry
            return i + 1, y * x / jnp.sqrt(length - i)

        return weft.while_loop(lambda c: c[0] < length, step, (0.0, x), max_steps=20)[1]

    x, lengths = jnp.array([1.5, 0.5, 2.0]), jnp.array([1.0, 4.0, 3.0])
    each = [jax.value_and_grad(decline)(*pair) for pair in zip(x, lengths, strict=True)]
    mapped = jax.vmap(jax.value_and_grad(decline))(x, lengths)
    np.testing.assert_allclose(mapped, np.array(each).T, rtol=1e-5)
    assert np.isfinite(np.array(each)).all()


def test_reverse_mode_keeps_few_carries():
    def bytes_of(run: Any) -> int:
        compiled = jax.jit(jax.grad(lambda x: run(x).sum())).lower(jnp.ones(1000)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    def bounded(steps: int) -> Any:
        def run(x: Any) -> Any:
            return weft.while_loop(
                lambda c: c[0] < steps, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x), max_steps=steps
            )[1]

        return run

    scanned = bytes_of(lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=4096)[0])
    few, many = bytes_of(bounded(256)), bytes_of(bounded(4096))
    assert scanned > 4096 * 4000
    assert many < 100 * 4000
    assert many < 2 * few


def test_a_bound_that_is_no_positive_int_is_refused():
    for bound in (0, -1, 2.0, True, jnp.array(3)):
        with pytest.raises(CarryError, match="max_steps of while_loop is a positive int, not"):
            weft.while_loop(lambda n: n < 3, lambda n: n + 1, 0, max_steps=bound)


def test_what_a_step_sows_is_captured():
    def run(x: Any) -> Any:
        def step(carry: Any) -> Any:
            return carry[0] + 1, weft.sow("seen", carry[1] * 2)

        return weft.while_loop(lambda c: c[0] < 3, step, (0, x), max_steps=4)[1]

    out, sown = weft.capture(run)(jnp.array(1.0))
    assert float(out) == 8.0
    assert sown["seen"][0].tolist() == [2.0, 4.0, 8.0, 0.0]


def test_a_bounded_loop_is_checked_and_exported():
    def run(x: Any) -> Any:
        def step(carry: Any) -> Any:
            checkify.debug_check(carry[1] < 100, "too large")
            return carry[0] + 1, carry[1] * 10

        return weft.while_loop(lambda c: c[0] < 3, step, (0, x), max_steps=20)[1]

    error, _ = weft.checkify(run)(jnp.array(50.0))
    assert "too large" in str(error.get())
    assert weft.checkify(run)(jnp.array(0.1))[0].get() is None
    exported = jax.export.export(jax.jit(lambda x: root(x, 64)[0]))(jnp.array(9.0))
    np.testing.assert_allclose(jax.export.deserialize(exported.serialize()).call(jnp.array(4.0)), 2.0, rtol=1e-5)


def test_keys_and_integers_are_carried():
    def draw(key: Any) -> Any:
        def step(carry: Any) -> Any:
            key, total, count = carry
            key, now = jax.random.split(key)
            return key, total + jax.random.uniform(now), count + 1

        return bounded_while(lambda c: c[1] < 3, step, (key, jnp.array(0.0), jnp.array(0)), 40)[1:]

    keys = jax.random.split(jax.random.key(0), 3)
    total, count = jax.vmap(draw)(keys)
    for i in range(3):
        alone = draw(keys[i])
        np.testing.assert_allclose((total[i], count[i]), alone, rtol=1e-6)
