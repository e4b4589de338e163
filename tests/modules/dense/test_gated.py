"""GatedMLP: its maths written out, in a transformer, and divided over devices as an MLP is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft.modules.sharding.conventions import conventional_names

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (2, 5, 8))


@pytest.mark.parametrize("activation", [jax.nn.silu, jax.nn.gelu, jax.nn.sigmoid])
@pytest.mark.parametrize("use_bias", [True, False])
def test_a_gated_mlp_is_the_papers(activation, use_bias):
    mlp = weft.GatedMLP(8, 12, 3, activation=activation, use_bias=use_bias, key=KEY)
    mlp = weft.tree.map(lambda w: w + 0.1, mlp)  # so that biases are not zero

    def plain(w, x):
        return x @ w.kernel if w.bias is None else x @ w.kernel + w.bias

    expected = plain(mlp.down, activation(plain(mlp.gate, X)) * plain(mlp.up, X))
    np.testing.assert_allclose(mlp(X), expected, rtol=1e-5, atol=1e-6)
    assert (mlp.gate.bias is None) == (not use_bias)


def test_the_three_maps_begin_with_numbers_of_their_own():
    mlp = weft.GatedMLP(8, 8, key=KEY)
    assert not jnp.allclose(mlp.gate.kernel, mlp.up.kernel)
    assert not jnp.allclose(mlp.gate.kernel, mlp.down.kernel)
    assert mlp(X).shape == X.shape


def test_a_transformer_takes_it_in_place_of_its_mlp():
    block = weft.TransformerBlock(8, 2, mlp=lambda key: weft.GatedMLP(8, 16, key=key), key=KEY)
    expected = block.mlp(block.mlp_norm(X + block.attention(block.attention_norm(X))))
    np.testing.assert_allclose(block(X) - X - block.attention(block.attention_norm(X)), expected, rtol=1e-4, atol=1e-5)


def test_its_axes_have_the_names_of_an_mlp():
    leaves = {
        ".".join(map(str, leaf.path)): leaf
        for leaf in weft.core.records.leaves.iter_leaves(weft.GatedMLP(4, 8, key=KEY))
    }
    assert conventional_names(leaves["gate.kernel"]) == conventional_names(leaves["up.kernel"]) == ("embed", "mlp")
    assert conventional_names(leaves["down.kernel"]) == ("mlp", "embed")


def test_dtypes_are_those_that_were_asked_for():
    mlp = weft.GatedMLP(8, 12, key=KEY, dtype=jnp.bfloat16)
    assert mlp(X).dtype == jnp.bfloat16
    assert mlp.up.kernel.dtype == jnp.float32
    with pytest.raises(weft.errors.ConfigError, match="must be positive, not 0"):
        weft.GatedMLP(8, 0, key=KEY)
