"""A number in the place of an array: a tree of axes, as tree functions make them, and nothing that a method takes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from jaxtyping import Array, Float, Int
from weft import ContractError


class Env(weft.Module):
    theta: Float[Array, "env"]
    time: Int[Array, "env"]
    count: Int[Array, ""]
    pair: Any
    rate: float = 0.5

    def step(self):
        return self.theta * self.time

    def typed(self, x: Float[Array, "env"]) -> Float[Array, "env"]:
        return x * self.time

    def counted(self):
        return self.replace(count=self.count + 1)


ENV = Env(jnp.ones(4), jnp.arange(4), jnp.array(3), (jnp.ones(4), 0.5))


@pytest.mark.parametrize("make", [lambda e: e.replace(time=0), lambda e: weft.at(e).time.set(0)], ids=["replace", "at"])
@pytest.mark.parametrize("call", [lambda e: e.step(), lambda e: e.typed(jnp.ones(4)), lambda e: e.counted()])
def test_a_method_is_not_called_on_a_number_in_an_arrays_place(make: Any, call: Any):
    with pytest.raises(
        ContractError, match=r"(?s)field Env.time should be Int\[env\], and is int 0.*full_like"
    ) as error:
        call(make(ENV))
    assert "Static" not in str(error.value)
    call(ENV.replace(time=jnp.full_like(ENV.time, 0)))  # as the error advises


def test_a_scalars_reset_is_caught_too_and_its_advice_holds():
    with pytest.raises(ContractError, match=r"(?s)Env.count should be Int\[\], and is int 0.*count=jnp.full_like"):
        ENV.replace(count=0).counted()
    assert ENV.replace(count=jnp.full_like(ENV.count, 0)).counted().count == 1


def test_tree_functions_meet_the_number_itself():
    reset = jax.tree.map(jnp.where, jax.tree.map(lambda a: a > 0, ENV), ENV.replace(time=0, count=0), ENV)
    np.testing.assert_array_equal(reset.time, jnp.array([0, 0, 0, 0]))
    assert reset.count == 0
    assert reset.counted().count == 1
    assert jax.tree.leaves(ENV.replace(time=0, theta=1))[:2] == [1, 0]


def test_numbers_in_a_container_of_arrays_are_leaves_and_configuration_stays_what_it_is():
    axes = ENV.replace(pair=(0, 0.25), rate=0.75)
    assert jax.tree.leaves(axes)[-1] == 0
    assert (axes.pair, axes.rate) == ((0, 0.25), 0.75)
    doubled = jax.tree.map(lambda axis, leaf: leaf * 2 if type(axis) is int else leaf, ENV.replace(pair=(0, 0.5)), ENV)
    np.testing.assert_array_equal(doubled.pair[0], 2 * jnp.ones(4))


def test_records_of_axes_made_by_replace_ride_as_before():
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), ENV)
    axes = stacked.replace(theta=0, time=0, count=0, pair=(0, 0.5))
    for prefix in (axes, jax.tree.map(lambda _: 0, stacked)):
        out = weft.vmap(lambda env, x: env.step() + env.count + x, in_axes=(prefix, 0))(stacked, jnp.ones(2))
        np.testing.assert_array_equal(out, jnp.stack([ENV.step() + 4] * 2))


class Sparse(weft.Module):
    a: Any
    w: jax.Array
    d: Any


def test_sparse_tangents_take_none_and_numbers_in_the_users_own_containers():
    ones = jnp.ones(2)
    record = Sparse((ones, 0.5), ones, {"x": ones, "n": 2})

    def f(r: Sparse) -> Any:
        return r.w * r.a[1] + r.a[0] * r.d["n"] + r.d["x"]

    cases = {
        "w alone": (record.replace(a=(None, 0.5), d=None), 0.5),
        "none of it": (record.replace(a=(None, None), d={"x": None, "n": None}), 0.5),
        "a and w": (record.replace(d={"x": None, "n": 2}), 2.5),
        "all": (record, 3.5),
        "no configuration": (record.replace(a=(None, 0.25), d={"x": ones, "n": None}), 1.5),
    }
    for name, (tangent, expected) in cases.items():
        _, out = weft.jvp(f, (record,), (tangent,))
        np.testing.assert_allclose(out, expected * ones, err_msg=name)
        _, push = weft.linearize(f, record)
        np.testing.assert_allclose(push(tangent), expected * ones, err_msg=name)


@pytest.mark.parametrize("wrong", [(None,), [None, 0.5], {"a": None}, 3])
def test_a_tangent_of_another_structure_names_no_internal(wrong: Any):
    record = Sparse((jnp.ones(2), 0.5), jnp.ones(2), {})
    with pytest.raises(weft.errors.StructureError, match="a tangent or cotangent must have the structure") as error:
        weft.jvp(lambda r: r.w, (record,), (record.replace(a=wrong),))
    assert not any(word in str(error.value) for word in ("Static", "Mixed", "PyTreeDef"))


def test_a_number_that_replaces_an_array_comes_out_of_an_eager_remat_as_an_array():
    after = weft.remat(lambda env: env.replace(count=0))(ENV)
    assert isinstance(after.count, jax.Array)
    assert after.count.dtype == ENV.count.dtype
