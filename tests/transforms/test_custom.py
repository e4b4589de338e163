"""custom_vjp and custom_jvp: the same as JAX's, with trees for the user's rules, under every transform."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero
from weft import Buffer
from weft.core.errors import DifferentiationError, StructureError

X = jnp.array([0.5, -1.0, 2.0])


class Net(weft.Module):
    weight: jax.Array
    table: Annotated[jax.Array, Buffer]
    activation: Callable[[jax.Array], jax.Array] = jnp.tanh
    name: str = "net"


def make_net() -> Net:
    return Net(jnp.array([1.0, 2.0, 3.0]), jnp.array([1, 2, 3]))


def body(net: Net, x: Any) -> Any:
    return {"y": net.activation(net.weight * x) * net.table, "name": net.name}


def make_vjp() -> Any:
    """A function whose derivative is made up: cotangents tenfold by the weight, none by x."""
    f = weft.custom_vjp(body)

    def forward(net: Net, x: Any) -> Any:
        return body(net, x), {"x": x, "f": net.activation, "net": net}

    def backward(saved: Any, cotangent: Any) -> Any:
        assert saved["f"] is jnp.tanh
        assert cotangent["name"] is None
        return saved["net"].replace(
            weight=10 * cotangent["y"] * saved["x"], table=None, activation=None, name=None
        ), None

    f.defvjp(forward, backward)
    return f


def make_plain_vjp() -> Any:
    f = jax.custom_vjp(lambda w, x: jnp.tanh(w * x) * jnp.array([1, 2, 3]))
    f.defvjp(lambda w, x: (f(w, x), x), lambda x, ct: (10 * ct * x, jnp.zeros(3)))
    return f


def make_jvp() -> Any:
    f = weft.custom_jvp(body)

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (net, x), (net_dot, x_dot) = primals, tangents
        assert net_dot.table is None
        assert net_dot.activation is jnp.tanh
        return f(net, x), {"y": 10 * net_dot.weight * x + net.weight * x_dot, "name": None}

    return f


def make_plain_jvp() -> Any:
    f = jax.custom_jvp(lambda w, x: jnp.tanh(w * x) * jnp.array([1, 2, 3]))
    f.defjvp(lambda p, t: (f(*p), 10 * t[0] * p[1] + p[0] * t[1]))
    return f


def weft_loss(f: Any) -> Any:
    return lambda net, x: (f(net, x)["y"] ** 2).sum()


def plain_loss(f: Any) -> Any:
    return lambda w, x: (f(w, x) ** 2).sum()


MAKERS = {"vjp": (make_vjp, make_plain_vjp), "jvp": (make_jvp, make_plain_jvp)}
# For a weft gradient by the weight and its plain counterpart.
UNDER: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "nothing": (lambda f: f, lambda f: f),
    "jit": (weft.jit, jax.jit),
    "remat": (weft.remat, jax.checkpoint),
    "vmap": (
        lambda f: lambda net, x: weft.vmap(f, in_axes=(None, 0))(net, jnp.stack([x, 2 * x])).sum(),
        lambda f: lambda w, x: jax.vmap(f, in_axes=(None, 0))(w, jnp.stack([x, 2 * x])).sum(),
    ),
    "scan": (
        lambda f: (
            lambda net, x: weft.scan(lambda c, x, net: (c + f(net, x), None), in_axes=(weft.Carry, 0, None))(
                0.0, jnp.stack([x, 2 * x]), net
            )[0]
        ),
        lambda f: lambda w, x: jax.lax.scan(lambda c, x: (c + f(w, x), None), 0.0, jnp.stack([x, 2 * x]))[0],
    ),
    "cond": (
        lambda f: lambda net, x: weft.cond(x[0] > 0, f, lambda net, x: 0.0, net, x),
        lambda f: lambda w, x: jax.lax.cond(x[0] > 0, f, lambda w, x: 0.0, w, x),
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("under", UNDER)
@pytest.mark.parametrize("kind", MAKERS)
def test_the_derivative_is_the_rules_under_every_transform(kind: str, under: str):
    make, make_plain = MAKERS[kind]
    wrap, wrap_plain = UNDER[under]
    net = make_net()
    loss, plain = wrap(weft_loss(make())), wrap_plain(plain_loss(make_plain()))
    value, (by_weight, by_x) = jax.jit(jax.value_and_grad(plain, argnums=(0, 1)))(net.weight, X)
    np.testing.assert_allclose(loss(net, X), value, rtol=1e-5)
    for gradient in (weft.grad(loss)(net, X), weft.jit(weft.grad(loss))(net, X)):
        np.testing.assert_allclose(gradient.weight, by_weight, rtol=1e-5)
        assert (gradient.table, gradient.activation, gradient.name) == (None, jnp.tanh, "net")
    np.testing.assert_allclose(weft.grad(loss, argnums=1)(net, X), by_x, rtol=1e-5)


def test_the_value_keeps_static_leaves_and_names():
    for make, _ in MAKERS.values():
        f = make()
        assert f.__name__ == "body"
        out = f(make_net(), X)
        assert out["name"] == "net"
        np.testing.assert_allclose(f(x=X, net=make_net())["y"], out["y"])


def test_forward_mode_and_grad_of_grad_of_custom_jvp():
    f, plain = make_jvp(), make_plain_jvp()
    net = make_net()
    tangent = net.replace(weight=jnp.ones(3), table=None, activation=None, name=None)
    _, out_tangent = weft.jvp(f, (net, X), (tangent, X))
    np.testing.assert_allclose(out_tangent["y"], jax.jvp(plain, (net.weight, X), (jnp.ones(3), X))[1], rtol=1e-5)
    inner = weft.grad(weft_loss(f), argnums=1)
    plain_inner = jax.grad(plain_loss(plain), argnums=1)
    gradient = weft.grad(lambda net, x: inner(net, x).sum())(net, X)
    np.testing.assert_allclose(
        gradient.weight, jax.grad(lambda w, x: plain_inner(w, x).sum())(net.weight, X), rtol=1e-5
    )


@pytest.mark.parametrize("nondiff", [(0,), 0, (-2,), [0]])
def test_nondiff_arguments_go_first_to_the_rules(nondiff: Any):
    def clip(limit: Any, tree: Any) -> Any:
        return tree["x"] * 1.0

    by_vjp = weft.custom_vjp(clip, nondiff_argnums=nondiff)
    by_vjp.defvjp(
        lambda limit, tree: (clip(limit, tree), None),
        lambda limit, saved, ct: ({"x": jnp.clip(ct, -limit["max"], limit["max"]), "name": None},),
    )
    tree = {"x": X, "name": "x"}
    for limit in ({"max": 1.0, "name": "limit"}, {"max": 2.0, "name": "limit"}):
        gradient = weft.grad(lambda t, limit=limit: (by_vjp(limit, t) * 5).sum())(tree)
        np.testing.assert_allclose(gradient["x"], jnp.full(3, limit["max"]))
    by_jvp = weft.custom_jvp(clip, nondiff_argnums=nondiff)
    by_jvp.defjvp(lambda limit, primals, tangents: (clip(limit, primals[0]), tangents[0]["x"] * limit["max"]))
    gradient = weft.grad(lambda t: by_jvp({"max": 4.0, "f": jnp.sin}, t).sum())(tree)
    np.testing.assert_allclose(gradient["x"], jnp.full(3, 4.0))


def test_nondiff_arguments_have_no_cotangent_even_if_they_are_inexact():
    f = weft.custom_vjp(lambda x, y: x * y, nondiff_argnums=1)
    f.defvjp(lambda x, y: (x * y, y), lambda y_given, y, ct: (ct * y,))
    np.testing.assert_allclose(weft.grad(lambda x: f(x, 3.0))(2.0), 3.0)


@pytest.mark.parametrize("lib", [jax, weft], ids=["jax", "weft"])
def test_what_is_left_to_its_default_is_an_argument_of_the_rules(lib: Any):
    def scaled(x: Any, n: Any = 2, b: Any = 3.0) -> Any:
        return x * n * b

    by_vjp = lib.custom_vjp(scaled, nondiff_argnums=(1,))
    by_vjp.defvjp(lambda x, n, b: (scaled(x, n, b), b), lambda n, b, ct: (ct * n * b, jnp.zeros(())))
    by_jvp = lib.custom_jvp(scaled, nondiff_argnums=(1,))
    by_jvp.defjvp(lambda n, primals, tangents: (scaled(primals[0], n, primals[1]), tangents[0] * n * primals[1]))
    for function in (by_vjp, by_jvp):
        assert float(lib.grad(lambda x, function=function: function(x))(1.0)) == 6.0
        assert float(lib.grad(lambda x, function=function: function(x, b=5.0))(1.0)) == 10.0


def test_defjvps_defines_each_argument_alone():
    f = weft.custom_jvp(lambda x, y, n: x * y, nondiff_argnums=2)
    f.defjvps(lambda t, out, x, y: 10 * t * y, None)
    assert float(weft.grad(f)(2.0, 3.0, "n")) == 30.0
    assert float(weft.grad(f, argnums=1)(2.0, 3.0, "n")) == 0.0
    g = weft.custom_jvp(lambda x, y: x * y)
    g.defjvps(None, None)
    assert float(weft.grad(g)(2.0, 3.0)) == 0.0


def test_symbolic_zeros_of_custom_vjp():
    seen: list[Any] = []
    f = weft.custom_vjp(lambda t, y: {"a": t["x"] * y, "b": t["x"] + 0.0})

    def forward(t: Any, y: Any) -> Any:
        assert isinstance(t["x"], CustomVJPPrimal)
        seen.append((t["x"].perturbed, y.perturbed, t["name"]))
        return {"a": t["x"].value * y.value, "b": t["x"].value + 0.0}, y.value

    def backward(y: Any, ct: Any) -> Any:
        seen.append((type(ct["a"]) is SymbolicZero, type(ct["b"]) is SymbolicZero))
        return {"x": ct["a"] * y, "name": None}, None

    f.defvjp(forward, backward, symbolic_zeros=True)
    gradient = weft.grad(lambda t: f(t, 3.0)["a"])({"x": 2.0, "name": "t"})
    assert float(gradient["x"]) == 3.0
    assert seen == [(True, False, "t"), (False, True)]


def test_symbolic_zeros_of_custom_jvp():
    seen: list[Any] = []
    f = weft.custom_jvp(lambda t, y: t["x"] * y)

    def rule(primals: Any, tangents: Any) -> Any:
        seen.append((type(tangents[0]["x"]) is SymbolicZero, type(tangents[1]) is SymbolicZero))
        return f(*primals), tangents[0]["x"] * primals[1]

    f.defjvp(rule, symbolic_zeros=True)
    assert float(weft.grad(lambda t: f(t, 3.0))({"x": 2.0, "n": 1})["x"]) == 3.0
    assert seen == [(False, True)]


def test_a_method_may_be_decorated():
    class Layer(weft.Module):
        scale: jax.Array

        @weft.custom_jvp
        def apply(self, x: Any) -> Any:
            return self.scale * x

        @apply.defjvp
        def _(primals: Any, tangents: Any) -> Any:
            (self, x), (_, x_dot) = primals, tangents
            return self.apply(x), 7.0 * x_dot

    layer = Layer(jnp.array(2.0))
    assert float(layer.apply(3.0)) == 6.0
    assert float(weft.grad(lambda layer, x: layer.apply(x), argnums=1)(layer, 3.0)) == 7.0


def test_integer_and_key_leaves_pass_through():
    f = weft.custom_vjp(lambda t: t["x"] * t["n"] + jax.random.uniform(t["key"]))
    f.defvjp(lambda t: (t["x"] * t["n"], t["n"]), lambda n, ct: ({"x": ct * n, "n": None, "key": None},))
    assert float(weft.grad(f)({"x": 2.0, "n": 3, "key": jax.random.key(0)})["x"]) == 3.0


def test_integer_outputs_of_a_rule_need_no_tangent():
    f = weft.custom_jvp(lambda x: {"y": x * 2, "n": jnp.int32(3)})
    f.defjvp(lambda p, t: ({"y": p[0] * 2, "n": jnp.int32(3)}, {"y": 5 * t[0], "n": None}))
    assert float(weft.grad(lambda x: f(x)["y"])(1.0)) == 5.0


def test_residuals_leak_nothing(checking_leaks: Any):
    f, g = make_vjp(), make_jvp()
    with checking_leaks():
        weft.jit(weft.grad(weft_loss(f)))(make_net(), X)
        weft.jit(weft.grad(weft_loss(g)))(make_net(), X)


# --- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "definer"), [(weft.custom_vjp, "defvjp"), (weft.custom_jvp, "defjvp")])
def test_a_function_without_its_rule(make: Any, definer: str):
    with pytest.raises(DifferentiationError, match=definer):
        make(lambda x: x)(1.0)


WAYS: dict[str, Callable[[Any], Any]] = {
    "grad": weft.grad,
    "jit of grad": lambda f: weft.jit(weft.grad(f)),
    "grad of jit": lambda f: weft.grad(weft.jit(f)),
}


@pytest.mark.parametrize(
    ("forward", "backward", "error", "fragment"),
    [
        (lambda x, y: x * y, None, DifferentiationError, r"must return \(output, residuals\)"),
        (
            lambda x, y: ({"z": x * y}, y),
            lambda y, ct: (ct["z"] * y,),
            DifferentiationError,
            "must return a tuple of 2 cotangents, one for each differentiated argument; it returned tuple of 1",
        ),
        (lambda x, y: ({"z": x}, y), lambda y, ct: ct["z"], DifferentiationError, "a tuple of 2 cotangents"),
        (lambda x, y: ({"z": x}, y), lambda y, ct: ([ct["z"]], None), Exception, "structure|made like|cotangent"),
        (
            lambda x, y: ({"w": x, "z": x * y}, y),
            lambda y, ct: (ct["z"], None),
            StructureError,
            r"(?s)the forward function of custom_vjp does not return what the function returns.*output.w: nothing ->",
        ),
        (
            lambda x, y: ({"z": jnp.stack([x, y])}, y),
            lambda y, ct: (ct["z"], None),
            StructureError,
            r"(?s)does not return what the function returns.*output.z: float32\[\] -> float32\[2\]",
        ),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_rules_that_return_the_wrong_thing(way: str, forward: Any, backward: Any, error: Any, fragment: str):
    f = weft.custom_vjp(lambda x, y: {"z": x * y})
    f.defvjp(forward, backward)
    with pytest.raises(error, match=fragment):
        WAYS[way](lambda x: f(x, 3.0)["z"].sum())(2.0)


def test_a_function_that_goes_by_the_values_of_arrays_is_differentiated_by_its_rule():
    f = weft.custom_vjp(lambda x: x if x > 0 else -x)
    f.defvjp(lambda x: (x if x > 0 else -x, None), lambda _, ct: (5 * ct,))
    assert float(weft.grad(f)(2.0)) == float(weft.grad(f)(-2.0)) == 5


def test_what_a_function_returns_is_learned_once_for_each_type_of_argument():
    calls = 0

    def squared(x: Any) -> Any:
        nonlocal calls
        calls += 1
        return x**2

    f = weft.custom_vjp(squared)
    f.defvjp(lambda x: (x**2, x), lambda x, ct: (2 * x * ct,))
    gradient = weft.grad(lambda x: f(x).sum())
    for x in (2.0, 3.0, X, X):
        gradient(x)
    assert calls == 2
