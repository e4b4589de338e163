"""A call of each public layer on a batch, for what shall hold for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import weft

from tests.made_on_use import MadeOnUse

KEY = jax.random.key(0)
BATCH = 3


class Call(NamedTuple):
    """A layer, and its arguments on a batch: float32 arrays and integers with the batch in front, and keys."""

    layer: Any
    args: tuple[Any, ...]
    call: Callable[..., Any] = lambda layer, *args: layer(*args)

    def __call__(self, layer: Any, *args: Any) -> Any:
        """The output, without the successor of the layer."""
        y = self.call(layer, *args)
        is_pair = isinstance(y, tuple) and len(y) == 2 and isinstance(y[1], eqx.Module)
        return y[0] if is_pair else y


def floats(*shape: int) -> jax.Array:
    return jax.random.normal(jax.random.fold_in(KEY, len(shape)), (BATCH, *shape))


def dense(key: Any = KEY) -> weft.Linear:
    return weft.Linear(4, 4, key=key)


ROW, SEQUENCE, IMAGE, VOLUME = floats(4), floats(6, 4), floats(4, 4, 4), floats(2, 2, 2, 4)
IDS = jnp.arange(BATCH * 5).reshape(BATCH, 5) % 7
LSTM_CARRY = (floats(3), floats(3) / 2)

CALLS: MadeOnUse[Call] = MadeOnUse(
    {
        "ALiBi": lambda: Call(
            weft.ALiBi(), (jnp.arange(BATCH * 2).reshape(BATCH, 2),), lambda layer, q: layer(q, jnp.arange(5), 2)
        ),
        "AdaptiveAvgPool": lambda: Call(weft.AdaptiveAvgPool((2,)), (SEQUENCE,)),
        "AdaptiveMaxPool": lambda: Call(weft.AdaptiveMaxPool((2, 2)), (IMAGE,)),
        "AvgPool": lambda: Call(weft.AvgPool((2, 2)), (IMAGE,)),
        "BatchNorm": lambda: Call(weft.BatchNorm(4), (IMAGE,)),
        "Bidirectional": lambda: Call(
            weft.Bidirectional(*[weft.RNN(weft.GRUCell(4, 3, key=KEY)) for _ in range(2)]), (SEQUENCE,)
        ),
        "Conv": lambda: Call(weft.Conv(4, 3, (3, 3), key=KEY), (IMAGE,)),
        "Conv1d": lambda: Call(weft.Conv1d(4, 3, 3, key=KEY), (SEQUENCE,)),
        "Conv2d": lambda: Call(weft.Conv2d(4, 3, 3, key=KEY), (IMAGE,)),
        "Conv3d": lambda: Call(weft.Conv3d(4, 3, 2, key=KEY), (VOLUME,)),
        "ConvTranspose": lambda: Call(weft.ConvTranspose(4, 3, (3, 3), key=KEY), (IMAGE,)),
        "ConvTranspose1d": lambda: Call(weft.ConvTranspose1d(4, 3, 3, key=KEY), (SEQUENCE,)),
        "ConvTranspose2d": lambda: Call(weft.ConvTranspose2d(4, 3, 3, key=KEY), (IMAGE,)),
        "ConvTranspose3d": lambda: Call(weft.ConvTranspose3d(4, 3, 2, key=KEY), (VOLUME,)),
        "DiagonalSSM": lambda: Call(weft.DiagonalSSM(4, 3, key=KEY), (SEQUENCE,)),
        "DropPath": lambda: Call(weft.DropPath(0.5), (IMAGE,), lambda layer, x: layer(x, key=KEY)),
        "Dropout": lambda: Call(weft.Dropout(0.5, inference=True), (IMAGE,)),
        "Einsum": lambda: Call(weft.Einsum("...i,ij->...j", (4, 3), key=KEY), (SEQUENCE,)),
        "Embed": lambda: Call(weft.Embed(7, 4, key=KEY), (IDS,), lambda layer, ids: layer.attend(layer(ids))),
        "Ensemble": lambda: Call(weft.Ensemble(dense, 2, out_axes=-2, key=KEY), (SEQUENCE,)),
        "Flatten": lambda: Call(weft.Flatten(), (IMAGE,)),
        "Frozen": lambda: Call(weft.Frozen(dense()), (SEQUENCE,)),
        "GRUCell": lambda: Call(weft.GRUCell(4, 3, key=KEY), (floats(3), ROW)),
        "GatedMLP": lambda: Call(weft.GatedMLP(4, 8, key=KEY), (SEQUENCE,)),
        "GroupNorm": lambda: Call(weft.GroupNorm(4, groups=2), (IMAGE,)),
        "Identity": lambda: Call(weft.Identity(), (SEQUENCE,)),
        "InstanceNorm": lambda: Call(weft.InstanceNorm(4), (IMAGE,)),
        "LSTMCell": lambda: Call(weft.LSTMCell(4, 3, key=KEY), (LSTM_CARRY, ROW)),
        "Lambda": lambda: Call(weft.Lambda(jnp.tanh), (SEQUENCE,)),
        "LayerNorm": lambda: Call(weft.LayerNorm(4), (IMAGE,)),
        "LearnedPositions": lambda: Call(weft.LearnedPositions(8, 4, key=KEY), (SEQUENCE,)),
        "Linear": lambda: Call(weft.Linear(4, 3, key=KEY), (IMAGE,)),
        "LinearGeneral": lambda: Call(weft.LinearGeneral((4, 4), (3, 2), axes=(-2, -1), key=KEY), (IMAGE,)),
        "LoRA": lambda: Call(weft.LoRA(dense(), 2, key=KEY), (SEQUENCE,)),
        "MLP": lambda: Call(weft.MLP(4, 8, 2, key=KEY), (SEQUENCE,)),
        "MaxPool": lambda: Call(weft.MaxPool((2, 2)), (IMAGE,)),
        "MinPool": lambda: Call(weft.MinPool((2, 2)), (IMAGE,)),
        "MoE": lambda: Call(weft.MoE(dense, 3, 4, key=KEY), (SEQUENCE,)),
        "MultiHeadAttention": lambda: Call(weft.MultiHeadAttention(4, 2, causal=True, key=KEY), (SEQUENCE,)),
        "OptimizedLSTMCell": lambda: Call(weft.OptimizedLSTMCell(4, 3, key=KEY), (LSTM_CARRY, ROW)),
        "PReLU": lambda: Call(weft.PReLU(), (SEQUENCE,)),
        "Parallel": lambda: Call(weft.Parallel(dense(), jnp.tanh), (SEQUENCE,)),
        "PixelShuffle": lambda: Call(weft.PixelShuffle(2), (IMAGE,)),
        "QuantizedLinear": lambda: Call(weft.quantize(dense()), (SEQUENCE,)),
        "RMSNorm": lambda: Call(weft.RMSNorm(4), (IMAGE,)),
        "RNN": lambda: Call(weft.RNN(weft.LSTMCell(4, 3, key=KEY)), (SEQUENCE,)),
        "Residual": lambda: Call(weft.Residual(dense()), (SEQUENCE,)),
        "RoPE": lambda: Call(weft.RoPE(), (floats(5, 2, 4),)),
        "Sequential": lambda: Call(weft.Sequential(dense(), jnp.tanh), (SEQUENCE,)),
        "Shared": lambda: Call(weft.Shared(weft.Sequential(*[dense()] * 2)), (SEQUENCE,)),
        "SimpleCell": lambda: Call(weft.SimpleCell(4, 3, key=KEY), (floats(3), ROW)),
        "SinusoidalPositions": lambda: Call(weft.SinusoidalPositions(4), (SEQUENCE,)),
        "SpectralNorm": lambda: Call(weft.SpectralNorm(dense(), key=KEY), (SEQUENCE,)),
        "Stack": lambda: Call(weft.Stack(dense, 3, key=KEY), (SEQUENCE,)),
        "StatefulParallel": lambda: Call(weft.StatefulParallel(dense(), weft.BatchNorm(4)), (SEQUENCE,)),
        "StatefulSequential": lambda: Call(weft.StatefulSequential(dense(), weft.BatchNorm(4)), (SEQUENCE,)),
        "TransformerBlock": lambda: Call(weft.TransformerBlock(4, 2, key=KEY), (SEQUENCE,)),
        "Upsample": lambda: Call(weft.Upsample((2, 2)), (IMAGE,)),
        "WeightNorm": lambda: Call(weft.WeightNorm(dense()), (SEQUENCE,)),
    }
)
# Records that are no layers of a model: they are not called with its activations.
NO_LAYERS = {"KeyValueCache", "LoadReport", "LossScale", "Optimizer", "Policy", "RecurrentCell"}
