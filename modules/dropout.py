"""Dropout: the pure op `dropout`, and the records `Dropout` and `DropPath`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Key
from weft.core.records.keys import SeedError
from weft.core.records.module import Module, static
from weft.modules.batches import BATCH_AXES, batch_rank, check_batch_axes, counted
from weft.modules.construct import ConfigError, is_key
from weft.modules.op import op


@op
def dropout(
    x: Float[Array, "*shape"], key: Key[Array, ""], *, rate: float, broadcast_dims: Sequence[int] = ()
) -> Float[Array, "*shape"]:
    """Sets elements to zero with probability `rate`, and scales the others to keep the mean.

    Args:
        x: the values.
        key: a typed key.
        rate: the probability of zero, in [0, 1].
        broadcast_dims: axes along which one decision holds for all elements.

    >>> dropout(jnp.ones(4), jax.random.key(0), rate=0.5).tolist()
    [0.0, 0.0, 2.0, 2.0]
    """
    if rate == 0:
        return x
    if rate == 1:
        # `x / (1 - rate)` divides by zero here. `select` hides the value, but its gradient would be 0 * inf, NaN.
        return jnp.zeros_like(x)
    # Negative axes are normalised by indexing a range, which also refuses axes that do not exist.
    shared = {range(x.ndim)[axis] for axis in broadcast_dims}
    shape = tuple(1 if axis in shared else size for axis, size in enumerate(x.shape))
    # On an explicit mesh, sharding is part of the type: JAX refuses to select by a mask that lies elsewhere than `x`.
    # The mesh is read off `x`, because it need not be in context.
    whole = jax.typeof(x).sharding
    entries = (None if axis in shared else entry for axis, entry in enumerate(whole.spec))
    drawn = NamedSharding(whole.mesh, PartitionSpec(*entries))
    mask = jax.random.bernoulli(key, 1.0 - rate, shape, out_sharding=drawn if any(drawn.spec) else None)
    # Called for equal shapes too, where it does nothing: programs that replace `jnp.broadcast_to` expect to see the
    # mask.
    mask = jnp.broadcast_to(mask, x.shape, **({"out_sharding": whole} if any(whole.spec) else {}))
    return lax.select(mask, lax.div(x, np.asarray(1.0 - rate, x.dtype)), lax.full_like(x, 0))


class Dropout(Module):
    """Dropout. It is pure and has no state: the key is an argument of the call.

    Args:
        rate: the probability of zero, in [0, 1].
        broadcast_dims: axes along which one decision holds for all elements.
        inference: the mode, in which nothing is dropped; `weft.inference_mode(model)` sets it in a whole model.

    Raises:
        ConfigError: if the rate is not a probability.

    >>> Dropout(0.5)(jnp.ones(4), key=jax.random.key(0)).tolist()
    [0.0, 0.0, 2.0, 2.0]
    >>> Dropout(0.5, inference=True)(jnp.ones(4)).tolist()
    [1.0, 1.0, 1.0, 1.0]

    Source: Srivastava et al., "Dropout", 2014.
    """

    rate: float = static()
    broadcast_dims: tuple[int, ...] = static()
    inference: bool = static()

    def __init__(self, rate: float, *, broadcast_dims: Sequence[int] = (), inference: bool = False):
        _check_rate("Dropout", rate)
        self.rate, self.broadcast_dims, self.inference = rate, tuple(broadcast_dims), inference

    def __call__(
        self, x: Float[Array, "*shape"], *, key: Key[Array, ""] | None = None, inference: bool | None = None
    ) -> Float[Array, "*shape"]:
        """Drops elements.

        Args:
            x: the values.
            key: a typed key; not needed in inference mode, or with a rate of 0.
            inference: this call's mode, if it is not the record's own.

        Raises:
            SeedError: if a key is needed, and there is none or it is not a typed key.
        """
        if self.rate == 0 or (self.inference if inference is None else inference):
            return x
        return dropout(x, _key("Dropout", key), rate=self.rate, broadcast_dims=self.broadcast_dims)


class DropPath(Module):
    """Stochastic depth: drops the output of a residual branch for whole examples of a batch. It is pure, as `Dropout`.

    Put it at the end of the branch of a `Residual`, or write the sum by hand: `x + drop_path(layer(x), key=key)`.

    Args:
        rate: the probability that an example is dropped, in [0, 1]; the others are scaled to keep the mean.
        batch_axes: which axes are of the batch, each of whose examples has a decision of its own:
            `x.shape[:batch_axes]`. 0 is for one example, as under `vmap`; with a positive number the layer refuses a
            `vmap` over the batch.
        inference: the mode, in which nothing is dropped; `weft.inference_mode(model)` sets it in a whole model.

    Raises:
        ConfigError: if the rate is not a probability.

    >>> DropPath(0.5)(jnp.ones((4, 2)), key=jax.random.key(0)).tolist()
    [[0.0, 0.0], [0.0, 0.0], [2.0, 2.0], [2.0, 2.0]]

    Source: Huang et al., "Deep Networks with Stochastic Depth", 2016.
    """

    rate: float = static()
    batch_axes: int = static()
    inference: bool = static()

    def __init__(self, rate: float, *, batch_axes: int = 1, inference: bool = False):
        _check_rate("DropPath", rate)
        self.rate, self.batch_axes, self.inference = rate, check_batch_axes("DropPath", batch_axes), inference

    def __call__(
        self, x: Float[Array, "*shape"], *, key: Key[Array, ""] | None = None, inference: bool | None = None
    ) -> Float[Array, "*shape"]:
        """Drops examples.

        Args:
            x: the output of the branch.
            key: a typed key; not needed in inference mode, or with a rate of 0.
            inference: this call's mode, if it is not the record's own.

        Raises:
            SeedError: if a key is needed, and there is none or it is not a typed key.
        """
        if self.rate == 0 or (self.inference if inference is None else inference):
            return x
        whole = tuple(range(batch_rank(self, x, self.batch_axes), jnp.ndim(x)))
        x = counted(self, x, self.batch_axes, fix=BATCH_AXES)
        return dropout(x, _key("DropPath", key), rate=self.rate, broadcast_dims=whole)


def _check_rate(layer: str, rate: float) -> None:
    if not 0 <= rate <= 1:
        raise ConfigError(f"{layer}: rate must be a probability, not {rate}", fix="pass a number from 0 to 1")


def _key(layer: str, key: Any) -> Key[Array, ""]:
    """Returns the key if it is a typed key; raises an error that says how to make one otherwise."""
    if not is_key(key):
        raise SeedError(
            f"{layer} draws from a typed key, not from {'nothing' if key is None else type(key).__name__}",
            fix='pass key= (key, keys = keys.next("dropout")), or inference_mode(model) to drop nothing',
        )
    return key
