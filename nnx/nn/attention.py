"""`MultiHeadAttention`. The attention functions and masks are re-exported, because flax has them in this module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType as MappingProxyType  # libraries replace this name of flax's module
from typing import Any

import jax
import jax.numpy as jnp
from weft.core.errors import AxisError
from weft.modules import ops
from weft.modules.construct import ConfigError
from weft.nnx.modules.module import Module
from weft.nnx.nn import dtypes
from weft.nnx.nn.attention_functions import RoPE as RoPE
from weft.nnx.nn.attention_functions import combine_masks as combine_masks
from weft.nnx.nn.attention_functions import dot_product_attention as dot_product_attention
from weft.nnx.nn.attention_functions import dot_product_attention_weights as dot_product_attention_weights
from weft.nnx.nn.attention_functions import dot_product_attention_with_rope as dot_product_attention_with_rope
from weft.nnx.nn.attention_functions import make_attention_mask as make_attention_mask
from weft.nnx.nn.attention_functions import make_causal_mask as make_causal_mask
from weft.nnx.nn.attention_functions import turns_by_position
from weft.nnx.nn.construct import NO_METADATA, Metadata, Sizes, as_sizes, first_given, keep_options
from weft.nnx.nn.linear import LinearGeneral, default_bias_init, default_kernel_init
from weft.nnx.nn.normalization import LayerNorm
from weft.nnx.objects.attributes import data
from weft.nnx.streams.rngs import Rngs, RngStream
from weft.nnx.types import DotGeneralT as DotGeneralT
from weft.nnx.types import Dtype as Dtype
from weft.nnx.types import Initializer as Initializer
from weft.nnx.types import PrecisionLike as PrecisionLike
from weft.nnx.types import Shape as Shape
from weft.nnx.variable.kinds import Cache


class MultiHeadAttention(Module):
    """Multi-head attention, with learned projections to queries, keys and values for each head.

    Args:
        num_heads: the number of heads.
        in_features: size of the last axis of queries.
        qkv_features: total size of the heads; by default `in_features`.
        out_features: size of the last axis of the result; by default `in_features`.
        num_kv_heads: the number of heads of keys and values, each for a group of query heads; by default `num_heads`.
        in_kv_features: size of the last axis of keys and values; by default `in_features`.
        dtype: the dtype to compute in; by default what inputs and parameters promote to.
        param_dtype: the dtype of the parameters.
        broadcast_dropout: whether the batch and all heads share a dropout mask.
        dropout_rate: the probability that an attention weight is dropped.
        deterministic: whether to disable dropout.
        precision: see `jax.lax.Precision`.
        kernel_init, bias_init: initializers; `out_kernel_init` and `out_bias_init` those of the last projection.
        use_bias: whether the projections have biases.
        attention_fn: a function of queries, keys and values of all heads, with `dot_product_attention`'s options.
        decode: whether each call is one step of autoregressive decoding, with earlier steps in the cache.
        normalize_qk: whether to apply a `LayerNorm` to queries and one to keys.
        qkv_promote_dtype, out_promote_dtype, ln_promote_dtype: `promote_dtype` of the projections and norms.
        qkv_dot_general, out_dot_general, qkv_dot_general_cls, out_dot_general_cls: the projections' products.
        rngs: keys for parameters are drawn from the stream `params`.
        keep_rngs: whether to store a fork of the stream `dropout`, if the rate is positive.
        kernel_metadata, bias_metadata, out_kernel_metadata, out_bias_metadata: metadata of the projections' parameters.
        query_ln_scale_metadata, key_ln_scale_metadata: metadata of the norms' scales.

    Raises:
        ValueError: if `num_heads` does not divide `qkv_features`, or `num_kv_heads` does not divide `num_heads`.

    >>> from weft import nnx
    >>> layer = MultiHeadAttention(num_heads=2, in_features=4, decode=False, rngs=nnx.Rngs(0))
    >>> layer(jnp.ones((3, 5, 4))).shape
    (3, 5, 4)

    Source: Vaswani et al., "Attention Is All You Need", 2017.
    """

    num_heads: int
    in_features: int
    qkv_features: int
    out_features: int
    in_kv_features: int
    num_kv_heads: int
    dtype: Any
    param_dtype: Any
    broadcast_dropout: bool
    dropout_rate: float
    deterministic: bool | None
    precision: Any
    use_bias: bool
    attention_fn: Callable[..., jax.Array]
    decode: bool | None
    normalize_qk: bool
    query: LinearGeneral
    key: LinearGeneral
    value: LinearGeneral
    out: LinearGeneral
    query_ln: LayerNorm | None
    key_ln: LayerNorm | None
    cached_key: Cache[jax.Array] | None
    cached_value: Cache[jax.Array] | None
    cache_index: Cache[jax.Array] | None

    def __init__(
        self,
        num_heads: int,
        in_features: int,
        qkv_features: int | None = None,
        out_features: int | None = None,
        num_kv_heads: int | None = None,
        in_kv_features: int | None = None,
        *,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        broadcast_dropout: bool = True,
        dropout_rate: float = 0.0,
        deterministic: bool | None = None,
        precision: Any = None,
        kernel_init: Callable[..., Any] = default_kernel_init,
        out_kernel_init: Callable[..., Any] | None = None,
        bias_init: Callable[..., Any] = default_bias_init,
        out_bias_init: Callable[..., Any] | None = None,
        use_bias: bool = True,
        attention_fn: Callable[..., jax.Array] = dot_product_attention,
        decode: bool | None = None,
        normalize_qk: bool = False,
        qkv_promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
        out_promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
        ln_promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
        qkv_dot_general: Callable[..., Any] | None = None,
        out_dot_general: Callable[..., Any] | None = None,
        qkv_dot_general_cls: Any = None,
        out_dot_general_cls: Any = None,
        rngs: Any,
        keep_rngs: bool = True,
        kernel_metadata: Metadata = NO_METADATA,
        out_kernel_metadata: Metadata = NO_METADATA,
        bias_metadata: Metadata = NO_METADATA,
        out_bias_metadata: Metadata = NO_METADATA,
        query_ln_scale_metadata: Metadata = NO_METADATA,
        key_ln_scale_metadata: Metadata = NO_METADATA,
    ):
        self.num_heads = num_heads
        self.in_features = in_features
        self.qkv_features = in_features if qkv_features is None else qkv_features
        self.out_features = in_features if out_features is None else out_features
        self.in_kv_features = in_features if in_kv_features is None else in_kv_features
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        # `vars(self)`: the options above are stored already, with their defaults filled in.
        keep_options(self, locals(), but=("keep_rngs", *vars(self)))
        self.head_dim = _head_size(self)
        _make_maps(self, locals())
        # A fork: two layers that stored the same stream would share its count, so a draw in one would change the keys
        # of the other. Without dropout nothing is forked, because forking draws a key too.
        self.rngs = rngs.dropout.fork() if keep_rngs and dropout_rate > 0 else None
        # Declared as data while they are None: `init_cache` assigns Variables to them later, and an attribute that is
        # static refuses to become data by a plain assignment.
        self.cached_key = self.cached_value = self.cache_index = data(None)

    def __call__(
        self,
        inputs_q: jax.Array,
        inputs_k: jax.Array | None = None,
        inputs_v: jax.Array | None = None,
        *,
        mask: jax.Array | None = None,
        deterministic: bool | None = None,
        rngs: Rngs | RngStream | None = None,
        sow_weights: bool = False,
        decode: bool | None = None,
        is_causal: bool = False,
        out_sharding: Any = None,
        qkv_sharding: Any = None,
        input_positions: jax.Array | None = None,
    ) -> jax.Array:
        """Computes attention, and projects the result.

        Args:
            inputs_q: inputs of the query projection, `(*batch, q, in_features)`; while decoding, `q` is 1.
            inputs_k: inputs of the key projection, `(*batch, kv, in_kv_features)`; by default `inputs_q`.
            inputs_v: inputs of the value projection; by default `inputs_k`.
            mask: which keys may be attended to; broadcasts against `(*batch, heads, q, kv)`.
            deterministic, decode: override the layer's attributes for this call.
            rngs: `Rngs` or a stream for dropout, instead of the layer's own stream.
            sow_weights: whether to `sow` the weights as `attention_weights`.
            is_causal: whether a query attends only to keys at its own position and before; always so while decoding.
            out_sharding, qkv_sharding: shardings of the projections' results, in explicit-sharding mode.
            input_positions: positions of the queries, `(*batch, q)`, for an `attention_fn` with this parameter, such
                as `dot_product_attention_with_rope`, which by default gets the step while decoding.

        Returns:
            `(*batch, q, out_features)`.

        Raises:
            ValueError: if shapes do not fit, or an option, the cache or a stream is missing. The cache is unchanged.
        """
        query, key, value = _projected(self, inputs_q, inputs_k, inputs_v, qkv_sharding)
        decoding = first_given("decode", decode, self.decode, owner=self)
        if decoding:
            key, value, mask = _from_cache(self, key, value, mask)
            # Without its position, every step would be rotated as the first of its sequence.
            if input_positions is None and turns_by_position(self.attention_fn):
                _, _, index = _cache(self)
                input_positions = jnp.reshape(index[...], (1,))
        options = {name: getattr(self, name) for name in ("dropout_rate", "broadcast_dropout", "dtype", "precision")}
        options["deterministic"], options["dropout_rng"] = _dropout(self, deterministic, rngs)
        options |= {} if input_positions is None else {"input_positions": input_positions}
        # While decoding, the mask of `_from_cache` is causal already; `is_causal` would take the query for the first.
        options |= {"mask": mask, "module": self if sow_weights else None, "is_causal": is_causal and not decoding}
        x = self.attention_fn(query, key, value, **options)
        if decoding:
            # Written last, so that a step that fails leaves the cache unchanged and can be repeated.
            keys, values, index = _cache(self)
            keys[...], values[...] = key, value
            index[...] += 1
        return self.out(x, out_sharding=out_sharding)

    def init_cache(self, input_shape: Sequence[int], dtype: Any = jnp.float32) -> None:
        """Creates an empty cache for decoding.

        Args:
            input_shape: `(*batch, steps, features)`, with the maximal number of steps.
            dtype: the dtype of the cache.

        >>> from weft import nnx
        >>> layer = MultiHeadAttention(num_heads=2, in_features=4, decode=True, rngs=nnx.Rngs(0))
        >>> layer.init_cache((3, 5, 4))
        >>> layer(jnp.ones((3, 1, 4))).shape, int(layer.cache_index[...])
        ((3, 1, 4), 1)
        """
        # By heads of keys, not of queries: sharing keys between queries is what makes such a cache smaller.
        shape = (*input_shape[:-1], self.num_kv_heads, self.head_dim)
        self.cached_key = Cache(jnp.zeros(shape, dtype))
        self.cached_value = Cache(jnp.zeros(shape, dtype))
        self.cache_index = Cache(jnp.array(0, dtype=jnp.int32))

    def set_view(
        self,
        deterministic: bool | None = None,
        decode: bool | None = None,
        batch_size: int | Sequence[int] | None = None,
        max_length: int | None = None,
    ) -> None:
        """Sets options of this layer; `nnx.view` calls it on a copy.

        Args:
            deterministic: whether to disable dropout.
            decode: whether each call is one step of decoding.
            batch_size: for a new cache, the size of its batch axes.
            max_length: for a new cache, the maximal number of steps.
        """
        if deterministic is not None:
            self.deterministic = deterministic
        if decode is not None:
            self.decode = decode
            # An existing cache is not replaced: a view shares it with the model.
            if self.cached_key is None and batch_size is not None and max_length is not None:
                self.init_cache((*as_sizes(batch_size), max_length, self.in_features), self.dtype or jnp.float32)


def _head_size(layer: Any) -> int:
    if layer.num_heads % layer.num_kv_heads:
        raise ConfigError(
            f"the number of heads, {layer.num_heads}, must be divisible by num_kv_heads, {layer.num_kv_heads}"
        )
    # `//` below would drop a remainder without a word, and the heads would have fewer features than the user asked for.
    if layer.qkv_features % layer.num_heads:
        raise ConfigError(
            f"Memory dimension, qkv_features, {layer.qkv_features}, must be divisible by num_heads, {layer.num_heads}"
        )
    return layer.qkv_features // layer.num_heads


def _make_maps(layer: Any, arguments: Mapping[str, Any]) -> None:
    """Creates projections and norms from a constructor's `locals()`, in flax's order, in which they draw keys."""
    options = {"dtype": layer.dtype, "param_dtype": layer.param_dtype, "rngs": arguments["rngs"]}

    def linear(kind: str, prefix: str, inputs: Sizes, outputs: Sizes, **axes: Any) -> LinearGeneral:
        products = {name: arguments[f"{kind}_{name}"] for name in ("promote_dtype", "dot_general", "dot_general_cls")}
        made_by = ("kernel_init", "bias_init", "kernel_metadata", "bias_metadata")
        # `out_kernel_init` and the like default to the values of the other projections.
        parameters = {name: arguments[prefix + name] or arguments[name] for name in made_by}
        biased = {"use_bias": layer.use_bias, "precision": layer.precision}
        return LinearGeneral(inputs, outputs, **axes, **biased, **products, **parameters, **options)

    def norm(name: str) -> LayerNorm:
        learned = {"use_bias": False, "scale_metadata": arguments[f"{name}_ln_scale_metadata"]}
        return LayerNorm(layer.head_dim, promote_dtype=layer.ln_promote_dtype, **learned, **options)

    heads, size = layer.num_heads, layer.head_dim
    layer.query = linear("qkv", "", layer.in_features, (heads, size))
    layer.key = linear("qkv", "", layer.in_kv_features, (layer.num_kv_heads, size))
    layer.value = linear("qkv", "", layer.in_kv_features, (layer.num_kv_heads, size))
    layer.query_ln = norm("query") if layer.normalize_qk else data(None)
    layer.key_ln = norm("key") if layer.normalize_qk else data(None)
    layer.out = linear("out", "out_", (heads, size), layer.out_features, axis=(-2, -1))


def _projected(layer: Any, q: jax.Array, k: jax.Array | None, v: jax.Array | None, sharding: Any) -> list[jax.Array]:
    """Projects a call's inputs to queries, keys and values of all heads."""
    if k is None and v is not None:
        raise ConfigError("inputs_v was passed without inputs_k", fix="pass inputs_k; inputs_v is the same by default")
    # Checked here, because the projection's own error would name a `LinearGeneral` that the user did not create.
    if q.shape[-1] != layer.in_features:
        raise AxisError(
            f"Incompatible input dimension: MultiHeadAttention takes {layer.in_features} features on the last axis, "
            f"not {q.shape[-1]}",
            at=f"inputs_q: {jax.typeof(q)}",
        )
    k = q if k is None else k
    inputs = (q, k, k if v is None else v)
    maps = (layer.query, layer.key, layer.value)
    query, key, value = (project(x, out_sharding=sharding) for project, x in zip(maps, inputs, strict=True))
    # Per head, before the product, which bounds the logits (`normalize_qk`).
    if layer.query_ln is not None and layer.key_ln is not None:
        query, key = layer.query_ln(query), layer.key_ln(key)
    return [query, key, value]


