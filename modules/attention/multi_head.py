"""MultiHeadAttention: attention as a record, with a cache for decoding that its successor carries.

Attention has state exactly while it has a cache:

    y = attention(x)                                  # pure, as it is made
    attention = attention.with_cache(max_length)
    y, attention = attention(x)                       # the next steps: the successor holds their keys and values

The cache is part of the record's treedef, so all calls of one record return the same kind of result, and combinators
are called in the same way (see `calling`). In a `thread` block both kinds are written alike: `x = t.attention(x)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypedDict, Unpack, cast, overload

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import initializers
from jaxtyping import Array, Bool, Float, Key, Num
from typing_extensions import TypeVar
from weft.core.errors import AxisError
from weft.core.records.module import Module, static
from weft.core.records.successors import records_in
from weft.modules.attention.dot_product import (
    attended_keys,
    attention_weights,
    check_attention,
    fused_attention,
    steps_behind,
    weighted_values,
)
from weft.modules.attention.kv_cache import CacheError, KeyValueCache, check_room, step_of
from weft.modules.construct import ConfigError, Initializer, KeyLike, check_positive
from weft.modules.dense.linear import Linear, default_kernel_init
from weft.modules.drawing import parameter_keys
from weft.modules.dropout import Dropout
from weft.modules.dtypes import promote

# Makes a norm from the size of a head; called once for queries and once for keys.
MakeNorm = Callable[[int], Callable[[Any], Any]]


class BlockOptions(TypedDict, total=False):
    """The keyword arguments of a call of attention, or of a block that contains attention."""

    mask: Array | None
    bias: Array | None
    positions: Array | None
    key: Array | None


class AttendingOptions(BlockOptions, total=False):
    """The keyword arguments of a call of attention."""

    inference: bool | None


C = TypeVar("C", bound=KeyValueCache | None, default=None, covariant=True)


class MultiHeadAttention(Module, Generic[C]):
    """Attention with several heads, each with its own maps of queries, keys and values.

    The layer is pure, `y = attention(x)`, until `with_cache` gives it a cache for decoding.

    Args:
        features: size of the last axis of input and output.
        num_heads: how many heads queries have.
        num_kv_heads: how many heads keys and values have; each serves a group of query heads. By default `num_heads`.
        head_features: size of a head; by default `features / num_heads`.
        out_features: size of the result; by default `features`.
        context_features: size of the input of the keys; by default `features`.
        value_features: size of the input of the values; by default `context_features`.
        causal: whether a query attends only to keys at its own place and before.
        window: how many keys before and after its own position a query attends to at most: one number, or two.
        qk_norm: makes a norm for queries and one for keys from a head's size, such as `weft.RMSNorm`.
        rope: turns queries and keys by their positions: `weft.RoPE()`, or a function `(x, positions) -> x` of
            `(*batch, seq, heads, depth)`.
        position_bias: adds to the logits by positions: `weft.ALiBi()`, or a function `(query, key, num_heads) -> bias`
            of positions `(*batch, q)` and `(kv,)`, which returns `(*batch, num_heads, q, kv)`.
        dropout: the probability that an attention weight is dropped. The call then needs a key, but for
            `inference_mode(model)`.
        use_bias: whether the maps of queries, keys and values add a bias.
        use_out_bias: whether the last map does; by default as `use_bias`.
        implementation: of `jax.nn.dot_product_attention`: `"cudnn"` for flash attention on a GPU, which refuses sizes
            and dtypes that it does not know.
        kernel_init, bias_init: initialisers from `jax.nn.initializers`.
        dtype: the dtype to compute in; by default what input and parameters promote to.
        param_dtype: the dtype of the parameters.
        precision: of the maps; see `jax.lax.Precision`.
        key: a typed key, for the parameters.

    Raises:
        ConfigError: if heads do not divide the features, or the query's heads those of the keys.

    >>> attention = MultiHeadAttention(8, 2, causal=True, key=jax.random.key(0))
    >>> x = jnp.ones((3, 5, 8))
    >>> attention(x).shape
    (3, 5, 8)
    >>> attention = attention.with_cache(5, batch=(3,))
    >>> y, attention = attention(x[:, :4])
    >>> y, attention = attention(x[:, 4:])
    >>> y.shape, int(attention.cache.index)
    ((3, 1, 8), 5)

    Source: Vaswani et al., "Attention Is All You Need", 2017; Ainslie et al., "GQA", 2023;
    `jax.nn.dot_product_attention`.
    """

    query: Linear
    key: Linear
    value: Linear
    out: Linear
    query_norm: Callable[[Any], Any] | None
    key_norm: Callable[[Any], Any] | None
    rope: Callable[..., Any] | None
    position_bias: Callable[..., Any] | None
    dropout: Dropout
    cache: KeyValueCache | None
    features: int = static()
    context_features: int = static()
    value_features: int = static()
    out_features: int = static()
    num_heads: int = static()
    num_kv_heads: int = static()
    head_features: int = static()
    causal: bool = static()
    window: tuple[int, int] | None = static()
    implementation: Any = static()

    def __init__(
        self: MultiHeadAttention[None],
        features: int,
        num_heads: int,
        *,
        key: KeyLike,
        num_kv_heads: int | None = None,
        head_features: int | None = None,
        out_features: int | None = None,
        context_features: int | None = None,
        value_features: int | None = None,
        causal: bool = False,
        window: int | tuple[int, int] | None = None,
        qk_norm: MakeNorm | None = None,
        rope: Callable[..., Any] | None = None,
        position_bias: Callable[..., Any] | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        use_out_bias: bool | None = None,
        implementation: Any = None,
        kernel_init: Initializer = default_kernel_init,
        bias_init: Initializer = initializers.zeros,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        precision: Any = None,
    ):
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.head_features = _head_features(features, num_heads, num_kv_heads, head_features)
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.causal, self.window, self.implementation = causal, _window(window), implementation
        context_features = features if context_features is None else context_features
        value_features = context_features if value_features is None else value_features
        out_features = features if out_features is None else out_features
        self.features, self.out_features = features, out_features
        self.context_features, self.value_features = context_features, value_features
        wide, narrow = num_heads * self.head_features, num_kv_heads * self.head_features
        inits = {"kernel_init": kernel_init, "bias_init": bias_init}
        options: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype, "precision": precision, **inits}
        # Always four keys, so that options do not change the parameters of the other maps.
        keys = parameter_keys(key, 4, "MultiHeadAttention")
        self.query = Linear(features, wide, use_bias=use_bias, key=keys[0], **options)
        self.key = Linear(context_features, narrow, use_bias=use_bias, key=keys[1], **options)
        self.value = Linear(value_features, narrow, use_bias=use_bias, key=keys[2], **options)
        out_bias = use_bias if use_out_bias is None else use_out_bias
        self.out = Linear(wide, out_features, use_bias=out_bias, key=keys[3], **options)
        # Two norms: queries and keys have scales of their own.
        self.query_norm, self.key_norm = (None if qk_norm is None else qk_norm(self.head_features) for _ in range(2))
        self.rope, self.position_bias = rope, position_bias
        self.dropout, self.cache = Dropout(dropout), None

    @overload
    def __call__(
        self: MultiHeadAttention[None],
        x: Array,
        context: Array | None = None,
        values: Array | None = None,
        **options: Unpack[AttendingOptions],
    ) -> Array: ...
    @overload
    def __call__(
        self: MultiHeadAttention[KeyValueCache],
        x: Array,
        context: Array | None = None,
        values: Array | None = None,
        **options: Unpack[AttendingOptions],
    ) -> tuple[Array, MultiHeadAttention[KeyValueCache]]: ...
    def __call__(
        self: MultiHeadAttention[Any],
        x: Float[Array, "*batch q features"],
        context: Float[Array, "*batch kv context_features"] | None = None,
        values: Float[Array, "*batch kv value_features"] | None = None,
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        positions: Num[Array, "..."] | None = None,
        key: Key[Array, ""] | None = None,
        inference: bool | None = None,
    ) -> Float[Array, "*batch q out_features"] | tuple[Float[Array, "*batch q out_features"], MultiHeadAttention[Any]]:
        """Computes attention.

        Args:
            x: the input of the queries; with a cache, the next steps, one or more.
            context: the input of the keys; by default `x`.
            values: the input of the values; by default the input of the keys.
            mask: which keys may be attended to, `(q, kv)` or `(*batch, heads, q, kv)`, where axes of size one
                broadcast; with a cache, `kv` is its `max_length`.
            bias: added to the logits, of the same shapes as a mask.
            positions: the positions of `x` for `rope`, `(q,)` or `(*batch, q)`; by default they count from 0, or from
                the number of steps in the cache. Those of a context always count from 0.
            key: a typed key, for dropout.
            inference: this call's mode, if it is not the record's own.

        Returns:
            `y`, or `(y, successor)` if there is a cache. Compiled code cannot raise, so there the results of steps
            beyond the end of the cache are NaN; `weft.checkify` makes that an error.

        Raises:
            AxisError: if sizes or shapes do not fit.
            CacheError: if the cache is full, or there are a context and a cache.
            SeedError: if dropout needs a key, and there is none.
            ConfigError: if an implementation cannot drop weights, or there are positions and a `position_bias`.
        """
        source, cache = x if context is None else context, self.cache
        queries = self._heads(self.query, x, self.num_heads, self.query_norm)
        keys = self._heads(self.key, source, self.num_kv_heads, self.key_norm)
        value_heads = self._heads(self.value, source if values is None else values, self.num_kv_heads, None)
        if cache is not None:
            check_room(cache, keys, context is not None or values is not None)
        places = None if cache is None else steps_behind(cache.index, x.shape[-2])
        if self.rope is not None:
            steps = places if positions is None else positions
            # Keys of a context have positions of their own sequence, which start at 0.
            queries, keys = self.rope(queries, steps), self.rope(keys, steps if context is None else None)
        causal, window, successor = self.causal, self.window, None
        if cache is not None:
            queries, keys, value_heads, known, successor = step_of(cache, queries, keys, value_heads, window)
            # The user's mask is over all places of the cache, and can only hide more of them.
            mask = known if mask is None else known & _broad("mask", mask, queries, keys)
            # The mask of the cache has both, by positions in the cache. The op would count queries from 0.
            causal, window = False, None
        bias = self._biased(bias, queries, keys, places, positions)
        y = self._attend(queries, keys, value_heads, mask, bias, causal, window, key, inference)
        y = self.out(jnp.reshape(y, (*y.shape[:-2], self.num_heads * self.head_features)))
        return y if successor is None else (y, self.replace(cache=successor))

    def _biased(self, bias: Any, queries: Any, keys: Any, places: Any, positions: Any) -> Any:
        """Returns the bias of the call plus `position_bias`, for which queries and keys are counted from 0.

        Args:
            bias: the bias of the call, or None.
            queries, keys: those of this call; with a cache, the keys of all its places.
            places: the positions of the queries behind the steps in the cache; None without a cache.
            positions: the option of the call, which is refused here.
        """
        if self.position_bias is None:
            return bias
        if positions is not None:
            raise ConfigError(
                "a position_bias counts distances in the sequence, so it cannot be combined with positions=",
                fix="leave positions= out, or add a bias by hand (bias=)",
            )
        count = keys.shape[-3]
        added = self.position_bias(
            jnp.arange(queries.shape[-3]) if places is None else places, jnp.arange(count), self.num_heads
        )
        added = lax.expand_dims(added, range(queries.ndim - added.ndim))
        return added if bias is None else added + _broad("bias", bias, queries, keys)

    def _heads(self, projection: Any, x: Any, heads: int, norm: Any) -> Any:
        y = projection(x)
        y = jnp.reshape(y, (*y.shape[:-1], heads, self.head_features))
        return y if norm is None else norm(y)

    def _attend(
        self,
        query: Any,
        key: Any,
        value: Any,
        mask: Any,
        bias: Any,
        causal: bool,
        window: tuple[int, int] | None,
        dropout_key: Any,
        inference: bool | None,
    ) -> Any:
        # The cache may have a narrower dtype than the maps.
        query, key, value = promote(query, key, value)
        check_attention(query, key, value)
        mask = None if mask is None else _broad("mask", mask, query, key)
        bias = None if bias is None else _broad("bias", bias, query, key).astype(query.dtype)
        drops = self.dropout.rate > 0 and not (self.dropout.inference if inference is None else inference)
        if not drops:
            options = {"is_causal": causal, "window": window, "implementation": self.implementation}
            # JAX's function has no dropout of weights, so only calls without dropout can use it.
            return fused_attention(query, key, value, bias, mask, **options)
        if self.implementation is not None and self.implementation != "xla":
            raise ConfigError(
                f"implementation={self.implementation!r} does not support dropout of attention weights",
                fix="dropout=0.0, implementation=None, or inference_mode(model)",
            )
        # The op with dropout has no window: it becomes a part of the mask.
        if window is not None:
            places = jnp.arange(query.shape[-3]), jnp.arange(key.shape[-3])
            seen = attended_keys(*places, is_causal=causal, window=window)
            mask, causal = seen if mask is None else mask & seen, False
        weights = attention_weights(query, key, bias, mask, is_causal=causal)
        return weighted_values(self.dropout(weights, key=dropout_key, inference=inference), value)

    def with_cache(  # weft: skip(it refuses attention that is not causal)
        self, max_length: int, *, batch: Sequence[int] = (), dtype: Any = None
    ) -> MultiHeadAttention[KeyValueCache]:
        """Returns this attention with an empty cache, for decoding step by step: `y, attention = attention(x)`.

        Each call takes only the next steps, which attend to themselves and to all earlier ones. In a whole model:
        `weft.at(model, InstanceOf(weft.MultiHeadAttention)).apply(lambda a: a.with_cache(256))`. A layer of a `Stack`
        gets one cache for each of its copies.

        Args:
            max_length: how many steps there is room for.
            batch: the sizes of the batch axes of the inputs to come.
            dtype: the dtype of the cache; by default the dtype in which the maps compute.

        Raises:
            CacheError: if the attention is not causal, because each step would need the steps after it.

        >>> attention = MultiHeadAttention(8, 2, causal=True, num_kv_heads=1, key=jax.random.key(0))
        >>> attention.with_cache(16, dtype=jnp.bfloat16).cache.keys.shape
        (16, 1, 4)
        """
        if not self.causal:
            raise CacheError(
                "a cache holds the steps so far, but this attention also attends to later steps",
                fix="MultiHeadAttention(..., causal=True); or give a cache only to the causal attentions of the model",
            )
        made = [record for _, record in records_in((self.key, self.value)) if isinstance(record, Linear)]
        if dtype is None:
            dtype = next((layer.dtype or layer.kernel.dtype for layer in made), jnp.float32)
        cache = KeyValueCache(max_length, self.num_kv_heads, self.head_features, batch=batch, dtype=dtype)
        # In a `Stack` each array has an axis of layers in front, which the cache needs, too: each layer has its own
        # keys.
        lead = made[0].kernel.shape[:-2] if made else ()
        if lead:
            cache = jax.tree.map(lambda array: jnp.tile(array, (*lead, *(1,) * array.ndim)), cache)
        return cast(Any, self.replace(cache=cache))

    def without_cache(self) -> MultiHeadAttention[None]:
        """Returns this attention without its cache, so that it is pure again.

        >>> attention = MultiHeadAttention(4, 2, causal=True, key=jax.random.key(0))
        >>> cached = attention.with_cache(8)
        >>> cached.cache is None, cached.without_cache().cache is None
        (False, True)
        """
        return cast(Any, self.replace(cache=None))


def _head_features(features: int, num_heads: int, num_kv_heads: int, head_features: int | None) -> int:
    check_positive("MultiHeadAttention", features=features, num_heads=num_heads, num_kv_heads=num_kv_heads)
    if num_heads % num_kv_heads:
        raise ConfigError(
            f"MultiHeadAttention: num_heads={num_heads} must be a multiple of num_kv_heads={num_kv_heads}"
        )
    if head_features is None and features % num_heads:
        raise ConfigError(
            f"MultiHeadAttention: {features} features cannot be divided among {num_heads} heads",
            fix="pass head_features",
        )
    head_features = features // num_heads if head_features is None else head_features
    check_positive("MultiHeadAttention", head_features=head_features)
    return head_features


def _window(window: int | Sequence[int] | None) -> tuple[int, int] | None:
    if window is None:
        return None
    sides = (window, window) if isinstance(window, int) else tuple(window)
    if len(sides) != 2 or min(sides) < 0:
        raise ConfigError(
            f"MultiHeadAttention: window must be a number of keys before and after a query, or a pair, not {window!r}"
        )
    return cast("tuple[int, int]", sides)


def _broad(name: str, array: Any, query: Any, key: Any) -> Any:
    """Gives a mask or bias all axes of the weights; refuses shapes whose axes would be ambiguous."""
    shape = (*query.shape[:-3], query.shape[-2], query.shape[-3], key.shape[-3])
    array = jnp.asarray(array)
    # A mask of `(batch, q, kv)` would broadcast its batch against heads wherever both have one size. Only two axes or
    # all of them say what they mean.
    if array.ndim == 2:
        array = jnp.expand_dims(array, range(len(shape) - 2))
    fits = array.ndim == len(shape) and all(mine in (1, size) for mine, size in zip(array.shape, shape, strict=True))
    if not fits:
        raise AxisError(
            f"the {name} of attention must have axes (q, kv) or (*batch, heads, q, kv), of size 1 where it broadcasts",
            at=f"{name}: {array.shape}, weights: {shape}",
            fix=f"write {name}[..., None, :, :] for one with axes (*batch, q, kv)",
        )
    if (array.dtype == jnp.bool_) != (name == "mask"):
        raise AxisError(f"a mask must be boolean and a bias floating-point, but this {name} is {array.dtype.name}")
    return array
