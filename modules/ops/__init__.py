"""The pure ops: functions of arrays that do the maths of layers. Layers here and in `weft.nnx` both call them."""

from typing import Any as _Any

from weft.core.public_names import absence as _absence
from weft.modules.activations import prelu as prelu
from weft.modules.attention.dot_product import attention_mask as attention_mask
from weft.modules.attention.dot_product import attention_weights as attention_weights
from weft.modules.attention.dot_product import cache_step as cache_step
from weft.modules.attention.dot_product import causal_mask as causal_mask
from weft.modules.attention.dot_product import check_attention as check_attention
from weft.modules.attention.dot_product import combine_masks as combine_masks
from weft.modules.attention.dot_product import drop_weights as drop_weights
from weft.modules.attention.dot_product import fused_attention as fused_attention
from weft.modules.attention.dot_product import weighted_values as weighted_values
from weft.modules.attention.positions import alibi as alibi
from weft.modules.attention.positions import rope as rope
from weft.modules.attention.positions import turn as turn
from weft.modules.convolutions.conv import conv as conv
from weft.modules.convolutions.conv_transpose import conv_transpose as conv_transpose
from weft.modules.convolutions.pooling import pool as pool
from weft.modules.convolutions.resizing import pixel_shuffle as pixel_shuffle
from weft.modules.convolutions.resizing import upsample as upsample
from weft.modules.convolutions.windows import channels_last as channels_last
from weft.modules.convolutions.windows import lax_padding as lax_padding
from weft.modules.dense.general import bias_shape as bias_shape
from weft.modules.dense.general import check_equation as check_equation
from weft.modules.dense.general import einsum as einsum
from weft.modules.dense.general import linear_general as linear_general
from weft.modules.dense.linear import add_bias as add_bias
from weft.modules.dense.linear import attend as attend
from weft.modules.dense.linear import embed as embed
from weft.modules.dense.linear import linear as linear
from weft.modules.dense.low_rank import low_rank_product as low_rank_product
from weft.modules.dropout import dropout as dropout
from weft.modules.dtypes import as_array as as_array
from weft.modules.dtypes import cast as cast
from weft.modules.dtypes import compute_dtype as compute_dtype
from weft.modules.dtypes import promote as promote
from weft.modules.norms.group_norm import group_norm as group_norm
from weft.modules.norms.moments import batch_norm as batch_norm
from weft.modules.norms.moments import canonical_axes as canonical_axes
from weft.modules.norms.moments import moments as moments
from weft.modules.norms.moments import norm as norm
from weft.modules.norms.moments import normalize as normalize
from weft.modules.norms.moments import running as running
from weft.modules.norms.moments import squared as squared
from weft.modules.norms.weight_norms import spectral_norm as spectral_norm
from weft.modules.norms.weight_norms import unit_length as unit_length
from weft.modules.norms.weight_norms import weight_norm as weight_norm
from weft.modules.op import hashable as hashable
from weft.modules.op import op as op
from weft.modules.op import op_by_op as op_by_op
from weft.modules.recurrence.recurrent import flip_sequences as flip_sequences
from weft.modules.recurrence.recurrent import gru_step as gru_step
from weft.modules.recurrence.recurrent import last_step as last_step
from weft.modules.recurrence.recurrent import lstm_step as lstm_step
from weft.modules.recurrence.recurrent import simple_step as simple_step
from weft.modules.sampling import keep_top_k as keep_top_k
from weft.modules.sampling import keep_top_p as keep_top_p


def __dir__() -> list[str]:
    return sorted(name for name in globals() if not name.startswith("_"))


def __getattr__(name: str) -> _Any:
    raise AttributeError(_absence("weft.ops", name))
