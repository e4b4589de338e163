"""Stack: copies of a layer by one scan are the same copies one after another."""

from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from jaxtyping import Array, Float
from weft.core.records.keys import Keys, SeedError
from weft.errors import AxisError, ConfigError
from weft.modules import BatchNorm, Conv2d, Dropout, Ensemble, Linear, Residual, Stack

from ..layers import KEY, Counted, Dense, Normed, X


def dense(n=3, **options):
    return Stack(lambda key: Dense(key=key), n, key=KEY, **options)


def unrolled(stack, x):
    """The layers one after another, in Python."""
    layers = []
    for layer in stack:
        x, layer = layer(x)
        layers.append(layer)
    return x, layers


def test_the_layers_of_a_stack_are_those_made_one_by_one():
    for layer, key in zip(dense(), jax.random.split(KEY, 3), strict=True):
        np.testing.assert_array_equal(layer.linear.kernel, Dense(key=key).linear.kernel)


def test_a_stack_is_its_layers_one_after_another():
    stack, x = dense(), X
    for layer in stack:
        x = layer(x)
    np.testing.assert_allclose(stack(X), x, rtol=1e-5, atol=1e-6)


def test_make_is_called_once_for_all_layers():
    calls = []

    def make(key):
        calls.append(key)
        return Dense(key=key)

    Stack(make, 4, key=KEY)
    assert len(calls) == 1


def test_each_layer_gets_a_key_of_its_own_in_a_call():
    stack, x = dense(), X
    for layer, key in zip(stack, jax.random.split(jax.random.key(7), 3), strict=True):
        x = layer(x, key=key)
    np.testing.assert_allclose(stack(X, key=jax.random.key(7)), x, rtol=1e-5, atol=1e-6)


