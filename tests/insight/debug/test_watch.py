"""`weft.debug.watch`: statistics by path, one row a layer of a scan, and none where nothing is watched."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft


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


def test_calls_between_are_the_plain_step():
    watched = weft.debug.watch(step, every=3)
    seen = [watched(NET, jnp.ones(2))[1] is not None for _ in range(6)]
    assert seen == [True, False, False, True, False, False]


def test_a_picture_has_a_line_for_each_layer():
    history = [weft.debug.watch(step)(NET, jnp.ones(2))[1] for _ in range(2)]
    axes = weft.debug.plot(history).axes[0]
    assert axes.images[0].get_array().shape[1] == 2
    assert len(axes.get_yticks()) == axes.images[0].get_array().shape[0] >= 3


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: weft.debug.watch(step, every=0), "every=0 is not a number of calls"),
        (lambda: weft.debug.watch(step)(1.0), "needs a record"),
        (lambda: weft.debug.watch(step, weft.BatchStat)(NET, jnp.ones(2)), "picks no leaf"),
        (lambda: weft.debug.plot([], column="size"), "no statistic is called 'size'"),
    ],
)
def test_what_cannot_be_watched_is_told(call, text: str):
    with pytest.raises(weft.WeftError, match=text):
        call()
