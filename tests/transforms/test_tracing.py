"""eval_shape, make_jaxpr, remat, checkify and transform_metadata: the same as JAX's, over records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import checkify
from weft import Carry

X = jnp.array([0.5, -1.0, 2.0])


class Net(weft.Module):
    weight: jax.Array
    activation: Callable[[jax.Array], jax.Array] = jnp.tanh
    name: str = "net"

    def __call__(self, x: Any) -> Any:
        return self.activation(x @ self.weight)


def make_net(size: int = 3) -> Net:
    return Net(jnp.eye(size) * 2)


# --- eval_shape and make_jaxpr -----------------------------------------------------------------------------------


def test_eval_shape_builds_records_without_computing():
    net = weft.eval_shape(lambda: make_net(100_000))
    assert (net.weight.shape, net.name) == ((100_000, 100_000), "net")


@pytest.mark.parametrize("argument", [jnp.ones((2, 3)), jax.ShapeDtypeStruct((2, 3), "float32"), np.ones((2, 3), "f4")])
def test_eval_shape_is_that_of_jax(argument: Any):
    out = weft.eval_shape(lambda net, x: {"y": net(x), "net": net, "loss": net(x).sum()}, make_net(), argument)
    assert (out["y"].shape, out["y"].dtype) == ((2, 3), jnp.float32)
    assert out["loss"].shape == ()
    assert isinstance(out["net"].weight, jax.ShapeDtypeStruct)
    assert (out["net"].activation, out["net"].name) == (jnp.tanh, "net")


def test_abstract_records_serve_as_arguments():
    abstract = weft.eval_shape(lambda: make_net())
    assert isinstance(abstract.weight, jax.ShapeDtypeStruct)
    assert weft.eval_shape(lambda net: net(X), abstract).shape == (3,)
    assert weft.jit(lambda net: net(X)).lower(abstract).compile() is not None
    assert len(weft.make_jaxpr(lambda net: net(X))(abstract).in_avals) == 1


def test_eval_shape_keeps_weakness_and_names():
    actual, wanted = (library.eval_shape(lambda *, x: x * 2, x=1.0) for library in (weft, jax))
    assert (actual.dtype, actual.weak_type) == (wanted.dtype, wanted.weak_type)


def test_make_jaxpr_shows_arrays_alone():
    jaxpr = weft.make_jaxpr(lambda net, x: net(x))(make_net(), X)
    wanted = jax.make_jaxpr(lambda w, x: jnp.tanh(x @ w))(make_net().weight, X)
    assert str(jaxpr) == str(wanted)
    jaxpr, shapes = weft.make_jaxpr(lambda net, x: {"y": net(x), "s": "static"}, return_shape=True)(make_net(), X)
    assert (shapes["y"].shape, shapes["s"]) == ((3,), "static")


def test_make_jaxpr_with_static_arguments():
    jaxpr = weft.make_jaxpr(lambda x, n: jnp.concatenate([x] * n), static_argnums=1)(X, 2)
    assert jaxpr.out_avals[0].shape == (6,)


# --- remat -------------------------------------------------------------------------------------------------------


def plain_f(w: Any, x: Any) -> Any:
    return jnp.sin(jnp.sin(checkpoint_name(jnp.tanh(x @ w), "named"))).sum()


def f(net: Net, x: Any) -> Any:
    return jnp.sin(jnp.sin(checkpoint_name(net(x), "named"))).sum()


def residuals(loss: Callable[[Any], Any], argument: Any) -> int:
    """How many arrays the backward pass keeps, the argument's own aside."""
    _, pullback = jax.vjp(loss, argument)
    leaves = {id(leaf): leaf for leaf in jax.tree.leaves(pullback)}
    return sum(leaf.size for leaf in leaves.values() if leaf is not argument)


POLICIES = [
    None,
    jax.checkpoint_policies.everything_saveable,
    jax.checkpoint_policies.nothing_saveable,
    jax.checkpoint_policies.dots_saveable,
    jax.checkpoint_policies.save_only_these_names("named"),
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: getattr(policy, "__qualname__", "none"))
def test_remat_keeps_what_jax_checkpoint_keeps(policy: Any):
    weight = make_net().weight
    actual = residuals(lambda w: weft.remat(f, policy=policy)(Net(w), X), weight)
    wanted = residuals(lambda w: jax.checkpoint(plain_f, policy=policy)(w, X), weight)
    assert actual == wanted
    gradient = weft.grad(weft.remat(f, policy=policy))(make_net(), X)
    np.testing.assert_allclose(gradient.weight, jax.grad(plain_f)(weight, X), rtol=1e-5)


