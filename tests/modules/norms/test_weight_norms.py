"""Norms of weights, held against the singular values and lengths that NumPy finds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
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
