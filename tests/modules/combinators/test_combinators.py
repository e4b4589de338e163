"""Residual, Frozen and Lambda: called like what they hold, and what they refuse."""

import gc
import weakref
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import weft
from weft import inference_mode, training_mode
from weft.core import FrozenParam, Keys, LoRAParam, Module, Param, SuccessorError
from weft.core.records.keys import SeedError
from weft.errors import AxisError, ConfigError, StaticError
from weft.modules import (
    BatchNorm,
    Dropout,
    Ensemble,
    Frozen,
    Lambda,
    Linear,
    Parallel,
    Residual,
    Sequential,
    Stack,
    StatefulParallel,
    StatefulSequential,
)

from ..layers import KEY, Counted, Dense, Normed, X


def shapes(tree):
    return [leaf.shape for leaf in jax.tree.leaves(tree)]


def test_a_residual_adds_what_it_is_given_to_what_its_layer_returns():
    layer = Dense(key=KEY)
    np.testing.assert_array_equal(Residual(layer)(X), X + layer(X))
    np.testing.assert_array_equal(Residual(jnp.sin)(X), X + jnp.sin(X))


def test_a_residual_of_a_stateful_layer_returns_its_successor():
    layer = Counted(key=KEY)
    y, residual = Residual(layer)(X)
    np.testing.assert_array_equal(y, X + layer(X)[0])
    assert type(residual) is Residual
    assert float(residual.layer.calls) == 1.0
    assert residual.layer.linear is layer.linear


def test_a_residual_does_not_broadcast():
    with pytest.raises(AxisError, match=r"x: float32\[5,4\], layer\(x\): float32\[5,1\]") as caught:
        Residual(Linear(4, 1, key=KEY))(X)
    assert "Parallel(layer, shortcut, merge=sum)" in str(caught.value)


@pytest.mark.parametrize("wrap", [Residual, Frozen, lambda layer: Stack(lambda key: layer, 1, key=KEY)])
def test_further_arguments_and_flags_reach_the_layer_as_they_are(wrap):
    layer = Dense(key=KEY)
    combined = wrap(layer)
    np.testing.assert_array_equal(combined(X, skip=True), X + X if wrap is Residual else X)
    doubled = combined(X, 2.0) - combined(X)
    np.testing.assert_allclose(doubled, layer(X), rtol=1e-5, atol=1e-6)


def test_a_key_reaches_a_layer_that_takes_one_and_no_other():
    assert float(jnp.sum(Residual(Dropout(0.5))(X, key=KEY) == X)) > 0
    np.testing.assert_array_equal(Residual(Linear(4, 4, key=KEY))(X, key=KEY), X + Linear(4, 4, key=KEY)(X))


@pytest.mark.parametrize(
    "combined",
    [Residual(Dropout(0.5)), Frozen(Dropout(0.5)), Parallel(Dropout(0.5)), StatefulParallel(Dropout(0.5))],
    ids=lambda one: type(one).__name__,
)
def test_a_keys_record_is_refused_because_its_successor_would_be_lost(combined):
    with pytest.raises(SeedError, match=f"{type(combined).__name__} takes a typed key, not a Keys"):
        combined(X, key=Keys(0))


class Aux(Module):
    """Returns what it is told to, made of its input and itself."""

    result: str

    def __call__(self, x):
        return {
            "(y, aux, successor)": (x, "aux", self),
            "successor": self,
            "(successor, y)": (self, x),
            "two": (x, self, self),
            "inside": ({"layer": self}, x),
        }[self.result]


def test_a_successor_behind_a_value_and_more_is_kept():
    (y, aux), chain = StatefulSequential(Aux("(y, aux, successor)"))(X)
    assert y is X
    assert aux == "aux"
    assert type(chain) is StatefulSequential


class Cache(Module):
    """What a layer may hand to the next one beside its output."""

    rows: jax.Array


