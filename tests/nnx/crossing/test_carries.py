"""Variables that loops carry on their own, or in a State: each iteration may return others, as values."""

import jax
import jax.numpy as jnp
import pytest
from weft import nnx

STEPS = jnp.ones(3)


def scan(body, carry):
    return nnx.scan(lambda c, x: (body(c), x), in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))(carry, STEPS)[0]


def fori_loop(body, carry):
    return nnx.fori_loop(0, 3, lambda i, c: body(c), carry)


def while_loop(body, carry):
    return nnx.while_loop(lambda c: c[1] < 3, lambda c: (body(c[0]), c[1] + 1), (carry, 0))[0]


pytestmark = pytest.mark.parametrize("loop", [scan, fori_loop, while_loop])


def test_a_new_variable_leaves_the_old_one_as_it_was(loop):
    old = nnx.Param(jnp.array(1.0))
    new = loop(lambda v: nnx.Param(v + 1.0), old)
    assert new is not old
    assert (float(old[...]), float(new[...])) == (1.0, 4.0)


def test_what_was_done_to_a_variable_that_is_not_carried_on_is_dropped(loop):
    def body(v):
        new = nnx.Param(v + 1.0)
        v[...] = v[...] * 100
        return new

    old = nnx.Param(jnp.array(1.0))
    loop(body, old)
    assert float(old[...]) == 1.0


def test_variables_that_change_places_come_back_as_the_body_returned_them(loop):
    a, b = nnx.Param(jnp.array(1.0)), nnx.Param(jnp.array(2.0))
    first, second = loop(lambda c: (c[1], c[0]), (a, b))
    assert first is b
    assert second is a
    assert (float(first[...]), float(second[...])) == (2.0, 1.0)


def test_gradients_are_summed_in_a_carry(loop):
    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    grad = nnx.grad(lambda m: m(jnp.ones(2)).sum())
    zero = jax.tree.map(jnp.zeros_like, nnx.state(model))

    def body(carry):
        model, total = carry
        return model, jax.tree.map(jnp.add, total, grad(model))

    same, total = loop(body, (model, zero))
    assert same is model
    assert total["kernel"][...].tolist() == [[3.0], [3.0]]
    assert total["bias"][...].tolist() == [3.0]
    assert zero["bias"][...].tolist() == [0.0]


@pytest.mark.parametrize("new_variable", [nnx.BatchStat, lambda value: nnx.Param(value, note=1)])
def test_another_kind_or_other_metadata_is_another_carry(loop, new_variable):
    with pytest.raises(ValueError, match="changes from one iteration to the next"):
        loop(lambda v: new_variable(v[...]), nnx.Param(jnp.array(1.0)))


def test_a_variable_of_an_object_stays_itself(loop):
    def body(model):
        model.bias = nnx.Param(model.bias[...])
        return model

    with pytest.raises(ValueError, match="changes from one iteration to the next"):
        loop(body, nnx.Linear(2, 1, rngs=nnx.Rngs(0)))
