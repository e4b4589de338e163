"""The grad family: the same derivatives as JAX's, sparse in the leaves that were not differentiated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft import BatchStat, Buffer, Param
from weft.core.errors import DifferentiationError, StructureError
from weft.filters import All, Not, PathContains, WithTag
from weft.filters import Any as AnyOf

X = jnp.array([0.5, -1.0, 2.0])


class Net(weft.Module):
    weight: jax.Array
    bias: jax.Array
    mean: Annotated[jax.Array, BatchStat]
    frozen: Annotated[jax.Array, Param, "frozen"]
    count: jax.Array
    activation: Callable[[jax.Array], jax.Array] = jnp.tanh
    rate: float = 0.5

    def __call__(self, x: Any) -> Any:
        return self.activation(self.weight * x + self.bias) * self.rate + self.mean * self.frozen


def make_net() -> Net:
    return Net(jnp.array([1.0, 2.0, 3.0]), jnp.array(0.5), jnp.array(0.1), jnp.array(2.0), jnp.array(3))


FLOATS = ("weight", "bias", "mean", "frozen")


def plain(floats: dict[str, Any], x: Any) -> Any:
    return jnp.tanh(floats["weight"] * x + floats["bias"]) * 0.5 + floats["mean"] * floats["frozen"]


def floats_of(net: Any) -> dict[str, Any]:
    return {name: getattr(net, name) for name in FLOATS}


def loss(net: Net, x: Any) -> Any:
    return (net(x) ** 2).sum()


def plain_loss(floats: Any, x: Any) -> Any:
    return (plain(floats, x) ** 2).sum()


def assert_gradient(gradient: Any, wanted: dict[str, Any], chosen: Any) -> None:
    for name in FLOATS:
        if name in chosen:
            np.testing.assert_allclose(getattr(gradient, name), wanted[name], rtol=1e-5)
        else:
            assert getattr(gradient, name) is None
    assert (gradient.count, gradient.activation, gradient.rate) == (None, jnp.tanh, 0.5)


# --- grad and value_and_grad -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrt", "chosen"),
    [
        (None, ("weight", "bias", "frozen")),
        (Param, ("weight", "bias", "frozen")),
        (BatchStat, ("mean",)),
        (AnyOf(Param, BatchStat), FLOATS),
        (PathContains("weight"), ("weight",)),
        (All(Param, Not(WithTag("frozen"))), ("weight", "bias")),
        ("frozen", ("frozen",)),
        (lambda path, kind, leaf: leaf.ndim == 0 and kind is Param, ("bias", "frozen")),
    ],
)
def test_wrt_chooses_leaves(wrt: Any, chosen: Any):
    net = make_net()
    wanted = jax.grad(plain_loss)(floats_of(net), X)
    assert_gradient(weft.grad(loss, wrt=wrt)(net, X), wanted, chosen)
    value, gradient = weft.value_and_grad(loss, wrt=wrt)(net, X)
    np.testing.assert_allclose(value, plain_loss(floats_of(net), X), rtol=1e-6)
    assert_gradient(gradient, wanted, chosen)


@pytest.mark.parametrize("argnums", [0, 1, 2, -1, -2, (0,), (2, 0), (1, -1), [0, 2]])
def test_argnums_are_those_of_jax(argnums: Any):
    def f(x: Any, y: Any, z: Any) -> Any:
        return (x * y * y * z * z * z).sum()

    args = (X, X + 1, X + 2)
    gradients, wanted = weft.grad(f, argnums=argnums)(*args), jax.grad(f, argnums=argnums)(*args)
    assert type(gradients) is type(wanted)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), gradients, wanted)


def test_one_of_several_arguments_may_have_nothing_to_differentiate():
    gradient, none = weft.grad(lambda net, n: loss(net, X) * n["n"], argnums=(0, 1))(make_net(), {"n": 2})
    assert none == {"n": None}
    assert gradient.weight.shape == (3,)


def test_aux_threads_the_successor():
    def f(net: Any, x: Any) -> Any:
        y = net(x)
        return (y**2).sum(), net.replace(mean=net.mean + y.mean())

    net = make_net()
    (value, after), gradient = weft.value_and_grad(f, has_aux=True)(net, X)
    np.testing.assert_allclose(value, loss(net, X), rtol=1e-6)
    np.testing.assert_allclose(after.mean, 0.1 + net(X).mean(), rtol=1e-6)
    assert after.activation is jnp.tanh
    gradient_alone, after = weft.grad(f, has_aux=True)(net, X)
    np.testing.assert_allclose(gradient.weight, gradient_alone.weight)
    # What was closed over and did not change is the caller's own; so is what was differentiated, in value.
    assert after.count is net.count
    np.testing.assert_allclose(after.weight, net.weight)


def test_arguments_by_name_are_closed_over():
    np.testing.assert_allclose(
        weft.grad(lambda w, *, x: (w * x).sum())(X, x=X + 1), jax.grad(lambda w, *, x: (w * x).sum())(X, x=X + 1)
    )


def test_holomorphic_is_that_of_jax():
    z = jnp.array(1.0 + 2.0j)
    gradient = weft.grad(lambda t: jnp.sin(t["z"]) * t["z"], holomorphic=True)({"z": z, "name": "z"})
    np.testing.assert_allclose(gradient["z"], jax.grad(lambda z: jnp.sin(z) * z, holomorphic=True)(z), rtol=1e-6)
    np.testing.assert_allclose(weft.grad(lambda z: jnp.abs(z) ** 2)(z), jax.grad(lambda z: jnp.abs(z) ** 2)(z))


def test_allow_int_gives_float0():
    gradient = weft.grad(lambda t: t["x"] * t["n"], allow_int=True)({"x": 2.0, "n": 3, "flag": True, "name": "t"})
    assert float(gradient["x"]) == 3.0
    assert gradient["n"].dtype == jax.dtypes.float0
    assert (gradient["flag"], gradient["name"]) == (None, None)


def test_gradients_of_gradients():
    net = make_net()

    def inner(net: Any, x: Any) -> Any:
        return weft.grad(loss, argnums=1)(net, x).sum()

    def plain_inner(floats: Any, x: Any) -> Any:
        return jax.grad(plain_loss, argnums=1)(floats, x).sum()

    wanted = jax.grad(plain_inner)(floats_of(net), X)
    assert_gradient(weft.grad(inner)(net, X), wanted, ("weight", "bias", "frozen"))


def test_a_record_as_the_function_is_closed_over():
    class Loss(weft.Module):
        scale: jax.Array

        def __call__(self, x: Any) -> Any:
            return (self.scale * x**2).sum()

    np.testing.assert_allclose(weft.grad(Loss(jnp.array(2.0)))(X), 4 * X)


# --- vjp, jvp, linearize -----------------------------------------------------------------------------------------


def test_vjp_pulls_back_sparse_trees():
    net = make_net()
    y, pullback = weft.vjp(lambda net, x: net(x), net, X)
    wanted_y, wanted = jax.vjp(plain, floats_of(net), X)
    np.testing.assert_allclose(y, wanted_y, rtol=1e-6)
    for cotangent in (jnp.ones(3), X):
        gradient, by_x = pullback(cotangent)
        floats, wanted_x = wanted(cotangent)
        assert_gradient(gradient, floats, ("weight", "bias", "frozen"))
        np.testing.assert_allclose(by_x, wanted_x, rtol=1e-5)


def test_cotangents_may_be_sparse_and_outputs_static():
    def f(t: Any) -> Any:
        return {"a": t["x"] ** 2, "b": [t["x"] * 3, "static"], "n": 3}

    out, pullback = weft.vjp(f, {"x": jnp.array(2.0), "name": "t"})
    assert out["b"][1] == "static"
    (gradient,) = pullback({"a": jnp.array(1.0), "b": [jnp.array(1.0), None], "n": None})
    assert float(gradient["x"]) == 7.0
    (gradient,) = pullback({"a": jnp.array(1.0), "b": None, "n": None})
    assert float(gradient["x"]) == 4.0
    (gradient,) = pullback(None)
    assert float(gradient["x"]) == 0.0


def test_vjp_with_aux_and_wrt():
    y, pullback, aux = weft.vjp(lambda net: (net(X), net), make_net(), has_aux=True, wrt=BatchStat)
    assert aux.activation is jnp.tanh
    (gradient,) = pullback(jnp.ones(3))
    np.testing.assert_allclose(gradient.mean, 6.0)
    assert gradient.weight is None
    assert y.shape == (3,)


def tangent_like(net: Net) -> Net:
    return net.replace(weight=jnp.ones(3), bias=None, mean=None, frozen=jnp.array(0.5), count=None)


def test_jvp_and_linearize_push_sparse_tangents_forward():
    net = make_net()
    dense = {"weight": jnp.ones(3), "bias": jnp.zeros(()), "mean": jnp.zeros(()), "frozen": jnp.array(0.5)}
    wanted_y, wanted = jax.jvp(plain, (floats_of(net), X), (dense, jnp.zeros(3)))
    y, tangent = weft.jvp(lambda net, x: net(x), (net, X), (tangent_like(net), None))
    np.testing.assert_allclose(y, wanted_y, rtol=1e-6)
    np.testing.assert_allclose(tangent, wanted, rtol=1e-5)
    y, pushforward = weft.linearize(lambda net, x: net(x), net, X)
    np.testing.assert_allclose(y, wanted_y, rtol=1e-6)
    np.testing.assert_allclose(pushforward(tangent_like(net), None), wanted, rtol=1e-5)
    np.testing.assert_allclose(pushforward(None, None), jnp.zeros(3))
    np.testing.assert_allclose(
        pushforward(tangent_like(net), X),
        weft.jvp(lambda net, x: net(x), (net, X), (tangent_like(net), X))[1],
        rtol=1e-5,
    )


def test_jvp_with_aux_and_static_outputs():
    y, tangent, aux = weft.jvp(lambda x: ({"y": x**2, "f": jnp.tanh}, "aux"), [3.0], [1.0], has_aux=True)
    assert (float(y["y"]), y["f"], float(tangent["y"]), tangent["f"], aux) == (9.0, jnp.tanh, 6.0, None, "aux")
    y, pushforward, aux = weft.linearize(lambda x: (x**2, {"x": x}), 3.0, has_aux=True)
    assert (float(y), float(pushforward(1.0)), float(aux["x"])) == (9.0, 6.0, 3.0)


def test_these_work_under_jit():
    @weft.jit
    def f(net: Any, x: Any) -> Any:
        y, pullback = weft.vjp(lambda net: net(x), net)
        _, tangent = weft.jvp(lambda net: net(x), (net,), pullback(y))
        return pullback(y)[0], tangent

    gradient, tangent = f(make_net(), X)
    wanted_y, pull = jax.vjp(lambda f: plain(f, X), floats_of(make_net()))
    wanted = pull(wanted_y)[0]
    assert_gradient(gradient, wanted, ("weight", "bias", "frozen"))
    _, wanted_tangent = jax.jvp(lambda f: plain(f, X), (floats_of(make_net()),), ({**wanted, "mean": jnp.zeros(())},))
    np.testing.assert_allclose(tangent, wanted_tangent, rtol=1e-5)


# --- whole Jacobians ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["jacfwd", "jacrev"])
def test_jacobians_are_those_of_jax(name: str):
    net = make_net()
    jacobian = getattr(weft, name)(lambda net, x: {"y": net(x), "z": net.bias, "s": "static"})(net, X)
    wanted = jax.jit(getattr(jax, name)(lambda f, x: {"y": plain(f, x), "z": f["bias"]}))(floats_of(net), X)
    assert_gradient(jacobian["y"], wanted["y"], ("weight", "bias", "frozen"))
    assert_gradient(jacobian["z"], wanted["z"], ("weight", "bias", "frozen"))
    assert jacobian["s"] is None


@pytest.mark.parametrize(
    ("name", "argnums"), [("jacfwd", 0), ("jacfwd", (0, 1)), ("jacrev", 1), ("jacrev", (0, 1)), ("jacrev", (-1,))]
)
def test_jacobians_by_argnums_and_aux(name: str, argnums: Any):
    def f(x: Any, y: Any) -> Any:
        return jnp.outer(x, y), {"sum": x.sum(), "name": "aux"}

    jacobian, aux = getattr(weft, name)(f, argnums=argnums, has_aux=True)(X, X[:2])
    wanted, _ = getattr(jax, name)(lambda x, y: (f(x, y)[0], 0), argnums=argnums, has_aux=True)(X, X[:2])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), jacobian, wanted)
    assert aux["name"] == "aux"


@pytest.mark.slow
def test_the_hessian_is_that_of_jax():
    net = make_net()
    hessian = weft.hessian(loss)(net, X)
    wanted = jax.hessian(plain_loss)(floats_of(net), X)
    for a in ("weight", "bias", "frozen"):
        assert_gradient(getattr(hessian, a), wanted[a], ("weight", "bias", "frozen"))
    assert hessian.mean is None
    np.testing.assert_allclose(weft.hessian(lambda x: (x**3).sum())(X), jax.hessian(lambda x: (x**3).sum())(X))


def test_the_hessian_with_several_arguments_and_aux():
    def f(x: Any, y: Any) -> Any:
        return (x**2 * y).sum(), {"x": x}

    hessian, aux = weft.hessian(f, argnums=(0, 1), has_aux=True)(X, X + 1)
    wanted, _ = jax.hessian(lambda x, y: (f(x, y)[0], 0), argnums=(0, 1), has_aux=True)(X, X + 1)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), hessian, wanted)
    np.testing.assert_allclose(aux["x"], X)


# --- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", [weft.grad, weft.value_and_grad])
@pytest.mark.parametrize(
    ("function", "fragment"),
    [
        (lambda x: x * 2, r"returned float32\[3\]"),
        (lambda x: {"a": x.sum(), "b": x.sum()}, r"returned ~?float32\[\], ~?float32\[\]"),
        (lambda x: "loss", "returned no array"),
        (lambda x: None, "returned no array"),
    ],
)
def test_an_output_that_is_no_scalar(transform: Any, function: Any, fragment: str):
    with pytest.raises(
        DifferentiationError, match=f"needs a function that returns one scalar, but this one {fragment}"
    ) as c:
        transform(function)(X)
    assert "for a whole Jacobian use jacrev" in str(c.value)
    assert transform.__name__ in str(c.value).split("\n")[0]


@pytest.mark.parametrize("name", ["grad", "value_and_grad", "jacfwd", "jacrev", "hessian"])
def test_nothing_to_differentiate(name: str):
    with pytest.raises(
        DifferentiationError, match="nothing to differentiate: no leaf of argument 0 is Param"
    ) as caught:
        getattr(weft, name)(lambda t: 1.0)({"n": jnp.arange(3), "name": "t"})
    assert "at: t.n: Buffer, int32[3]" in str(caught.value)
    assert "choose the leaves with wrt=" in str(caught.value)


@pytest.mark.parametrize(
    ("run", "error", "fragment"),
    [
        (lambda: weft.grad(loss, wrt=weft.OptState)(make_net(), X), DifferentiationError, "is OptState"),
        (lambda: weft.grad(loss, argnums=2)(make_net(), X), DifferentiationError, "was called with 2 positional ones"),
        (lambda: weft.grad(loss)(net=make_net(), x=X), DifferentiationError, "was called with 0 positional ones"),
        (lambda: weft.grad(loss, wrt=Buffer)(make_net(), X), DifferentiationError, "at: net.count: "),
        (
            lambda: weft.grad(loss, holomorphic=True)(make_net(), X),
            DifferentiationError,
            "is not complex, but holomorphic",
        ),
        (lambda: weft.jacfwd(lambda z: z)(1j), DifferentiationError, "cannot differentiate a leaf that is complex"),
        (lambda: weft.vjp(lambda n: n, 3), DifferentiationError, "nothing to differentiate"),
        (lambda: weft.jvp(jnp.sin, (1.0,), ()), StructureError, "jvp got 1 primals but 0 tangents"),
        (
            lambda: weft.jvp(lambda t: t["x"], ({"x": 1.0},), ({"y": 1.0},)),
            StructureError,
            "have the structure of its value",
        ),
        (lambda: weft.vjp(lambda t: {"y": t}, 1.0)[1]([1.0]), StructureError, "expected dict with 1 children"),
        (lambda: weft.grad(lambda x: (x, x, x), has_aux=True)(1.0), Exception, "has_aux|fit"),
        (lambda: weft.grad(lambda x: x, has_aux=True)(1.0), Exception, "has_aux|fit"),
    ],
)
def test_what_cannot_be_differentiated(run: Any, error: Any, fragment: str):
    with pytest.raises(error) as caught:
        run()
    assert any(part in str(caught.value) for part in fragment.split("|"))


@pytest.mark.parametrize("lib", [weft, weft.nnx], ids=["weft", "nnx"])
def test_a_list_of_two_is_a_pair_too(lib):
    (value, aux), gradient = lib.value_and_grad(lambda x: [x.sum(), {"x": x}], has_aux=True)(jnp.ones(2))
    assert (float(value), list(aux), gradient.tolist()) == (2.0, ["x"], [1.0, 1.0])
    out, _ = weft.vjp(lambda x: [x, x], jnp.ones(2))
    assert isinstance(out, list)


@pytest.mark.parametrize("argnums", [{Param}, {Param: 0, ...: None}, (Param,)])
def test_argnums_that_are_kinds_are_refused(argnums: Any):
    with pytest.raises(
        weft.errors.DifferentiationError, match=r"argnums must be the position(.|\n)*wrt= chooses the leaves"
    ):
        weft.grad(lambda x: x**2, argnums=argnums)
