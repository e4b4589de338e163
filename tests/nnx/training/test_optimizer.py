"""Optimizers are flax's: their state, steps under jit and grad in each mode, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx as flax_nnx
from weft import nnx

from ..nn.twins import assert_equal, assert_same_state, twins

pytestmark = pytest.mark.wide


def model_of(library):
    class Block(library.Module):
        def __init__(self, rngs):
            self.conv = library.Conv(2, 4, (3,), rngs=rngs)
            self.norm = library.BatchNorm(4, rngs=rngs)
            self.dropout = library.Dropout(0.3, rngs=rngs)
            self.attention = library.MultiHeadAttention(2, 4, decode=False, rngs=rngs)
            self.out = library.Linear(4, 1, rngs=rngs)

        def __call__(self, x):
            x = self.dropout(library.relu(self.norm(self.conv(x))))
            return self.out(x + self.attention(x))

    return Block(library.Rngs(0))


def small_model_of(library):
    class Small(library.Module):
        def __init__(self, rngs):
            self.inner = library.Linear(2, 4, rngs=rngs)
            self.norm = library.BatchNorm(4, rngs=rngs)
            self.out = library.Linear(4, 1, rngs=rngs)

        def __call__(self, x):
            return self.out(library.relu(self.norm(self.inner(x))))

    return Small(library.Rngs(0))


X = jax.random.normal(jax.random.key(1), (4, 6, 2))
Y = jnp.sum(X, -1, keepdims=True)


def loss(model, x, y):
    return jnp.mean((model(x) - y) ** 2)


# Biases before a norm, or of attention's keys, have no gradient but rounding, of which Adam would make steps.
EPS = 1e-3
TRANSFORMATIONS = {
    "sgd": optax.sgd(0.1),
    "adam": optax.adam(0.01, eps=EPS),
    "chain": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.linear_schedule(0.1, 0.01, 5), eps=EPS)),
    "momentum": optax.sgd(0.1, momentum=0.9),
}


def gradients(library, model, graph):
    """The loss and its gradients. A tree that is differentiated holds parameters only, so there the rest goes apart."""
    if graph:
        return library.value_and_grad(loss)(model, X, Y)
    graphdef, params, rest = library.split(model, library.Param, ..., graph=False)

    def loss_of_parts(params, rest):
        return loss(library.merge(graphdef, params, rest), X, Y)

    result = library.value_and_grad(loss_of_parts, graph=False)(params, rest)
    library.update(model, rest)
    return result


@pytest.mark.one_in(5)
@pytest.mark.parametrize("graph", [True, False], ids=["graph", "tree"])
@pytest.mark.parametrize(("name", "make"), [*((name, small_model_of) for name in TRANSFORMATIONS), ("adam", model_of)])
def test_three_steps_under_jit_are_flaxs(name, make, graph):
    def train(library):
        model = make(library)
        optimizer = library.Optimizer(model, TRANSFORMATIONS[name], wrt=library.Param, graph=graph)

        @library.jit(graph=graph)
        def step(model, optimizer):
            value, grads = gradients(library, model, graph)
            optimizer.update(model, grads)
            return value

        return [step(model, optimizer) for _ in range(3)], model, optimizer

    (their_losses, their_model, their_optimizer), (our_losses, our_model, our_optimizer) = twins(train)
    assert_equal(their_losses, our_losses, 1e-5)
    assert len({float(value) for value in our_losses}) == 3
    # Adam divides by the root of squared gradients, so rounding of tiny ones shows.
    assert_same_state(their_model, our_model, 1e-4)
    assert_same_state(their_optimizer, our_optimizer, 1e-4)
    assert int(our_optimizer.step[...]) == 3


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_the_state_before_the_first_step_is_flaxs(name):
    def make(library):
        return library.Optimizer(small_model_of(library), TRANSFORMATIONS[name], wrt=library.Param)

    assert_same_state(*twins(make))


def test_the_variables_of_an_optimizers_state_have_the_models_metadata():
    def make(library):
        metadata = {"out_sharding": ("a", None), "optimizer_sharding": (None, "a"), "eager_sharding": False}
        model = library.Linear(2, 3, kernel_metadata=metadata, rngs=library.Rngs(0))
        return library.Optimizer(model, optax.adam(0.1), wrt=library.Param)

    theirs, ours = twins(make)
    assert_same_state(theirs, ours)
    assert type(ours.opt_state[0].mu["kernel"]) is nnx.OptVariable
    assert ours.opt_state[0].mu["kernel"].out_sharding == (None, "a")
    assert type(ours.opt_state[0].count) is nnx.OptArray


def test_only_what_the_filter_takes_is_trained():
    def train(library):
        model = small_model_of(library)
        wrt = library.All(library.Param, library.PathContains("out"))
        optimizer = library.Optimizer(model, optax.sgd(0.1), wrt=wrt)
        grads = library.grad(loss, argnums=library.DiffState(0, wrt))(model, X, Y)
        return model, optimizer, optimizer.update(model, grads)

    before = small_model_of(nnx)
    (their_model, their_optimizer, their_updates), (model, optimizer, updates) = twins(train)
    assert_same_state(their_model, model, 1e-5)
    assert_same_state(their_optimizer, optimizer, 1e-5)
    assert_equal(flax_nnx.to_pure_dict(their_updates), nnx.to_pure_dict(updates), 1e-5)
    np.testing.assert_array_equal(model.inner.kernel[...], before.inner.kernel[...])


def test_further_arguments_reach_the_transformation():
    def train(library):
        model = library.Linear(2, 1, rngs=library.Rngs(0))
        tx = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=1, factor=0.5))
        optimizer = library.Optimizer(model, tx, wrt=library.Param)
        for _ in range(4):
            grads = library.grad(loss)(model, X, Y)
            optimizer.update(model, grads, value=jnp.array(1.0))
        return model, optimizer

    for theirs, ours in zip(*twins(train), strict=True):
        assert_same_state(theirs, ours, 1e-5)


def test_a_model_and_optimizer_trains_the_model_it_holds():
    def train(library):
        optimizer = library.ModelAndOptimizer(small_model_of(library), optax.adam(0.01, eps=EPS))

        @library.jit
        def step(optimizer, x, y):
            grads = library.grad(loss)(optimizer.model, x, y)
            optimizer.update(grads)

        for _ in range(2):
            step(optimizer, X, Y)
        return optimizer

    assert_same_state(*twins(train), 1e-4)


def test_gradients_may_be_a_model_in_tree_mode():
    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param, graph=False)
    grads = nnx.grad(loss, graph=False)(model, X, Y)
    assert isinstance(grads, nnx.Linear)
    before = model.kernel[...]
    optimizer.update(model, grads)
    assert_equal(before - 0.1 * grads.kernel[...], model.kernel[...], 1e-6)


@pytest.mark.slow
def test_multi_transform_finds_parameters_by_their_path():
    def train(library):
        model = small_model_of(library)
        labels = lambda params: library.map(  # noqa: E731
            lambda path, _: "slow" if "inner" in path else "fast", params
        )
        tx = optax.multi_transform({"slow": optax.sgd(0.01), "fast": optax.adam(0.1, eps=EPS)}, labels)
        optimizer = library.Optimizer(model, tx, wrt=library.Param)
        optimizer.update(model, library.grad(loss)(model, X, Y))
        return model

    assert_same_state(*twins(train), 1e-4)


def test_the_transformation_need_not_know_of_variables():
    seen = []
    tx = optax.GradientTransformation(
        lambda params: optax.EmptyState(),
        lambda updates, state, params=None: (seen.extend(jax.tree.leaves((updates, params))) or updates, state),
    )
    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    optimizer.update(model, nnx.grad(loss)(model, X, Y))
    assert len(seen) == 4
    assert all(isinstance(leaf, jax.Array) for leaf in seen)


def test_missing_arguments_are_named():
    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match="Missing required argument 'wrt'"):
        nnx.Optimizer(model, optax.sgd(0.1))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    with pytest.raises(TypeError, match="Missing required argument 'grads'"):
        optimizer.update(model)
    with pytest.raises(AttributeError, match=r"no attribute 'model': nnx\.ModelAndOptimizer has"):
        _ = optimizer.model
    with pytest.raises(AttributeError, match=r"no attribute 'other'$"):
        _ = optimizer.other


def test_an_update_that_fails_changes_nothing():
    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    kernel = model.kernel[...]
    with pytest.raises((ValueError, TypeError)):
        optimizer.update(model, nnx.grad(loss)(small_model_of(nnx), X, Y))
    assert model.kernel[...] is kernel
    assert int(optimizer.step[...]) == 0


def test_a_train_state_makes_the_same_steps():
    def train(library):
        model = library.Linear(2, 1, rngs=library.Rngs(0))
        graphdef, params = library.split(model)
        state = library.TrainState.create(graphdef, params=params, tx=optax.adam(0.1))
        for _ in range(2):
            grads = jax.grad(lambda params: loss(library.merge(graphdef, params), X, Y))(state.params)
            state = state.apply_gradients(grads)
        return library.to_pure_dict(state.params), state.step

    assert_equal(*twins(train), 1e-5)


def trained_by(transformation):
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, transformation(nnx.state(model, nnx.Param)), wrt=nnx.Param)
    optimizer.update(model, nnx.grad(lambda m: m(jnp.ones(2)).sum())(model))
    return model


LABELLED = {
    "labels": lambda labels: optax.multi_transform({"a": optax.sgd(0.1)}, labels),
    "a mask": lambda mask: optax.adamw(0.1, mask=mask),
}


@pytest.mark.parametrize("transformation", LABELLED.values(), ids=LABELLED)
def test_labels_in_variables_are_refused_with_what_makes_them_of_plain_values(transformation):
    with pytest.raises(ValueError, match="are a State of Variables") as error:
        trained_by(lambda params: transformation(jax.tree.map(lambda value: "a", params)))
    assert "nnx.map_state(lambda path, variable: ..., nnx.state(model, nnx.Param))" in str(error.value)
    # As it says:
    trained_by(lambda params: transformation(nnx.map_state(lambda path, variable: "a", params)))
    trained_by(lambda params: transformation(lambda params: jax.tree.map(lambda value: "a", params)))
