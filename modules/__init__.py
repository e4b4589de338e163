"""Layers as records, and the pure ops that they share with `weft.nnx`."""

from typing import TYPE_CHECKING

from weft.core.public_names import first_use

if TYPE_CHECKING:
    from jax.nn import celu as celu
    from jax.nn import elu as elu
    from jax.nn import gelu as gelu
    from jax.nn import glu as glu
    from jax.nn import hard_sigmoid as hard_sigmoid
    from jax.nn import hard_silu as hard_silu
    from jax.nn import hard_swish as hard_swish
    from jax.nn import hard_tanh as hard_tanh
    from jax.nn import identity as identity
    from jax.nn import leaky_relu as leaky_relu
    from jax.nn import log_sigmoid as log_sigmoid
    from jax.nn import log_softmax as log_softmax
    from jax.nn import mish as mish
    from jax.nn import relu as relu
    from jax.nn import relu6 as relu6
    from jax.nn import selu as selu
    from jax.nn import sigmoid as sigmoid
    from jax.nn import silu as silu
    from jax.nn import soft_sign as soft_sign
    from jax.nn import softmax as softmax
    from jax.nn import softplus as softplus
    from jax.nn import sparse_plus as sparse_plus
    from jax.nn import sparse_sigmoid as sparse_sigmoid
    from jax.nn import squareplus as squareplus
    from jax.nn import swish as swish
    from jax.nn import tanh as tanh
    from weft.modules import ops as ops
    from weft.modules.activations import PReLU as PReLU
    from weft.modules.attention.kv_cache import KeyValueCache as KeyValueCache
    from weft.modules.attention.kv_cache import rewind as rewind
    from weft.modules.attention.multi_head import MultiHeadAttention as MultiHeadAttention
    from weft.modules.attention.positions import ALiBi as ALiBi
    from weft.modules.attention.positions import LearnedPositions as LearnedPositions
    from weft.modules.attention.positions import RoPE as RoPE
    from weft.modules.attention.positions import SinusoidalPositions as SinusoidalPositions
    from weft.modules.attention.positions import sinusoidal as sinusoidal
    from weft.modules.attention.transformer import TransformerBlock as TransformerBlock
    from weft.modules.checkpoints.checkpoint import load_checkpoint as load_checkpoint
    from weft.modules.checkpoints.checkpoint import save_checkpoint as save_checkpoint
    from weft.modules.checkpoints.exported import Exported as Exported
    from weft.modules.checkpoints.exported import export as export
    from weft.modules.checkpoints.exported import load_exported as load_exported
    from weft.modules.checkpoints.fitting import LoadReport as LoadReport
    from weft.modules.checkpoints.folders import Checkpoints as Checkpoints
    from weft.modules.checkpoints.folders import load_orbax as load_orbax
    from weft.modules.checkpoints.format import CheckpointError as CheckpointError
    from weft.modules.checkpoints.importing import import_weights as import_weights
    from weft.modules.checkpoints.inspecting import inspect_checkpoint as inspect_checkpoint
    from weft.modules.combinators.ensemble import Ensemble as Ensemble
    from weft.modules.combinators.mixture import MoE as MoE
    from weft.modules.combinators.several import Parallel as Parallel
    from weft.modules.combinators.several import Sequential as Sequential
    from weft.modules.combinators.several import StatefulParallel as StatefulParallel
    from weft.modules.combinators.several import StatefulSequential as StatefulSequential
    from weft.modules.combinators.shared import Shared as Shared
    from weft.modules.combinators.stack import Stack as Stack
    from weft.modules.combinators.wrappers import Frozen as Frozen
    from weft.modules.combinators.wrappers import Lambda as Lambda
    from weft.modules.combinators.wrappers import Residual as Residual
    from weft.modules.convolutions.conv import Conv as Conv
    from weft.modules.convolutions.conv import Conv1d as Conv1d
    from weft.modules.convolutions.conv import Conv2d as Conv2d
    from weft.modules.convolutions.conv import Conv3d as Conv3d
    from weft.modules.convolutions.conv_transpose import ConvTranspose as ConvTranspose
    from weft.modules.convolutions.conv_transpose import ConvTranspose1d as ConvTranspose1d
    from weft.modules.convolutions.conv_transpose import ConvTranspose2d as ConvTranspose2d
    from weft.modules.convolutions.conv_transpose import ConvTranspose3d as ConvTranspose3d
    from weft.modules.convolutions.pooling import AdaptiveAvgPool as AdaptiveAvgPool
    from weft.modules.convolutions.pooling import AdaptiveMaxPool as AdaptiveMaxPool
    from weft.modules.convolutions.pooling import AvgPool as AvgPool
    from weft.modules.convolutions.pooling import MaxPool as MaxPool
    from weft.modules.convolutions.pooling import MinPool as MinPool
    from weft.modules.convolutions.pooling import adaptive_avg_pool as adaptive_avg_pool
    from weft.modules.convolutions.pooling import adaptive_max_pool as adaptive_max_pool
    from weft.modules.convolutions.pooling import avg_pool as avg_pool
    from weft.modules.convolutions.pooling import max_pool as max_pool
    from weft.modules.convolutions.pooling import min_pool as min_pool
    from weft.modules.convolutions.resizing import PixelShuffle as PixelShuffle
    from weft.modules.convolutions.resizing import Upsample as Upsample
    from weft.modules.dense.general import Einsum as Einsum
    from weft.modules.dense.general import LinearGeneral as LinearGeneral
    from weft.modules.dense.linear import Embed as Embed
    from weft.modules.dense.linear import Linear as Linear
    from weft.modules.dense.low_rank import LoRA as LoRA
    from weft.modules.dense.low_rank import lora as lora
    from weft.modules.dense.mlp import MLP as MLP
    from weft.modules.dense.mlp import GatedMLP as GatedMLP
    from weft.modules.dense.quantized import QuantizedLinear as QuantizedLinear
    from weft.modules.dense.quantized import quantize as quantize
    from weft.modules.dropout import Dropout as Dropout
    from weft.modules.dropout import DropPath as DropPath
    from weft.modules.initialising import init as init
    from weft.modules.learning import metrics as metrics
    from weft.modules.learning import tree as tree
    from weft.modules.learning.optimizer import Optimizer as Optimizer
    from weft.modules.learning.policy import Policy as Policy
    from weft.modules.learning.scaling import LossScale as LossScale
    from weft.modules.modes import inference_mode as inference_mode
    from weft.modules.modes import training_mode as training_mode
    from weft.modules.norms.group_norm import GroupNorm as GroupNorm
    from weft.modules.norms.group_norm import InstanceNorm as InstanceNorm
    from weft.modules.norms.norm import BatchNorm as BatchNorm
    from weft.modules.norms.norm import LayerNorm as LayerNorm
    from weft.modules.norms.norm import RMSNorm as RMSNorm
    from weft.modules.norms.weight_norms import SpectralNorm as SpectralNorm
    from weft.modules.norms.weight_norms import WeightNorm as WeightNorm
    from weft.modules.recurrence.cells import GRUCell as GRUCell
    from weft.modules.recurrence.cells import LSTMCell as LSTMCell
    from weft.modules.recurrence.cells import OptimizedLSTMCell as OptimizedLSTMCell
    from weft.modules.recurrence.cells import RecurrentCell as RecurrentCell
    from weft.modules.recurrence.cells import SimpleCell as SimpleCell
    from weft.modules.recurrence.rnn import RNN as RNN
    from weft.modules.recurrence.rnn import Bidirectional as Bidirectional
    from weft.modules.recurrence.state_space import DiagonalSSM as DiagonalSSM
    from weft.modules.shaping import Flatten as Flatten
    from weft.modules.shaping import Identity as Identity
    from weft.modules.sharding.block import axis_rules as axis_rules
    from weft.modules.sharding.placing import named_shardings as named_shardings
    from weft.modules.sharding.placing import shard as shard
    from weft.modules.summary import tabulate as tabulate

