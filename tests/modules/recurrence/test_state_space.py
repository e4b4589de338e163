"""DiagonalSSM: the scan over a sequence is the steps one by one, in value and gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft.modules.recurrence.state_space import linear_recurrence

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (2, 7, 3))


def stepped(layer, x):
    h, ys = None, []
    for time in range(x.shape[1]):
        y, h = layer.step(x[:, time], h)
        ys.append(y)
    return jnp.stack(ys, 1)


@pytest.mark.slow
def test_a_sequence_at_once_equals_step_by_step_with_gradients():
    layer = weft.DiagonalSSM(3, 4, key=KEY)
    np.testing.assert_allclose(layer(X), stepped(layer, X), rtol=1e-4, atol=1e-5)
    gradients = weft.jit(weft.grad(lambda layer, x: (layer(x) ** 2).mean()))(layer, X)
    expected = weft.jit(weft.grad(lambda layer, x: (stepped(layer, x) ** 2).mean()))(layer, X)
    for a, b in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_the_recurrence_goes_on_from_a_state():
    decay, whole = jnp.array([0.5, -0.25]), jax.random.normal(KEY, (6, 2))
    first = linear_recurrence(decay, whole[:2])
    rest = linear_recurrence(decay, whole[2:], first[-1])
    np.testing.assert_allclose(rest, linear_recurrence(decay, whole)[2:], rtol=1e-5, atol=1e-6)


def test_decays_lie_within_the_radii_and_what_comes_later_changes_nothing_before():
    layer = weft.DiagonalSSM(3, 16, radius=(0.5, 0.6), key=KEY)
    sizes = np.abs(layer.decay())
    assert ((sizes > 0.499) & (sizes < 0.601)).all()
    np.testing.assert_allclose(layer(X.at[:, 5:].set(0.0))[:, :5], layer(X)[:, :5], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_vmap_stacks_and_half_precision():
    layer = weft.DiagonalSSM(3, 4, key=KEY)
    np.testing.assert_allclose(jax.vmap(layer)(X), layer(X), rtol=1e-4, atol=1e-5)
    assert layer(X.astype(jnp.bfloat16)).dtype == jnp.bfloat16
    stack = weft.Stack(lambda key: weft.DiagonalSSM(3, 4, key=key), 2, key=KEY)
    np.testing.assert_allclose(stack(X), stack[1](stack[0](X)), rtol=1e-4, atol=1e-5)


def test_what_makes_no_sense_is_named(unchecked):
    with pytest.raises(weft.errors.ConfigError, match="radius must be a pair with 0 < low <= high < 1"):
        weft.DiagonalSSM(3, 4, radius=(0.9, 1.0), key=KEY)
    with pytest.raises(weft.errors.AxisError, match="DiagonalSSM takes 3 features on the last axis, not 2"):
        weft.DiagonalSSM(3, 4, key=KEY)(X[..., :2])