def test_a_record_of_another_type_is_a_value_that_the_next_layer_is_given():
    class Writes(Module):
        weight: jax.Array

        def __call__(self, x):
            y, cache = x
            return y * self.weight, Cache(cache.rows + y)

    stack = Stack(lambda key: Writes(jax.random.normal(key)), 3, key=KEY)
    y, cache = weft.jit(stack)((jnp.ones(2), Cache(jnp.zeros(2))))
    first, second, _ = stack.layers.weight
    np.testing.assert_allclose(y, jnp.prod(stack.layers.weight) * jnp.ones(2), rtol=1e-6)
    np.testing.assert_allclose(cache.rows, (1 + first + first * second) * jnp.ones(2), rtol=1e-5)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("successor", "this Aux returns only its successor"),
        ("(successor, y)", "this call returns an Aux where it may be the successor or a value"),
        ("two", r"layers\[0\]: returned as result\[1\](.|\n)*layers\[0\]: returned as result\[2\]"),
        ("inside", r"may be the successor or a value(.|\n)*layers\[0\]: returned as result\[0\].layer"),
    ],
)
@pytest.mark.parametrize("chain", [Sequential, StatefulSequential, Parallel])
def test_a_successor_that_nobody_could_tell_is_an_error_and_not_lost(chain, result, message):
    with pytest.raises(SuccessorError, match=message):
        chain(Aux(result))(X)


def test_what_is_frozen_is_no_parameter_whatever_it_declares():
    class Adapted(Module):
        base: Linear
        low: Annotated[jax.Array, LoRAParam]
        keys: Keys

    frozen = Frozen(Adapted(Linear(2, 2, key=KEY), jnp.ones(3), Keys(0)))
    assert shapes(weft.tree.select(frozen, FrozenParam)) == [(2, 2), (2,), (3,)]
    assert shapes(weft.tree.select(frozen, weft.RngKey)) == [()]
    with pytest.raises(weft.errors.FilterError, match="these filters match no leaf: Param"):
        weft.tree.select(frozen, Param)


@pytest.mark.slow
def test_grads_and_optimizers_skip_what_is_frozen_and_gradients_flow_through_it():
    first, second = (Dense(key=key) for key in jax.random.split(KEY))
    model = Sequential(first, Frozen(second))
    gradient = weft.grad(lambda model: jnp.sum(model(X) ** 2))(model)
    plain = weft.grad(lambda model: jnp.sum(model(X) ** 2))(Sequential(first, second))
    np.testing.assert_allclose(gradient[0].linear.kernel, plain[0].linear.kernel, rtol=1e-6)
    assert jax.tree.leaves(gradient[1]) == []
    optimizer = optax.sgd(0.1)
    updates, _ = optimizer.update(gradient, optimizer.init(weft.tree.select(model, Param)))
    after = eqx.apply_updates(model, updates)
    assert after[1].layer.linear.kernel is second.linear.kernel
    assert float(jnp.max(jnp.abs(after[0].linear.kernel - first.linear.kernel))) > 0


def test_state_inside_what_is_frozen_stays_state_unless_it_is_in_inference_mode():
    frozen = Frozen(Normed(key=KEY))
    assert shapes(weft.tree.select(frozen, weft.BatchStat)) == [(4,), (4,)]
    _, after = weft.jit(lambda frozen, x: frozen(x))(frozen, X)
    assert float(jnp.max(jnp.abs(after.layer.norm.mean))) > 0
    still = inference_mode(frozen)
    assert still(X)[1] is still


def test_a_frozen_stack_and_a_stack_of_frozen_layers_are_frozen():
    for model in (
        Frozen(Stack(lambda key: Dense(key=key), 2, key=KEY)),
        Stack(lambda key: Frozen(Dense(key=key)), 2, key=KEY),
    ):
        assert {leaf.shape[0] for leaf in jax.tree.leaves(weft.tree.select(model, FrozenParam))} == {2}
        assert jax.tree.leaves(weft.tree.select({"m": model, "w": jnp.ones(())}, Param)) == [1.0]


