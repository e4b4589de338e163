"""TransformerBlock: attention and an MLP, each with a norm before it and a residual connection around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Unpack, overload

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, Num
from weft.core.records.module import Module, static
from weft.modules.attention.kv_cache import KeyValueCache
from weft.modules.attention.multi_head import BlockOptions, C, MultiHeadAttention
from weft.modules.calling import call_layer
from weft.modules.construct import KeyLike
from weft.modules.dense.mlp import MLP
from weft.modules.drawing import parameter_keys
from weft.modules.dropout import Dropout
from weft.modules.norms.norm import LayerNorm


class TransformerBlock(Module, Generic[C]):
    """A block of a transformer, with the norms in front: `x + attention(norm(x))`, then `x + mlp(norm(x))`.

    The block is called like its attention: `y = block(x)`, or `y, block = block(x)` if the attention has a cache. Use
    `Stack` for many blocks: `Stack(lambda key: TransformerBlock(64, 4, causal=True, key=key), 12, key=key)`.

    Args:
        features: size of the last axis of input and output.
        num_heads: how many heads the attention has.
        key: a typed key, for the parameters.
        hidden_features: size inside of the MLP; by default four times `features`.
        activation: of the MLP.
        norm: makes a norm from a size, such as `weft.RMSNorm`.
        mlp: makes another layer from a key, in place of the MLP.
        dropout: the probability with which elements of the two residual branches, and attention weights, are dropped.
            The call then needs a key, except in `inference_mode(model)`.
        use_bias: whether the linear maps add a bias.
        dtype: the dtype to compute in; by default what input and parameters promote to.
        param_dtype: the dtype of the parameters.
        options: further options of `MultiHeadAttention`, such as `causal`, `num_kv_heads`, `rope` or `window`.

    Raises:
        ConfigError: if sizes do not fit.

    >>> block = TransformerBlock(8, 2, causal=True, key=jax.random.key(0))
    >>> x = jnp.ones((3, 5, 8))
    >>> block(x).shape
    (3, 5, 8)
    >>> from weft import at
    >>> from weft.filters import InstanceOf
    >>> decoding = at(block, InstanceOf(MultiHeadAttention)).apply(lambda a: a.with_cache(5, batch=(3,)))
    >>> y, decoding = decoding(x[:, :1])
    >>> y.shape, int(decoding.attention.cache.index)
    ((3, 1, 8), 1)

    Source: Vaswani et al., "Attention Is All You Need", 2017; Xiong et al., "On Layer Normalization in the Transformer
    Architecture", 2020.
    """

    attention_norm: Callable[[Any], Any]
    attention: MultiHeadAttention[C]
    mlp_norm: Callable[[Any], Any]
    mlp: Callable[..., Any]
    dropout: Dropout
    features: int = static()

    def __init__(
        self: TransformerBlock[None],
        features: int,
        num_heads: int,
        *,
        key: KeyLike,
        hidden_features: int | None = None,
        activation: Callable[[Any], Any] = jax.nn.gelu,
        norm: Callable[[int], Callable[[Any], Any]] = LayerNorm,
        mlp: Callable[[Any], Callable[..., Any]] | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        **options: Any,
    ):
        attention_key, mlp_key = parameter_keys(key, 2, "TransformerBlock")
        linear: dict[str, Any] = {"use_bias": use_bias, "dtype": dtype, "param_dtype": param_dtype}
        # The dropout rate of the block holds for attention weights, too.
        self.attention = MultiHeadAttention(
            features, num_heads, key=attention_key, **{"dropout": dropout, **linear, **options}
        )
        hidden = 4 * features if hidden_features is None else hidden_features
        if mlp is None:
            self.mlp = MLP(features, hidden, features, activation=activation, key=mlp_key, **linear)
        else:
            self.mlp = mlp(mlp_key)
        self.attention_norm, self.mlp_norm = norm(features), norm(features)
        self.dropout, self.features = Dropout(dropout), features

    @overload
    def __call__(self: TransformerBlock[None], x: Array, **options: Unpack[BlockOptions]) -> Array: ...
    @overload
    def __call__(
        self: TransformerBlock[KeyValueCache], x: Array, **options: Unpack[BlockOptions]
    ) -> tuple[Array, TransformerBlock[KeyValueCache]]: ...
    def __call__(
        self: TransformerBlock[Any],
        x: Float[Array, "*batch seq features"],
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        positions: Num[Array, "..."] | None = None,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "*batch seq features"] | tuple[Float[Array, "*batch seq features"], TransformerBlock[Any]]:
        """Applies attention and MLP.

        Args:
            x: the sequence; while there is a cache, its next steps.
            mask, bias, positions: of the attention; see `MultiHeadAttention`.
            key: a typed key, for dropout.

        Returns:
            `y`, or `(y, successor)` if the attention has a cache.
        """
        # Three keys for three draws: attention weights and the two branches must not be dropped by the same pattern.
        keys = (None,) * 3 if key is None else tuple(jax.random.split(key, 3))
        options = {"mask": mask, "bias": bias, "positions": positions, "key": keys[0]}
        where = "TransformerBlock.attention"
        added, successor = call_layer(self.attention, where, self.attention_norm(x), **options)
        x = x + self.dropout(added, key=keys[1])
        x = x + self.dropout(self.mlp(self.mlp_norm(x)), key=keys[2])
        return x if successor is None else (x, self.replace(attention=successor))
