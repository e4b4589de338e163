"""Recurrent cells: `carry, y = cell(carry, x)` is one step of a sequence. `recurrent.RNN` runs all steps.

Arguments that all cells have:

    in_features: size of the input.
    hidden_features: size of the carry and of the output.
    gate_fn, activation_fn: instead of sigmoid and tanh.
    kernel_init, recurrent_kernel_init, bias_init: initializers of the kernels for the input, of the kernels for the
        carry, and of the biases.
    dtype: the dtype to compute in; by default what inputs and parameters promote to.
    param_dtype: the dtype of the parameters, and of the first carry.
    carry_init: initializer of the initial carry; deprecated, pass it to `initialize_carry`.
    promote_dtype: casts `(inputs, kernel, bias)` of each map to one dtype, given `dtype`.
    keep_rngs: whether to store a fork of the stream `carry`; deprecated, pass streams to `initialize_carry`.
    rngs: a key for each parameter is drawn from the stream `params`.
    kernel_metadata, recurrent_kernel_metadata, bias_metadata: metadata of the parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from weft.modules import ops
from weft.nnx.nn import dtypes, initializers
from weft.nnx.nn.activations import sigmoid, tanh
from weft.nnx.nn.affine import default_bias_init, default_kernel_init
from weft.nnx.nn.cell_base import MemoryCell, RNNCellBase, VectorCell, kept_init, kept_stream
from weft.nnx.nn.construct import NO_METADATA, Metadata, keep_options
from weft.nnx.nn.linear import Linear
from weft.nnx.streams.rngs import Rngs

__all__ = ["GRUCell", "LSTMCell", "OptimizedLSTMCell", "RNNCellBase", "SimpleCell"]

_orthogonal = initializers.orthogonal()


def modified_orthogonal(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    """Makes an orthogonal kernel in float32 and casts it, because QR decomposition needs at least single precision.

    >>> modified_orthogonal(jax.random.key(0), (2, 2), jnp.bfloat16).dtype.name
    'bfloat16'
    """
    return _orthogonal(key, shape).astype(dtype)


def begin_cell(cell: Any, arguments: Mapping[str, Any]) -> tuple[Callable[..., Linear], Callable[..., Linear], Any]:
    """Stores the options of a cell's constructor, and prepares the constructors of its linear maps.

    Args:
        cell: the cell.
        arguments: the constructor's `locals()`.

    Returns:
        A function that makes a linear map of the input with a number of output features, one for maps of the carry, and
        the options of maps with a bias.
    """
    keep_options(cell, arguments, but=("keep_rngs",))
    cell.rngs = kept_stream(arguments["keep_rngs"], arguments["rngs"])
    # Partials, because the cells differ in how many maps they have and in which order the maps draw their keys.
    linear = functools.partial(
        Linear, **{name: arguments[name] for name in ("dtype", "param_dtype", "promote_dtype", "rngs")}
    )
    of_input, of_carry = (
        functools.partial(
            linear, size, kernel_init=arguments[f"{kind}_init"], kernel_metadata=arguments[f"{kind}_metadata"]
        )
        for size, kind in ((cell.in_features, "kernel"), (cell.hidden_features, "recurrent_kernel"))
    )
    return of_input, of_carry, {"bias_init": arguments["bias_init"], "bias_metadata": arguments["bias_metadata"]}


class SimpleCell(VectorCell):
    """A plain recurrent cell: `y = tanh(dense_i(x) + dense_h(carry))` is both output and next carry.

    Args:
        residual: whether to add the carry inside the activation.

    The module `cells` describes the other arguments.

    Raises:
        TypeError: if `rngs` are no `Rngs`.

    >>> from weft import nnx
    >>> cell, x = SimpleCell(3, 4, rngs=nnx.Rngs(0)), jnp.ones((2, 3))
    >>> carry, y = cell(cell.initialize_carry(x.shape, nnx.Rngs(0)), x)
    >>> y.shape
    (2, 4)
    """

    residual: bool

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        # float32, where the other cells have None: the defaults are flax's, so that programs compute the same.
        dtype: Any = jnp.float32,
        param_dtype: Any = jnp.float32,
        carry_init: Callable[..., Any] | None = None,
        residual: bool = False,
        activation_fn: Callable[..., Any] = tanh,
        kernel_init: Callable[..., Any] = default_kernel_init,
        recurrent_kernel_init: Callable[..., Any] = _orthogonal,
        bias_init: Callable[..., Any] = default_bias_init,
        promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
        keep_rngs: bool = False,
        rngs: Rngs,
        kernel_metadata: Metadata = NO_METADATA,
        recurrent_kernel_metadata: Metadata = NO_METADATA,
        bias_metadata: Metadata = NO_METADATA,
    ):
        of_input, of_carry, bias = begin_cell(self, locals())
        # In this cell the carry's map draws its key first, as in flax; in the other cells the input's map does.
        self.dense_h = of_carry(hidden_features, use_bias=False)
        self.dense_i = of_input(hidden_features, **bias)
        self.carry_init = kept_init(carry_init)

    def __call__(self, carry: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Runs one step. Returns the next carry and the output, which are equal: `(*batch, hidden_features)`."""
        from_input, from_carry = self.dense_i(inputs), self.dense_h(carry)
        y = ops.simple_step(carry, from_input, from_carry, activation=self.activation_fn, residual=self.residual)
        return y, y