# The module of each name. Modules are imported when a name is first used: to import all of them with weft takes longer
# than a small program runs. A test compares this table with the imports above.
_HOMES = {
    "jax.nn": "celu elu gelu glu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu log_sigmoid "
    "log_softmax mish relu relu6 selu sigmoid silu soft_sign softmax softplus sparse_plus sparse_sigmoid "
    "squareplus swish tanh",
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
    "weft.modules.combinators.several": "Parallel Sequential StatefulParallel StatefulSequential",
    "weft.modules.combinators.shared": "Shared",
    "weft.modules.combinators.stack": "Stack",
    "weft.modules.combinators.wrappers": "Frozen Lambda Residual",
    "weft.modules.convolutions.conv": "Conv Conv1d Conv2d Conv3d",
    "weft.modules.convolutions.conv_transpose": "ConvTranspose ConvTranspose1d ConvTranspose2d ConvTranspose3d",
    "weft.modules.convolutions.pooling": "adaptive_avg_pool adaptive_max_pool avg_pool max_pool min_pool "
    "AdaptiveAvgPool AdaptiveMaxPool AvgPool MaxPool MinPool",
    "weft.modules.convolutions.resizing": "PixelShuffle Upsample",
    "weft.modules.dense.general": "Einsum LinearGeneral",
    "weft.modules.dense.linear": "Embed Linear",
    "weft.modules.dense.low_rank": "LoRA lora",
    "weft.modules.dense.mlp": "GatedMLP MLP",
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
    "weft.modules.sharding.block": "axis_rules",
    "weft.modules.sharding.placing": "named_shardings shard",
    "weft.modules.summary": "tabulate",
}
__getattr__, __dir__ = first_use(globals(), _HOMES)

if not TYPE_CHECKING:  # checkers read the names off the imports above
    # Not the namespaces: a star import would put `tree` before `jax.tree`.
    __all__ = sorted({name for names in _HOMES.values() for name in names.split()} - {"metrics", "ops", "tree"})
