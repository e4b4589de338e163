"""GroupNorm and InstanceNorm: equal to flax's and equinox's, with gradients, and what they refuse."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from flax import nnx
from weft.errors import AxisError, ConfigError
from weft.modules import GroupNorm, InstanceNorm

X = 2 + 3 * jax.random.normal(jax.random.key(0), (2, 5, 4))
SCALE, BIAS = jnp.array([1.0, 2.0, 0.5, -1.0]), jnp.array([0.0, 1.0, 2.0, 3.0])


def pair(name):
    rngs = nnx.Rngs(0)
    ours, theirs = {
        "GroupNorm": lambda: (GroupNorm(4, groups=2), nnx.GroupNorm(4, num_groups=2, rngs=rngs)),
        "InstanceNorm": lambda: (InstanceNorm(4), nnx.InstanceNorm(4, rngs=rngs)),
    }[name]()
    theirs.scale[...], theirs.bias[...] = SCALE, BIAS
    return ours.replace(scale=SCALE, bias=BIAS), theirs


def loss(layer, x):
    return (layer(x) ** 3).sum()


@pytest.mark.parametrize("name", ["GroupNorm", "InstanceNorm"])
def test_outputs_and_gradients_equal_flax(name):
    ours, theirs = pair(name)
    np.testing.assert_allclose(weft.jit(lambda layer, x: layer(x))(ours, X), theirs(X), rtol=1e-5, atol=1e-5)
    gradients, expected = weft.grad(loss)(ours, X), nnx.grad(loss)(theirs, X)
    np.testing.assert_allclose(gradients.scale, expected.scale[...], rtol=1e-4)
    np.testing.assert_allclose(gradients.bias, expected.bias[...], rtol=1e-4)


@pytest.mark.parametrize("name", ["GroupNorm", "InstanceNorm"])
def test_masks_and_half_precision_are_as_in_flax(name):
    ours, theirs = pair(name)
    mask = jnp.ones_like(X, bool).at[:, 2:].set(False)
    np.testing.assert_allclose(ours(X, mask=mask), theirs(X, mask=mask), rtol=1e-5, atol=1e-5)
    half = X.astype(jnp.bfloat16)
    assert ours.replace(dtype=jnp.dtype(jnp.bfloat16))(half).dtype == jnp.bfloat16


def test_one_example_under_vmap_equals_the_batch_and_equinox():
    ours, _ = pair("GroupNorm")
    per_example = GroupNorm(4, groups=2, batch_axes=0).replace(scale=SCALE, bias=BIAS)
    np.testing.assert_allclose(jax.vmap(per_example)(X), ours(X), rtol=1e-5, atol=1e-5)
    theirs = eqx.nn.GroupNorm(2, 4, eps=1e-6)
    theirs = eqx.tree_at(lambda layer: (layer.weight, layer.bias), theirs, (SCALE, BIAS))
    np.testing.assert_allclose(jax.vmap(theirs)(X.swapaxes(1, 2)).swapaxes(1, 2), ours(X), rtol=1e-4, atol=1e-5)


def test_stacked_norms_run_one_after_another():
    stack = weft.Stack(lambda key: GroupNorm(4, groups=2, key=key), 2, key=jax.random.key(0))
    np.testing.assert_allclose(stack(X), stack[1](stack[0](X)), rtol=1e-5, atol=1e-6)


def test_what_makes_no_sense_is_named(unchecked):
    with pytest.raises(ConfigError, match="GroupNorm: 3 groups do not divide 4 features"):
        GroupNorm(4, groups=3)
    with pytest.raises(ConfigError, match="GroupNorm: groups must be positive, not 0"):
        GroupNorm(4, groups=0)
    with pytest.raises(AxisError, match="GroupNorm takes 4 features on the last axis, not 3"):
        GroupNorm(4, groups=2)(X[..., :3])
    with pytest.raises(AxisError, match="InstanceNorm has no axis to normalise over after the 1 of the batch"):
        InstanceNorm(4)(X[0])
    with pytest.raises(ConfigError, match="InstanceNorm: batch_axes"):
        InstanceNorm(4, batch_axes=-1)
