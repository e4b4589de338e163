"""LoRA: low-rank adapters for linear layers, to fine-tune a model whose own parameters stay fixed."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Float, Key
from weft.core.paths import format_path
from weft.core.records.filters import All, Filter, InstanceOf, Maybe
from weft.core.records.kinds import LoRAParam
from weft.core.records.leaves import iter_leaves
from weft.core.records.module import Module
from weft.core.records.partition import select
from weft.core.records.surgery import at
from weft.modules.construct import ConfigError, Initializer, check_key, check_positive
from weft.modules.dense.linear import Linear
from weft.modules.dense.quantized import QuantizedLinear, for_each_copy
from weft.modules.dtypes import promote
from weft.modules.explicit import matmul
from weft.modules.op import op

M = TypeVar("M", bound=Module)
default_down_init = initializers.he_uniform()
LINEARS = InstanceOf(Linear, QuantizedLinear)


@op
def low_rank_product(
    x: Float[Array, "*batch in"],
    down: Float[Array, "in rank"],
    up: Float[Array, "rank out"],
    *,
    dtype: Any = None,
    promote: Any = promote,
) -> Float[Array, "*batch out"]:
    """A linear map through few dimensions: `x @ down @ up`.

    Args:
        x: inputs.
        down, up: the map into the rank, and out of it.
        dtype: the dtype to compute in.
        promote: casts all three to one dtype.

    >>> low_rank_product(jnp.ones((2, 8)), jnp.ones((8, 1)), jnp.ones((1, 4))).shape
    (2, 4)
    """
    x, down, up = promote(x, down, up, dtype=dtype)
    # In this order: `down @ up` first would be a product as large as the kernel.
    return matmul(matmul(x, down), up)


class LoRA(Module):
    """A linear layer and its adapter: `y = base(x) + x @ down @ up`.

    The adapter's parameters are of the kind `LoRAParam`; those of the base keep theirs. So `wrt=LoRAParam` trains the
    adapters alone, in `grad` and in `Optimizer`.

    Args:
        base: the layer that is adapted.
        rank: the size in the middle.
        key: a typed key.
        down_init: initialiser from `jax.nn.initializers`; `up` begins with zeros, so that nothing is changed at first.

    Raises:
        ConfigError: for a rank that is not a positive integer, or larger than one of the kernel's sizes.
        SeedError: without a typed key.

    >>> lora = LoRA(Linear(8, 4, key=jax.random.key(0)), 2, key=jax.random.key(1))
    >>> lora.down.shape, lora.up.shape, lora.merged().kernel.shape
    ((8, 2), (2, 4), (8, 4))

    Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021.
    """

    __stands_for__ = "base"

    base: Linear | QuantizedLinear
    down: Annotated[Float[Array, "in rank"], LoRAParam]
    up: Annotated[Float[Array, "rank out"], LoRAParam]

    def __init__(
        self,
        base: Linear | QuantizedLinear,
        rank: int,
        *,
        key: Key[Array, ""],
        down_init: Initializer = default_down_init,
    ):
        check_positive("LoRA", rank=rank)
        check_key(key, "LoRA")
        dtype = base.scale.dtype if isinstance(base, QuantizedLinear) else base.kernel.dtype
        inputs, outputs = base.kernel.shape[-2:]
        if rank > min(inputs, outputs):
            raise ConfigError(
                f"LoRA: rank {rank} is too high for a kernel of {inputs} by {outputs}: the adapter would hold more "
                "numbers than the kernel",
                fix=f"choose a rank of at most {min(inputs, outputs)}, or leave this layer out: lora(..., where=...)",
            )
        self.base = base
        self.down = down_init(key, (inputs, rank), dtype)
        # With zeros here the adapted model starts as the original one. `down` may not be zero as well: no gradient
        # would pass.
        self.up = jnp.zeros((rank, outputs), dtype)

    def __call__(self, x: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
        """Returns the output of the base plus the output of the adapter, in the dtype of the base's output."""
        y = self.base(x)
        return y + low_rank_product(x, self.down, self.up).astype(y.dtype)

    def merged(self) -> Linear:
        """Returns the base with the adapter added to its kernel; a quantised base is converted to floats."""
        base = self.base if isinstance(self.base, Linear) else self.base.dequantized()
        return base.replace(kernel=base.kernel + self.down @ self.up)


def lora(  # weft: skip(of any model)
    model: M, rank: int, *, key: Key[Array, ""], where: Filter = ...
) -> M:
    """Returns a model with an adapter for each of its linear layers, quantised ones too.

    Args:
        model: any record.
        rank: of the adapters.
        key: a typed key, split among the adapters.
        where: selects the layers whose arrays all match this filter, such as `InstanceOf(TransformerBlock)` or
            `Any(PathContains("query"), PathContains("value"))`. Each layer of a `Stack` gets an adapter of its own.

    Raises:
        FilterError: if no layer matches.
        ConfigError: if one of the layers has an adapter already, or is smaller than the rank.

    >>> from weft.modules import MLP
    >>> model = lora(MLP(8, 16, 4, key=jax.random.key(0)), 2, key=jax.random.key(1))
    >>> [type(layer).__name__ for layer in model[::2]]
    ['LoRA', 'LoRA']
    >>> at(model, InstanceOf(LoRA)).apply(LoRA.merged)[0].kernel.shape
    (8, 16)
    """
    check_key(key, "lora")
    # The `Linear` inside of an adapter would match as well, and get an adapter of its own.
    already = [leaf.path for leaf in iter_leaves(select(model, Maybe(All(InstanceOf(LoRA), where)))) if leaf.dynamic]
    if already:
        raise ConfigError(
            "these layers have an adapter already",
            at=[format_path(path, "model") for path in already],
            fix="merge it first, at(model, LoRA).apply(LoRA.merged), or leave them out: where=Not(InstanceOf(LoRA))",
        )
    layers: list[Any] = []
    at(model, LINEARS, where).apply(lambda base: layers.append(base) or base)
    # A first pass counts the layers, because a key has to be split into a known number.
    keys = iter(jax.random.split(key, len(layers)))

    def adapted(base: Any) -> LoRA:
        copies, key = base.kernel.shape[:-2], next(keys)
        of_copies = jax.random.split(key, copies) if copies else key
        return for_each_copy(lambda base, key: LoRA(base, rank, key=key), base, of_copies)

    return at(model, LINEARS, where).apply(adapted)
