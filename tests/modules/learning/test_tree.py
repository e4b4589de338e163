"""weft.tree: what each function changes, what it leaves alone, and what it refuses."""

from __future__ import annotations

from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import weft
from hypothesis import given
from hypothesis import strategies as st
from weft import BatchStat, Param, tree
from weft.filters import Inside, InstanceOf, Not, PathContains


class Layer(weft.Module):
    weight: jax.Array
    mean: Annotated[jax.Array, BatchStat]
    keys: weft.Keys
    steps: jax.Array
    activation: Any = weft.static(default=jax.nn.relu)
    rate: float = weft.static(default=0.5)


def layer(value: float = 1.0, dtype: Any = jnp.float32) -> Layer:
    return Layer(jnp.full(3, value, dtype), jnp.full(2, value), weft.Keys(int(value)), jnp.array(int(value)))


def configuration(model: Layer) -> Any:
    return model.activation, model.rate


def test_map_changes_what_the_filter_matches_and_nothing_else():
    model = layer()
    doubled = tree.map(lambda leaf: 2 * leaf, model)
    assert doubled.weight.tolist() == [2, 2, 2]
    assert doubled.mean is model.mean
    assert doubled.steps is model.steps
    assert doubled.keys.streams["default"].key is model.keys.streams["default"].key
    assert configuration(doubled) == configuration(model)
    assert tree.map(jnp.zeros_like, model, filter=BatchStat).mean.tolist() == [0, 0]


def test_map_takes_further_trees_which_may_be_sparse():
    gradient = weft.tree.select(layer(3.0), Param)
    assert tree.map(lambda w, g: w - g, layer(), gradient).weight.tolist() == [-2, -2, -2]
    with pytest.raises(weft.errors.StructureError, match=r"tree 1 does not fit\n  at: weight: nothing there"):
        tree.map(lambda w, g: w - g, layer(), weft.tree.select(layer(), BatchStat))


def test_a_filter_of_ones_own_must_match_and_the_default_need_not():
    with pytest.raises(weft.errors.FilterError, match="match no leaf: Cache"):
        tree.map(jnp.zeros_like, layer(), filter=weft.Cache)
    assert tree.size(weft.Keys(0)) == 0
    assert tree.cast({"steps": jnp.array(0)}, jnp.bfloat16)["steps"].dtype == jnp.int32


def test_cast_changes_floats_only():
    low = tree.cast(layer(), jnp.bfloat16)
    assert (low.weight.dtype, low.mean.dtype, low.steps.dtype) == (jnp.bfloat16, jnp.float32, jnp.int32)
    everything = tree.cast({"layer": layer(), "z": jnp.ones(2, jnp.complex64), "eps": 1e-3}, jnp.float16, ...)
    assert everything["layer"].mean.dtype == jnp.float16
    assert everything["layer"].steps.dtype == jnp.int32
    assert everything["z"].dtype == jnp.complex64
    assert everything["eps"] == 1e-3
    assert configuration(everything["layer"]) == configuration(layer())
    with pytest.raises(weft.errors.StructureError, match="int8 is not a floating-point dtype"):
        tree.cast(layer(), jnp.int8)


def test_a_copy_survives_the_donation_of_the_other():
    model = layer()
    twin = tree.copy(model)
    weft.jit(lambda model: tree.map(lambda w: w + 1, model), donate_argnums=0)(model)
    assert twin.weight.tolist() == [1, 1, 1]
    assert twin.keys.next()[0] == layer().keys.next()[0]


@pytest.mark.slow
@given(st.integers(1, 4), st.sampled_from([0, 1, -1]))
def test_stack_unstack_and_index_are_inverse(count: int, axis: int):
    models = [{"w": jnp.full((2,), float(i)), "k": jax.random.split(jax.random.key(i), 2)} for i in range(count)]
    stacked = tree.stack(models, axis)
    assert stacked["w"].shape == ((count, 2) if axis == 0 else (2, count))
    for i, (model, part) in enumerate(zip(models, tree.unstack(stacked, axis), strict=True)):
        for element in (part, tree.index(stacked, i, axis), tree.index(stacked, i - count, axis)):
            assert element["w"].tolist() == model["w"].tolist()
            assert (element["k"] == model["k"]).all()


