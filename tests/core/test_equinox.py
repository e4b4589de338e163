"""Equinox's tools work on records, its layers inside them and around them, and its transforms around weft's."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft import BatchStat, Carry, Param

X = jnp.arange(3.0)


class Net(weft.Module):
    linear: eqx.nn.Linear
    mean: Annotated[jax.Array, BatchStat]
    activation: Callable[..., Any] = jnp.tanh
    name: str = weft.static(default="net")

    def __call__(self, x: Any) -> Any:
        y = self.activation(self.linear(x))
        return y, self.replace(mean=self.mean + y)


class Around(eqx.Module):
    net: Net
    scale: jax.Array

    def __call__(self, x: Any) -> Any:
        y, net = self.net(x)
        return y * self.scale, eqx.tree_at(lambda me: me.net, self, net)


def make_net() -> Net:
    return Net(eqx.nn.Linear(3, 3, key=jax.random.key(0)), jnp.zeros(3))


def make_around() -> Around:
    return Around(make_net(), jnp.array(2.0))


def loss(model: Any, x: Any) -> Any:
    return (weft.drop_successor(model(x))[0] ** 2).sum()


def test_tree_at_replaces_parts():
    net = eqx.tree_at(lambda net: net.linear.weight, make_net(), jnp.eye(3))
    np.testing.assert_allclose(net(X)[0], jnp.tanh(X + make_net().linear.bias), rtol=1e-6)
    frozen = eqx.tree_at(lambda net: net.linear.bias, make_net(), None)
    assert frozen.linear.bias is None


def test_filter_partition_and_combine():
    net = make_net()
    arrays, rest = eqx.partition(net, eqx.is_array)
    assert rest.activation is jnp.tanh
    combined = eqx.combine(arrays, rest)
    assert jax.tree.structure(combined) == jax.tree.structure(net)
    structure, params, stats = weft.tree.split(net, Param, BatchStat)
    assert params.linear.weight is net.linear.weight
    assert weft.tree.merge(structure, params, stats).activation is jnp.tanh


def test_serialisation_round_trips():
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, make_around())
    file.seek(0)
    like = jax.tree.map(lambda x: x * 0 if eqx.is_array(x) else x, make_around())
    loaded = eqx.tree_deserialise_leaves(file, like)
    np.testing.assert_array_equal(loaded.net.linear.weight, make_net().linear.weight)


def test_tree_equal_and_pretty_printing():
    assert eqx.tree_equal(make_net(), make_net())
    assert "linear=Linear" in eqx.tree_pformat(make_net())


@pytest.mark.parametrize("make", [make_net, make_around])
def test_transforms_mix_both_ways(make: Any):
    model = make()
    wanted = eqx.filter_grad(loss)(model, X)
    for gradient in (
        weft.grad(loss)(model, X),
        eqx.filter_jit(weft.grad(loss))(model, X),
        weft.jit(eqx.filter_grad(loss))(model, X),
        weft.grad(eqx.filter_jit(loss))(model, X),
        eqx.filter_grad(weft.jit(loss))(model, X),
        weft.grad(eqx.filter_checkpoint(loss))(model, X),
    ):
        for actual, expected in zip(
            jax.tree.leaves(eqx.filter(weft.tree.select(gradient, Param), eqx.is_array)),
            jax.tree.leaves(eqx.filter(weft.tree.select(wanted, Param), eqx.is_array)),
            strict=True,
        ):
            np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.parametrize("make", [make_net, make_around])
def test_successors_of_mixed_models_thread_through_transforms(make: Any):
    model = make()
    y, after = model(X)
    for transform in (weft.jit, eqx.filter_jit, weft.remat):
        step = transform(lambda model, x: model(x))
        for _ in range(3):
            output, successor = step(model, X)
            np.testing.assert_allclose(output, y, rtol=1e-6)
            assert jax.tree.structure(successor) == jax.tree.structure(after)
    carried, ys = weft.scan(lambda m, x: m(x)[::-1], in_axes=(Carry, 0))(model, jnp.stack([X, X]))
    np.testing.assert_allclose(ys, jnp.stack([y, y]), rtol=1e-6)
    assert type(carried) is type(model)


def test_vmap_over_an_ensemble_of_equinox_layers():
    keys = jax.random.split(jax.random.key(0), 4)
    layers = weft.vmap(lambda key: eqx.nn.Linear(3, 2, key=key))(keys)
    wanted = eqx.filter_vmap(lambda key: eqx.nn.Linear(3, 2, key=key))(keys)
    np.testing.assert_allclose(layers.weight, wanted.weight, rtol=1e-6)
    y = weft.vmap(lambda layer, x: layer(x), in_axes=(0, None))(layers, X)
    np.testing.assert_allclose(y, eqx.filter_vmap(lambda layer, x: layer(x), in_axes=(0, None))(wanted, X), rtol=1e-6)


def test_equinox_layers_with_state_go_through():
    norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, axis_name="batch", mode="batch")

    def apply(norm: Any, state: Any, x: Any) -> Any:
        return norm(x, state)

    batch = jnp.stack([X, 2 * X])
    mapped = weft.vmap(apply, in_axes=(None, None, 0), out_axes=(0, None), axis_name="batch")
    wanted, _ = jax.vmap(norm, in_axes=(0, None), out_axes=(0, None), axis_name="batch")(batch, state)
    actual, after = weft.jit(mapped)(norm, state, batch)
    np.testing.assert_allclose(actual, wanted, rtol=1e-5)
    assert isinstance(after, eqx.nn.State)


def test_equinox_bounds_and_wrappers():
    mlp = eqx.nn.MLP(3, 1, 4, 2, key=jax.random.key(0))
    np.testing.assert_allclose(weft.jit(mlp)(X), mlp(X), rtol=1e-5)
    np.testing.assert_allclose(weft.vmap(mlp)(jnp.stack([X, X])), jax.vmap(mlp)(jnp.stack([X, X])), rtol=1e-5)
    sequential = eqx.nn.Sequential([mlp, eqx.nn.Lambda(jnp.tanh)])
    np.testing.assert_allclose(weft.jit(lambda f, x: f(x))(sequential, X), jnp.tanh(mlp(X)), rtol=1e-5)


def test_filter_eval_shape_and_filter_closures():
    shapes = eqx.filter_eval_shape(make_net)
    assert isinstance(shapes.linear.weight, jax.ShapeDtypeStruct)
    assert weft.jit(lambda net: weft.drop_successor(net(X))[0]).lower(shapes).compile() is not None
    out, pullback = eqx.filter_vjp(weft.jit(lambda net: weft.drop_successor(net(X))[0]), make_net())
    assert pullback(out)[0].linear.weight.shape == (3, 3)


def test_what_sets_configuration_in_equinox_has_a_way_of_wefts_own():
    import weft

    dropout = weft.Dropout(0.5)
    with pytest.raises(TypeError, match="not a leaf of the pytree"):
        eqx.nn.inference_mode(dropout)
    assert weft.inference_mode(dropout).inference
    with pytest.raises(TypeError, match="not a leaf of the pytree"):
        eqx.tree_at(lambda layer: layer.rate, dropout, 0.25)
    assert weft.at(dropout).rate.set(0.25).rate == dropout.replace(rate=0.25).rate == 0.25
