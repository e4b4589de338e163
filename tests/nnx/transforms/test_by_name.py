"""Arguments passed by name to mapped and differentiated functions, and attention in float16."""

import jax.numpy as jnp
import pytest
from weft import nnx


def model():
    return nnx.Linear(2, 3, rngs=nnx.Rngs(0))


def test_vmap_gives_an_argument_by_name_the_axis_of_its_position():
    mapped = nnx.vmap(lambda m, x: m(x), in_axes=(None, 0))
    linear, x = model(), jnp.ones((4, 2))
    assert mapped(linear, x=x).shape == mapped(x=x, m=linear).shape == (4, 3)


def test_without_graph_updates_axes_are_of_positional_arguments():
    with pytest.raises(ValueError, match="in_axes has 2 entries for 1 positional arguments"):
        nnx.vmap(lambda m, x: m(x), in_axes=(None, 0), graph_updates=False)(model(), x=jnp.ones((4, 2)))


def test_grad_differentiates_an_argument_that_is_passed_by_name_or_left_to_its_default():
    def loss(w, x=2.0, *, scale=1.0):
        return w[...] ** 2 * x * scale

    assert float(nnx.grad(loss)(scale=2.0, x=4.0, w=nnx.Param(jnp.array(3.0)))[...]) == 48.0
    assert float(nnx.grad(loss, argnums=1)(nnx.Param(jnp.array(3.0)))) == 9.0
    _, (of_w, of_x) = nnx.value_and_grad(loss, argnums=(0, 1))(x=1.0, w=nnx.Param(jnp.array(3.0)))
    assert (float(of_w[...]), float(of_x)) == (6.0, 9.0)


def test_attention_in_float16_outside_of_a_trace():
    attention = nnx.MultiHeadAttention(2, 4, dtype=jnp.float16, decode=False, rngs=nnx.Rngs(0))
    x = jnp.ones((1, 3, 4))
    exact = nnx.merge(nnx.graphdef(attention), nnx.state(attention))
    exact.set_attributes(dtype=jnp.float32, raise_if_not_found=False)
    assert attention(x).dtype == jnp.float16
    assert jnp.allclose(attention(x), exact(x), atol=1e-2)
