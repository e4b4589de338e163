"""Norms of weights, held against the singular values and lengths that NumPy finds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from flax import nnx
from weft.modules import ops

KERNEL = jax.random.normal(jax.random.key(0), (3, 2, 4))


def test_weight_norm_gives_each_feature_the_length_that_its_scale_says():
    scale = jnp.array([1.0, 2.0, 3.0, 4.0])
    lengths = np.linalg.norm(ops.weight_norm(KERNEL, scale).reshape(-1, 4), axis=0)
    np.testing.assert_allclose(lengths, scale, rtol=1e-5)


@pytest.mark.parametrize("axes", [(0, 2), (2, 0), (-1, -3)])
def test_weight_norm_takes_features_along_several_axes(axes):
    normed = ops.weight_norm(KERNEL, feature_axes=axes)
    np.testing.assert_allclose(np.linalg.norm(normed, axis=1), np.ones((3, 4)), rtol=1e-5)


def test_spectral_norm_finds_the_largest_singular_value_step_by_step():
    largest = np.linalg.svd(KERNEL.reshape(-1, 4), compute_uv=False)[0]
    u, errors = jnp.ones((1, 4)), []
    for _ in range(30):
        normed, u, sigma = ops.spectral_norm(KERNEL, u)
        errors.append(abs(float(sigma) - largest))
    assert errors[-1] < 1e-4 < errors[0]
    np.testing.assert_allclose(normed, KERNEL / largest, rtol=1e-4)


def test_a_kernel_of_zeros_stays_one_and_its_gradient_is_finite():
    zeros = jnp.zeros((3, 4))
    assert not ops.spectral_norm(zeros, jnp.ones((1, 4)))[0].any()
    gradient = jax.grad(lambda kernel: ops.spectral_norm(kernel, jnp.ones((1, 4)))[0].sum())(zeros)
    assert jnp.isfinite(gradient).all()
    assert not ops.weight_norm(zeros).any()


def test_the_singular_vector_is_not_differentiated():
    def vector(kernel):
        return ops.spectral_norm(kernel, jnp.ones((1, 4)))[1].sum()

    assert not jax.grad(vector)(KERNEL).any()


X = jax.random.normal(jax.random.key(1), (2, 3))


def dense():
    return weft.Linear(3, 4, key=jax.random.key(0))


def twin(layer):
    theirs = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    theirs.kernel[...] = layer.kernel
    return theirs


def loss(layer, x):
    y = layer(x)
    return ((y[0] if isinstance(y, tuple) else y) ** 2).sum()


def test_a_weight_norm_changes_nothing_at_first_and_is_removed_without_a_trace():
    normed = weft.WeightNorm(dense())
    np.testing.assert_allclose(normed(X), dense()(X), rtol=1e-6)
    assert jax.tree.structure(normed.normed()) == jax.tree.structure(dense())


def test_weight_norm_equals_flax():
    ours = weft.WeightNorm(dense(), scale_init=jax.nn.initializers.ones)
    theirs = nnx.WeightNorm(twin(dense()), rngs=nnx.Rngs(0))
    np.testing.assert_allclose(ours(X), theirs(X), rtol=1e-6)
    by_hand = jax.grad(
        lambda scale: ((X @ (dense().kernel / jnp.linalg.norm(dense().kernel, axis=0) * scale)) ** 2).sum()
    )
    np.testing.assert_allclose(weft.grad(loss)(ours, X).scale, by_hand(ours.scale), rtol=1e-5)


def test_spectral_norm_equals_flax_step_by_step():
    ours = weft.SpectralNorm(dense(), key=jax.random.key(2))
    theirs = nnx.SpectralNorm(twin(dense()), rngs=nnx.Rngs(0))
    (state,) = [value for path, value in nnx.to_flat_state(nnx.state(theirs, nnx.BatchStat)) if "u" in str(path[-1])]
    ours = ours.replace(u=state[...])
    y, after = weft.jit(lambda layer, x: layer(x))(ours, X)
    np.testing.assert_allclose(y, theirs(X), rtol=1e-5)
    np.testing.assert_allclose(after.u, state[...], rtol=1e-5)
    np.testing.assert_array_equal(after.layer.kernel, ours.layer.kernel)


def test_spectral_norm_in_inference_is_itself():
    norm = weft.inference_mode(weft.SpectralNorm(dense(), key=jax.random.key(2)))
    y, same = norm(X)
    assert same is norm
    np.testing.assert_allclose(y, norm.normed()(X), rtol=1e-6)


def test_wrapped_layers_run_in_a_stack_and_keep_their_state():
    def make(key):
        return weft.SpectralNorm(weft.Linear(3, 3, key=key), key=key)

    stack = weft.Stack(make, 2, key=jax.random.key(0))
    y, after = stack(X)
    second = stack[1](stack[0](X)[0])
    np.testing.assert_allclose(y, second[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after.layers.u[1], second[1].u, rtol=1e-5)
    normed = weft.Stack(lambda key: weft.WeightNorm(weft.Linear(3, 3, key=key)), 2, key=jax.random.key(0))
    np.testing.assert_allclose(normed(X), normed[1](normed[0](X)), rtol=1e-6)


def test_spectral_norm_of_half_precision_keeps_its_dtypes():
    layer = weft.Linear(3, 4, key=jax.random.key(0), param_dtype=jnp.bfloat16)
    y, after = weft.SpectralNorm(layer, key=jax.random.key(1))(X.astype(jnp.bfloat16))
    assert (y.dtype, after.u.dtype, after.layer.kernel.dtype) == (jnp.bfloat16, jnp.float32, jnp.bfloat16)


@pytest.mark.parametrize("kind", [weft.WeightNorm, weft.SpectralNorm])
def test_a_layer_without_a_kernel_is_refused(kind):
    with pytest.raises(
        weft.errors.ConfigError, match=f"{kind.__name__} wraps a layer with an array in the field 'kernel'"
    ):
        kind(weft.LayerNorm(3), key=jax.random.key(0))