def test_remat_keeps_less_than_no_remat():
    weight = make_net().weight
    assert residuals(lambda w: weft.remat(f)(Net(w), X), weight) < residuals(lambda w: f(Net(w), X), weight)


def test_remat_threads_state_and_static_arguments():
    @weft.remat(static_argnums=2, prevent_cse=False)
    def step(net: Net, x: Any, n: int) -> Any:
        assert type(n) is int
        for _ in range(n):
            x = net(x)
        return x, net

    net = make_net()
    y, after = step(net, X, 2)
    np.testing.assert_allclose(y, net(net(X)), rtol=1e-6)
    assert after.weight is net.weight
    np.testing.assert_allclose(step(net, x=X, n=2)[0], y)


# --- checkify ----------------------------------------------------------------------------------------------------


def checked(net: Net, x: Any) -> Any:
    checkify.check(x.min() > 0, "negative: {m}", m=x.min())
    return jnp.log(x) + net(x), net


def test_checkify_makes_errors_output():
    for function in (weft.checkify(checked), weft.jit(weft.checkify(checked)), weft.checkify(weft.jit(checked))):
        error, (y, net) = function(make_net(), jnp.ones(3))
        assert error.get() is None
        assert net.activation is jnp.tanh
        np.testing.assert_allclose(y, make_net()(jnp.ones(3)), rtol=1e-6)
        error, _ = function(make_net(), X)
        assert error.get().startswith("negative: -1.0")
        with pytest.raises(checkify.JaxRuntimeError, match="negative"):
            error.throw()


def test_checkify_nests_with_other_transforms():
    def scanned(net: Net, xs: Any) -> Any:
        return weft.scan(lambda net, x: checked(net, x)[::-1])(net, xs)[1].sum()

    error, value = weft.checkify(lambda net, xs: weft.vmap(scanned, in_axes=(None, 0))(net, xs))(
        make_net(), jnp.ones((2, 2, 3))
    )
    assert error.get() is None
    assert value.shape == (2,)
    error, gradient = weft.checkify(weft.grad(lambda net, x: checked(net, x)[0].sum()))(make_net(), X)
    assert "negative" in error.get()
    assert gradient.activation is jnp.tanh
    error, _ = weft.checkify(
        lambda x: weft.cond(x > 0, lambda x: x, lambda x: jnp.log(x), x), errors=checkify.float_checks
    )(-1.0)
    assert "nan generated" in error.get()


# --- transform_metadata ------------------------------------------------------------------------------------------


class Named(weft.Module):
    """An array that knows its axes' names."""

    value: jax.Array
    names: tuple[str, ...] = weft.static(default=())

    def add_axis(self, axis: int, metadata: dict[str, Any]) -> Named:
        names = list(self.names)
        names.insert(axis, metadata["partition"])
        return self.replace(names=tuple(names))

    def remove_axis(self, axis: int, metadata: dict[str, Any]) -> Named:
        names = list(self.names)
        assert names.pop(axis) == metadata["partition"]
        return self.replace(names=tuple(names))


def test_metadata_follows_the_axes_of_vmap():
    @weft.vmap
    @weft.transform_metadata(partition="layers")
    def make(x: Any) -> Any:
        return {"named": Named(jnp.ones(2) * x, ("features",)), "x": x}

    made = make(jnp.arange(3.0))
    assert made["named"].names == ("layers", "features")
    assert made["named"].value.shape == (3, 2)

    def use(named: Named, x: Any) -> Any:
        assert named.names == ("features",)
        return named.value.sum() * x

    wrapped = weft.transform_metadata(use, in_axes=(0, None), partition="layers")
    sums = weft.vmap(wrapped, in_axes=(0, None))(made["named"], 2.0)
    np.testing.assert_allclose(sums, 4 * jnp.arange(3.0))


def test_metadata_follows_the_axes_of_scan():
    def layer(x: Any, named: Named) -> Any:
        assert named.names == ("features",)
        return x + named.value.sum(), named

    wrapped = weft.transform_metadata(layer, in_axes=(Carry, 0), out_axes=(Carry, 0), partition="layers")
    stacked = Named(jnp.ones((3, 2)), ("layers", "features"))
    total, after = weft.scan(wrapped, in_axes=(Carry, 0), out_axes=(Carry, 0))(0.0, stacked)
    assert float(total) == 6.0
    assert after.names == ("layers", "features")
