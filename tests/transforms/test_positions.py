"""Every transform takes functions, and what they are called with, by position, and options by name."""

import inspect

import jax.numpy as jnp
import pytest
import weft


def function(x, y):
    return x * y


@pytest.mark.parametrize(
    ("call", "way"),
    [
        (lambda: weft.vmap(function, (0, None)), r"vmap\(function, in_axes=\(0, None\)\)$"),
        (lambda: weft.grad(function, 1, True), r"grad\(function, argnums=1, has_aux=True\)$"),
        (lambda: weft.value_and_grad(function, 1), r"value_and_grad\(function, argnums=1\)$"),
        (lambda: weft.hessian(function, (0, 1)), r"hessian\(function, argnums=\(0, 1\)\)$"),
        (lambda: weft.scan(function, 0.0, jnp.ones(3)), r"scan\(step\)\(init, xs\)$"),
        (lambda: weft.pmap(function, "batch"), r"pmap\(function, axis_name='batch'\)$"),
        (lambda: weft.custom_vjp(function, (1,)), r"custom_vjp\(function, nondiff_argnums=\(1,\)\)$"),
    ],
)
def test_who_gives_options_by_position_is_told_their_names(call, way):
    with pytest.raises(TypeError, match=way):
        call()


TRANSFORMS = sorted({*weft.transforms.__all__} - {"Carry", "axes", "error_if"})


@pytest.mark.parametrize("name", TRANSFORMS)
def test_functions_and_their_arguments_go_by_position_and_options_by_name(name):
    kinds = {one.kind for one in inspect.signature(getattr(weft, name)).parameters.values()}
    assert inspect.Parameter.POSITIONAL_ONLY in kinds
    assert inspect.Parameter.POSITIONAL_OR_KEYWORD not in kinds


@pytest.mark.parametrize(
    "call",
    [
        lambda: weft.cond(pred=True, true_fun=function, false_fun=function),
        lambda: weft.fori_loop(0, 3, lambda i, c: c, init=0),
        lambda: weft.while_loop(cond_fun=bool, body_fun=function, init=0),
        lambda: weft.lax_map(function, xs=jnp.ones(3)),
    ],
    ids=["cond", "fori_loop", "while_loop", "lax_map"],
)
def test_who_gives_an_argument_by_name_is_told_that_it_goes_by_position(call):
    with pytest.raises(TypeError, match="positional-only arguments passed as keyword arguments"):
        call()
