"""`LoRA` and `LoRALinear`: low-rank adapters, for fine-tuning a model whose own parameters stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType as MappingProxyType  # other code puts its own in its place
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
    """A linear map through few dimensions, `x @ lora_a @ lora_b`, added to what a base module gives if there is one.

    Args:
        in_features, lora_rank, out_features: sizes of the input, of what is between, and of the output.
        base_module: a module that is called with the input too.
        dtype: the dtype to compute in; by default what input and parameters promote to.
        param_dtype: the dtype of the parameters.
        a_initializer, b_initializer: initializers of the map into the rank, and of the one out of it: zeros by default,
            so that nothing is changed at first.
        lora_param_type: the type of the parameters, by which filters find them.
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
        if not hasattr(rngs, "params"):
            refuse_rngs(rngs)
        self.in_features = in_features
        self.out_features = out_features
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.lora_param_type = lora_param_type
        self.base_module = base_module
        self.promote_dtype = promote_dtype
        down, up = (in_features, lora_rank), (lora_rank, out_features)
        self.lora_a = lora_param_type(a_initializer(rngs.params(), down, param_dtype), **a_metadata)
        self.lora_b = lora_param_type(b_initializer(rngs.params(), up, param_dtype), **b_metadata)

    @names_features(lambda layer: {-1: layer.in_features})
    def __call__(self, x: jax.Array, **kwargs: Any) -> jax.Array:
        """Maps the last axis.

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
            raise ConfigError(f"`self.base_module` must be callable, and this {type(base).__name__} is not", at="LoRA")
        # The base is given the input in the dtype that the adapter computes in.
        x, down, up = self.promote_dtype((x, self.lora_a[...], self.lora_b[...]), dtype=self.dtype)
        out = ops.low_rank_product(x, down, up, promote=_as_they_are)
        return out if base is None else out + base(x, **kwargs)


def _as_they_are(*arrays: Any, dtype: Any = None) -> Any:
    return arrays


class LoRALinear(Linear):
    """A `Linear` with an adapter: its own parameters are where those of a `Linear` are, so states of one fit.

    Args:
        in_features, out_features: size of the last axis before and after.
        lora_rank: size of what is between, in the adapter.
        lora_dtype, lora_param_dtype, lora_promote_dtype: the adapter's; by default it computes in `dtype`.
        a_initializer, b_initializer, lora_param_type, a_metadata, b_metadata: as in `LoRA`.
        rngs: keys are drawn from the stream `params`, those of the `Linear` first.
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
        super().__init__(in_features, out_features, rngs=rngs, **kwargs)
        # Else the sum of the two would be in the dtype that the adapter's own parameters promote to.
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
        """Maps the last axis. `out_sharding` is that of the linear map, in explicit-sharding mode."""
        return super().__call__(x, out_sharding=out_sharding) + self.lora(x)
