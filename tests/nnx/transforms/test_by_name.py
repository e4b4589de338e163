"""Arguments passed by name to mapped functions, and attention in float16."""

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


def test_attention_in_float16_outside_of_a_trace():
    attention = nnx.MultiHeadAttention(2, 4, dtype=jnp.float16, decode=False, rngs=nnx.Rngs(0))
    x = jnp.ones((1, 3, 4))
    exact = nnx.merge(nnx.graphdef(attention), nnx.state(attention))
    exact.set_attributes(dtype=jnp.float32, raise_if_not_found=False)
    assert attention(x).dtype == jnp.float16
    assert jnp.allclose(attention(x), exact(x), atol=1e-2)
