"""LossScale: flax's dynamic scale, step by step, and what it is for: gradients in float16."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import weft
from flax.training.dynamic_scale import DynamicScale
from weft import LossScale


@pytest.mark.parametrize("interval", [1, 2, 3])
def test_the_factor_follows_flaxs(interval: int):
    ours = LossScale(8.0, interval=interval)
    # flax grows with the step behind so many finite ones, PyTorch and weft with the last of them.
    theirs = DynamicScale(growth_interval=interval - 1, scale=8.0, minimum_scale=1.0)
    # An infinite gradient now and then; at the end it shrinks to its minimum.
    for x in [1.0, 2.0, jnp.inf, 1.0, 1.0, 1.0, 1.0, jnp.inf, *[jnp.inf] * 6, 1.0, 1.0]:
        theirs, finite, _, wanted = theirs.value_and_grad(lambda w, x=x: w * x)(jnp.array(1.0))
        gradient = weft.grad(lambda w, x=x, ours=ours: ours.scaled(w * x))(jnp.array(1.0))
        gradient, mine, ours = ours.unscaled(gradient)
        assert bool(mine) == bool(finite)
        assert float(ours.scale) == float(theirs.scale)
        if mine:
            np.testing.assert_array_equal(gradient, wanted)
    assert float(ours.scale) >= 1.0


def test_gradients_that_vanish_in_float16_do_not_where_they_are_scaled():
    policy = weft.Policy(compute=jnp.float16)
    linear, x = weft.Linear(4, 1, use_bias=False, key=jax.random.key(0)), jnp.full(4, 1e-4)

    def loss(linear: Any) -> Any:
        return linear(x).sum() * 1e-4

    def in_half(linear: Any) -> Any:
        return policy(loss)(linear)

    scaling = LossScale()
    gradient, finite, _ = scaling.unscaled(weft.grad(lambda m: scaling.scaled(in_half(m)))(linear))
    assert finite
    assert not weft.grad(in_half)(linear).kernel.any()
    np.testing.assert_allclose(gradient.kernel, weft.grad(loss)(linear).kernel, rtol=1e-2)


def test_a_step_that_is_not_finite_is_not_made():
    optimizer = weft.Optimizer(weft.Linear(2, 1, key=jax.random.key(0)), optax.adam(0.1))

    @weft.jit
    def step(model: Any, opt: Any, scaling: Any, x: Any) -> Any:
        gradient = weft.grad(lambda model: scaling.scaled(model(x).sum()))(model)
        gradient, finite, scaling = scaling.unscaled(gradient)
        return *weft.cond(finite, lambda: opt.update(model, gradient), lambda: (model, opt)), scaling

    model, scaling = weft.Linear(2, 1, key=jax.random.key(0)), LossScale(4.0)
    same, opt, after = step(model, optimizer, scaling, jnp.array([1.0, jnp.inf]))
    assert weft.tree.equal((same, opt), (model, optimizer))
    assert (float(after.scale), int(after.finite_steps)) == (2.0, 0)
    moved, opt, after = step(same, opt, after, jnp.ones(2))
    assert (int(opt.step), float(after.scale), int(after.finite_steps)) == (1, 2.0, 1)
    wanted = optimizer.update(model, weft.grad(lambda model: model(jnp.ones(2)).sum())(model))[0]
    assert weft.tree.allclose(moved, wanted)


def test_a_factor_never_becomes_infinite():
    scaling = LossScale(2.0**127, interval=1)
    _, finite, scaling = scaling.unscaled({"w": jnp.ones(2), "none": None})
    assert finite
    assert float(scaling.scale) == 2.0**127


def test_it_is_no_parameter_and_dtypes_are_kept():
    assert weft.tree.size(LossScale()) == 0
    gradient, _, _ = LossScale(2.0).unscaled({"w": jnp.ones(2, jnp.float16), "n": jnp.array(3)})
    assert (gradient["w"].dtype, gradient["w"].tolist(), int(gradient["n"])) == (jnp.float16, [0.5, 0.5], 3)
    assert LossScale().scaled(jnp.float16(1)).dtype == jnp.float32


@pytest.mark.parametrize(
    "options", [{"growth": 0.5}, {"backoff": 2.0}, {"backoff": 0.0}, {"minimum": 0.0}, {"scale": 0.5}], ids=str
)
def test_factors_that_make_no_sense_are_refused(options: dict[str, float]):
    with pytest.raises(weft.errors.ConfigError, match="LossScale needs growth >= 1, backoff <= 1"):
        LossScale(**options)
    with pytest.raises(weft.errors.ConfigError, match="interval must be positive, not 0"):
        LossScale(interval=0)
