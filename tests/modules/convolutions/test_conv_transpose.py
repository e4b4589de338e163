"""ConvTranspose: equal to flax's, with gradients, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from flax import nnx

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (2, 5, 5, 3))
OPTIONS = [
    {"strides": 2},
    {"padding": "CIRCULAR", "strides": (2, 1)},
    {"padding": "VALID", "kernel_dilation": 2, "use_bias": False},
    {"padding": [(1, 2), (0, 1)], "transpose_kernel": True},
]


def pair(options):
    ours, theirs = weft.ConvTranspose2d(3, 4, 3, key=KEY, **options), None
    theirs = nnx.ConvTranspose(3, 4, (3, 3), rngs=nnx.Rngs(0), **options)
    theirs.kernel[...] = ours.kernel
    return ours, theirs


def loss(layer, x):
    return (layer(x) ** 2).sum()


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options))
def test_outputs_and_gradients_equal_flax(options):
    ours, theirs = pair(options)
    np.testing.assert_allclose(ours(X), theirs(X), rtol=1e-5, atol=1e-5)
    gradients, expected = weft.jit(weft.grad(loss))(ours, X), nnx.grad(loss)(theirs, X)
    np.testing.assert_allclose(gradients.kernel, expected.kernel[...], rtol=1e-4, atol=1e-4)


def test_one_example_half_precision_and_other_ranks():
    layer = weft.ConvTranspose2d(3, 4, 3, key=KEY)
    np.testing.assert_allclose(layer(X[0]), layer(X)[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.vmap(layer)(X), layer(X), rtol=1e-5, atol=1e-6)
    half = weft.ConvTranspose1d(3, 4, 3, key=KEY, param_dtype=jnp.bfloat16, strides=2)
    assert half(jnp.ones((2, 5, 3), jnp.bfloat16)).dtype == jnp.bfloat16
    assert weft.ConvTranspose3d(3, 4, 2, key=KEY)(jnp.ones((2, 2, 2, 3))).shape == (2, 2, 2, 4)
    stack = weft.Stack(lambda key: weft.ConvTranspose1d(3, 3, 3, key=key), 2, key=KEY)
    np.testing.assert_allclose(stack(X[0]), stack[1](stack[0](X[0])), rtol=1e-5, atol=1e-6)


def test_what_makes_no_sense_is_named(unchecked):
    with pytest.raises(weft.errors.ConfigError, match=r"spatial axes of ConvTranspose") as caught:
        weft.ConvTranspose(3, 4, 3, key=KEY)
    assert "ConvTranspose2d(..., 3)" in str(caught.value)
    with pytest.raises(weft.errors.ConfigError, match="unknown padding 'REFLECT' of a transposed convolution"):
        weft.ConvTranspose2d(3, 4, 3, padding="REFLECT", key=KEY)
    with pytest.raises(weft.errors.ConfigError, match="ConvTranspose1d: kernel_size has 2 numbers for 1 spatial axes"):
        weft.ConvTranspose1d(3, 4, (3, 3), key=KEY)
    with pytest.raises(weft.errors.AxisError, match="ConvTranspose2d takes 3 features on the last axis, not 2"):
        weft.ConvTranspose2d(3, 4, 3, key=KEY)(X[..., :2])