def test_a_lambda_is_its_function_and_holds_no_arrays():
    flatten = Lambda(lambda x: x.reshape(-1), "flatten")
    assert flatten(X).shape == (20,)
    assert flatten.name == "flatten"
    assert Lambda(jnp.sin).name == "sin"
    assert jax.tree.leaves(weft.tree.select(flatten, ...)) == []
    assert weft.jit(Sequential(flatten, Lambda(jnp.sum)))(X).shape == ()


def test_a_lambda_passes_a_key_to_a_function_that_takes_one():
    def noise(x, *, key):
        return x + jax.random.normal(key, x.shape)

    np.testing.assert_array_equal(Sequential(Lambda(noise))(X, key=KEY), noise(X, key=jax.random.split(KEY, 1)[0]))


def test_a_lambda_refuses_a_record_which_is_a_layer_already():
    with pytest.raises(ConfigError, match="a Linear is a layer already"):
        Lambda(Linear(2, 2, key=KEY))


def test_a_lambda_refuses_arrays_that_transforms_would_not_see():
    scale = jnp.ones(4)
    with pytest.raises(StaticError, match="hides an array") as error:
        Lambda(lambda x: x * scale)
    assert error.value.at == ("Lambda.function closes over scale",)


def test_modes_reach_into_every_combinator():
    def block(key):
        return StatefulSequential(Residual(BatchNorm(4)), Frozen(Dropout(0.5)), Parallel(Dropout(0.1), merge=sum))

    model = Ensemble(lambda key: Stack(block, 2, key=key), 3, key=KEY)
    after = inference_mode(model)
    first = after.members.layers
    assert (first[0].layer.inference, first[1].layer.inference, first[2].layers[0].inference) == (True, True, True)
    assert jax.tree.structure(training_mode(after)) == jax.tree.structure(model)
    y, same = after(X)
    assert y.shape == (3, 5, 4)
    assert same is after


@pytest.mark.slow
def test_a_chain_does_not_keep_a_users_functions_alive():
    def made():
        big = np.ones(8)
        function = lambda x: x + big.sum()  # noqa: E731
        chain = Sequential(function, Residual(function), Parallel(function))
        chain(X, key=KEY)
        return weakref.ref(function)

    function = made()
    gc.collect()
    assert function() is None


@pytest.mark.slow
def test_combinators_nest_in_each_other_under_every_transform():
    def block(key):
        return StatefulSequential(
            Residual(Normed(key=key)), Parallel(jnp.sin, Dense(key=key), merge=sum), Frozen(Residual(Counted(key=key)))
        )

    model = StatefulSequential(Residual(Stack(block, 2, key=KEY, remat=True)), Lambda(jnp.tanh))

    def loss(model, x, key):
        y, model = model(x, key=key)
        return jnp.mean(y**2), (model, y)

    def step(model, x, key):
        (_, (after, y)), gradient = weft.value_and_grad(loss, has_aux=True)(model, x, key)
        return y, after, gradient

    y, after, gradient = weft.jit(step)(model, X, KEY)
    x, layers = X, []
    for layer, key in zip(model[0].layer, jax.random.split(jax.random.split(KEY, 1)[0], 2), strict=True):
        x, layer = layer(x, key=key)
        layers.append(layer)
    np.testing.assert_allclose(y, jnp.tanh(X + x), rtol=1e-4, atol=1e-5)
    for i, layer in enumerate(layers):
        np.testing.assert_allclose(after[0].layer[i][0].layer.norm.mean, layer[0].layer.norm.mean, rtol=1e-4, atol=1e-6)
        assert float(after[0].layer[i][2].layer.layer.calls) == 1.0
    blocks = gradient[0].layer.layers
    assert blocks[0].layer.linear.kernel.shape == (2, 4, 4)
    assert jax.tree.leaves(blocks[2]) == []
    assert bool(jnp.all(jnp.isfinite(blocks[1].layers[1].linear.kernel)))