@pytest.mark.slow
def test_a_stack_is_a_record_that_keeps_its_configuration():
    stacked = tree.stack([layer(1.0), layer(2.0)])
    assert stacked.weight.shape == (2, 3)
    assert stacked.keys.streams["default"].key.shape == (2,)
    assert configuration(stacked) == configuration(layer())
    assert tree.index(stacked, -1).steps == 2
    assert jax.jit(tree.index)(stacked, jnp.array(1)).mean.tolist() == [2, 2]


def test_a_stack_with_functions_is_scanned_and_indexed():
    keys = jax.random.split(jax.random.key(0), 3)
    blocks = [weft.Sequential(weft.Linear(2, 2, key=key), jax.nn.relu) for key in keys]
    stacked = tree.stack(blocks)
    x = jnp.ones(2)
    one_by_one = x
    for block in blocks:
        one_by_one = block(one_by_one)
    scanned, _ = weft.scan(lambda x, block: (block(x), None), in_axes=(weft.Carry, 0), out_axes=(weft.Carry, 0))(
        x, stacked
    )
    np.testing.assert_allclose(scanned, one_by_one, rtol=1e-5)
    assert tree.index(stacked, 1).layers[1] is jax.nn.relu


def test_what_cannot_be_stacked_is_named_by_path():
    with pytest.raises(
        weft.errors.StructureError, match=r"models\[1\] differs from models\[0\] in (.|\n)*weight: bfloat16\[3\]"
    ):
        tree.stack([layer(dtype=jnp.bfloat16), layer()])
    with pytest.raises(weft.errors.StructureError, match="nothing to stack"):
        tree.stack([])
    with pytest.raises(weft.errors.StructureError, match="rate"):
        tree.stack([layer(), layer().replace(rate=0.1)])


def test_what_is_no_stack_is_named_by_path():
    with pytest.raises(weft.errors.AxisError, match=r"steps: axis 0 of shape \(\)"):
        tree.unstack(layer())
    with pytest.raises(weft.errors.AxisError, match=r"b: axis 0 of shape \(3,\) has size 3"):
        tree.index({"a": jnp.ones(2), "b": jnp.ones(3)}, 0)
    with pytest.raises(IndexError, match="index 2 of a stack of 2"):
        tree.index({"a": jnp.ones(2)}, 2)
    with pytest.raises(weft.errors.AxisError, match="a stack without arrays"):
        tree.unstack({})


def test_sizes_are_of_what_the_filter_matches():
    model = layer(dtype=jnp.bfloat16)
    assert (tree.size(model), tree.bytes(model)) == (3, 6)
    assert (tree.size(model, BatchStat), tree.bytes(model, BatchStat)) == (2, 8)
    assert tree.size(model, Inside("weight")) == 3
    assert tree.size(weft.eval_shape(layer), ...) == tree.size(layer(), ...)
    assert tree.bytes({"key": jax.random.key(0)}, ...) == jax.random.key_data(jax.random.key(0)).nbytes


def test_zeros_are_where_the_filter_matches():
    zeros = tree.zeros_like(layer())
    assert (zeros.weight.tolist(), zeros.mean.tolist()) == ([0, 0, 0], [1, 1])


def test_masks_and_labels_are_laid_out_like_gradients():
    model = {"a": layer(), "b": layer(2.0)}
    parameters = weft.tree.select(model, Param)
    mask = tree.mask(model, Inside("a"))
    labels = tree.labels(model, {Inside("a"): "slow", ...: "fast"})
    assert jax.tree.structure(mask) == jax.tree.structure(labels) == jax.tree.structure(parameters)
    assert (mask["a"].weight, mask["b"].weight, mask["a"].mean) == (True, False, None)
    assert jax.tree.leaves(labels) == ["slow", "fast"]
    assert jax.tree.leaves(tree.mask(model, ...)) == [True, True]
    assert jax.tree.leaves(tree.mask(model, BatchStat, wrt=(Param, BatchStat))) == [False, True, False, True]


def test_labels_and_masks_of_a_callable_model_serve_optax():
    model = weft.Linear(2, 2, key=jax.random.key(0))
    parameters = weft.tree.select(model, Param)
    groups = {"slow": optax.sgd(0.1), "fast": optax.sgd(1.0)}
    labels = tree.labels(model, {PathContains("bias"): "fast", ...: "slow"})
    both = optax.chain(
        optax.multi_transform(groups, labels),
        optax.masked(optax.scale(2.0), tree.mask(model, Not(PathContains("bias")))),
    )
    gradient = jax.tree.map(jnp.ones_like, parameters)
    updates, _ = both.update(gradient, both.init(parameters), parameters)
    assert updates.bias.tolist() == [-1, -1]
    np.testing.assert_allclose(updates.kernel, -0.2)
    np.testing.assert_allclose(tree.apply_updates(model, updates).bias, model.bias - 1)


