"""MLP: linear layers with an activation between them; GatedMLP: a second linear map gates its hidden features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import jax
from jaxtyping import Array, Float
from weft.core.records.module import Module
from weft.modules.combinators.several import Sequential
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


class GatedMLP(Module):
    """An MLP with a gate: `y = down(activation(gate(x)) * up(x))`.

    With `jax.nn.silu` it is SwiGLU, with `jax.nn.gelu` GEGLU, with `jax.nn.sigmoid` GLU. In a transformer:
    `TransformerBlock(64, 4, mlp=lambda key: GatedMLP(64, 172, key=key), key=key)`. With two thirds of an MLP's hidden
    features it has as many parameters.

    Args:
        features: size of the last axis of the input.
        hidden_features: size inside.
        out_features: size of the last axis of the output; by default `features`.
        key: a typed key, split among the three maps.
        activation: of the gate.
        use_bias, kernel_init, bias_init, dtype, param_dtype, out_dtype, precision: of each `Linear`.

    >>> import jax.numpy as jnp
    >>> mlp = GatedMLP(4, 32, key=jax.random.key(0))
    >>> mlp(jnp.ones((8, 4))).shape, mlp.down.kernel.shape
    ((8, 4), (32, 4))

    Source: Shazeer, "GLU Variants Improve Transformer", 2020.
    """

    gate: Linear
    up: Linear
    down: Linear
    activation: Callable[[Any], Any]

    def __init__(
        self,
        features: int,
        hidden_features: int,
        out_features: int | None = None,
        *,
        key: KeyLike,
        activation: Callable[[Any], Any] = jax.nn.silu,
        **options: Unpack[LinearOptions],
    ):
        keys = parameter_keys(key, 3, "GatedMLP")
        self.gate = Linear(features, hidden_features, key=keys[0], **options)
        self.up = Linear(features, hidden_features, key=keys[1], **options)
        out_features = features if out_features is None else out_features
        self.down = Linear(hidden_features, out_features, key=keys[2], **options)
        self.activation = activation

    def __call__(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch out_features"]:
        """Applies it to the last axis."""
        # Two maps and not one split in two: rename tables and adapters then find each kernel under its own name.
        return self.down(self.activation(self.gate(x)) * self.up(x))
