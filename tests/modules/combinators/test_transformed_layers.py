"""Layers that a transform returned: a combinator takes the successor of the record that they hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import weft

X = jnp.arange(8.0).reshape(4, 2)


@pytest.mark.parametrize("transform", [weft.remat, weft.jit, lambda record: weft.remat(weft.jit(record))])
@pytest.mark.parametrize(
    ("combined", "layer_of"),
    [
        (lambda layer: weft.StatefulSequential(jax.nn.relu, layer), lambda model: model.layers[1]),
        (lambda layer: weft.StatefulParallel(jax.nn.relu, layer), lambda model: model.layers[1]),
        (weft.Residual, lambda model: model.layer),
        (weft.Frozen, lambda model: model.layer),
    ],
)
def test_the_successor_of_a_transformed_record_is_taken(
    transform: Callable[..., Any], combined: Callable[..., Any], layer_of: Callable[..., Any]
):
    y, model = combined(transform(weft.BatchNorm(2)))(X)
    expected, plain = combined(weft.BatchNorm(2))(X)
    assert weft.tree.allclose(y, expected, atol=1e-5)
    assert jax.tree.structure(layer_of(model)) == jax.tree.structure(transform(weft.BatchNorm(2)))
    means = jax.tree.leaves(layer_of(model))[2], layer_of(plain).mean
    assert means[0].tolist() == means[1].tolist() != [0.0, 0.0]


def test_a_combinator_of_pure_layers_refuses_a_transformed_record_with_state():
    with pytest.raises(weft.SuccessorError, match="Sequential would lose its successor"):
        weft.Sequential(weft.remat(weft.BatchNorm(2)))(X)
