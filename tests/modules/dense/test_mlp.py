"""MLP: a chain of linear layers, and nothing else."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft

KEY = jax.random.key(0)


def test_an_mlp_is_the_chain_of_its_layers():
    mlp = weft.MLP(3, 5, 2, key=KEY, activation=weft.tanh, use_bias=False)
    x = jnp.ones((4, 3))
    np.testing.assert_array_equal(mlp(x), mlp[2](jnp.tanh(mlp[0](x))))
    assert mlp[0].bias is None
    assert isinstance(mlp, weft.Sequential)
    assert [type(layer) for layer in mlp[::2]] == [weft.Linear, weft.Linear]


def test_its_layers_are_drawn_apart():
    mlp = weft.MLP(3, 3, 3, key=KEY)
    assert not np.allclose(mlp[0].kernel, mlp[2].kernel)


@pytest.mark.slow
def test_it_is_made_under_vmap_and_differentiated():
    stack = weft.vmap(lambda key: weft.MLP(3, 4, 1, key=key))(jax.random.split(KEY, 2))
    losses = weft.vmap(lambda mlp, x: mlp(x).sum(), in_axes=(0, None))(stack, jnp.ones(3))
    gradient = weft.grad(lambda mlp: mlp(jnp.ones(3)).sum())(jax.tree.map(lambda x: x[0], stack))
    assert losses.shape == (2,)
    assert gradient[2].bias.tolist() == [1.0]


@pytest.mark.parametrize("features", [(), (3,)])
def test_too_few_sizes_are_refused(features: tuple[int, ...]):
    with pytest.raises(weft.errors.ConfigError, match="an MLP needs at least two sizes") as caught:
        weft.MLP(*features, key=KEY)
    assert "MLP(inputs, *hidden, outputs, key=key)" in str(caught.value)