def test_a_parameter_without_a_label_is_named():
    with pytest.raises(weft.errors.FilterError, match=r"no filter matches these leaves\n  at: b.weight: Param"):
        tree.labels({"a": layer(), "b": layer()}, {Inside("a"): "slow"})
    with pytest.raises(weft.errors.FilterError, match="match no leaf: InstanceOf"):
        tree.mask(layer(), InstanceOf(weft.Linear))


def test_an_average_has_the_models_statistics_and_its_own_dtype():
    average, model = layer(0.0), layer(1.0, jnp.bfloat16)
    following = tree.ema(average, model, 0.75)
    assert following.weight.dtype == jnp.float32
    np.testing.assert_allclose(following.weight, 0.25)
    assert following.mean is model.mean
    assert following.steps is model.steps
    assert configuration(following) == configuration(model)


def test_an_average_in_half_precision_is_blended_in_full():
    average, model = layer(1.0, jnp.bfloat16), layer(2.0, jnp.bfloat16)
    assert (tree.ema(average, model, 0.9).weight == jnp.bfloat16(1.1)).all()


def test_an_average_may_be_sparse_traced_and_with_a_traced_decay():
    average, model = weft.tree.select(layer(0.0), Param), layer()
    following = jax.jit(tree.ema)(average, model, jnp.array(0.5))
    assert following.weight.tolist() == [0.5] * 3


def test_an_average_of_another_model_is_refused_by_path():
    with pytest.raises(weft.errors.StructureError, match=r"the average does not fit\n  at: b.weight: nothing there"):
        tree.ema({"a": layer()}, {"a": layer(), "b": layer()}, 0.9)
    with pytest.raises(weft.errors.StructureError, match=r"the model does not fit\n  at: b.weight: nothing there"):
        tree.ema({"a": layer(), "b": layer()}, {"a": layer()}, 0.9)
    with pytest.raises(weft.errors.StructureError, match=r"weight: \(3,\), not \(3, 3\)"):
        tree.ema(layer().replace(weight=jnp.ones((3, 3))), layer(), 0.9)


def test_updates_are_added_where_there_are_some_and_dtypes_stay():
    model = layer(dtype=jnp.bfloat16)
    moved = tree.apply_updates(
        model, jax.tree.map(lambda w: jnp.ones(w.shape, jnp.float32), weft.tree.select(model, Param))
    )
    assert moved.weight.dtype == jnp.bfloat16
    assert moved.weight.tolist() == [2, 2, 2]
    assert moved.mean is model.mean
    with pytest.raises(weft.errors.StructureError, match="the model does not fit\n  at: b: nothing there"):
        tree.apply_updates({"a": jnp.ones(2)}, {"b": jnp.ones(2)})


ON_DONATED = {
    "norm": lambda gone, model: tree.norm(gone),
    "equal": lambda gone, model: tree.equal(model, gone),
    "allclose": lambda gone, model: tree.allclose(model, expected=gone),
    "map": lambda gone, model: tree.map(jnp.add, model, gone),
    "cast": lambda gone, model: tree.cast(gone, jnp.bfloat16),
    "copy": lambda gone, model: tree.copy(gone),
    "stack": lambda gone, model: tree.stack([model, gone]),
    "unstack": lambda gone, model: tree.unstack(gone),
    "index": lambda gone, model: tree.index(gone, 0),
    "ema": lambda gone, model: tree.ema(model, gone, 0.9),
    "apply_updates": lambda gone, model: tree.apply_updates(gone, model),
}


@pytest.mark.parametrize("name", ON_DONATED)
def test_a_donated_tree_is_told_by_its_path_and_the_call_that_took_it(name: str):
    model, gone = (weft.Linear(2, 2, key=jax.random.key(0)) for _ in range(2))

    @weft.jit(donate_argnums=0)
    def step(model):
        return tree.map(lambda w: w + 1, model)

    step(gone)
    gone_at = r"(?s)at: argument \d.*\.kernel: float32\[2,2\].*donated in a call of .*step"
    with pytest.raises(weft.errors.DonatedError, match=gone_at):
        ON_DONATED[name](gone, model)
