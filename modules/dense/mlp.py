"""MLP: linear layers with an activation between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import jax
from weft.modules.combinators.sequential import Sequential
from weft.modules.construct import ConfigError, KeyLike
from weft.modules.dense.linear import Linear, LinearOptions
from weft.modules.drawing import parameter_keys


class MLP(Sequential):  # weft: skip(its layers say their sizes; a chain takes anything)
    """A multilayer perceptron: `y = mlp(x)`, for `x` with any leading axes.

    It is the chain of its layers and activations, so it is indexed, sliced and changed like one.

    Args:
        features: the size of the input, those of the hidden layers, and that of the output.
        key: a typed key, split among the layers.
        activation: between the layers, not after the last one.
        use_bias, kernel_init, bias_init, dtype, param_dtype, out_dtype, precision: of each `Linear`.

    Raises:
        ConfigError: if there are fewer than two sizes.

    >>> import jax.numpy as jnp
    >>> mlp = MLP(4, 32, 32, 2, key=jax.random.key(0))
    >>> mlp(jnp.ones((8, 4))).shape, len(mlp)
    ((8, 2), 5)
    """

    def __init__(
        self,
        *features: int,
        key: KeyLike,
        activation: Callable[[Any], Any] = jax.nn.relu,
        **options: Unpack[LinearOptions],
    ):
        if len(features) < 2:
            raise ConfigError(
                f"an MLP needs at least two sizes, those of its input and its output, not {len(features)}",
                fix="MLP(inputs, *hidden, outputs, key=key)",
            )
        keys = parameter_keys(key, len(features) - 1, "MLP")
        sizes = zip(features[:-1], features[1:], keys, strict=True)
        linears = [Linear(inputs, outputs, key=key, **options) for inputs, outputs, key in sizes]
        # No activation after the last layer: its outputs may be any numbers, such as logits.
        super().__init__(*[layer for linear in linears[:-1] for layer in (linear, activation)], linears[-1])
