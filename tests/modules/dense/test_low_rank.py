"""LoRA: adapters that change nothing at first, are trained alone, and are merged away."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import weft

KEY = jax.random.key(0)
X = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)


def make() -> weft.MLP:
    return weft.MLP(4, 5, 2, key=KEY)


def loss(model, x):
    return (model(x) ** 2).sum()


@pytest.mark.slow
def test_adapters_change_nothing_at_first():
    model = make()
    np.testing.assert_array_equal(weft.lora(model, 2, key=KEY)(X), model(X))


def test_adapters_are_drawn_apart():
    adapted = weft.lora(weft.MLP(4, 4, 4, key=KEY), 2, key=KEY)
    assert not np.allclose(adapted[0].down, adapted[2].down)


@pytest.mark.slow
def test_only_adapters_are_trained_and_merging_keeps_what_they_learned():
    base = make()
    model = weft.lora(base, 2, key=KEY)
    opt = weft.Optimizer(model, optax.sgd(0.1), wrt=weft.LoRAParam)
    for _ in range(2):
        _, model, opt = opt.minimize(loss, model, X)
    np.testing.assert_array_equal(model[0].base.kernel, base[0].kernel)
    assert np.abs(model[0].up).sum() > 0
    merged = weft.at(model, weft.filters.InstanceOf(weft.LoRA)).apply(weft.LoRA.merged)
    assert jax.tree.structure(merged) == jax.tree.structure(base)
    np.testing.assert_allclose(merged(X), model(X), rtol=1e-5, atol=1e-6)


def test_some_layers_only():
    adapted = weft.at(make()).layers[2].apply(lambda layer: weft.lora([layer], 1, key=KEY)[0])
    assert [type(layer).__name__ for layer in adapted[::2]] == ["Linear", "LoRA"]
    with pytest.raises(weft.errors.FilterError):
        weft.lora(make(), 1, key=KEY, where=weft.filters.InstanceOf(weft.Conv))


def test_layers_are_chosen_by_any_filter_and_quantised_ones_are_adapted_too():
    attention = weft.MultiHeadAttention(4, 2, key=KEY)
    some = weft.lora(
        attention,
        1,
        key=KEY,
        where=weft.filters.Any(weft.filters.PathContains("query"), weft.filters.PathContains("value")),
    )
    assert [type(getattr(some, name)).__name__ for name in ("query", "key", "value")] == ["LoRA", "Linear", "LoRA"]
    both = weft.lora(weft.quantize(attention, weft.filters.Not(weft.filters.PathContains("out"))), 1, key=KEY)
    assert [type(layer.base).__name__ for layer in (both.query, both.out)] == ["QuantizedLinear", "Linear"]
    np.testing.assert_allclose(both(X), attention(X), atol=0.05)
    with pytest.raises(weft.errors.FilterError, match="no part of this MLP matches InstanceOf"):
        weft.lora(make(), 1, key=KEY, where=weft.filters.PathContains("bias"))  # a part of a layer is none


def test_a_layer_is_not_adapted_twice():
    adapted = weft.lora(make(), 1, key=KEY)
    with pytest.raises(weft.errors.ConfigError, match="an adapter already") as caught:
        weft.lora(adapted, 1, key=KEY)
    assert "model.layers[0].base.kernel" in str(caught.value)
    with pytest.raises(weft.errors.FilterError):
        weft.lora(adapted, 1, key=KEY, where=weft.filters.Not(weft.filters.InstanceOf(weft.LoRA)))


def test_a_half_precision_base_stays_in_its_dtype():
    base = weft.Linear(4, 2, key=KEY, param_dtype=jnp.bfloat16)
    assert weft.LoRA(base, 1, key=KEY)(X.astype(jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize(("rank", "error"), [(0, weft.errors.ConfigError), (-1, weft.errors.ConfigError)])
def test_a_rank_that_is_none_is_refused(rank, error):
    with pytest.raises(error, match="LoRA: rank must be positive"):
        weft.LoRA(weft.Linear(4, 2, key=KEY), rank, key=KEY)
