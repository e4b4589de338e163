"""Ensemble: members by one vmap are the same members one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft.core import BatchStat
from weft.errors import AxisError, ConfigError
from weft.modules import Ensemble, Linear, Stack

from ..layers import KEY, Counted, Dense, Normed, X


def test_members_are_those_made_one_by_one_and_outputs_are_stacked():
    ensemble = Ensemble(lambda key: Dense(key=key), 3, key=KEY)
    y = weft.jit(ensemble)(X)
    assert y.shape == (3, 5, 4)
    for i, key in enumerate(jax.random.split(KEY, 3)):
        np.testing.assert_allclose(y[i], Dense(key=key)(X), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(y[i], ensemble[i](X), rtol=1e-5, atol=1e-6)
    assert len(list(ensemble)) == len(ensemble) == 3


def test_each_member_has_state_and_a_key_of_its_own():
    ensemble = Ensemble(lambda key: Normed(key=key), 3, key=KEY)
    _, after = ensemble(X)
    for i in range(3):
        np.testing.assert_allclose(after[i].norm.mean, ensemble[i](X)[1].norm.mean, rtol=1e-4, atol=1e-6)
    dropped = Ensemble(lambda key: Dense(key=key), 2, key=KEY)(X, key=KEY)
    a, _ = jax.random.split(KEY)
    np.testing.assert_allclose(dropped[0], Dense(key=a)(X, key=a), rtol=1e-5, atol=1e-6)


def test_statistics_are_shared_where_axes_says_so():
    ensemble = Ensemble(
        lambda key: Normed(key=key, axis_name="members"), 3, key=KEY, axes={BatchStat: None}, axis_name="members"
    )
    assert ensemble.members.norm.mean.shape == (4,)
    assert ensemble.members.linear.kernel.shape == (3, 4, 4)
    y, after = weft.jit(lambda ensemble, x: ensemble(x))(ensemble, X)
    assert y.shape == (3, 5, 4)
    before = jnp.stack([member.linear(X) for member in ensemble])
    np.testing.assert_allclose(after.members.norm.mean, 0.01 * jnp.mean(before, (0, 1)), rtol=1e-4, atol=1e-6)
    assert after[2].norm.mean.shape == (4,)


def test_a_shared_statistic_that_members_would_change_apart_is_named():
    ensemble = Ensemble(lambda key: Normed(key=key), 3, key=KEY, axes={BatchStat: None})
    with pytest.raises(AxisError, match=r"norm.mean: float32\[4\] for each index(.|\n)*reduce it over the mapped one"):
        ensemble(X)


@pytest.mark.parametrize("axes", [None, {}, {...: 0}])
def test_members_that_share_no_array_are_edited_one_by_one(axes):
    ensemble = Ensemble(lambda key: Linear(4, 4, key=key), 3, key=KEY, axes=axes)
    edited = weft.at(ensemble)[1].bias.set(jnp.ones(4))
    np.testing.assert_array_equal(edited.members.bias[1], jnp.ones(4))
    np.testing.assert_array_equal(edited.members.kernel, ensemble.members.kernel)


def test_arguments_may_be_the_members_own():
    ensemble = Ensemble(lambda key: Dense(key=key), 3, key=KEY, in_axes=(0, None))
    xs = jnp.stack([X, 2 * X, 3 * X])
    y = ensemble(xs, jnp.ones((5, 4)))
    for i in range(3):
        np.testing.assert_allclose(y[i], ensemble[i](xs[i]), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(ensemble(xs, jnp.ones((5, 4)), skip=True), xs)
    with pytest.raises(AxisError, match="in_axes has 2 entries for 1 positional arguments"):
        ensemble(xs)


@pytest.mark.slow
def test_gradients_are_the_members_own():
    ensemble = Ensemble(lambda key: Stack(lambda key: Counted(key=key), 2, key=key), 3, key=KEY)

    def loss(ensemble, x):
        y, ensemble = ensemble(x)
        return jnp.sum(y**2), ensemble

    gradient, after = weft.jit(weft.grad(loss, has_aux=True))(ensemble, X)
    alone = weft.grad(lambda member: jnp.sum(weft.drop_successor(member(X))[0] ** 2))(ensemble[1])
    np.testing.assert_allclose(gradient.members.layers.linear.kernel[1], alone.layers.linear.kernel, rtol=1e-4)
    assert after.members.layers.calls.tolist() == [[1.0, 1.0]] * 3


@pytest.mark.parametrize(
    ("axes", "error", "message"),
    [
        ({BatchStat: 1}, ConfigError, r"or None \(shared by all\), not"),
        ({BatchStat: None}, AxisError, "axes: these filters match no leaf: BatchStat"),
    ],
)
def test_axes_that_make_no_sense_are_refused(axes, error, message):
    with pytest.raises(error, match=message):
        Ensemble(lambda key: Linear(4, 4, key=key), 2, key=KEY, axes=axes)
