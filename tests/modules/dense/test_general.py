"""LinearGeneral and Einsum: equal to flax's, with gradients, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from flax import nnx

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (2, 5, 3))
RANDOM = jax.nn.initializers.normal()


def layers(name):
    options = {"key": KEY, "bias_init": RANDOM}
    rngs = nnx.Rngs(0)
    return {
        "axes": lambda: (
            weft.LinearGeneral((5, 3), (4, 2), axes=(1, -1), **options),
            nnx.LinearGeneral((5, 3), (4, 2), axis=(1, -1), rngs=rngs),
        ),
        "batch": lambda: (
            weft.LinearGeneral(3, (4, 2), batch=2, **options),
            nnx.LinearGeneral(3, (4, 2), batch_axis={0: 2}, rngs=rngs),
        ),
        "einsum": lambda: (
            weft.Einsum("nta,hab->nthb", (8, 3, 4), **options),
            nnx.Einsum("nta,hab->nthb", (8, 3, 4), (8, 4), rngs=rngs),
        ),
        "ellipsis": lambda: (
            weft.Einsum("...i,ij->...j", (3, 4), **options),
            nnx.Einsum("...i,ij->...j", (3, 4), (4,), rngs=rngs),
        ),
    }[name]()


def loss(layer, x):
    return (layer(x) ** 2).sum()


@pytest.mark.parametrize("batch", [0, 1])
def test_the_op_adds_the_bias_of_each_kernel(batch: int):
    kernel, bias = jnp.ones((3, 4, 2)), jnp.arange(6.0).reshape(3, 2)
    x = jax.random.normal(KEY, (3, 3, 4))
    y = weft.ops.linear_general(x, kernel, bias, axes=(2,), batch_axes=(batch,))
    expected = jnp.stack([jnp.take(x, i, batch) @ kernel[i] + bias[i] for i in range(3)])
    np.testing.assert_allclose(y, expected, rtol=1e-5)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["axes", "batch", "einsum", "ellipsis"])
def test_outputs_and_gradients_equal_flax(name):
    ours, theirs = layers(name)
    assert (ours.kernel.shape, ours.bias.shape) == (theirs.kernel.shape, theirs.bias.shape)
    theirs.kernel[...], theirs.bias[...] = ours.kernel, ours.bias
    np.testing.assert_allclose(ours(X), theirs(X), rtol=1e-6)
    gradients, expected = weft.jit(weft.grad(loss))(ours, X), nnx.grad(loss)(theirs, X)
    np.testing.assert_allclose(gradients.kernel, expected.kernel[...], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradients.bias, expected.bias[...], rtol=1e-5, atol=1e-5)


def test_the_initialisers_see_a_matrix():
    layer = weft.LinearGeneral((5, 3), (4, 2), axes=(1, 2), key=KEY)
    np.testing.assert_array_equal(layer.kernel.reshape(15, 8), weft.Linear(15, 8, key=KEY).kernel)


def test_half_precision_and_stacks():
    half = weft.LinearGeneral(3, 4, key=KEY, dtype=jnp.bfloat16)
    assert half(X).dtype == jnp.bfloat16
    stack = weft.Stack(lambda key: weft.Einsum("...i,ij->...j", (3, 3), key=key), 2, key=KEY)
    np.testing.assert_allclose(stack(X), stack[1](stack[0](X)), rtol=1e-6)


def test_what_makes_no_sense_is_named(unchecked):
    with pytest.raises(weft.errors.ConfigError, match="LinearGeneral maps 2 axes, but in_features has 1 sizes"):
        weft.LinearGeneral(3, 4, axes=(0, 1), key=KEY)
    with pytest.raises(weft.errors.AxisError, match="LinearGeneral takes axes of these sizes: -1: 4"):
        weft.LinearGeneral(4, 4, key=KEY)(X)
    with pytest.raises(weft.errors.ConfigError, match="has no output"):
        weft.Einsum("bi,ij", (3, 4), key=KEY)
    with pytest.raises(weft.errors.ConfigError, match="differ in their number of axes"):
        weft.Einsum("bi,ij->bj", (3, 4, 5), key=KEY)
    with pytest.raises(weft.errors.AxisError, match="Einsum takes inputs with the axes 'bi'"):
        weft.Einsum("bi,ij->bj", (3, 4), key=KEY)(X)


@pytest.mark.parametrize("equation", ["abc,cd->abd", "...c,cd->...d"])
def test_einsum_refuses_another_size_under_a_letter_of_the_kernels(equation):
    layer = weft.Einsum(equation, (8, 4), key=jax.random.key(0))
    assert layer(jnp.ones((2, 5, 8))).shape == (2, 5, 4)
    with pytest.raises(
        weft.errors.AxisError, match=r"the sizes in .* differ\n  at: in Einsum\n  at: c: 7 in x, 8 in the kernel"
    ):
        layer(jnp.ones((2, 5, 7)))
