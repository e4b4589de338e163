"""Recurrent cells: `carry, y = cell(carry, x)`, one step of a sequence. `recurrent.RNN` runs them over all steps.

What their arguments have in common:

    in_features: size of the input.
    hidden_features: size of the carry and of the output.
    gate_fn, activation_fn: instead of sigmoid and tanh.
    kernel_init, recurrent_kernel_init, bias_init: initializers of the maps of the input, of those of the carry, and of
        the biases.
    dtype: the dtype to compute in; by default what inputs and parameters promote to.
    param_dtype: the dtype of the parameters, and of the first carry.
    carry_init: initializer of the first carry; deprecated here, as `initialize_carry` takes one.
    promote_dtype: casts `(inputs, kernel, bias)` of each map to one dtype, given `dtype`.
    keep_rngs: whether to keep a fork of the stream `carry` for `initialize_carry`; deprecated, as that takes one.
    rngs: a key for each parameter is drawn from the stream `params`.
    kernel_metadata, recurrent_kernel_metadata, bias_metadata: metadata of the parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

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
    """An orthogonal kernel in any float dtype: there is no QR decomposition in half precision.

    >>> modified_orthogonal(jax.random.key(0), (2, 2), jnp.bfloat16).dtype.name
    'bfloat16'
    """
    return _orthogonal(key, shape).astype(dtype)


class SimpleCell(VectorCell):
    """A plain recurrent cell: `y = tanh(dense_i(x) + dense_h(carry))`, which is the carry too.

    Args:
        residual: whether the carry is added inside of the activation.

    Other arguments are said in `cells`.

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
        keep_options(self, locals(), but=("keep_rngs",))
        self.rngs = kept_stream(keep_rngs, rngs)
        options = {"dtype": dtype, "param_dtype": param_dtype, "promote_dtype": promote_dtype, "rngs": rngs}
        # The map of the carry draws its key first here; in the other cells it is the second.
        of_carry = {"kernel_init": recurrent_kernel_init, "kernel_metadata": recurrent_kernel_metadata, **options}
        self.dense_h = Linear(hidden_features, hidden_features, use_bias=False, **of_carry)
        of_input = {"kernel_init": kernel_init, "kernel_metadata": kernel_metadata, **options}
        self.dense_i = Linear(
            in_features, hidden_features, bias_init=bias_init, bias_metadata=bias_metadata, **of_input
        )
        self.carry_init = kept_init(carry_init)

    def __call__(self, carry: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """One step: the next carry, which is the output too, `(*batch, hidden_features)`."""
        from_input, from_carry = self.dense_i(inputs), self.dense_h(carry)
        y = ops.simple_step(carry, from_input, from_carry, activation=self.activation_fn, residual=self.residual)
        return y, y


class GRUCell(VectorCell):
    """A gated recurrent unit: the output is the carry too. Its arguments are said in `cells`.

    Raises:
        TypeError: if `rngs` are no `Rngs`.

    >>> from weft import nnx
    >>> cell, x = GRUCell(3, 4, rngs=nnx.Rngs(0)), jnp.ones((2, 3))
    >>> carry, y = cell(cell.initialize_carry(x.shape, nnx.Rngs(0)), x)
    >>> y.shape, cell.dense_i.kernel.shape
    ((2, 4), (3, 12))

    Source: Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014.
    """

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
        keep_options(self, locals(), but=("keep_rngs",))
        self.rngs = kept_stream(keep_rngs, rngs)
        options = {"dtype": dtype, "param_dtype": param_dtype, "promote_dtype": promote_dtype, "rngs": rngs}
        of_input = {"kernel_init": kernel_init, "kernel_metadata": kernel_metadata, **options}
        self.dense_i = Linear(
            in_features, 3 * hidden_features, bias_init=bias_init, bias_metadata=bias_metadata, **of_input
        )
        of_carry = {"kernel_init": recurrent_kernel_init, "kernel_metadata": recurrent_kernel_metadata, **options}
        self.dense_h = Linear(hidden_features, 3 * hidden_features, use_bias=False, **of_carry)
        self.carry_init = kept_init(carry_init)

    def __call__(self, carry: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """One step: the next carry, which is the output too, `(*batch, hidden_features)`."""
        from_input, from_carry = self.dense_i(inputs), self.dense_h(carry)
        y = ops.gru_step(carry, from_input, from_carry, gate=self.gate_fn, activation=self.activation_fn)
        return y, y


class LSTMCell(MemoryCell):
    """A long short-term memory; its carry is `(memory, output)`. Its arguments are said in `cells`.

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
        keep_options(self, locals(), but=("keep_rngs",))
        self.rngs = kept_stream(keep_rngs, rngs)
        options = {"dtype": dtype, "param_dtype": param_dtype, "promote_dtype": promote_dtype, "rngs": rngs}
        options_i = {"kernel_init": kernel_init, "kernel_metadata": kernel_metadata, "use_bias": False, **options}
        of_input = functools.partial(Linear, in_features, hidden_features, **options_i)
        options |= {"kernel_init": recurrent_kernel_init, "kernel_metadata": recurrent_kernel_metadata}
        options |= {"bias_init": bias_init, "bias_metadata": bias_metadata}
        of_carry = functools.partial(Linear, hidden_features, hidden_features, **options)
        self.ii, self.if_, self.ig, self.io = (of_input() for _ in range(4))
        self.hi, self.hf, self.hg, self.ho = (of_carry() for _ in range(4))
        self.carry_init = kept_init(carry_init)

    def __call__(
        self, carry: tuple[jax.Array, jax.Array], inputs: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        """One step: the next `(memory, output)`, and the output, `(*batch, hidden_features)` each."""
        memory, h = carry
        pairs = (self.ii, self.hi), (self.if_, self.hf), (self.ig, self.hg), (self.io, self.ho)
        gates = [of_input(inputs) + of_carry(h) for of_input, of_carry in pairs]
        memory, y = ops.lstm_step(memory, *gates, gate=self.gate_fn, activation=self.activation_fn)
        return (memory, y), y


class OptimizedLSTMCell(MemoryCell):
    """A long short-term memory with one map of the input and one of the carry, for all four gates `i, f, g, o`.

    Its carry is `(memory, output)`. Its arguments are said in `cells`; with the kernels of `LSTMCell` put side by side
    it computes the same.

    Raises:
        TypeError: if `rngs` are no `Rngs`.

    >>> from weft import nnx
    >>> cell, x = OptimizedLSTMCell(3, 4, rngs=nnx.Rngs(0)), jnp.ones((2, 3))
    >>> (memory, output), y = cell(cell.initialize_carry(x.shape, nnx.Rngs(0)), x)
    >>> memory.shape, cell.dense_i.kernel.shape
    ((2, 4), (3, 16))

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
        keep_options(self, locals(), but=("keep_rngs",))
        self.rngs = kept_stream(keep_rngs, rngs)
        options = {"dtype": dtype, "param_dtype": param_dtype, "promote_dtype": promote_dtype, "rngs": rngs}
        of_input = {"kernel_init": kernel_init, "kernel_metadata": kernel_metadata, **options}
        self.dense_i = Linear(in_features, 4 * hidden_features, use_bias=False, **of_input)
        of_carry = {"kernel_init": recurrent_kernel_init, "kernel_metadata": recurrent_kernel_metadata, **options}
        self.dense_h = Linear(
            hidden_features, 4 * hidden_features, bias_init=bias_init, bias_metadata=bias_metadata, **of_carry
        )
        self.carry_init = kept_init(carry_init)

    def __call__(
        self, carry: tuple[jax.Array, jax.Array], inputs: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        """One step: the next `(memory, output)`, and the output, `(*batch, hidden_features)` each."""
        memory, h = carry
        gates = jnp.split(self.dense_i(inputs) + self.dense_h(h), 4, axis=-1)
        memory, y = ops.lstm_step(memory, *gates, gate=self.gate_fn, activation=self.activation_fn)
        return (memory, y), y
