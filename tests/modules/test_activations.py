"""The activations of `jax.nn` under `weft`: all of them, and the very functions."""

import jax
import jax.numpy as jnp
import pytest
import weft

# What `jax.nn` has beside activations.
NO_ACTIVATIONS = {
    "dot_product_attention",
    "get_scaled_dot_general_config",
    "initializers",
    "log1mexp",
    "logmeanexp",
    "logsumexp",
    "one_hot",
    "scaled_dot_general",
    "scaled_matmul",
    "standardize",
}
PUBLIC = {name for name in dir(jax.nn) if not name.startswith("_")}


def test_every_activation_of_jax_is_in_weft():
    missing = sorted(name for name in PUBLIC - NO_ACTIVATIONS if name not in weft.modules.__all__)
    assert missing == []
    assert sorted(PUBLIC & NO_ACTIVATIONS & set(weft.__all__)) == []


@pytest.mark.parametrize("name", sorted(PUBLIC - NO_ACTIVATIONS))
def test_an_activation_is_the_function_of_jax(name):
    assert getattr(weft, name) is getattr(jax.nn, name)
    assert getattr(weft, name)(jnp.linspace(-2, 2, 6)).dtype == jnp.float32
