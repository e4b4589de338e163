"""Layers: Modules over the pure ops of `weft.modules`."""

from weft.nnx.nn import activations as activations
from weft.nnx.nn import attention as attention
from weft.nnx.nn import dtypes as dtypes
from weft.nnx.nn import initializers as initializers
from weft.nnx.nn import linear as linear
from weft.nnx.nn import lora as lora
from weft.nnx.nn import normalization as normalization
from weft.nnx.nn import recurrent as recurrent
from weft.nnx.nn import stochastic as stochastic
from weft.nnx.nn.activations import *
from weft.nnx.nn.attention import (
    MultiHeadAttention,
    RoPE,
    combine_masks,
    dot_product_attention,
    dot_product_attention_with_rope,
    make_attention_mask,
    make_causal_mask,
)
from weft.nnx.nn.initializers import Initializer
from weft.nnx.nn.linear import Conv, ConvTranspose, Einsum, Embed, Linear, LinearGeneral
from weft.nnx.nn.lora import LoRA, LoRALinear
from weft.nnx.nn.normalization import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm, SpectralNorm, WeightNorm
from weft.nnx.nn.pooling import avg_pool, max_pool, min_pool, pool
from weft.nnx.nn.recurrent import (
    RNN,
    Bidirectional,
    GRUCell,
    LSTMCell,
    OptimizedLSTMCell,
    RNNCellBase,
    SimpleCell,
)
from weft.nnx.nn.stochastic import Dropout

# The names that `weft.nnx` re-exports.
__all__ = [
    "RNN",
    "BatchNorm",
    "Bidirectional",
    "Conv",
    "ConvTranspose",
    "Dropout",
    "Einsum",
    "Embed",
    "GRUCell",
    "GroupNorm",
    "Initializer",
    "InstanceNorm",
    "LSTMCell",
    "LayerNorm",
    "Linear",
    "LinearGeneral",
    "LoRA",
    "LoRALinear",
    "MultiHeadAttention",
    "OptimizedLSTMCell",
    "RMSNorm",
    "RNNCellBase",
    "RoPE",
    "SimpleCell",
    "SpectralNorm",
    "WeightNorm",
    "avg_pool",
    "combine_masks",
    "dot_product_attention",
    "dot_product_attention_with_rope",
    "initializers",
    "make_attention_mask",
    "make_causal_mask",
    "max_pool",
    "min_pool",
    "pool",
]
__all__ += activations.__all__
