"""Quantised layers: near the ones that they were, not learned, small, and under adapters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import weft

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (3, 8))


def test_no_weight_is_off_by_more_than_half_a_scale():
    layer = weft.Linear(8, 4, key=KEY)
    small = weft.QuantizedLinear(layer)
    assert small.kernel.dtype == jnp.int8
    off = np.abs(small.dequantized().kernel - layer.kernel)
    assert (off <= 0.5 * np.asarray(small.scale) * (1 + 1e-5)).all()
    np.testing.assert_allclose(small(X), small.dequantized()(X), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(weft.jit(lambda m, x: m(x))(small, X), layer(X), atol=0.05)


def test_a_feature_of_zeros_stays_one():
    layer = weft.Linear(8, 4, key=KEY, kernel_init=jax.nn.initializers.zeros)
    assert not np.asarray(weft.QuantizedLinear(layer)(X)).any()


def test_half_precision_and_stacks_keep_their_dtype_and_shape():
    half = weft.quantize(weft.Linear(8, 4, key=KEY, param_dtype=jnp.bfloat16))
    assert half(X.astype(jnp.bfloat16)).dtype == jnp.bfloat16
    stack = weft.Stack(lambda key: weft.Linear(8, 8, key=key), 2, key=KEY)
    small = weft.quantize(stack)
    assert small.layers.scale.shape == (2, 8)
    np.testing.assert_allclose(small(X), stack(X), atol=0.1)


def test_gradients_flow_through_to_the_input_and_only_adapters_learn():
    small = weft.quantize(weft.MLP(8, 4, 2, key=KEY))
    assert np.asarray(jax.grad(lambda x: small(x).sum())(X)).any()
    assert {leaf.ndim for leaf in jax.tree.leaves(weft.tree.select(small, weft.Param))} == {1}  # the biases
    model = weft.quantize(weft.lora(weft.MLP(8, 4, 2, key=KEY), 2, key=KEY))
    opt = weft.Optimizer(model, optax.sgd(0.1), wrt=weft.LoRAParam)
    _, after, _ = opt.minimize(lambda m, x: (m(x) ** 2).sum(), model, X)
    np.testing.assert_array_equal(after[0].base.kernel, model[0].base.kernel)
    assert np.asarray(after[2].up).any()
    np.testing.assert_allclose(after[2].merged()(X[:, :4]), after[2](X[:, :4]), rtol=1e-4, atol=1e-5)


def test_a_model_without_linear_layers_is_refused():
    with pytest.raises(weft.errors.FilterError):
        weft.quantize(weft.LayerNorm(3))
