"""What a transform is asked for is done, or refused: derivatives, axes by name, and what a function returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from jax import lax

X = jnp.arange(3.0)


# ---- derivatives in what is not differentiated --------------------------------------------------------------------


class Scale(weft.Module):
    weight: jax.Array

    def times(self, x: Any) -> Any:
        return x * self.weight


def with_vjp(function: Callable[..., Any], **options: Any) -> Any:
    made = weft.custom_vjp(function, **options)
    made.defvjp(lambda x, *rest: (function(x, *rest), rest), lambda *given: (given[-1] * 2,))
    return made


def with_jvp(function: Callable[..., Any], **options: Any) -> Any:
    made = weft.custom_jvp(function, **options)
    made.defjvp(lambda *given: (function(given[-2][0], *given[:-2]), given[-1][0] * 2))
    return made


def product(x: Any, y: Any) -> Any:
    return x * y


LOST: dict[str, tuple[Callable[[], Any], str]] = {
    "vjp": (lambda: jax.grad(with_vjp(product, nondiff_argnums=1), argnums=1)(2.0, 3.0), "y"),
    "vjp of both": (lambda: weft.grad(with_vjp(product, nondiff_argnums=1), argnums=(0, 1))(2.0, X[1]), "y"),
    "vjp in jit": (lambda: weft.jit(weft.grad(with_vjp(product, nondiff_argnums=1), argnums=1))(2.0, 3.0), "y"),
    "vjp of a jit": (lambda: jax.grad(jax.jit(with_vjp(product, nondiff_argnums=1)), argnums=1)(2.0, 3.0), "y"),
    "vjp of a record": (
        lambda: weft.grad(with_vjp(lambda x, m: m.times(x), nondiff_argnums=1), argnums=1)(2.0, Scale(X[1])),
        "m.weight",
    ),
    "vjp of a record's method": (lambda: weft.grad(lambda m: with_vjp(m.times)(2.0))(Scale(X[1])), "self.weight"),
    "jvp": (lambda: jax.jvp(with_jvp(product, nondiff_argnums=1), (2.0, 3.0), (1.0, 1.0)), "y"),
    "grad of a jvp": (lambda: jax.grad(with_jvp(product, nondiff_argnums=1), argnums=1)(2.0, 3.0), "y"),
}


@pytest.mark.parametrize("name", LOST)
def test_a_derivative_that_a_custom_rule_does_not_have_is_refused(name: str):
    run, path = LOST[name]
    with pytest.raises(weft.errors.DifferentiationError, match="does not differentiate") as caught:
        run()
    assert f"at: {path}\n" in str(caught.value)
    assert "jax.lax.stop_gradient" in str(caught.value)


@pytest.mark.parametrize("make", [with_vjp, with_jvp])
def test_what_is_not_asked_for_may_be_an_array_a_tracer_or_stopped(make: Callable[..., Any]):
    f = make(product, nondiff_argnums=1)
    assert float(jax.grad(f)(2.0, X[1])) == 2.0
    assert float(weft.jit(weft.grad(f))(2.0, X[1])) == 2.0
    assert weft.vmap(weft.grad(f))(X, X).tolist() == [2.0] * 3
    assert float(jax.grad(lambda y: f(2.0 * y, lax.stop_gradient(y)))(3.0)) == 4.0
    assert float(jax.grad(lambda x: lax.scan(lambda c, y: (f(c, y), None), x, X)[0])(1.0)) == 8.0


# ---- axes by name -------------------------------------------------------------------------------------------------


def scaled(x: Any, by: Any = X, *, shift: Any = X * 10) -> Any:
    return x * by + shift


@pytest.mark.parametrize("transform", [weft.vmap, weft.pmap])
def test_a_default_rides_on_the_axis_that_names_it(transform: Any):
    by_name = transform(scaled, in_axes={"x": None, "by": 0, "shift": 0})
    assert by_name(2.0).tolist() == (2 * X + 10 * X).tolist()
    assert by_name(2.0, X + 1).tolist() == (2 * (X + 1) + 10 * X).tolist()
    assert by_name(2.0, shift=jnp.zeros(3)).tolist() == (2 * X).tolist()
    # What it does not name is as it was: the default itself.
    assert transform(scaled, in_axes={"x": 0})(X).shape == (3, 3)
    assert transform(lambda x=X: x * 2, in_axes={"x": 0})().tolist() == [0.0, 2.0, 4.0]


def test_a_default_that_does_not_fit_the_axis_that_names_it_is_refused():
    with pytest.raises(weft.errors.AxisError, match=r"at: by: axis 0 of shape \(\)"):
        weft.vmap(lambda x, by=2.0: x * by, in_axes={"x": 0, "by": 0})(X)


# ---- axes as a record ---------------------------------------------------------------------------------------------


class Layer(weft.Module):
    weight: jax.Array
    bias: jax.Array | None = None
    activation: Callable[[Any], Any] = jnp.tanh
    heads: int = 3
    parts: Any = ()


LAYER = Layer(jnp.ones(2), jnp.ones(2), parts=(jnp.sin, jnp.ones(2), {"kind": "a", "scale": jnp.ones(2)}, 2))


def layer_of(x: Any) -> Layer:
    return LAYER.replace(weight=LAYER.weight * x)


# A tree of axes that holds the configuration in its places, and the shapes of the weight and the bias that it gives.
RECORDS_OF_AXES: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
    "jax.tree.map": (jax.tree.map(lambda _: 0, LAYER), (3, 2), (3, 2)),
    "jax.tree.map of another axis": (jax.tree.map(lambda _: -1, LAYER), (2, 3), (2, 3)),
    "jax.tree.map with None": (jax.tree.map(lambda leaf: 0 if leaf is LAYER.weight else None, LAYER), (3, 2), (2,)),
    "replace": (LAYER.replace(weight=1, bias=None, parts=None), (2, 3), (2,)),
}


@pytest.mark.parametrize("name", RECORDS_OF_AXES)
def test_a_record_of_axes_serves_for_arguments_and_outputs_alike(name: str):
    axes, weight, bias = RECORDS_OF_AXES[name]
    for out, extract in (
        (axes, lambda result: result),
        ((0, axes), lambda result: result[1]),
        ({"layer": axes}, lambda result: result["layer"]),
    ):
        made = {"tuple": lambda x: (x, layer_of(x)), "dict": lambda x: {"layer": layer_of(x)}}.get(
            type(out).__name__, layer_of
        )
        stacked = extract(weft.vmap(made, out_axes=out)(X))
        assert (stacked.weight.shape, stacked.bias.shape) == (weight, bias)
        assert (stacked.heads, stacked.activation, stacked.parts[0]) == (3, jnp.tanh, jnp.sin)
        again = weft.vmap(lambda layer: layer.weight.sum(), in_axes=(axes,), axis_size=3)(stacked)
        assert again.tolist() == [0.0, 2.0, 4.0]


def test_a_record_of_axes_stacks_what_a_scan_makes():
    axes = LAYER.replace(weight=0, bias=0, parts=0)
    _, stacked = weft.scan(lambda carry, x: (carry, layer_of(x)), out_axes=(weft.Carry, axes))(0.0, X)
    assert (stacked.weight.shape, stacked.heads) == ((3, 2), 3)


def test_a_container_of_axes_may_hold_what_is_static_in_the_output():
    def named(x: Any) -> Any:
        return {"x": x, "name": "a", "f": jnp.tanh}

    for axes in ({"x": 0, "name": "a", "f": jnp.tanh}, {"x": 0, "name": None, "f": 0}):
        assert weft.vmap(named, out_axes=axes)(X)["x"].tolist() == X.tolist()
    with pytest.raises(weft.errors.AxisError, match="out_axes gives 'a' to an array") as caught:
        weft.vmap(named, out_axes={"x": "a", "name": None, "f": None})(X)
    assert "at: output.x: float32[]" in str(caught.value)


# ---- pmap ---------------------------------------------------------------------------------------------------------


def test_pmap_over_a_size_with_nothing_mapped():
    f = weft.pmap(lambda x: x + lax.axis_index("i"), in_axes=None, axis_name="i", axis_size=3)
    assert f(1.0).tolist() == [1.0, 2.0, 3.0]
    assert f.lower(1.0).compile()(1.0).tolist() == [1.0, 2.0, 3.0]
    assert weft.pmap(lambda: jnp.ones(2), axis_size=2)().shape == (2, 2)


def test_pmap_lowers_and_compiles_for_records():
    f = weft.pmap(lambda m, x: {"y": m.times(x), "name": "y"}, in_axes=(None, 0))
    lowered = f.lower(Scale(jnp.float32(2)), X)
    assert "stablehlo" in lowered.as_text()
    out = lowered.compile()(Scale(jnp.float32(3)), X)
    assert out["y"].tolist() == [0.0, 3.0, 6.0]
    assert out["name"] == "y"
    with pytest.raises(weft.errors.StructureError, match="than those that this function was compiled for"):
        lowered.compile()({"weight": 2.0}, X)


def test_a_mapped_function_may_be_a_method_of_a_class():
    class Model:
        scale = 2.0

        @weft.vmap(in_axes=(None, 0))
        def run(self, x: Any) -> Any:
            return x * self.scale

    assert Model().run(X).tolist() == [0.0, 2.0, 4.0]


# ---- what a function returns --------------------------------------------------------------------------------------


SHAPE = jax.ShapeDtypeStruct((2,), jnp.float32)
RETURNS: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "jit": lambda f: weft.jit(f)(1.0),
    "vmap": lambda f: weft.vmap(f)(X),
    "grad": lambda f: weft.grad(lambda x: (x, f(x)), has_aux=True)(1.0)[1],
    "remat": lambda f: weft.remat(f)(1.0),
    "cond": lambda f: weft.cond(True, f, f, 1.0),
    "eval_shape": lambda f: weft.eval_shape(f, 1.0),
    "shape of a shape": lambda f: weft.eval_shape(lambda x: weft.eval_shape(f, x), 1.0),
}


@pytest.mark.parametrize("name", RETURNS)
def test_an_abstract_array_is_returned_as_it_is(name: str):
    out = RETURNS[name](lambda x: {"shape": SHAPE, "x": x})
    assert out["shape"] is SHAPE or out["shape"] == SHAPE
    assert out["x"].dtype == jnp.float32


def test_an_abstract_array_rides_nowhere():
    out = weft.vmap(lambda x: (SHAPE, x), out_axes=(0, 0))(X)
    assert out[0] == SHAPE
    with pytest.raises(weft.errors.BranchError, match="do not return the same"):
        weft.cond(True, lambda: SHAPE, lambda: jax.ShapeDtypeStruct((3,), jnp.float32))


# ---- errors while a program runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 2, 3])
def test_error_if_of_equinox_is_its_own_error_and_is_said_once(times: int, caplog: pytest.LogCaptureFixture):
    def root(x: Any) -> Any:
        return jnp.sqrt(eqx.error_if(x, x < 0, "x must not be negative"))

    compiled = weft.jit(root)
    for _ in range(times - 1):
        np.testing.assert_allclose(compiled(4.0), 2.0)
    with pytest.raises(eqx.EquinoxRuntimeError, match=r"^x must not be negative$"):
        jax.block_until_ready(compiled(-1.0))
    assert not caplog.records


@pytest.mark.parametrize("option", ["donate_argnums", "static_broadcasted_argnums"])
def test_pmap_refuses_options_that_number_the_arguments_of_jax(option: str):
    with pytest.raises(TypeError, match=option):
        weft.pmap(product, **{option: 1})
