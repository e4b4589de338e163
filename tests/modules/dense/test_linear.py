"""Linear and Embed: equal to flax's for the same seeds and dtypes, for any leading axes."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from flax import nnx
from weft.core.records.keys import Keys, SeedError
from weft.errors import AxisError, ConfigError
from weft.modules import Embed, Linear, ops

KEY = jax.random.key(0)
DTYPES = [None, jnp.float32, jnp.bfloat16]


def inputs(*shape, dtype=jnp.float32, seed=0):
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


def assert_same(ours, theirs):
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(np.asarray(ours, np.float32), np.asarray(theirs, np.float32), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("param_dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("x_dtype", [jnp.float32, jnp.bfloat16, jnp.int32])
def test_linear_equals_flax(dtype, param_dtype, x_dtype, unchecked, draws):
    options = {"dtype": dtype, "param_dtype": param_dtype, "bias_init": jax.nn.initializers.normal()}
    ours = Linear(3, 4, key=KEY, **options)
    theirs = nnx.Linear(3, 4, rngs=draws(KEY), **options)
    np.testing.assert_array_equal(ours.kernel, theirs.kernel[...])
    np.testing.assert_array_equal(ours.bias, theirs.bias[...])
    x = inputs(2, 3).astype(x_dtype)
    assert_same(ours(x), theirs(x))


@pytest.mark.parametrize("batch", [(), (4, 2), (0,)])
def test_linear_keeps_leading_axes(batch, draws):
    ours, theirs = Linear(3, 4, key=KEY), nnx.Linear(3, 4, rngs=draws(KEY))
    assert_same(ours(inputs(*batch, 3)), theirs(inputs(*batch, 3)))


def test_linear_accumulates_and_returns_the_out_dtype():
    layer = Linear(3, 4, key=jax.random.key(0), dtype=jnp.bfloat16, out_dtype=jnp.float32)
    theirs = nnx.Linear(3, 4, dtype=jnp.bfloat16, preferred_element_type=jnp.float32, rngs=nnx.Rngs(0))
    theirs.kernel[...], theirs.bias[...] = layer.kernel, layer.bias
    assert_same(layer(inputs(2, 3)), theirs(inputs(2, 3)))


def test_linear_without_bias_has_one_array():
    layer = Linear(3, 4, use_bias=False, key=jax.random.key(0))
    assert len(jax.tree.leaves(layer)) == 1
    assert_same(layer(inputs(2, 3)), inputs(2, 3) @ layer.kernel)


def test_linear_names_expected_and_actual_features(unchecked):
    layer = Linear(3, 4, key=jax.random.key(0))
    with pytest.raises(AxisError, match=r"Linear takes 3 features on the last axis, not 5\n  at: x: float32\[8,5\]"):
        layer(jnp.ones((8, 5)))
    with pytest.raises(AxisError, match="not none"):
        layer(1.0)


@pytest.mark.parametrize("key", [0, None, np.zeros(2, np.uint32)])
def test_linear_needs_a_typed_key(key):
    with pytest.raises(SeedError, match="Linear draws its parameters from a typed key"):
        Linear(3, 4, key=key)


def test_layers_refuse_keys_whose_successor_they_could_not_hand_back(unchecked):
    for make in (lambda key: Linear(3, 4, key=key), lambda key: Embed(3, 4, key=key)):
        with pytest.raises(SeedError, match=r"takes a typed key, not a Keys record: it could not hand back") as caught:
            make(Keys(0))
        assert 'fix: key, keys = keys.next("params"), in this order' in str(caught.value)
    swapped = Keys(0).next("params")[1]  # keys, key = keys.next("params")
    with pytest.raises(SeedError, match="Linear takes a typed key, not a Keys record"):
        Linear(3, 4, key=swapped)


def test_linear_refuses_sizes_that_are_not_positive():
    with pytest.raises(ConfigError, match="Linear: out_features must be positive, not 0"):
        Linear(3, 0, key=jax.random.key(0))


def test_equal_layers_have_equal_structures_whatever_the_spelling_of_the_dtype():
    layers = [Linear(3, 4, key=jax.random.key(0), dtype=dtype) for dtype in ("bfloat16", jnp.bfloat16)]
    assert jax.tree.structure(layers[0]) == jax.tree.structure(layers[1])


@pytest.mark.slow
def test_linear_is_ordinary_under_plain_jax_and_equinox():
    layer, x = Linear(3, 4, key=jax.random.key(0)), inputs(5, 3)
    assert_same(jax.vmap(layer)(x), layer(x))
    assert_same(eqx.filter_jit(layer)(x), layer(x))
    gradient = jax.grad(lambda layer: layer(x).sum())(layer)
    np.testing.assert_allclose(gradient.bias, jnp.full(4, 5.0))


def test_linear_traces_with_implicit_rank_promotion_refused():
    layer, x = Linear(3, 4, key=jax.random.key(0)), inputs(5, 3)
    with jax.numpy_rank_promotion("raise"):
        assert layer(x).shape == (5, 4)


def test_linear_takes_symbolic_sizes():
    (batch,) = jax.export.symbolic_shape("b")
    layer = Linear(3, 4, key=jax.random.key(0))
    shape = jax.eval_shape(layer, jax.ShapeDtypeStruct((batch, 3), jnp.float32)).shape
    assert str(shape[0]) == "b"


@pytest.mark.parametrize("vocab", [1, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_embed_equals_flax(vocab, dtype, draws):
    ours = Embed(vocab, 3, key=KEY, dtype=dtype)
    theirs = nnx.Embed(vocab, 3, rngs=draws(KEY, 1), dtype=dtype)
    # Those that the table has: for others ours gives NaN, where flax takes a negative one from the end.
    ids = jnp.array([[0, 1, 3], [4, 2, 0]]) % vocab
    assert_same(ours(ids), theirs(ids))
    assert_same(ours.attend(inputs(2, 3)), theirs.attend(inputs(2, 3)))


def test_embed_gives_nan_out_of_range():
    assert jnp.isnan(Embed(5, 3, key=KEY)(jnp.array(5))).all()


@pytest.mark.parametrize("vocab", [1, 5])
@pytest.mark.parametrize("dtype", [jnp.int8, jnp.int32])
def test_an_id_below_0_or_beyond_the_table_is_nan_and_every_other_its_row(vocab: int, dtype: Any):
    table = Embed(vocab, 3, key=KEY)
    ids = jnp.array([0, vocab - 1, vocab, -1, -vocab, -vocab - 1], dtype)
    rows = weft.jit(table)(ids)
    np.testing.assert_array_equal(rows[:2], table.embedding[jnp.array([0, vocab - 1])])
    assert jnp.isnan(rows[2:]).all()
    gradient = jax.grad(lambda table: jnp.nansum(table(ids)))(table).embedding
    np.testing.assert_array_equal(gradient.sum(), 6.0)


def test_embed_refuses_floats(unchecked):
    with pytest.raises(ConfigError, match="Embed looks up integers, not float32"):
        Embed(5, 3, key=KEY)(jnp.ones(2))


def test_an_op_takes_a_product_of_the_users_own():
    def doubled(x, kernel, dims, precision=None):
        return 2 * jax.lax.dot_general(x, kernel, dims, precision=precision)

    x, kernel = inputs(2, 3), inputs(3, 4, seed=1)
    assert_same(ops.linear(x, kernel, dot_general=doubled), 2 * (x @ kernel))


def test_an_integer_compute_dtype_is_refused():
    with pytest.raises(ConfigError, match="dtype must be floating-point, not int32"):
        ops.linear(inputs(2, 3), inputs(3, 4), dtype=jnp.int32)
