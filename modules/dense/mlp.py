"""MLP: linear layers with an activation between them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import initializers
from weft.modules.combinators.sequential import Sequential
from weft.modules.construct import ConfigError, Initializer, KeyLike
from weft.modules.dense.linear import Linear, default_kernel_init
from weft.modules.drawing import parameter_keys


class MLP(Sequential):  # weft: skip(its layers say their sizes; a chain takes anything)
    """A multilayer perceptron: `y = mlp(x)`, for `x` with any leading axes.

    It is the chain of its layers and activations, so it is indexed, sliced and changed like one.

    Args:
        features: the size of the input, those of the hidden layers, and that of the output.
        key: a typed key, split among the layers.
        activation: between the layers, and not behind the last.
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
        use_bias: bool = True,
        kernel_init: Initializer = default_kernel_init,
        bias_init: Initializer = initializers.zeros,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        out_dtype: Any = None,
        precision: Any = None,
    ):
        if len(features) < 2:
            raise ConfigError(
                f"an MLP has at least two sizes, not {len(features)}: those of its input and its output",
                fix="MLP(inputs, *hidden, outputs, key=key)",
            )
        linear = functools.partial(
            Linear,
            use_bias=use_bias,
            kernel_init=kernel_init,
            bias_init=bias_init,
            dtype=dtype,
            param_dtype=param_dtype,
            out_dtype=out_dtype,
            precision=precision,
        )
        keys = parameter_keys(key, len(features) - 1, "MLP")
        sizes = zip(features[:-1], features[1:], keys, strict=True)
        linears = [linear(inputs, outputs, key=key) for inputs, outputs, key in sizes]
        super().__init__(*[layer for linear in linears[:-1] for layer in (linear, activation)], linears[-1])
