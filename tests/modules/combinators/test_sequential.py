"""Sequential chains: pure ones return y, stateful ones (y, successor); keys go where they are wanted."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from weft import inference_mode
from weft.core import Module, SuccessorError
from weft.core.records.keys import Keys, SeedError
from weft.modules import (
    BatchNorm,
    Dropout,
    Linear,
    Parallel,
    Residual,
    Sequential,
    Stack,
    StatefulParallel,
    StatefulSequential,
)
from weft.typecheck.errors import ContractError

KEYS = jax.random.split(jax.random.key(0), 3)


class Noise(Module):
    """A layer that returns the key it was given."""

    def __call__(self, x, *, key=None):
        return [*x, key]


def test_a_pure_chain_is_its_layers_one_after_another():
    first, second = Linear(3, 4, key=KEYS[0]), Linear(4, 2, key=KEYS[1])
    x = jnp.ones((5, 3))
    np.testing.assert_array_equal(Sequential(first, jax.nn.relu, second)(x), second(jax.nn.relu(first(x))))


def test_each_layer_that_wants_a_key_gets_one_of_its_own():
    seen = Sequential(Noise(), lambda x: x, Noise())([], key=KEYS[0])
    assert all(
        jax.random.key_data(a).tolist() == jax.random.key_data(b).tolist()
        for a, b in zip(seen, jax.random.split(KEYS[0], 2), strict=True)
    )


def test_without_a_key_layers_are_called_without_one():
    assert Sequential(Noise())([]) == [None]


def test_equinox_layers_take_part():
    layer = eqx.nn.Dropout(0.0)
    assert Sequential(layer)(jnp.ones(2), key=KEYS[0]).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("chain", [Sequential(Dropout(0.5)), StatefulSequential(Dropout(0.5))])
def test_a_keys_record_is_refused_because_its_successor_would_be_lost(chain, unchecked):
    with pytest.raises(SeedError, match="takes a typed key, not a Keys"):
        chain(jnp.ones(3), key=Keys(0))


def test_a_stateful_layer_in_a_pure_chain_is_named():
    with pytest.raises(SuccessorError, match=r"a BatchNorm is stateful(.|\n)*layers\[1\](.|\n)*StatefulSequential"):
        Sequential(Linear(3, 4, key=KEYS[0]), BatchNorm(4))(jnp.ones((5, 3)))


class Told(Module):
    state: jax.Array

    def __call__(self, x) -> "tuple[jax.Array, Told]":
        return x, self


class Untold(Module):
    def __call__(self, x):
        return x, self


@pytest.mark.parametrize("combinator", [Sequential, Parallel])
@pytest.mark.parametrize(
    "layer",
    [
        lambda: BatchNorm(3),
        lambda: inference_mode(BatchNorm(3)),
        lambda: StatefulSequential(Linear(3, 3, key=KEYS[0])),
        lambda: Residual(BatchNorm(3)),
        lambda: Stack(lambda key: BatchNorm(3), 2, key=KEYS[0]),
        lambda: Told(jnp.ones(1)),
    ],
)
def test_a_layer_that_says_that_it_is_stateful_is_refused_when_the_combinator_is_made(combinator, layer):
    with pytest.raises(SuccessorError, match=rf"is stateful(.|\n)*layers\[1\](.|\n)*Stateful{combinator.__name__}"):
        combinator(jax.nn.relu, layer())
    stateful = {Sequential: StatefulSequential, Parallel: StatefulParallel}[combinator]
    stateful(jax.nn.relu, layer())(jnp.ones((4, 3)))  # as the error advises


def test_a_layer_that_says_nothing_is_refused_at_its_first_call():
    for combinator in (Sequential, Parallel):
        chain = combinator(Untold())
        with pytest.raises(SuccessorError, match="Untold is stateful"):
            chain(jnp.ones(3))


def test_a_stateful_chain_returns_the_successor_of_every_layer():
    chain = StatefulSequential(BatchNorm(3), Linear(3, 4, key=KEYS[0]), BatchNorm(4))
    x = jax.random.normal(KEYS[1], (5, 3))
    y, after = chain(x)
    first, first_norm = chain[0](x)
    expected, last_norm = chain[2](chain[1](first))
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(after[0].mean, first_norm.mean)
    np.testing.assert_array_equal(after[2].mean, last_norm.mean)
    assert after[1] is chain[1]


def test_a_stateful_chain_nests_and_jits():
    chain = StatefulSequential(StatefulSequential(BatchNorm(3)), jax.nn.relu)
    y, after = eqx.filter_jit(chain)(jnp.ones((2, 3)))
    assert y.shape == (2, 3)
    assert after[0][0].mean.tolist() == pytest.approx([0.01] * 3)


def test_a_stateful_chain_that_changes_nothing_is_its_own_successor():
    chain = inference_mode(StatefulSequential(BatchNorm(3), Dropout(0.5)))
    _, after = chain(jnp.ones((2, 3)))
    assert after is chain


def test_a_successor_of_another_structure_is_refused():
    class Growing(Module):
        state: jax.Array

        def __call__(self, x):
            return x, self.replace(state=jnp.zeros(self.state.shape[0] + 1))

    with pytest.raises(SuccessorError, match=r"layers\[0\].state: float32\[1\] -> float32\[2\]"):
        StatefulSequential(Growing(jnp.zeros(1)))(1)


@pytest.mark.parametrize("of", [list, tuple])
@pytest.mark.parametrize("combinator", [Sequential, StatefulSequential, Parallel, StatefulParallel])
def test_one_list_or_tuple_of_layers_is_those_layers(combinator, of):
    layers = Linear(3, 3, key=KEYS[0]), jax.nn.relu
    packed, unpacked = combinator(of(layers)), combinator(*layers)
    assert packed.layers == unpacked.layers
    assert jax.tree.structure(packed) == jax.tree.structure(unpacked)


def test_a_list_beside_a_layer_is_still_refused():
    with pytest.raises(ContractError, match=r"Sequential\.layers\[1\]"):
        Sequential(jax.nn.relu, [jax.nn.relu])
