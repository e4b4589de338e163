"""Shared by recurrent cells: the base class `RNNCellBase`, and the initial carry."""

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
    """Base class of recurrent cells. A subclass defines the initial carry, a step, and the number of feature axes.

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
        """Makes the initial carry.

        Args:
            input_shape: the shape of one step's input: batch axes, then features.
            rngs: `Rngs` with a stream `carry`, or a stream.
            carry_init: initializer; zeros by default.

        Raises:
            NotImplementedError: if the subclass does not define it.
        """
        raise _unwritten(self, "initialize_carry")

    def __call__(self, carry: Carry, inputs: jax.Array) -> tuple[Carry, jax.Array]:
        """Runs one step.

        Args:
            carry: the carry that the last step returned, or `initialize_carry`.
            inputs: this step's input, `(*batch, features)`.

        Returns:
            The next carry, and this step's output.

        Raises:
            NotImplementedError: if the subclass does not define it.
        """
        raise _unwritten(self, "__call__")

    @property
    def num_feature_axes(self) -> int:
        """The number of trailing axes of the input that are features.

        Raises:
            NotImplementedError: if the subclass does not define it.
        """
        raise _unwritten(self, "num_feature_axes")


def _unwritten(cell: RNNCellBase, name: str) -> UnwrittenMethodError:
    return UnwrittenMethodError(
        f"every RNNCellBase has its own `{name}`, but {type(cell).__name__} defines none",
        fix="define initialize_carry, __call__ and num_feature_axes",
    )


def kept_stream(keep_rngs: bool, rngs: Any) -> Any:
    """A fork of the constructor's stream `carry` if `keep_rngs` (deprecated), else None, declared as data."""
    if not keep_rngs:
        return data(None)
    warnings.warn("'keep_rngs' is deprecated: pass streams to the call, cell.initialize_carry(..., rngs)", stacklevel=4)
    return rngs.carry.fork()


def kept_init(carry_init: Any) -> Any:
    """Returns a constructor's `carry_init`, with a warning if there is one."""
    # A warning and not an error, because flax still accepts the argument.
    if carry_init:
        warnings.warn(
            "'carry_init' of the constructor is deprecated: a cell with another function has another graphdef. "
            "Pass it to initialize_carry",
            stacklevel=3,
        )
    return carry_init


def _first_carry(cell: Any, input_shape: tuple[int, ...], rngs: Any, carry_init: Any, count: int) -> list[jax.Array]:
    """Makes the `count` arrays of an initial carry."""
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
        raise SeedError(f"{name} draws its carry from Rngs or a stream, got a {type(stream).__name__}")
    # Each array draws a key even if it is zeros, as in flax: otherwise later draws of the stream would differ.
    init = carry_init or cell.carry_init or initializers.zeros_init()
    return [init(stream(), (*input_shape[:-1], cell.hidden_features), cell.param_dtype) for _ in range(count)]


class VectorCell(RNNCellBase):
    """Base class of cells whose carry is one vector. (`SimpleCell` has no `gate_fn`.)"""

    in_features: int
    hidden_features: int
    gate_fn: Callable[..., Any]
    activation_fn: Callable[..., Any]
    rngs: RngStream | None
    carry_init: Callable[..., Any] | None

    @property
    def num_feature_axes(self) -> int:
        """1: the last axis."""
        return 1

    def initialize_carry(
        self,
        input_shape: tuple[int, ...],
        rngs: Rngs | RngStream | None = None,
        carry_init: Callable[..., Any] | None = None,
    ) -> Any:
        """Makes the initial carry, `(*batch, hidden_features)`.

        Args:
            input_shape: of the input of one step, `(*batch, in_features)`.
            rngs: `Rngs` with a stream `carry`, or a stream; keys are drawn even if the initializer is `zeros`.
            carry_init: initializer; zeros by default.

        Raises:
            ValueError: without streams.
            TypeError: if `rngs` are neither.
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
        """Makes the initial carry: memory and output, `(*batch, hidden_features)` each.

        Args:
            input_shape: of the input of one step, `(*batch, in_features)`.
            rngs: `Rngs` with a stream `carry`, or a stream; keys are drawn even if the initializer is `zeros`.
            carry_init: initializer; zeros by default.

        Raises:
            ValueError: without streams.
            TypeError: if `rngs` are neither.
        """
        memory, output = _first_carry(self, input_shape, rngs, carry_init, 2)
        return memory, output