def test_arrays_and_flags_beside_the_input_go_to_every_layer_and_flags_stay_flags():
    stack, x = dense(2), X
    scale = jnp.arange(20.0).reshape(5, 4)
    for layer in stack:
        x = layer(x, scale)
    np.testing.assert_allclose(weft.jit(stack)(X, scale), x, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(stack(X, skip=True), X)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("unroll", [1, True])
@pytest.mark.parametrize("remat", [False, True, jax.checkpoint_policies.dots_saveable], ids=["none", "all", "policy"])
def test_values_gradients_and_state_are_those_of_the_layers_by_hand(remat, unroll):
    stack = Stack(lambda key: Normed(key=key), 3, key=KEY, remat=remat, unroll=unroll)

    def loss(model, x, call):
        y, after = call(model, x)
        return jnp.sum(y**2), after

    (value, after), gradient = weft.jit(
        weft.value_and_grad(lambda model, x: loss(model, x, lambda model, x: model(x)), has_aux=True)
    )(stack, X)
    (expected, layers), by_hand = weft.value_and_grad(lambda m, x: loss(m, x, unrolled), has_aux=True)(stack, X)
    np.testing.assert_allclose(value, expected, rtol=1e-4)
    np.testing.assert_allclose(gradient.layers.linear.kernel, by_hand.layers.linear.kernel, rtol=1e-3, atol=1e-4)
    for i, layer in enumerate(layers):
        np.testing.assert_allclose(after[i].norm.mean, layer.norm.mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(after[i].norm.var, layer.norm.var, rtol=1e-4, atol=1e-6)


def test_remat_keeps_less_for_the_backward_pass():
    def residuals(remat):
        model = Stack(lambda key: weft.MLP(4, 16, 4, key=key), 3, key=KEY, remat=remat)
        _, pull = jax.vjp(lambda x: model(x), X)
        return sum(leaf.size for leaf in jax.tree.leaves(pull) if leaf.shape[:1] == (3,))

    assert residuals(True) < residuals(False)


def test_only_what_changed_leaves_the_loop():
    stack = Stack(lambda key: Counted(key=key), 3, key=KEY)
    _, after = stack(X)
    assert after.layers.linear.kernel is stack.layers.linear.kernel
    assert after.layers.calls.tolist() == [1.0, 1.0, 1.0]


def test_a_stack_indexes_like_a_sequence():
    stack = dense(4)
    assert len(stack) == 4
    np.testing.assert_array_equal(stack[-1].linear.kernel, stack.layers.linear.kernel[3])
    part = stack[1:3]
    assert type(part) is Stack
    assert len(part) == 2
    np.testing.assert_allclose(part(X), stack[2](stack[1](X)), rtol=1e-5, atol=1e-6)
    with pytest.raises(IndexError):
        stack[4]


def test_a_stack_in_a_thread_block_hands_on_its_successor():
    class Model(weft.Module):
        blocks: Stack
        head: Linear

        def __call__(self, x):
            with weft.thread(self) as t:
                return t.done(t.head(t.blocks(t.blocks(x))))

    model = Model(Stack(lambda key: Counted(key=key), 2, key=KEY), Linear(4, 1, key=KEY))
    y, after = weft.jit(lambda model, x: model(x))(model, X)
    assert y.shape == (5, 1)
    assert after.blocks.layers.calls.tolist() == [2.0, 2.0]


def test_a_stack_maps_and_is_carried_like_any_record():
    stack = Stack(lambda key: Counted(key=key), 2, key=KEY)
    over_examples = weft.vmap(lambda stack, x: stack(x), in_axes=(None, 0))
    y, _ = over_examples(stack, X)
    np.testing.assert_allclose(y, stack(X)[0], rtol=1e-5, atol=1e-6)
    after, ys = weft.scan(lambda stack, x: stack(x)[::-1])(stack, jnp.stack([X, X, X]))
    assert after.layers.calls.tolist() == [3.0, 3.0]
    np.testing.assert_allclose(ys[2], y, rtol=1e-5, atol=1e-6)


class ConvBlock(weft.Module):
    """A typed block of a convolution and a BatchNorm."""

    conv: Conv2d
    norm: BatchNorm

    def __init__(self, features: int, *, key):
        self.conv, self.norm = Conv2d(features, features, 3, key=key), BatchNorm(features)

    def __call__(self, x: Float[Array, "b h w c"]) -> tuple[Float[Array, "b h w c"], Self]:
        y, norm = self.norm(jax.nn.relu(self.conv(x)))
        return x + y, self.replace(norm=norm)


class Images(weft.Module):
    """Holds stacks of them, and says so without `Batched`."""

    blocks: Stack[ConvBlock]
    votes: Ensemble[ConvBlock]

    def __call__(self, x: Float[Array, "b h w c"]) -> tuple[Float[Array, "n b h w c"], Self]:
        y, blocks = self.blocks(x)
        votes, members = self.votes(y)
        return votes, self.replace(blocks=blocks, votes=members)


@pytest.mark.slow
def test_typed_stacks_of_convolutions_and_norms_cross_every_transform():
    def make(key):
        return ConvBlock(2, key=key)

    model = Images(Stack(make, 2, key=KEY, remat=True), Ensemble(make, 3, key=KEY))
    x = jax.random.normal(KEY, (2, 5, 5, 2))

    @weft.jit
    def step(model, x):
        def loss(model, x):
            y, model = model(x)
            return jnp.mean(y**2), (y, model)

        (_, (y, after)), gradient = weft.value_and_grad(loss, has_aux=True)(model, x)
        return y, weft.vmap(lambda model: model, axis_size=2, in_axes=None)(after), after, gradient

    y, copies, after, gradient = step(model, x)
    assert y.shape == (3, 2, 5, 5, 2)
    assert gradient.blocks.layers.conv.kernel.shape == (2, 3, 3, 2, 2)
    assert copies.votes.members.norm.mean.shape == (2, 3, 2)
    expected, layers = unrolled(model.blocks, x)
    np.testing.assert_allclose(after.blocks[1].norm.mean, layers[1].norm.mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(y[1], model.votes[1](expected)[0], rtol=1e-3, atol=1e-4)


def test_stacks_nest():
    stack = Stack(lambda key: Residual(Stack(lambda key: Counted(key=key), 2, key=key)), 3, key=KEY)
    y, after = weft.jit(lambda stack, x: stack(x))(stack, X)
    expected, _ = unrolled(stack, X)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    assert after.layers.layer.layers.calls.tolist() == [[1.0, 1.0]] * 3


def test_a_layer_that_changes_its_input_is_named():
    with pytest.raises(AxisError, match="must keep the shape and dtype of x, and a Linear does not") as caught:
        Stack(lambda key: Linear(4, 5, key=key), 2, key=KEY)(X)
    assert "x: float32[5,4] -> float32[5,5]" in str(caught.value)
    with pytest.raises(AxisError, match=r"x: bfloat16\[5,4\] -> float32\[5,4\]"):
        dense()(X.astype(jnp.bfloat16))


@pytest.mark.parametrize(
    ("make", "n", "key", "error", "message"),
    [
        (lambda key: Linear(4, 4, key=key), 0, KEY, ConfigError, "Stack: n must be positive, not 0"),
        (lambda key: jnp.ones(3), 2, KEY, ConfigError, "Stack makes copies of a record, not of a"),
        (lambda key: Dropout(0.5), 2, None, SeedError, "Stack makes its layers from a typed key, not from nothing"),
        (lambda key: Dropout(0.5), 2, Keys(0), SeedError, "Stack makes its layers from a typed key, not from a Keys"),
    ],
)
def test_what_cannot_be_stacked_is_refused(make, n, key, error, message):
    with pytest.raises(error, match=message):
        Stack(make, n, key=key)
