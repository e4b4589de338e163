"""Recurrent cells as records: `carry, y = cell(carry, x)`, one step of a sequence. `rnn.RNN` runs them over all steps.

A cell is a function of one step, so `weft.scan(cell)` runs it too. Its parameters are those of flax's cells: linear
maps of the input (`dense_i`, or `ii`, `if_`, `ig`, `io`) and of the carry (`dense_h`, or `hi`, `hf`, `hg`, `ho`).
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Float
from weft.core.records.module import Module, static
from weft.modules.construct import Initializer, KeyLike, SharedConstructor, check_positive
from weft.modules.dense.linear import Linear, default_kernel_init
from weft.modules.drawing import parameter_keys
from weft.modules.dtypes import compute_dtype
from weft.modules.recurrence.recurrent import gru_step, lstm_step, simple_step

Carry = TypeVar("Carry")
Activation = Callable[[Any], Any]
Input = Float[Array, "*batch in_features"]
Hidden = Float[Array, "*batch hidden_features"]
Memory = tuple[Hidden, Hidden]
_orthogonal = initializers.orthogonal()


def default_recurrent_init(key: Any, shape: Any, dtype: Any) -> Any:
    """Draws an orthogonal kernel in float32, because JAX has no QR decomposition in half precision."""
    return _orthogonal(key, shape, jnp.float32).astype(dtype)


class RecurrentCell(Module, Generic[Carry]):
    """Base of recurrent cells; a cell of your own defines its initial carry and one step.

    >>> class Sum(RecurrentCell):
    ...     def __call__(self, carry, x):
    ...         return carry + x, carry + x
    ...     def initial_carry(self, x):
    ...         return jnp.zeros_like(x)
    >>> from weft.modules import RNN
    >>> RNN(Sum())(jnp.ones((3, 1))).tolist()
    [[1.0], [2.0], [3.0]]
    """

    @abc.abstractmethod
    def __call__(self, carry: Carry, x: Any) -> tuple[Carry, Any]:
        """Computes one step.

        Args:
            carry: the carry of the step before, or `initial_carry`.
            x: the input of this step.

        Returns:
            The carry for the next step, and the output of this step.
        """

    @abc.abstractmethod
    def initial_carry(self, x: Any) -> Carry:
        """Returns the carry for the first step.

        Args:
            x: the input of one step, of which only shape and dtype count.
        """


class SimpleCell(RecurrentCell[Any]):
    """A plain recurrent cell: `y = tanh(dense_i(x) + dense_h(carry))`, which is the carry too.

    Args:
        in_features: size of the input.
        hidden_features: size of the carry and of the output.
        key: a typed key, for the parameters.
        residual: whether the carry is added inside of the activation.
        use_bias: whether to add a bias.
        activation: instead of tanh.
        kernel_init, recurrent_init, bias_init: initialisers from `jax.nn.initializers`.
        dtype: the dtype to compute in; by default what inputs and parameters promote to.
        param_dtype: the dtype of the parameters.

    Raises:
        ConfigError: for a size that is not a positive integer.
        SeedError: without a typed key.

    >>> cell, x = SimpleCell(3, 4, key=jax.random.key(0)), jnp.ones((2, 3))
    >>> carry, y = cell(cell.initial_carry(x), x)
    >>> y.shape
    (2, 4)
    """

    dense_i: Linear
    dense_h: Linear
    in_features: int = static()
    hidden_features: int = static()
    residual: bool = static()
    activation: Activation = static()

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        key: KeyLike,
        residual: bool = False,
        use_bias: bool = True,
        activation: Activation = jnp.tanh,
        kernel_init: Initializer = default_kernel_init,
        recurrent_init: Initializer = default_recurrent_init,
        bias_init: Initializer = initializers.zeros,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
    ):
        check_positive("SimpleCell", in_features=in_features, hidden_features=hidden_features)
        keys = parameter_keys(key, 2, "SimpleCell")
        options: dict[str, Any] = {"bias_init": bias_init, "dtype": dtype, "param_dtype": param_dtype}
        sizes = in_features, hidden_features
        self.dense_i = Linear(*sizes, use_bias=use_bias, kernel_init=kernel_init, key=keys[0], **options)
        # One bias is enough for a sum of two maps; a second one would have the same gradient.
        recurrent = {"use_bias": False, "kernel_init": recurrent_init, **options}
        self.dense_h = Linear(hidden_features, hidden_features, key=keys[1], **recurrent)
        self.in_features, self.hidden_features = sizes
        self.residual, self.activation = residual, activation

    def __call__(self, carry: Hidden, x: Input) -> tuple[Hidden, Hidden]:
        """One step: the next carry, which is the output too."""
        options = {"activation": self.activation, "residual": self.residual}
        y = simple_step(carry, self.dense_i(x), self.dense_h(carry), **options)
        return y, y

    def initial_carry(self, x: Input) -> Hidden:
        """Zeros for inputs like `x`."""
        return _zeros(x, self.dense_i, self.hidden_features)


class GatedCell(SharedConstructor, RecurrentCell[Carry]):
    """Base of `GRUCell`, `LSTMCell` and `OptimizedLSTMCell`: their options; each subclass makes its own maps."""

    in_features: int = static()
    hidden_features: int = static()
    gate: Activation = static()
    activation: Activation = static()

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        key: KeyLike,
        use_bias: bool = True,
        gate: Activation = jax.nn.sigmoid,
        activation: Activation = jnp.tanh,
        kernel_init: Initializer = default_kernel_init,
        recurrent_init: Initializer = default_recurrent_init,
        bias_init: Initializer = initializers.zeros,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
    ):
        layer = type(self).__name__
        check_positive(layer, in_features=in_features, hidden_features=hidden_features)
        self.in_features, self.hidden_features = in_features, hidden_features
        self.gate, self.activation = gate, activation
        linear = functools.partial(Linear, bias_init=bias_init, dtype=dtype, param_dtype=param_dtype)
        of_input = functools.partial(linear, in_features, kernel_init=kernel_init)
        of_carry = functools.partial(linear, hidden_features, kernel_init=recurrent_init)
        self._make_maps(of_input, of_carry, key, use_bias)

    @abc.abstractmethod
    def _make_maps(self, of_input: Any, of_carry: Any, key: Any, use_bias: bool) -> None:
        """Makes the maps of the input and of the carry; `of_input` and `of_carry` make one map from its size."""


class FusedCell(GatedCell[Carry], init=False):
    """A cell with one map of the input and one of the carry for all gates; one of the two maps has the bias."""

    dense_i: Linear
    dense_h: Linear
    _gates: ClassVar[int]
    _carry_has_bias: ClassVar[bool]

    def _make_maps(self, of_input: Any, of_carry: Any, key: Any, use_bias: bool) -> None:
        keys, size = parameter_keys(key, 2, type(self).__name__), self._gates * self.hidden_features
        # As in flax: with the bias in the same map, its checkpoints load unchanged.
        self.dense_i = of_input(size, key=keys[0], use_bias=use_bias and not self._carry_has_bias)
        self.dense_h = of_carry(size, key=keys[1], use_bias=use_bias and self._carry_has_bias)


class GRUCell(FusedCell[Any], init=False):
    """A gated recurrent unit: the output is the carry too.

    Args:
        in_features: size of the input.
        hidden_features: size of the carry and of the output.
        key: a typed key, for the parameters.
        use_bias: whether the map of the input adds a bias.
        gate, activation: instead of sigmoid and tanh.
        kernel_init, recurrent_init, bias_init: initialisers from `jax.nn.initializers`.
        dtype: the dtype to compute in; by default what inputs and parameters promote to.
        param_dtype: the dtype of the parameters.

    Raises:
        ConfigError: for a size that is not a positive integer.
        SeedError: without a typed key.

    >>> cell, xs = GRUCell(3, 4, key=jax.random.key(0)), jnp.ones((5, 3))
    >>> from weft import scan
    >>> carry, ys = scan(cell)(cell.initial_carry(xs[0]), xs)
    >>> ys.shape
    (5, 4)

    Source: Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014.
    """

    _gates, _carry_has_bias = 3, False

    def __call__(self, carry: Hidden, x: Input) -> tuple[Hidden, Hidden]:
        """One step: the next carry, which is the output too."""
        y = gru_step(carry, self.dense_i(x), self.dense_h(carry), gate=self.gate, activation=self.activation)
        return y, y

    def initial_carry(self, x: Input) -> Hidden:
        """Zeros for inputs like `x`."""
        return _zeros(x, self.dense_i, self.hidden_features)


class LSTMCell(GatedCell[Any], init=False):
    """A long short-term memory; its carry is `(memory, output)`.

    It has a map for each gate; `OptimizedLSTMCell` has one for all four, which is faster.

    Args:
        in_features: size of the input.
        hidden_features: size of the memory and of the output.
        key: a typed key, for the parameters.
        use_bias: whether the maps of the carry add a bias.
        gate, activation: instead of sigmoid and tanh.
        kernel_init, recurrent_init, bias_init: initialisers from `jax.nn.initializers`.
        dtype: the dtype to compute in; by default what inputs and parameters promote to.
        param_dtype: the dtype of the parameters.

    Raises:
        ConfigError: for a size that is not a positive integer.
        SeedError: without a typed key.

    >>> cell, x = LSTMCell(3, 4, key=jax.random.key(0)), jnp.ones((2, 3))
    >>> (memory, output), y = cell(cell.initial_carry(x), x)
    >>> memory.shape, output is y
    ((2, 4), True)

    Source: Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997.
    """

    ii: Linear
    if_: Linear
    ig: Linear
    io: Linear
    hi: Linear
    hf: Linear
    hg: Linear
    ho: Linear

    def _make_maps(self, of_input: Any, of_carry: Any, key: Any, use_bias: bool) -> None:
        keys, size = parameter_keys(key, 8, type(self).__name__), self.hidden_features
        self.ii, self.if_, self.ig, self.io = (of_input(size, key=key, use_bias=False) for key in keys[:4])
        self.hi, self.hf, self.hg, self.ho = (of_carry(size, key=key, use_bias=use_bias) for key in keys[4:])

    def __call__(self, carry: Memory, x: Input) -> tuple[Memory, Hidden]:
        """One step: the next `(memory, output)`, and the output."""
        memory, h = carry
        pairs = (self.ii, self.hi), (self.if_, self.hf), (self.ig, self.hg), (self.io, self.ho)
        gates = [of_input(x) + of_carry(h) for of_input, of_carry in pairs]
        memory, y = lstm_step(memory, *gates, gate=self.gate, activation=self.activation)
        return (memory, y), y

    def initial_carry(self, x: Input) -> Memory:
        """Zeros for inputs like `x`."""
        return _zeros(x, self.ii, self.hidden_features), _zeros(x, self.ii, self.hidden_features)


class OptimizedLSTMCell(FusedCell[Any], init=False):
    """A long short-term memory with one map of the input and one of the carry for all four gates `i, f, g, o`.

    Its carry is `(memory, output)`. Arguments are those of `LSTMCell`, and with the kernels of that put side by side it
    computes the same.

    Args:
        in_features: size of the input.
        hidden_features: size of the memory and of the output.
        key: a typed key, for the parameters.
        use_bias: whether the map of the carry adds a bias.
        gate, activation: instead of sigmoid and tanh.
        kernel_init, recurrent_init, bias_init: initialisers from `jax.nn.initializers`.
        dtype: the dtype to compute in; by default what inputs and parameters promote to.
        param_dtype: the dtype of the parameters.

    Raises:
        ConfigError: for a size that is not a positive integer.
        SeedError: without a typed key.

    >>> cell, x = OptimizedLSTMCell(3, 4, key=jax.random.key(0)), jnp.ones((2, 3))
    >>> (memory, output), y = cell(cell.initial_carry(x), x)
    >>> memory.shape, output is y
    ((2, 4), True)

    Source: Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997.
    """

    _gates, _carry_has_bias = 4, True

    def __call__(self, carry: Memory, x: Input) -> tuple[Memory, Hidden]:
        """One step: the next `(memory, output)`, and the output."""
        memory, h = carry
        # One product of four times the size keeps a device busier than four products.
        gates = jnp.split(self.dense_i(x) + self.dense_h(h), 4, axis=-1)
        memory, y = lstm_step(memory, *gates, gate=self.gate, activation=self.activation)
        return (memory, y), y

    def initial_carry(self, x: Input) -> Memory:
        """Zeros for inputs like `x`."""
        return _zeros(x, self.dense_i, self.hidden_features), _zeros(x, self.dense_i, self.hidden_features)


def _zeros(x: Any, of_input: Any, hidden: int) -> Any:
    # In the dtype in which a step computes: a scan refuses a carry whose dtype changes after the first step.
    dtype = compute_dtype(x, of_input.kernel, dtype=of_input.dtype)
    return jnp.zeros((*x.shape[:-1], hidden), dtype)
