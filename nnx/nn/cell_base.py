"""What recurrent cells share: the class `RNNCellBase`, the first carry, and what constructors keep for it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
from weft.core.records.keys import SeedError
from weft.modules.construct import ConfigError
from weft.nnx.errors import UnwrittenMethodError
from weft.nnx.modules.module import Module
from weft.nnx.nn import initializers
from weft.nnx.objects.attributes import data
from weft.nnx.streams.rngs import Rngs, RngStream

Carry = Any


class RNNCellBase(Module):
    """Base of recurrent cells; a cell of your own says how it begins, what a step is, and how many axes are features.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> class Sum(RNNCellBase):
    ...     num_feature_axes = 1
    ...     def initialize_carry(self, input_shape, rngs=None, carry_init=None):
    ...         return jnp.zeros(input_shape)
    ...     def __call__(self, carry, inputs):
    ...         return carry + inputs, carry + inputs
    >>> nnx.RNN(Sum())(jnp.ones((3, 1))).tolist()
    [[1.0], [2.0], [3.0]]
    """

    def initialize_carry(
        self,
        input_shape: tuple[int, ...],
        rngs: Rngs | RngStream | None = None,
        carry_init: Callable[..., Any] | None = None,
    ) -> Carry:
        """What the first step is given.

        Args:
            input_shape: of the input of one step: batch axes, then features.
            rngs: streams, of which `carry` is drawn from, or one stream.
            carry_init: initializer; zeros by default.

        Raises:
            NotImplementedError: if the cell does not say.
        """
        raise _unwritten(self, "initialize_carry")

    def __call__(self, carry: Carry, inputs: jax.Array) -> tuple[Carry, jax.Array]:
        """One step.

        Args:
            carry: what the step before gave, or `initialize_carry`.
            inputs: of this step, `(*batch, features)`.

        Returns:
            What goes on to the next step, and the output of this one.

        Raises:
            NotImplementedError: if the cell does not say.
        """
        raise _unwritten(self, "__call__")

    @property
    def num_feature_axes(self) -> int:
        """How many axes of the input are features, at its end.

        Raises:
            NotImplementedError: if the cell does not say.
        """
        raise _unwritten(self, "num_feature_axes")


def _unwritten(cell: RNNCellBase, name: str) -> UnwrittenMethodError:
    return UnwrittenMethodError(
        f"every RNNCellBase has its own `{name}`, but {type(cell).__name__} defines none",
        fix="define initialize_carry, __call__ and num_feature_axes",
    )


def kept_stream(keep_rngs: bool, rngs: Any) -> Any:
    """What a cell keeps of the streams that it was made with."""
    if not keep_rngs:
        return data(None)
    warnings.warn(
        "'keep_rngs' is deprecated: give the call its streams, cell.initialize_carry(..., rngs)", stacklevel=4
    )
    return rngs.carry.fork()


def kept_init(carry_init: Any) -> Any:
    """The initializer of the first carry that a cell was made with, if any."""
    if carry_init:
        warnings.warn(
            "'carry_init' given to the constructor is deprecated: a cell with another function has another graphdef. "
            "Give it to initialize_carry",
            stacklevel=3,
        )
    return carry_init


def _first_carry(cell: Any, input_shape: tuple[int, ...], rngs: Any, carry_init: Any, count: int) -> list[jax.Array]:
    """The first carry, in as many arrays as it has; each draws a key, whether its initializer uses that or not."""
    stream = cell.rngs if rngs is None else rngs
    if isinstance(stream, Rngs):
        stream = stream.carry
    name = type(cell).__name__
    if stream is None:
        raise ConfigError(
            f"RNGs must be provided to initialize the cell carry of {name}",
            fix="cell.initialize_carry(shape, nnx.Rngs(0)); nnx.RNN(cell, rngs=nnx.Rngs(0)) does it by itself",
        )
    if not isinstance(stream, RngStream):
        raise SeedError(f"{name} draws its carry from Rngs or a stream, not from a {type(stream).__name__}")
    init = carry_init or cell.carry_init or initializers.zeros_init()
    return [init(stream(), (*input_shape[:-1], cell.hidden_features), cell.param_dtype) for _ in range(count)]


class VectorCell(RNNCellBase):
    """Cells of vectors, whose carry is one; but `SimpleCell` has no gate."""

    in_features: int
    hidden_features: int
    gate_fn: Callable[..., Any]
    activation_fn: Callable[..., Any]
    rngs: RngStream | None
    carry_init: Callable[..., Any] | None

    @property
    def num_feature_axes(self) -> int:
        """One: the last."""
        return 1

    def initialize_carry(
        self,
        input_shape: tuple[int, ...],
        rngs: Rngs | RngStream | None = None,
        carry_init: Callable[..., Any] | None = None,
    ) -> Any:
        """What the first step is given, `(*batch, hidden_features)`.

        Args:
            input_shape: of the input of one step, `(*batch, in_features)`.
            rngs: streams, of which `carry` is drawn from, or one stream, whatever the initializer.
            carry_init: initializer; zeros by default.

        Raises:
            ValueError: without streams.
            TypeError: if they are none.
        """
        return _first_carry(self, input_shape, rngs, carry_init, 1)[0]


class MemoryCell(VectorCell):
    """Cells whose carry is `(memory, output)`."""

    def initialize_carry(
        self,
        input_shape: tuple[int, ...],
        rngs: Rngs | RngStream | None = None,
        carry_init: Callable[..., Any] | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """What the first step is given: memory and output, `(*batch, hidden_features)` each.

        Args:
            input_shape: of the input of one step, `(*batch, in_features)`.
            rngs: streams, of which `carry` is drawn from, or one stream, whatever the initializer.
            carry_init: initializer; zeros by default.

        Raises:
            ValueError: without streams.
            TypeError: if they are none.
        """
        memory, output = _first_carry(self, input_shape, rngs, carry_init, 2)
        return memory, output
