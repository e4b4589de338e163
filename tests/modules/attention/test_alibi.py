"""ALiBi: the paper's biases, in attention at once and step by step; and biases by positions of one's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft.modules.ops import alibi

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (2, 6, 12))


def slopes_of_the_paper(n):
    """As its authors compute them."""
    power = int(np.log2(n))
    if 2**power == n:
        start = 2 ** (-8 / n)
        return [start ** (i + 1) for i in range(n)]
    below = 2**power
    return slopes_of_the_paper(below) + slopes_of_the_paper(2 * below)[0::2][: n - below]


@pytest.mark.parametrize("heads", [1, 2, 6, 8, 12])
def test_slopes_are_the_papers(heads):
    biases = alibi(jnp.array([1]), jnp.array([0]), num_heads=heads)
    np.testing.assert_allclose(-biases[:, 0, 0], slopes_of_the_paper(heads), rtol=1e-6)


def attention(**options):
    return weft.MultiHeadAttention(12, 6, causal=True, position_bias=weft.ALiBi(), key=KEY, **options)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_attention_with_alibi_is_attention_with_its_bias(dropout):
    distance = jnp.abs(jnp.arange(6)[:, None] - jnp.arange(6)[None])
    bias = -jnp.array(slopes_of_the_paper(6))[:, None, None] * distance
    options = {"dropout": dropout}
    key = None if dropout == 0 else jax.random.key(2)
    plain = weft.MultiHeadAttention(12, 6, causal=True, key=KEY, **options)
    expected = plain(X, bias=bias[None], key=key)
    np.testing.assert_allclose(attention(**options)(X, key=key), expected, rtol=1e-4, atol=1e-5)
    added = jax.random.normal(jax.random.key(3), (6, 6))
    both = attention(**options)(X, bias=added, key=key)
    np.testing.assert_allclose(both, plain(X, bias=bias[None] + added, key=key), rtol=1e-4, atol=1e-5)


def test_alibi_decodes_step_by_step_and_row_by_row():
    whole, lengths = attention()(X), jnp.array([4, 2])
    _, decoding = attention().with_cache(6, batch=(2,))(X[:, :4])
    y, _ = decoding(X[:, 4:5])
    np.testing.assert_allclose(y, whole[:, 4:5], rtol=1e-4, atol=1e-5)
    y, _ = weft.rewind(decoding, lengths)(jnp.stack([X[0, 4:5], X[1, 2:3]]))
    np.testing.assert_allclose(y[:, 0], jnp.stack([whole[0, 4], whole[1, 2]]), rtol=1e-4, atol=1e-5)


def test_a_bias_of_ones_own_is_given_positions():
    def nearest(query, key, heads):
        return jnp.where(query[..., :, None] == key, 0.0, -1e9)

    layer = weft.MultiHeadAttention(12, 6, position_bias=nearest, key=KEY)
    np.testing.assert_allclose(layer(X), layer.out(layer.value(X)), rtol=1e-4, atol=1e-5)


def test_positions_of_ones_own_are_refused():
    with pytest.raises(weft.errors.ConfigError, match="a position_bias counts distances in the sequence"):
        attention(rope=weft.RoPE())(X, positions=jnp.arange(6) * 2)


def test_half_precision_keeps_its_dtype():
    layer = attention(dtype=jnp.bfloat16)
    assert layer(X.astype(jnp.bfloat16)).dtype == jnp.bfloat16
