"""Layers as records, and the pure ops that they share with `weft.nnx`."""

from typing import TYPE_CHECKING

from jax.nn import (
    celu,
    elu,
    gelu,
    glu,
    hard_sigmoid,
    hard_silu,
    hard_swish,
    hard_tanh,
    identity,
    leaky_relu,
    log_sigmoid,
    log_softmax,
    mish,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    soft_sign,
    softmax,
    softplus,
    sparse_plus,
    sparse_sigmoid,
    squareplus,
    swish,
    tanh,
)
from weft.core.first_use import first_use

if TYPE_CHECKING:
    from weft.modules import ops as ops
    from weft.modules.activations import PReLU
    from weft.modules.attention.kv_cache import KeyValueCache, rewind
    from weft.modules.attention.multi_head import MultiHeadAttention
    from weft.modules.attention.positions import ALiBi, LearnedPositions, RoPE, SinusoidalPositions, sinusoidal
    from weft.modules.attention.transformer import TransformerBlock
    from weft.modules.checkpoints.checkpoint import load_checkpoint, save_checkpoint
    from weft.modules.checkpoints.exported import Exported, export, load_exported
    from weft.modules.checkpoints.fitting import LoadReport
    from weft.modules.checkpoints.folders import Checkpoints, load_orbax
    from weft.modules.checkpoints.format import CheckpointError
    from weft.modules.checkpoints.importing import import_weights
    from weft.modules.checkpoints.inspecting import inspect_checkpoint
    from weft.modules.combinators.ensemble import Ensemble
    from weft.modules.combinators.mixture import MoE
    from weft.modules.combinators.parallel import Parallel, StatefulParallel
    from weft.modules.combinators.sequential import Sequential, StatefulSequential
    from weft.modules.combinators.shared import Shared
    from weft.modules.combinators.stack import Stack
    from weft.modules.combinators.wrappers import Frozen, Lambda, Residual
    from weft.modules.convolutions.conv import Conv, Conv1d, Conv2d, Conv3d
    from weft.modules.convolutions.conv_transpose import (
        ConvTranspose,
        ConvTranspose1d,
        ConvTranspose2d,
        ConvTranspose3d,
    )
    from weft.modules.convolutions.pooling import adaptive_avg_pool, adaptive_max_pool, avg_pool, max_pool, min_pool
    from weft.modules.convolutions.pooling_layers import AdaptiveAvgPool, AdaptiveMaxPool, AvgPool, MaxPool, MinPool
    from weft.modules.convolutions.resizing import PixelShuffle, Upsample
    from weft.modules.dense.gated import GatedMLP
    from weft.modules.dense.general import Einsum, LinearGeneral
    from weft.modules.dense.linear import Embed, Linear
    from weft.modules.dense.low_rank import LoRA, lora
    from weft.modules.dense.mlp import MLP
    from weft.modules.dense.quantized import QuantizedLinear, quantize
    from weft.modules.dropout import Dropout, DropPath
    from weft.modules.initialising import init
    from weft.modules.learning import metrics as metrics
    from weft.modules.learning import tree as tree
    from weft.modules.learning.optimizer import Optimizer
    from weft.modules.learning.policy import Policy
    from weft.modules.learning.scaling import LossScale
    from weft.modules.modes import inference_mode, training_mode
    from weft.modules.norms.group_norm import GroupNorm, InstanceNorm
    from weft.modules.norms.norm import BatchNorm, LayerNorm, RMSNorm
    from weft.modules.norms.weight_norms import SpectralNorm, WeightNorm
    from weft.modules.recurrence.cells import GRUCell, LSTMCell, OptimizedLSTMCell, RecurrentCell, SimpleCell
    from weft.modules.recurrence.rnn import RNN, Bidirectional
    from weft.modules.recurrence.state_space import DiagonalSSM
    from weft.modules.shaping import Flatten, Identity
    from weft.modules.sharding.placing import named_shardings, shard
    from weft.modules.summary import tabulate

