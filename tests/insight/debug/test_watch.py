"""`weft.debug.watch`: statistics by path, one row a layer of a scan, and none where nothing is watched."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import weft
from weft import nnx
from weft.core.records.module import method_watchers


class Layer(weft.Module):
    w: jax.Array

    def __call__(self, x):
        return jnp.tanh(x * self.w)


class Net(weft.Module):
    layers: Layer

    def __call__(self, x):
        return weft.scan(lambda x, layer: (layer(x), None), in_axes=(weft.Carry, 0))(x, self.layers)[0]


NET = Net(Layer(jnp.array([[1.0, 2.0], [0.0, 0.0], [3.0, 4.0]])))


@weft.jit
def step(net, x):
    value, gradient = weft.value_and_grad(lambda net: net(x).sum())(net)
    return value, jax.tree.map(lambda p, g: p - 0.5 * g, net, gradient)


def test_rows_hold_what_numpy_computes_and_the_output_is_the_steps():
    x = jnp.ones(2)
    (value, after), rows = weft.debug.watch(step)(NET, x)
    plain, plain_after = step(NET, x)
    np.testing.assert_allclose(value, plain, rtol=1e-6)
    np.testing.assert_allclose(after.layers.w, plain_after.layers.w, rtol=1e-6)
    by_kind = {row.kind: row for row in rows if row.path == "layers.w"}
    w = np.asarray(NET.layers.w)
    np.testing.assert_allclose(by_kind["parameter"].values, [w.mean(), np.sqrt((w**2).mean()), 4, 1 / 3, 0], rtol=1e-6)
    difference = np.asarray(after.layers.w) - w
    expected = np.sqrt((difference**2).mean()) / np.sqrt((w**2).mean())
    np.testing.assert_allclose(by_kind["update"].ratio, expected, rtol=1e-5)


def test_a_scan_has_one_row_a_layer():
    _, rows = weft.debug.watch(step)(NET, jnp.ones(2))
    inside = next(row for row in rows if row.kind == "activation" and row.values.ndim == 2)
    assert inside.values.shape == (3, 5)
    np.testing.assert_array_equal(inside.values[:, 3], [0, 1, 1])  # the share of zeros, layer by layer
    assert "[layer 2]" in weft.debug.table(rows)


def rows_of(rows, kind):
    return {row.path: np.asarray(row.values) for row in rows if row.kind == kind}


def statistics(x):
    x = np.asarray(x, np.float64)
    return [x.mean(), np.sqrt((x**2).mean()), np.abs(x).max(), (x == 0).mean(), (~np.isfinite(x)).mean()]


def test_gradients_of_what_the_filter_picks_have_rows():
    (_, after), rows = weft.debug.watch(step)(NET, jnp.ones(2))
    gradient = (NET.layers.w - after.layers.w) / 0.5
    np.testing.assert_allclose(rows_of(rows, "gradient")["layers.w"], statistics(gradient), rtol=1e-4, atol=1e-6)


def test_the_gradient_of_a_part_has_the_path_of_the_model():
    def step(net, x):
        return weft.grad(lambda layers: Net(layers)(x).sum())(net.layers)

    _, rows = weft.debug.watch(step)(NET, jnp.ones(2))
    assert list(rows_of(rows, "gradient")) == ["layers.w"]


class Two(weft.Module):
    first: Layer
    second: Layer

    def __call__(self, x):
        return self.second(self.first(x))


TWO = Two(Layer(jnp.array([1.0, 2.0])), Layer(jnp.array([3.0, 0.5])))


def test_a_filter_picks_leaves_and_the_modules_around_them():
    def step(model, x):
        return weft.grad(lambda model: model(x).sum())(model)

    for name, hidden in (("first", "second"), ("second", "first")):
        _, rows = weft.debug.watch(step, weft.filters.PathContains(name))(TWO, jnp.ones(2))
        assert {row.kind for row in rows} == {"parameter", "gradient", "activation"}
        assert {row.path for row in rows} == {f"{name}.w", f"Two.{name}", "Two"}, hidden


@pytest.mark.parametrize("inner", [weft.vmap, weft.remat, lambda f: weft.vmap(weft.remat(f)), weft.jit])
def test_examples_of_a_map_count_as_one_array(inner):
    xs = jnp.arange(6.0).reshape(3, 2)

    def step(model, xs):
        return weft.value_and_grad(lambda model: inner(model)(xs).sum())(model)

    _, rows = weft.debug.watch(step)(TWO, xs)
    np.testing.assert_allclose(rows_of(rows, "activation")["Two"], statistics(TWO(xs)), rtol=1e-5)
    np.testing.assert_allclose(rows_of(rows, "activation")["Two.first"], statistics(TWO.first(xs)), rtol=1e-5)


def test_what_is_near_an_overflow_has_a_finite_rms():
    _, rows = weft.debug.watch(lambda net, x: net.layers.w.sum())(Net(Layer(jnp.full((2, 2), 1e30))), 1.0)
    np.testing.assert_allclose(rows_of(rows, "parameter")["layers.w"], [1e30, 1e30, 1e30, 0, 0], rtol=1e-6)


class Blocks(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([nnx.Linear(3, 3, rngs=rngs) for _ in range(2)])

    def __call__(self, x):
        for block in self.blocks:
            x = jnp.tanh(block(x))
        return x


def test_objects_of_nnx_and_their_optimizer_have_rows():
    @nnx.jit
    def step(model, optimizer, x):
        loss, gradient = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
        optimizer.update(model, gradient)
        return loss, gradient

    x = jnp.arange(6.0).reshape(2, 3)
    watched, plain = (Blocks(nnx.Rngs(0)) for _ in range(2))
    optimizers = [nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param) for model in (watched, plain)]
    first, inner = np.asarray(watched.blocks[0].kernel[...]), np.asarray(watched.blocks[0](x))
    (loss, gradient), rows = weft.debug.watch(step)(watched, optimizers[0], x)
    np.testing.assert_allclose(loss, step(plain, optimizers[1], x)[0], rtol=1e-6)
    np.testing.assert_allclose(watched.blocks[0].kernel[...], plain.blocks[0].kernel[...], rtol=1e-6)
    path = "blocks[0].kernel"
    change = np.asarray(watched.blocks[0].kernel[...]) - first
    np.testing.assert_allclose(rows_of(rows, "parameter")[path], statistics(first), rtol=1e-5)
    np.testing.assert_allclose(rows_of(rows, "update")[path], statistics(change), rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(
        rows_of(rows, "gradient")[path], statistics(gradient["blocks"][0]["kernel"][...]), rtol=1e-5
    )
    np.testing.assert_allclose(rows_of(rows, "activation")["Blocks.blocks[0]"], statistics(inner), rtol=1e-5)
    assert int(optimizers[0].step[...]) == 1


def test_a_watched_call_is_looked_at_by_nonfinite():
    step = weft.jit(lambda model, x: jnp.log(model(x)))
    with pytest.raises(weft.errors.NonFiniteError, match="log of 0"), weft.debug.nonfinite():
        weft.debug.watch(step)(TWO, jnp.zeros(2))


def test_statics_and_donations_of_the_step_hold_in_watched_calls():
    @functools.partial(weft.jit, static_argnames="sign", donate_argnums=0)
    def step(net, x, sign):
        return jax.tree.map(lambda w: w + (x.sum() if sign == "+" else -x.sum()), net)

    net = Net(Layer(jnp.ones((2, 2))))
    after, rows = weft.debug.watch(step)(net, jnp.ones(2), sign="+")
    assert after.layers.w.tolist() == [[3, 3], [3, 3]]
    assert net.layers.w.is_deleted()
    assert [row.kind for row in rows] == ["parameter", "update"]


def test_calls_between_are_the_plain_step():
    watched = weft.debug.watch(step, every=3)
    seen = [watched(NET, jnp.ones(2))[1] is not None for _ in range(6)]
    assert seen == [True, False, False, True, False, False]
    plain = step.trace(NET, jnp.ones(2)).jaxpr
    assert "tag" not in str(plain)
    assert not method_watchers


def test_a_picture_has_a_line_for_each_layer():
    history = [weft.debug.watch(step)(NET, jnp.ones(2))[1] for _ in range(2)]
    axes = weft.debug.plot(history).axes[0]
    assert axes.images[0].get_array().shape[1] == 2
    assert len(axes.get_yticks()) == axes.images[0].get_array().shape[0] >= 3


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: weft.debug.watch(step, every=0), "every=0 is not a number of calls"),
        (lambda: weft.debug.watch(step)(1.0), "needs a record or an NNX object"),
        (lambda: weft.debug.watch(step, weft.BatchStat)(NET, jnp.ones(2)), "picks no leaf"),
        (lambda: weft.debug.plot([], column="size"), "no statistic is called 'size'"),
    ],
)
def test_what_cannot_be_watched_is_told(call, text: str):
    with pytest.raises(weft.WeftError, match=text):
        call()
