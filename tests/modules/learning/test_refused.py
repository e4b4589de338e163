"""What an optimizer, an average and an adapter are given that can only be a mistake, and what only looks like one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import weft

KEY = jax.random.key(0)
MODEL, X = weft.Linear(6, 6, key=KEY), jnp.ones((2, 6))


def loss(model: Any, x: Any) -> Any:
    return jnp.mean(model(x) ** 2)


class Plain:
    """A transformation that takes nothing beside gradients, state and parameters."""

    def init(self, params: Any) -> Any:
        return ()

    def update(self, updates: Any, state: Any, params: Any = None) -> Any:
        return jax.tree.map(lambda g: -0.1 * g, updates), state


class WithValue(Plain):
    def update(self, updates: Any, state: Any, params: Any = None, *, value: Any) -> Any:
        return jax.tree.map(lambda g: -0.1 * value * g, updates), state


def sam(opaque: bool) -> Any:
    adversary = optax.chain(optax.contrib.normalize(), optax.sgd(0.05))
    return optax.contrib.sam(optax.sgd(0.1), adversary, sync_period=2, opaque_mode=opaque)


TRANSFORMATIONS = {
    "sam": lambda: sam(False),
    "sam that asks for gradients": lambda: sam(True),
    "a class of one's own": Plain,
    "one that takes the value alone": WithValue,
    "accumulated": lambda: optax.MultiSteps(optax.sgd(0.1), 1),
    "by filter": lambda: {weft.filters.PathContains("bias"): sam(True), ...: optax.sgd(0.1)},
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
@pytest.mark.parametrize("wrap", [lambda step: step, weft.jit], ids=["eager", "jit"])
def test_a_transformation_is_given_what_it_takes(name: str, wrap: Any):
    opt, model = weft.Optimizer(MODEL, TRANSFORMATIONS[name]()), MODEL
    step = wrap(lambda opt, model: opt.minimize(loss, model, X))
    first, model, opt = step(opt, model)
    for _ in range(5):
        value, model, opt = step(opt, model)
    assert value < first


def test_sam_moves_as_under_optax_alone():
    rule, params = sam(True), {"w": jnp.array([1.0, -2.0])}

    def of(params: Any) -> Any:
        return jnp.sum(params["w"] ** 4)

    state = rule.init(params)
    moves, _ = rule.update(jax.grad(of)(params), state, params, grad_fn=lambda params, _: jax.grad(of)(params))
    _, after, _ = weft.Optimizer(params, rule).minimize(of, params)
    np.testing.assert_allclose(after["w"], optax.apply_updates(params, moves)["w"], rtol=1e-6)


def test_an_argument_of_the_users_own_that_nothing_takes_is_an_error():
    gradient = weft.grad(loss)(MODEL, X)
    with pytest.raises(TypeError, match="momentum"):
        weft.Optimizer(MODEL, Plain()).update(MODEL, gradient, momentum=1)


@pytest.mark.parametrize("make", [lambda one: {"loss": one}, lambda one: [one], lambda one: (one,)])
def test_a_number_in_a_container_is_no_loss(make: Any):
    def contained(model: Any, x: Any) -> Any:
        return make(loss(model, x))

    kind = type(make(1)).__name__
    for transform in (weft.grad, weft.value_and_grad):
        with pytest.raises(weft.errors.DifferentiationError, match=f"returned a {kind} with one number"):
            transform(contained)(MODEL, X)
    if kind != "tuple":  # a tuple begins with the loss
        with pytest.raises(weft.errors.DifferentiationError, match=f"returned a {kind} with one number"):
            weft.Optimizer(MODEL, optax.sgd(0.1)).minimize(contained, MODEL, X)
    # What the error advises.
    _, aux = weft.grad(lambda model, x: (loss(model, x), contained(model, x)), has_aux=True)(MODEL, X)
    assert type(aux).__name__ == kind


@pytest.mark.parametrize("decay", [2.0, -0.1, float("nan"), jnp.array(1.5)])
def test_a_decay_that_is_no_fraction_is_refused(decay: Any):
    with pytest.raises(weft.errors.ConfigError, match="the decay of an average must be between 0 and 1"):
        weft.tree.ema(MODEL, MODEL, decay)
    for right in (0, 0.999, 1, jnp.array(0.5)):
        weft.tree.ema(MODEL, MODEL, right)
    weft.jit(lambda decay: weft.tree.ema(MODEL, MODEL, decay))(jnp.array(0.5))


def test_an_adapter_that_is_larger_than_its_layer_is_refused():
    with pytest.raises(weft.errors.ConfigError, match=r"(?s)rank 100 is too high for a kernel of 6 by 6.*at most 6"):
        weft.lora(MODEL, 100, key=KEY)
    assert weft.lora(MODEL, 6, key=KEY).down.shape == (6, 6)


@pytest.mark.parametrize("wrt", [{weft.Param: 0, ...: None}, {weft.Param, weft.BatchStat}])
def test_what_an_optimizer_moves_is_chosen_by_filters_alone(wrt: Any):
    with pytest.raises(weft.errors.FilterError, match="not a filter"):
        weft.Optimizer(weft.Linear(2, 2, key=jax.random.key(0)), optax.sgd(0.1), wrt=wrt)
