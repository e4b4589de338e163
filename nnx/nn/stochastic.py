"""`Dropout`."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from weft.core.records.keys import SeedError
from weft.modules import ops
from weft.nnx.modules.module import Module
from weft.nnx.nn.construct import first_given
from weft.nnx.objects.attributes import data
from weft.nnx.streams.rngs import Rngs, RngStream


class Dropout(Module):
    """Sets random elements to zero in training mode, and scales the others to preserve the mean.

    Args:
        rate: the probability that an element is dropped, in [0, 1].
        broadcast_dims: axes along which all elements share a decision.
        deterministic: whether to disable dropout; `model.eval()` sets it to True, `model.train()` to False.
        rng_collection: the name of the stream to draw from.
        rngs: `Rngs` or a stream, of which a fork is stored; without it, each call must pass `rngs`.

    Raises:
        TypeError: if `rngs` is anything else.

    >>> from weft import nnx
    >>> layer = Dropout(0.5, rngs=nnx.Rngs(0))
    >>> layer(jnp.ones(6)).tolist(), layer(jnp.ones(2), deterministic=True).tolist()
    ([2.0, 0.0, 2.0, 0.0, 2.0, 2.0], [1.0, 1.0])
    """

    def __init__(
        self,
        rate: float,
        *,
        broadcast_dims: Sequence[int] = (),
        deterministic: bool | None = False,
        rng_collection: str = "dropout",
        rngs: Rngs | RngStream | None = None,
    ):
        self.rate = rate
        self.broadcast_dims = ops.hashable(broadcast_dims)
        self.deterministic = deterministic
        self.rng_collection = rng_collection
        # `is None` is for the type checker: the decorated class `Rngs` is Any to it, and narrows nothing.
        stream = rngs if rngs is None or not isinstance(rngs, Rngs) else rngs[rng_collection]
        if stream is not None and not isinstance(stream, RngStream):
            raise SeedError(
                f"rngs must be a Rngs or an RngStream: Dropout got a {type(stream).__name__}",
                fix="pass rngs=nnx.Rngs(seed)",
            )
        # A fork: layers that stored one stream would share its count, and adding a layer would change the draws of the
        # others.
        self.rngs = data(None) if stream is None else stream.fork()

    def __call__(
        self,
        inputs: jax.Array,
        *,
        deterministic: bool | None = None,
        rngs: Rngs | RngStream | jax.Array | None = None,
    ) -> jax.Array:
        """Applies dropout.

        Args:
            inputs: any array.
            deterministic: overrides the layer's option for this call.
            rngs: `Rngs`, a stream or a key, instead of the layer's own stream.

        Raises:
            ValueError: if neither call nor layer sets `deterministic`, or `rngs` if it is needed.
            TypeError: if `rngs` is anything else.
        """
        deterministic = first_given("deterministic", deterministic, self.deterministic, owner=self)
        # Before a stream is looked for, so that evaluation needs no `rngs`.
        if self.rate == 0 or deterministic:
            return inputs
        # The general formula would divide by 1 - rate.
        if self.rate == 1:
            return jnp.zeros_like(inputs)
        source = first_given("rngs", rngs, self.rngs, owner=self)
        if isinstance(source, Rngs):
            source = source[self.rng_collection]
        if not isinstance(source, RngStream | jax.Array):
            raise SeedError(
                f"rngs must be one to draw from: Rngs, a stream or a key; Dropout got a {type(source).__name__}",
                fix="pass rngs=nnx.Rngs(seed)",
            )
        key = source() if isinstance(source, RngStream) else source
        return ops.dropout(inputs, key, rate=self.rate, broadcast_dims=self.broadcast_dims)

    def set_view(self, deterministic: bool | None = None) -> None:
        """Sets options of this layer; `nnx.view` calls it on a copy.

        Args:
            deterministic: whether to disable dropout.
        """
        if deterministic is not None:
            self.deterministic = deterministic
