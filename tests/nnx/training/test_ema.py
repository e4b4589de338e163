"""EMA is flax's: its averages, in compiled training too, the models it makes, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx as flax_nnx
from weft import nnx
from weft.nnx.interop.installing import twin_module

from ..nn.twins import assert_equal, assert_same_state, twins

pytestmark = [
    pytest.mark.wide,
    # flax writes averages of integers with a warning.
    pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types:FutureWarning"),
]

X = jax.random.normal(jax.random.key(1), (4, 2))
GRAPH = pytest.mark.parametrize("graph", [None, True, False], ids=["default", "graph", "tree"])


def model_of(library, dtype=jnp.float32):
    class Model(library.Module):
        def __init__(self, rngs):
            self.inner = library.Linear(2, 3, param_dtype=dtype, kernel_metadata={"note": "k"}, rngs=rngs)
            self.norm = library.BatchNorm(3, rngs=rngs)
            self.dropout = library.Dropout(0.3, rngs=rngs)

        def __call__(self, x):
            return self.dropout(self.norm(self.inner(x))).sum()

    return Model(library.Rngs(0))


def moved(library, model):
    for leaf in jax.tree.leaves(library.state(model, library.Param), is_leaf=lambda x: isinstance(x, library.Variable)):
        leaf[...] = leaf[...] * 2 + 1


@GRAPH
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_averages_are_flaxs(graph, dtype):
    def run(library):
        model = model_of(library, dtype)
        ema = library.EMA(model, 0.9, only=(library.Param, library.BatchStat), graph=graph)
        for _ in range(3):
            moved(library, model)
            ema.update(model)
        return ema

    theirs, ours = twins(run)
    assert_same_state(theirs, ours, 1e-2 if dtype == jnp.bfloat16 else 1e-6)
    assert [*map(str, theirs.params)] == [*map(str, ours.params)]
    assert (ours.decay, ours.graph) == (0.9, graph)


def test_averages_of_integers_are_flaxs():
    def run(library):
        counts = library.List([library.BatchStat(jnp.array([0, 10]))])
        ema = library.EMA(counts, 0.25)
        counts[0][...] = jnp.array([100, 20])
        ema.update(counts)
        return ema

    assert_same_state(*twins(run))


def test_a_state_may_be_averaged_and_given():
    def run(library):
        model = model_of(library)
        ema = library.EMA(library.state(model, library.Param), 0.5)
        moved(library, model)
        ema.update(library.state(model, library.Param))
        return ema

    assert_same_state(*twins(run), 1e-6)


@pytest.mark.parametrize("graph", [None, True])
def test_averages_in_compiled_training_are_flaxs(graph):
    def run(library):
        model = library.Linear(2, 2, rngs=library.Rngs(0))
        optimizer = library.Optimizer(model, optax.adam(0.1), wrt=library.Param)
        ema = library.EMA(model, 0.8, graph=graph)
        averaged = ema.apply_to(model)

        @library.jit
        def step(model, optimizer, ema, x):
            grads = library.grad(lambda model: (model(x) ** 2).mean())(model)
            optimizer.update(model, grads)
            ema.update(model)

        for _ in range(3):
            step(model, optimizer, ema, X)
        return ema, averaged(X), ema.apply_to(model)(X), model(X)

    (their_ema, *theirs), (our_ema, *ours) = twins(run)
    assert_same_state(their_ema, our_ema, 1e-5)
    assert_equal(theirs, ours, 1e-5)
    assert_equal(ours[0], ours[1])
    assert not np.allclose(ours[0], ours[2])


@GRAPH
def test_a_model_with_averages_shares_them_and_keeps_the_rest(graph):
    for library in (flax_nnx, nnx):
        model = model_of(library)
        ema = library.EMA(model, 0.9, only=library.Param, graph=graph)
        averaged = ema.apply_to(model)
        assert averaged.inner.kernel is ema.params["inner"]["kernel"]
        assert averaged.inner.kernel is not model.inner.kernel
        assert type(averaged) is type(model)
        np.testing.assert_array_equal(averaged.norm.mean[...], model.norm.mean[...])


def test_shared_variables_are_averaged_once():
    def run(library):
        class Tied(library.Module):
            def __init__(self):
                self.a = self.b = library.Param(jnp.ones(2))

        model = Tied()
        ema = library.EMA(model, 0.5)
        model.a[...] += 2.0
        ema.update(model)
        averaged = ema.apply_to(model)
        assert averaged.a is averaged.b
        return ema

    assert_same_state(*twins(run), 1e-6)


def keyed():
    return nnx.EMA(model_of(nnx), 0.9)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: nnx.EMA({"a": jnp.ones(2)}, 0.9),
            TypeError,
            r"only supports Variable leaves, got \w*Array(.|\n)*a",
        ),
        (lambda: keyed().update(model_of(nnx)), TypeError, r"EMA averages numbers, got a RngKey(.|\n)*only=nnx.Param"),
        (
            lambda: nnx.EMA(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), 0.9).update(model_of(nnx)),
            ValueError,
            r"other Variables than its average(.|\n)*kernel",
        ),
    ],
)
def test_what_cannot_be_averaged_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_an_update_that_fails_changes_no_average():
    model = model_of(nnx)
    ema = keyed()
    before = ema.params["inner"]["kernel"][...]
    moved(nnx, model)
    with pytest.raises(TypeError):
        ema.update(model)
    np.testing.assert_array_equal(before, ema.params["inner"]["kernel"][...])


def test_the_module_of_averages_is_found_by_flaxs_name():
    assert twin_module("flax.nnx.training.ema").EMA is nnx.EMA