# The module of each name. Modules are imported when a name is first used: to import all of them with weft takes longer
# than a small program runs. A test compares this table with the imports above.
_HOMES = {
    "weft.modules": "ops",
    "weft.modules.activations": "PReLU",
    "weft.modules.attention.kv_cache": "KeyValueCache rewind",
    "weft.modules.attention.multi_head": "MultiHeadAttention",
    "weft.modules.attention.positions": "ALiBi LearnedPositions RoPE SinusoidalPositions sinusoidal",
    "weft.modules.attention.transformer": "TransformerBlock",
    "weft.modules.checkpoints.checkpoint": "load_checkpoint save_checkpoint",
    "weft.modules.checkpoints.exported": "Exported export load_exported",
    "weft.modules.checkpoints.fitting": "LoadReport",
    "weft.modules.checkpoints.folders": "Checkpoints load_orbax",
    "weft.modules.checkpoints.format": "CheckpointError",
    "weft.modules.checkpoints.importing": "import_weights",
    "weft.modules.checkpoints.inspecting": "inspect_checkpoint",
    "weft.modules.combinators.ensemble": "Ensemble",
    "weft.modules.combinators.mixture": "MoE",
    "weft.modules.combinators.parallel": "Parallel StatefulParallel",
    "weft.modules.combinators.sequential": "Sequential StatefulSequential",
    "weft.modules.combinators.shared": "Shared",
    "weft.modules.combinators.stack": "Stack",
    "weft.modules.combinators.wrappers": "Frozen Lambda Residual",
    "weft.modules.convolutions.conv": "Conv Conv1d Conv2d Conv3d",
    "weft.modules.convolutions.conv_transpose": "ConvTranspose ConvTranspose1d ConvTranspose2d ConvTranspose3d",
    "weft.modules.convolutions.pooling": "adaptive_avg_pool adaptive_max_pool avg_pool max_pool min_pool",
    "weft.modules.convolutions.pooling_layers": "AdaptiveAvgPool AdaptiveMaxPool AvgPool MaxPool MinPool",
    "weft.modules.convolutions.resizing": "PixelShuffle Upsample",
    "weft.modules.dense.gated": "GatedMLP",
    "weft.modules.dense.general": "Einsum LinearGeneral",
    "weft.modules.dense.linear": "Embed Linear",
    "weft.modules.dense.low_rank": "LoRA lora",
    "weft.modules.dense.mlp": "MLP",
    "weft.modules.dense.quantized": "QuantizedLinear quantize",
    "weft.modules.dropout": "Dropout DropPath",
    "weft.modules.initialising": "init",
    "weft.modules.learning": "metrics tree",
    "weft.modules.learning.optimizer": "Optimizer",
    "weft.modules.learning.policy": "Policy",
    "weft.modules.learning.scaling": "LossScale",
    "weft.modules.modes": "inference_mode training_mode",
    "weft.modules.norms.group_norm": "GroupNorm InstanceNorm",
    "weft.modules.norms.norm": "BatchNorm LayerNorm RMSNorm",
    "weft.modules.norms.weight_norms": "SpectralNorm WeightNorm",
    "weft.modules.recurrence.cells": "GRUCell LSTMCell OptimizedLSTMCell RecurrentCell SimpleCell",
    "weft.modules.recurrence.rnn": "RNN Bidirectional",
    "weft.modules.recurrence.state_space": "DiagonalSSM",
    "weft.modules.shaping": "Flatten Identity",
    "weft.modules.sharding.placing": "named_shardings shard",
    "weft.modules.summary": "tabulate",
}
__getattr__, __dir__ = first_use(globals(), _HOMES)

__all__ = [
    "MLP",
    "RNN",
    "ALiBi",
    "AdaptiveAvgPool",
    "AdaptiveMaxPool",
    "AvgPool",
    "BatchNorm",
    "Bidirectional",
    "CheckpointError",
    "Checkpoints",
    "Conv",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "DiagonalSSM",
    "DropPath",
    "Dropout",
    "Einsum",
    "Embed",
    "Ensemble",
    "Exported",
    "Flatten",
    "Frozen",
    "GRUCell",
    "GatedMLP",
    "GroupNorm",
    "Identity",
    "InstanceNorm",
    "KeyValueCache",
    "LSTMCell",
    "Lambda",
    "LayerNorm",
    "LearnedPositions",
    "Linear",
    "LinearGeneral",
    "LoRA",
    "LoadReport",
    "LossScale",
    "MaxPool",
    "MinPool",
    "MoE",
    "MultiHeadAttention",
    "OptimizedLSTMCell",
    "Optimizer",
    "PReLU",
    "Parallel",
    "PixelShuffle",
    "Policy",
    "QuantizedLinear",
    "RMSNorm",
    "RecurrentCell",
    "Residual",
    "RoPE",
    "Sequential",
    "Shared",
    "SimpleCell",
    "SinusoidalPositions",
    "SpectralNorm",
    "Stack",
    "StatefulParallel",
    "StatefulSequential",
    "TransformerBlock",
    "Upsample",
    "WeightNorm",
    "adaptive_avg_pool",
    "adaptive_max_pool",
    "avg_pool",
    "celu",
    "elu",
    "export",
    "gelu",
    "glu",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "identity",
    "import_weights",
    "inference_mode",
    "init",
    "inspect_checkpoint",
    "leaky_relu",
    "load_checkpoint",
    "load_exported",
    "load_orbax",
    "log_sigmoid",
    "log_softmax",
    "lora",
    "max_pool",
    "min_pool",
    "mish",
    "named_shardings",
    "quantize",
    "relu",
    "relu6",
    "rewind",
    "save_checkpoint",
    "selu",
    "shard",
    "sigmoid",
    "silu",
    "sinusoidal",
    "soft_sign",
    "softmax",
    "softplus",
    "sparse_plus",
    "sparse_sigmoid",
    "squareplus",
    "swish",
    "tabulate",
    "tanh",
    "training_mode",
]
