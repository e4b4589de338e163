"""Adapters and quantised weights inside of a Stack: each copy has its own, and is what it would be alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
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


class Net(weft.Module):
    blocks: weft.Stack
    members: weft.Ensemble
    chain: weft.Sequential


def net():
    def block(key):
        return weft.MLP(4, 6, 4, key=key)

    chain = weft.Sequential(jax.nn.relu, weft.Linear(4, 4, key=KEYS[0]), jax.nn.relu)
    return Net(weft.Stack(block, 3, key=KEYS[0]), weft.Ensemble(block, 3, key=KEYS[1]), chain)


@pytest.mark.parametrize("index", [1, -1, slice(1, None), slice(None), slice(None, None, 2)], ids=str)
@pytest.mark.parametrize("part", ["blocks", "members"])
def test_an_index_selects_what_the_stack_reads(part, index):
    model = net()
    selected = range(3)[index]
    selected = [selected] if isinstance(selected, int) else list(selected)
    layers = getattr(weft.at(model), part)[index].layers[0]
    biased = getattr(layers.bias.set(jnp.ones(6)), part)
    assert [bool((layer.layers[0].bias == 1).all()) for layer in biased] == [i in selected for i in range(3)]
    moved = getattr(layers.bias[2].set(5.0), part)
    assert [float(layer.layers[0].bias.sum()) for layer in moved] == [5.0 * (i in selected) for i in range(3)]
    # Everything else stays as it was.
    for layer, old in zip(biased, getattr(model, part), strict=True):
        np.testing.assert_array_equal(layer.layers[0].kernel, old.layers[0].kernel)


def test_one_layer_is_replaced_by_another():
    model = net()
    copied = weft.at(model).blocks[0].set(model.blocks[2])
    assert weft.tree.equal(copied.blocks[0], model.blocks[2])
    assert weft.tree.equal(copied.blocks[1:], model.blocks[1:])
    grown = weft.jit(lambda model: weft.at(model).blocks[1].apply(lambda mlp: jax.tree.map(lambda a: a + 1, mlp)))(
        model
    )
    np.testing.assert_allclose(grown.blocks[1].layers[0].kernel, model.blocks[1].layers[0].kernel + 1)


def test_all_layers_may_take_another_structure_together():
    stack = net().blocks
    edited = weft.at(stack)[:].layers[0].apply(lambda linear: weft.LoRA(linear, 2, key=KEYS[1]))
    np.testing.assert_allclose(edited(X), stack(X), rtol=1e-6, atol=1e-6)
    merged = weft.at(edited)[:].layers[0].apply(weft.LoRA.merged)
    assert jax.tree.structure(merged) == jax.tree.structure(stack)
    frozen = weft.at(stack)[:].layers[0].apply(weft.Frozen)
    assert len(jax.tree.leaves(weft.tree.select(frozen, weft.Param))) == 2


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda stack: weft.at(stack)[1].layers[0].apply(weft.Frozen), r"\[0\] and \[1\] would have two"),
        (lambda stack: weft.at(stack)[2].layers[0].bias.set(jnp.ones(7)), r"\[0\] and \[2\] would have two"),
        (lambda stack: weft.at(stack)[0].layers[0].bias.set(None), r"\[0\] and \[1\] would have two"),
        (lambda stack: weft.at(stack)[3], "no part 3 in a Stack of 3"),
    ],
)
def test_an_edit_that_no_stack_can_hold_is_refused(edit, problem):
    with pytest.raises((weft.errors.StructureError, weft.errors.SurgeryError), match=problem):
        edit(net().blocks)


def test_an_ensemble_that_shares_arrays_is_edited_as_a_whole():
    ensemble = weft.Ensemble(lambda key: weft.BatchNorm(4), 3, key=KEYS[0], axes={weft.BatchStat: None})
    with pytest.raises(weft.errors.ConfigError, match="share arrays"):
        weft.at(ensemble)[1].bias.set(jnp.ones(4))


def test_an_index_of_a_chain_selects_that_layer_and_no_equal_one():
    chain = weft.at(net()).chain[2].set(jax.nn.gelu).chain
    assert [chain[0], chain[2]] == [jax.nn.relu, jax.nn.gelu]
    assert float(weft.at(net()).chain[1].bias.set(jnp.ones(4)).chain[1].bias.sum()) == 4


class Blocks(weft.Module):
    blocks: weft.Stack | weft.Sequential


@pytest.mark.parametrize(
    "edit",
    [weft.Frozen, lambda layer: weft.LoRA(layer, 2, key=KEYS[1])],
    ids=["frozen", "adapted"],
)
def test_one_layer_gets_another_structure_once_it_is_out_of_the_stack(edit):
    model = Blocks(weft.Stack(lambda key: weft.Linear(4, 4, key=key), 3, key=KEYS[0]))
    with pytest.raises(weft.errors.StructureError) as raised:
        weft.at(model).blocks[1].apply(edit)
    assert "weft.at(...).apply(lambda layers: weft.Sequential(*layers))" in str(raised.value)
    loose = weft.at(model).blocks.apply(lambda layers: weft.Sequential(*layers))
    edited = weft.at(loose).blocks[1].apply(edit)
    np.testing.assert_allclose(edited.blocks(X), model.blocks(X), rtol=1e-6, atol=1e-6)
    assert [type(layer) is weft.Linear for layer in edited.blocks] == [True, False, True]


def test_one_member_gets_another_structure_once_it_is_out_of_the_ensemble():
    members = weft.Ensemble(lambda key: weft.Linear(4, 2, key=key), 3, key=KEYS[0])
    with pytest.raises(weft.errors.StructureError) as raised:
        weft.at(members)[1].apply(weft.Frozen)
    assert "weft.at(...).apply(lambda layers: weft.Parallel(*layers))" in str(raised.value)
    loose = weft.at(weft.Parallel(*members))[1].apply(weft.Frozen)
    np.testing.assert_allclose(jnp.stack(loose(X)), members(X), rtol=1e-6, atol=1e-6)