def _cache(layer: Any) -> tuple[Cache[Any], Cache[Any], Cache[Any]]:
    if layer.cached_key is None or layer.cached_value is None or layer.cache_index is None:
        raise ConfigError(
            "Autoregressive cache not initialized: MultiHeadAttention decodes without a cache",
            fix="call init_cache(input_shape) first",
        )
    return layer.cached_key, layer.cached_value, layer.cache_index


def _from_cache(layer: Any, key: jax.Array, value: jax.Array, mask: Any) -> tuple[jax.Array, jax.Array, Any]:
    """Returns keys and values of all steps with the new one added, and a mask of the steps so far; writes nothing."""
    keys, values, index = (cached[...] for cached in _cache(layer))
    *batch, _, heads, size = keys.shape
    if key.shape != (*batch, 1, heads, size):
        raise AxisError(
            f"Autoregressive cache shape error: a step takes keys of shape {(*batch, 1, heads, size)}, not {key.shape}",
            fix="pass one step at a time, in batches of the shape that was passed to init_cache",
        )
    keys, values, known = ops.cache_step(keys, values, index, key, value)
    return keys, values, ops.combine_masks(mask, known)


def _dropout(layer: Any, deterministic: bool | None, rngs: Rngs | RngStream | None) -> tuple[bool, jax.Array | None]:
    """Returns (deterministic, key): whether dropout is disabled, and else a key for it."""
    # First: without dropout, `deterministic` need not be set anywhere.
    if layer.dropout_rate == 0:
        return True, None
    if first_given("deterministic", deterministic, layer.deterministic, owner=layer):
        return True, None
    # The call's streams come before the layer's fork, so that a model can be built once and be given keys by its
    # caller.
    stream = layer.rngs if rngs is None else rngs.dropout if isinstance(rngs, Rngs) else rngs
    return False, first_given("rngs", stream, owner=layer)()
