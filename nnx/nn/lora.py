"""`LoRA` and `LoRALinear`: low-rank adapters, for fine-tuning a model with frozen parameters."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType as MappingProxyType  # libraries replace this name of flax's module
from typing import Any

import jax
import jax.numpy as jnp
from weft.modules import ops
from weft.modules.construct import ConfigError
from weft.nnx.config import config
from weft.nnx.modules.module import Module
from weft.nnx.nn import dtypes, initializers
from weft.nnx.nn.construct import NO_METADATA, Metadata, refuse_rngs
from weft.nnx.nn.features import names_features
from weft.nnx.nn.linear import Linear
from weft.nnx.streams.rngs import Rngs
from weft.nnx.types import Dtype as Dtype
from weft.nnx.types import Initializer as Initializer
from weft.nnx.variable.kinds import LoRAParam
from weft.nnx.variable.variable import Variable

__all__ = ["LoRA", "LoRALinear", "LoRAParam"]

default_a_initializer = initializers.he_uniform()
default_b_initializer = initializers.zeros


class LoRA(Module):
    """A low-rank linear map, `x @ lora_a @ lora_b`, added to the output of a base module if there is one.

    Args:
        in_features, lora_rank, out_features: sizes of the input, the rank, and the output.
        base_module: a module, which gets the same input.
        dtype: the dtype to compute in; by default what input and parameters promote to.
        param_dtype: the dtype of the parameters.
        a_initializer, b_initializer: initializers of `lora_a` and `lora_b`; the latter is zeros by default, so that a
            new adapter changes nothing.
        lora_param_type: the type of the parameters, for filters.
        promote_dtype: casts `(inputs, lora_a, lora_b)` to one dtype, given `dtype`.
        rngs: two keys are drawn from the stream `params`.
        a_metadata, b_metadata: metadata of the parameters.

    >>> from weft import nnx
    >>> base = nnx.Linear(8, 4, rngs=nnx.Rngs(0))
    >>> layer = LoRA(8, 2, 4, base_module=base, rngs=nnx.Rngs(1))
    >>> layer(jnp.ones((3, 8))).shape, bool((layer(jnp.ones(8)) == base(jnp.ones(8))).all())
    ((3, 4), True)

    Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021.
    """

    in_features: int
    out_features: int
    base_module: Any
    promote_dtype: Callable[..., Any]

    def __init__(
        self,
        in_features: int,
        lora_rank: int,
        out_features: int,
        *,
        base_module: Module | None = None,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        a_initializer: Callable[..., Any] = default_a_initializer,
        b_initializer: Callable[..., Any] = default_b_initializer,
        lora_param_type: type[Variable[Any]] = LoRAParam,
        promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
        rngs: Rngs,
        a_metadata: Metadata = NO_METADATA,
        b_metadata: Metadata = NO_METADATA,
    ):
        # Checked here, because `make_param`, which checks it for other layers, makes only Params, and these are
        # `lora_param_type`.
        if not hasattr(rngs, "params"):
            refuse_rngs(rngs)
        self.in_features = in_features
        self.out_features = out_features
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.lora_param_type = lora_param_type
        self.base_module = base_module
        self.promote_dtype = promote_dtype
        # Keys are drawn for `lora_a` first, as in flax.
        down, up = (in_features, lora_rank), (lora_rank, out_features)
        self.lora_a = lora_param_type(a_initializer(rngs.params(), down, param_dtype), **a_metadata)
        self.lora_b = lora_param_type(b_initializer(rngs.params(), up, param_dtype), **b_metadata)

    @names_features(lambda layer: {-1: layer.in_features})
    def __call__(self, x: jax.Array, **kwargs: Any) -> jax.Array:
        """Applies the adapter to the last axis, and adds the base module's output.

        Args:
            x: `(*batch, in_features)`.
            kwargs: further arguments of the base module.

        Returns:
            `(*batch, out_features)`.

        Raises:
            ValueError: if the base module cannot be called.
        """
        base: Callable[..., Any] | None = self.base_module
        if not (base is None or callable(base)):
            raise ConfigError(f"`self.base_module` must be callable, got a {type(base).__name__}", at="LoRA")
        # As in flax, the base module gets the promoted input.
        x, down, up = self.promote_dtype((x, self.lora_a[...], self.lora_b[...]), dtype=self.dtype)
        # Promoting again, by the product, could change their dtype.
        out = ops.low_rank_product(x, down, up, promote=lambda *arrays, dtype=None: arrays)
        return out if base is None else out + base(x, **kwargs)


class LoRALinear(Linear):
    """A `Linear` with an adapter. Its parameters have the paths of a `Linear`, so a State of a `Linear` fits.

    Args:
        in_features, out_features: size of the last axis before and after.
        lora_rank: the rank of the adapter.
        lora_dtype, lora_param_dtype, lora_promote_dtype: options of the adapter, which by default computes in `dtype`.
        a_initializer, b_initializer, lora_param_type, a_metadata, b_metadata: as in `LoRA`.
        rngs: keys are drawn from the stream `params`, first for the `Linear`.
        kwargs: as in `Linear`.

    >>> from weft import nnx
    >>> layer = LoRALinear(8, 4, lora_rank=2, rngs=nnx.Rngs(0))
    >>> layer(jnp.ones((3, 8))).shape, layer.lora.lora_a.shape
    ((3, 4), (8, 2))

    Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        lora_rank: int,
        lora_dtype: Any = None,
        lora_param_dtype: Any = jnp.float32,
        a_initializer: Callable[..., Any] = default_a_initializer,
        b_initializer: Callable[..., Any] = default_b_initializer,
        lora_param_type: type[Variable[Any]] = LoRAParam,
        lora_promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
        rngs: Rngs,
        a_metadata: Metadata = NO_METADATA,
        b_metadata: Metadata = NO_METADATA,
        **kwargs: Any,
    ):
        # First, so that kernel and bias draw the keys which they draw in a `Linear`.
        super().__init__(in_features, out_features, rngs=rngs, **kwargs)
        # With None, as in flax, a bfloat16 layer with float32 adapter parameters would return float32.
        in_dtype = lora_dtype if lora_dtype is not None or config.nnx_flax_faults else self.dtype
        self.lora = LoRA(
            in_features,
            lora_rank,
            out_features,
            dtype=in_dtype,
            param_dtype=lora_param_dtype,
            a_initializer=a_initializer,
            b_initializer=b_initializer,
            lora_param_type=lora_param_type,
            promote_dtype=lora_promote_dtype,
            rngs=rngs,
            a_metadata=a_metadata,
            b_metadata=b_metadata,
        )

    def __call__(self, x: jax.Array, out_sharding: Any = None) -> jax.Array:
        """Applies map and adapter. `out_sharding` is the linear map's sharding, in explicit-sharding mode."""
        return super().__call__(x, out_sharding=out_sharding) + self.lora(x)
