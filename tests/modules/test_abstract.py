"""A model that is only shapes: `init(abstract=True)`, `eval_shape` and the eager constructor agree on every layer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
import weft

KEY, ADAM = jax.random.key(0), optax.adam(1e-3)


def dense(key: Any) -> weft.Linear:
    return weft.Linear(4, 4, key=key)


# How each layer is made of a key; those that take none are made without.
MAKE: dict[str, Callable[[Any], Any]] = {
    "AdaptiveAvgPool": lambda key: weft.AdaptiveAvgPool((2,)),
    "AdaptiveMaxPool": lambda key: weft.AdaptiveMaxPool((2,)),
    "ALiBi": lambda key: weft.ALiBi(),
    "AvgPool": lambda key: weft.AvgPool((2,)),
    "BatchNorm": lambda key: weft.BatchNorm(4),
    "Bidirectional": lambda key: weft.Bidirectional(*[weft.RNN(weft.GRUCell(4, 3, key=key)) for _ in range(2)]),
    "Conv": lambda key: weft.Conv(4, 3, (3, 3), key=key),
    "Conv1d": lambda key: weft.Conv1d(4, 3, 3, key=key),
    "Conv2d": lambda key: weft.Conv2d(4, 3, 3, key=key),
    "Conv3d": lambda key: weft.Conv3d(4, 3, 3, key=key),
    "ConvTranspose": lambda key: weft.ConvTranspose(4, 3, (3, 3), key=key),
    "ConvTranspose1d": lambda key: weft.ConvTranspose1d(4, 3, 3, key=key),
    "ConvTranspose2d": lambda key: weft.ConvTranspose2d(4, 3, 3, key=key),
    "ConvTranspose3d": lambda key: weft.ConvTranspose3d(4, 3, 3, key=key),
    "DiagonalSSM": lambda key: weft.DiagonalSSM(4, 3, key=key),
    "DropPath": lambda key: weft.DropPath(0.5),
    "Dropout": lambda key: weft.Dropout(0.5),
    "Einsum": lambda key: weft.Einsum("bi,ij->bj", (4, 3), key=key),
    "Embed": lambda key: weft.Embed(7, 4, key=key, param_dtype=jnp.bfloat16),
    "Ensemble": lambda key: weft.Ensemble(dense, 3, key=key),
    "Flatten": lambda key: weft.Flatten(),
    "Frozen": lambda key: weft.Frozen(dense(key)),
    "GRUCell": lambda key: weft.GRUCell(4, 3, key=key),
    "GatedMLP": lambda key: weft.GatedMLP(4, 8, key=key),
    "GroupNorm": lambda key: weft.GroupNorm(4, groups=2),
    "Identity": lambda key: weft.Identity(),
    "InstanceNorm": lambda key: weft.InstanceNorm(4),
    "KeyValueCache": lambda key: weft.KeyValueCache(8, 2, 4, batch=(3,)),
    "LSTMCell": lambda key: weft.LSTMCell(4, 3, key=key),
    "Lambda": lambda key: weft.Lambda(jnp.tanh),
    "LayerNorm": lambda key: weft.LayerNorm(4),
    "LearnedPositions": lambda key: weft.LearnedPositions(8, 4, key=key),
    "Linear": lambda key: weft.Linear(4, 3, key=key, use_bias=False),
    "LinearGeneral": lambda key: weft.LinearGeneral((4,), (3, 2), key=key),
    "LoRA": lambda key: weft.LoRA(dense(key), 2, key=key),
    "LossScale": lambda key: weft.LossScale(),
    "MLP": lambda key: weft.MLP(4, 8, 2, key=key),
    "MaxPool": lambda key: weft.MaxPool((2,)),
    "MinPool": lambda key: weft.MinPool((2,)),
    "MoE": lambda key: weft.MoE(dense, 3, 4, key=key),
    "MultiHeadAttention": lambda key: weft.MultiHeadAttention(4, 2, causal=True, key=key).with_cache(8),
    "OptimizedLSTMCell": lambda key: weft.OptimizedLSTMCell(4, 3, key=key),
    "Optimizer": lambda key: weft.Optimizer(dense(key), ADAM),
    "PReLU": lambda key: weft.PReLU(),
    "Parallel": lambda key: weft.Parallel(dense(key), jnp.tanh),
    "PixelShuffle": lambda key: weft.PixelShuffle(2),
    "Policy": lambda key: weft.Policy(),
    "QuantizedLinear": lambda key: weft.quantize(dense(key)),
    "RMSNorm": lambda key: weft.RMSNorm(4),
    "RNN": lambda key: weft.RNN(weft.LSTMCell(4, 3, key=key)),
    "Residual": lambda key: weft.Residual(dense(key)),
    "RoPE": lambda key: weft.RoPE(),
    "Sequential": lambda key: weft.Sequential(dense(key), jnp.tanh),
    "Shared": lambda key: weft.Shared(weft.Sequential(*[dense(key)] * 2)),
    "SimpleCell": lambda key: weft.SimpleCell(4, 3, key=key),
    "SinusoidalPositions": lambda key: weft.SinusoidalPositions(4),
    "SpectralNorm": lambda key: weft.SpectralNorm(dense(key), key=key),
    "Stack": lambda key: weft.Stack(dense, 3, key=key),
    "StatefulParallel": lambda key: weft.StatefulParallel(dense(key), weft.BatchNorm(4)),
    "StatefulSequential": lambda key: weft.StatefulSequential(dense(key), weft.BatchNorm(4)),
    "TransformerBlock": lambda key: weft.TransformerBlock(4, 2, key=key),
    "Upsample": lambda key: weft.Upsample((2, 2)),
    "WeightNorm": lambda key: weft.WeightNorm(dense(key)),
}


def types(tree: Any) -> tuple[Any, list[Any]]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in leaves]


@pytest.mark.parametrize("name", MAKE)
def test_shapes_are_those_of_the_model(name: str):
    def make(*, key: Any) -> Any:
        return MAKE[name](key)

    eager = types(make(key=KEY))
    assert types(weft.init(make, abstract=True)) == eager
    assert types(weft.eval_shape(make, key=KEY)) == eager
    assert types(weft.init(make, key=KEY)) == eager


def test_every_layer_is_looked_at():
    exported = {name: getattr(weft, name) for name in weft.modules.__all__}
    layers = {name for name, value in exported.items() if inspect.isclass(value) and issubclass(value, eqx.Module)}
    assert layers - {"LoadReport", "RecurrentCell"} == MAKE.keys()


def test_a_function_of_inputs_gets_their_shapes():
    def make(x: Any, *, key: Any) -> Any:
        model = weft.Linear(x.shape[-1], 3, key=key)
        return model, model(x)

    x = jax.ShapeDtypeStruct((5, 4), jnp.bfloat16)
    model, y = weft.init(make, x, abstract=True)
    assert (model.kernel.shape, y.shape) == ((4, 3), (5, 3))
    assert types(weft.eval_shape(make, x, key=KEY)) == types((model, y))
    optimizer = weft.init(weft.Optimizer, model, ADAM, abstract=True)
    assert types(optimizer) == types(weft.Optimizer(make(jnp.ones((5, 4)), key=KEY)[0], ADAM))


def test_sizes_that_eval_shape_would_trace_are_sent_to_init():
    with pytest.raises(weft.errors.TracedValueError, match="depends on `in_features`, and that is traced") as caught:
        weft.eval_shape(weft.Linear, 4, 3, key=KEY)
    assert "fix: weft.init(Linear, ..., abstract=True), where numbers are configuration" in str(caught.value)
    assert types(weft.init(weft.Linear, 4, 3, abstract=True)) == types(
        weft.eval_shape(lambda: weft.Linear(4, 3, key=KEY))
    )