class _FusedCell(RNNCellBase):
    """Base class of cells with one input map and one carry map for all gates; only one of the two has a bias."""

    _gates: ClassVar[int]
    _carry_has_bias: ClassVar[bool]

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        gate_fn: Callable[..., Any] = sigmoid,
        activation_fn: Callable[..., Any] = tanh,
        kernel_init: Callable[..., Any] = default_kernel_init,
        recurrent_kernel_init: Callable[..., Any] = _orthogonal,
        bias_init: Callable[..., Any] = default_bias_init,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        carry_init: Callable[..., Any] | None = None,
        promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
        keep_rngs: bool = False,
        rngs: Rngs,
        kernel_metadata: Metadata = NO_METADATA,
        recurrent_kernel_metadata: Metadata = NO_METADATA,
        bias_metadata: Metadata = NO_METADATA,
    ):
        of_input, of_carry, bias = begin_cell(self, locals())
        size = self._gates * hidden_features
        # As in flax, whose States must fit: one bias for both maps, and which of the two has it depends on the cell.
        self.dense_i = of_input(size, **({"use_bias": False} if self._carry_has_bias else bias))
        self.dense_h = of_carry(size, **(bias if self._carry_has_bias else {"use_bias": False}))
        self.carry_init = kept_init(carry_init)


class GRUCell(_FusedCell, VectorCell):
    """A gated recurrent unit, whose output is also the next carry. The module `cells` describes the arguments.

    Raises:
        TypeError: if `rngs` are no `Rngs`.

    >>> from weft import nnx
    >>> cell, x = GRUCell(3, 4, rngs=nnx.Rngs(0)), jnp.ones((2, 3))
    >>> carry, y = cell(cell.initialize_carry(x.shape, nnx.Rngs(0)), x)
    >>> y.shape, cell.dense_i.kernel.shape
    ((2, 4), (3, 12))

    Source: Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014.
    """

    _gates, _carry_has_bias = 3, False

    def __call__(self, carry: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Runs one step. Returns the next carry and the output, which are equal: `(*batch, hidden_features)`."""
        from_input, from_carry = self.dense_i(inputs), self.dense_h(carry)
        y = ops.gru_step(carry, from_input, from_carry, gate=self.gate_fn, activation=self.activation_fn)
        return y, y


class LSTMCell(MemoryCell):
    """A long short-term memory with the carry `(memory, output)`. The module `cells` describes the arguments.

    It has a map for each gate; `OptimizedLSTMCell` has one for all four, which is faster.

    Raises:
        TypeError: if `rngs` are no `Rngs`.

    >>> from weft import nnx
    >>> cell, x = LSTMCell(3, 4, rngs=nnx.Rngs(0)), jnp.ones((2, 3))
    >>> (memory, output), y = cell(cell.initialize_carry(x.shape, nnx.Rngs(0)), x)
    >>> memory.shape, output is y
    ((2, 4), True)

    Source: Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        gate_fn: Callable[..., Any] = sigmoid,
        activation_fn: Callable[..., Any] = tanh,
        kernel_init: Callable[..., Any] = default_kernel_init,
        recurrent_kernel_init: Callable[..., Any] = modified_orthogonal,
        bias_init: Callable[..., Any] = default_bias_init,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        carry_init: Callable[..., Any] | None = None,
        promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
        keep_rngs: bool = False,
        rngs: Rngs,
        kernel_metadata: Metadata = NO_METADATA,
        recurrent_kernel_metadata: Metadata = NO_METADATA,
        bias_metadata: Metadata = NO_METADATA,
    ):
        of_input, of_carry, bias = begin_cell(self, locals())
        # All input maps draw their keys before the carry maps, as in flax: with equal keys the initial values agree.
        self.ii, self.if_, self.ig, self.io = (of_input(hidden_features, use_bias=False) for _ in range(4))
        self.hi, self.hf, self.hg, self.ho = (of_carry(hidden_features, **bias) for _ in range(4))
        self.carry_init = kept_init(carry_init)

    def __call__(
        self, carry: tuple[jax.Array, jax.Array], inputs: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        """Runs one step. Returns the next carry `(memory, output)` and the output, `(*batch, hidden_features)` each."""
        memory, h = carry
        pairs = (self.ii, self.hi), (self.if_, self.hf), (self.ig, self.hg), (self.io, self.ho)
        gates = [of_input(inputs) + of_carry(h) for of_input, of_carry in pairs]
        memory, y = ops.lstm_step(memory, *gates, gate=self.gate_fn, activation=self.activation_fn)
        return (memory, y), y


class OptimizedLSTMCell(_FusedCell, MemoryCell):
    """A long short-term memory with one input map and one carry map for all four gates `i, f, g, o`.

    Its carry is `(memory, output)`, and the module `cells` describes the arguments. With the concatenated kernels of an
    `LSTMCell` it computes the same.

    Raises:
        TypeError: if `rngs` are no `Rngs`.

    >>> from weft import nnx
    >>> cell, x = OptimizedLSTMCell(3, 4, rngs=nnx.Rngs(0)), jnp.ones((2, 3))
    >>> (memory, output), y = cell(cell.initialize_carry(x.shape, nnx.Rngs(0)), x)
    >>> memory.shape, cell.dense_i.kernel.shape
    ((2, 4), (3, 16))

    Source: Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997.
    """

    _gates, _carry_has_bias = 4, True

    def __call__(
        self, carry: tuple[jax.Array, jax.Array], inputs: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        """Runs one step. Returns the next carry `(memory, output)` and the output, `(*batch, hidden_features)` each."""
        memory, h = carry
        # The order i, f, g, o is that in which flax concatenates the kernels of `LSTMCell`.
        gates = jnp.split(self.dense_i(inputs) + self.dense_h(h), 4, axis=-1)
        memory, y = ops.lstm_step(memory, *gates, gate=self.gate_fn, activation=self.activation_fn)
        return (memory, y), y
