"""Adapters and quantised weights inside of a Stack: each copy has its own, and is what it would be alone."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import weft

KEYS = jax.random.split(jax.random.key(0), 4)
X = jax.random.normal(KEYS[3], (5, 4))


def adapted(model, where=weft.Linear):
    """With adapters that do something, as after training."""
    model = weft.lora(model, 2, key=KEYS[1], where=weft.filters.InstanceOf(where))

    def moved(layer):
        return layer.replace(up=jax.random.normal(KEYS[2], layer.up.shape))

    return weft.at(model, weft.filters.InstanceOf(weft.LoRA)).apply(moved)


def quantized_then_adapted(model):
    return adapted(weft.quantize(model), weft.QuantizedLinear)


def one_by_one(stack, x):
    for layer in stack:
        x = layer(x)
    return x


@pytest.mark.slow
@pytest.mark.parametrize("change", [adapted, weft.quantize, quantized_then_adapted], ids=lambda change: change.__name__)
def test_a_stack_is_changed_as_its_layers_are(change):
    stack = change(weft.Stack(lambda key: weft.MLP(4, 6, 4, key=key), 3, key=KEYS[0]))
    assert {leaf.shape[0] for leaf in jax.tree.leaves(stack)} == {3}
    # No two copies have the same adapters.
    assert len({np.asarray(leaf).tobytes() for layer in stack for leaf in jax.tree.leaves(layer.layers[0])}) > 6
    np.testing.assert_allclose(stack(X), one_by_one(stack, X), rtol=1e-6, atol=1e-6)

    def loss(apply):
        return weft.grad(lambda stack, x: (apply(stack, x) ** 2).sum(), wrt=weft.Param)(stack, X)

    scanned, unrolled = loss(lambda stack, x: stack(x)), loss(one_by_one)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), scanned, unrolled)


@pytest.mark.parametrize("change", [adapted, quantized_then_adapted], ids=lambda change: change.__name__)
def test_adapters_of_a_stack_are_merged_into_it(change):
    stack = change(weft.Stack(lambda key: weft.MLP(4, 6, 4, key=key), 3, key=KEYS[0]))
    merged = weft.at(stack, weft.filters.InstanceOf(weft.LoRA)).apply(weft.vmap(weft.LoRA.merged))
    assert isinstance(merged.layers.layers[0], weft.Linear)
    np.testing.assert_allclose(merged(X), stack(X), rtol=1e-5, atol=1e-5)


def test_a_new_adapter_changes_nothing():
    stack = weft.Stack(lambda key: weft.Linear(4, 4, key=key), 3, key=KEYS[0])
    np.testing.assert_allclose(weft.lora(stack, 2, key=KEYS[1])(X), stack(X), rtol=1e-6, atol=1e-6)
