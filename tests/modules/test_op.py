"""Ops: compiled as one, in the outer trace as what they are, and never past a function put in the place of JAX's."""

from unittest import mock

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from weft.core.records.module import static
from weft.modules import Linear, ops
from weft.modules.op import kept_options

X, KERNEL = jnp.ones((2, 3)), jnp.ones((3, 4))


def test_the_equations_of_an_op_stand_in_the_outer_jaxpr():
    jaxpr = jax.make_jaxpr(ops.linear)(X, KERNEL, jnp.ones(4))
    names = [equation.primitive.name for equation in jaxpr.eqns]
    assert names == ["dot_general", "reshape", "add"]


@pytest.mark.parametrize("traced", [False, True])
def test_a_function_put_in_the_place_of_one_of_jaxs_is_called_and_then_no_more(traced):
    ids, table = jnp.array([1, 0]), jnp.arange(4.0).reshape(2, 2)
    run = (lambda: jax.make_jaxpr(lambda: ops.embed(ids, table))()) if traced else (lambda: ops.embed(ids, table))
    run()  # so that there is a trace that could be kept
    with mock.patch.object(jnp, "take", wraps=jnp.take) as take:
        run()
    run()
    assert take.call_count == 1


@pytest.mark.parametrize(
    "run", [lambda: ops.attend(X, X), lambda: ops.einsum(X, KERNEL, equation="ab,bc->ac")], ids=["named", "deeper down"]
)
def test_a_function_of_jaxs_whose_code_is_replaced_is_called(run, monkeypatch):
    def refuse(*args, **kwargs):
        raise ZeroDivisionError

    run()
    jax.clear_caches()  # JAX keeps traces of its own functions, too
    monkeypatch.setattr(lax.dot_general, "__code__", refuse.__code__)
    with pytest.raises(ZeroDivisionError):
        run()


def test_op_by_op_an_op_is_its_operations():
    calls = []

    @ops.op()
    def double(x):
        calls.append(type(x))
        return x + x

    double(X), double(X)
    assert len(calls) == 1
    with ops.op_by_op():
        double(X)
    assert issubclass(calls[-1], type(X))
    assert len(calls) == 2


def test_a_field_that_a_subclass_adds_is_no_option_of_the_op():
    class Mine(Linear):
        promote: str = static(default="what it means here")

    layer = Mine(2, 3, out_dtype=jnp.float32, key=jax.random.key(0))
    assert kept_options(layer, ops.linear) == {"dtype": None, "out_dtype": jnp.dtype("float32"), "precision": None}
    assert layer(jnp.ones(2)).shape == (3,)
