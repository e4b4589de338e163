"""Layers as records, and the pure ops that they share with `weft.nnx`."""

from jax.nn import elu, gelu, leaky_relu, log_softmax, relu, sigmoid, silu, softmax, softplus, tanh
from weft.modules import metrics, ops, tree
from weft.modules.cells import GRUCell, LSTMCell, OptimizedLSTMCell, RecurrentCell, SimpleCell
from weft.modules.checkpoint import LoadReport, load_checkpoint, save_checkpoint
from weft.modules.checkpoint_format import CheckpointError
from weft.modules.combinators import Frozen, Lambda, Residual
from weft.modules.construct import ConfigError
from weft.modules.conv import Conv, Conv1d, Conv2d, Conv3d
from weft.modules.dropout import Dropout
from weft.modules.ensemble import Ensemble
from weft.modules.kv_cache import CacheError, KeyValueCache
from weft.modules.linear import Embed, Linear
from weft.modules.low_rank import LoRA, lora
from weft.modules.mlp import MLP
from weft.modules.modes import inference, training
from weft.modules.multi_head import MultiHeadAttention
from weft.modules.norm import BatchNorm, LayerNorm, RMSNorm
from weft.modules.optimizer import Optimizer
from weft.modules.parallel import Parallel, StatefulParallel
from weft.modules.policy import Policy
from weft.modules.pooling import avg_pool, max_pool, min_pool
from weft.modules.positions import LearnedPositions, RoPE, SinusoidalPositions, sinusoidal
from weft.modules.rnn import RNN, Bidirectional
from weft.modules.sequential import Sequential, StatefulSequential
from weft.modules.shared import Shared
from weft.modules.stack import Stack
from weft.modules.transformer import TransformerBlock

__all__ = [
    "MLP",
    "RNN",
    "BatchNorm",
    "Bidirectional",
    "CacheError",
    "CheckpointError",
    "ConfigError",
    "Conv",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "Dropout",
    "Embed",
    "Ensemble",
    "Frozen",
    "GRUCell",
    "KeyValueCache",
    "LSTMCell",
    "Lambda",
    "LayerNorm",
    "LearnedPositions",
    "Linear",
    "LoRA",
    "LoadReport",
    "MultiHeadAttention",
    "OptimizedLSTMCell",
    "Optimizer",
    "Parallel",
    "Policy",
    "RMSNorm",
    "RecurrentCell",
    "Residual",
    "RoPE",
    "Sequential",
    "Shared",
    "SimpleCell",
    "SinusoidalPositions",
    "Stack",
    "StatefulParallel",
    "StatefulSequential",
    "TransformerBlock",
    "avg_pool",
    "elu",
    "gelu",
    "inference",
    "leaky_relu",
    "load_checkpoint",
    "log_softmax",
    "lora",
    "max_pool",
    "metrics",
    "min_pool",
    "ops",
    "relu",
    "save_checkpoint",
    "sigmoid",
    "silu",
    "sinusoidal",
    "softmax",
    "softplus",
    "tanh",
    "training",
    "tree",
]
