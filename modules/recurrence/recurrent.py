"""Recurrent steps: the pure ops that take a cell's carry from one step of a sequence to the next.

An op takes the outputs of the linear maps of the input and of the carry, so that a layer chooses its own maps and their
dtypes. Gates are in the order of flax and cuDNN: `i, f, g, o` and `r, z, n`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped
from weft.modules.op import op

Hidden = Float[Array, "*batch hidden"]


@op
def simple_step(
    carry: Hidden, from_input: Hidden, from_carry: Hidden, *, activation: Any = jnp.tanh, residual: bool = False
) -> Hidden:
    """A step of a plain recurrent cell: `activation(from_input + from_carry)`.

    Args:
        carry: the carry of the step before.
        from_input, from_carry: the outputs of the maps of the input and of the carry.
        activation: a function of an array.
        residual: whether the carry is added inside of the activation.

    >>> simple_step(jnp.ones(2), jnp.zeros(2), jnp.zeros(2)).tolist()
    [0.0, 0.0]
    """
    total = from_input + from_carry
    return activation(total + carry if residual else total)


@op
def gru_step(
    carry: Hidden,
    from_input: Float[Array, "*batch 3*hidden"],
    from_carry: Float[Array, "*batch 3*hidden"],
    *,
    gate: Any = jax.nn.sigmoid,
    activation: Any = jnp.tanh,
) -> Hidden:
    """A step of a gated recurrent unit.

    Args:
        carry: the carry of the step before.
        from_input, from_carry: the outputs of the maps of the input and of the carry, for the gates `r` (reset), `z`
            (update) and `n` (new).
        gate, activation: functions of an array.

    >>> gru_step(jnp.ones(1), jnp.zeros(3), jnp.zeros(3)).tolist()
    [0.5]

    Source: Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014.
    """
    input_r, input_z, input_n = jnp.split(from_input, 3, axis=-1)
    carry_r, carry_z, carry_n = jnp.split(from_carry, 3, axis=-1)
    seen, update = gate(input_r + carry_r), gate(input_z + carry_z)
    # The reset gate scales the map's output, as in cuDNN and flax, and not the carry before the map, as in the paper.
    new = activation(input_n + seen * carry_n)
    return (1.0 - update) * new + update * carry


@op
def lstm_step(
    memory: Hidden,
    i: Hidden,
    f: Hidden,
    g: Hidden,
    o: Hidden,
    *,
    gate: Any = jax.nn.sigmoid,
    activation: Any = jnp.tanh,
) -> tuple[Hidden, Hidden]:
    """A step of a long short-term memory.

    Args:
        memory: the memory of the step before.
        i, f, g, o: the sums of the maps of input and carry, for the input gate, the forget gate, the new values and
            the output gate.
        gate, activation: functions of an array.

    Returns:
        The new memory, and the output.

    >>> [part.tolist() for part in lstm_step(jnp.ones(1), *[jnp.zeros(1)] * 4)]
    [[0.5], [0.23105858266353607]]

    Source: Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997.
    """
    written, forget, new, shown = gate(i), gate(f), activation(g), gate(o)
    memory = forget * memory + written * new
    return memory, shown * activation(memory)


@op
def flip_sequences(  # weft: skip(the time axis may be any)
    x: Shaped[Array, "..."], lengths: Int[Array, "*batch"] | None = None, *, time_axis: int = -2
) -> Shaped[Array, "..."]:
    """Reverses padded sequences; the padding stays at the end, reversed as well.

    Args:
        x: batch axes with the time axis among them, then features.
        lengths: how many steps of each sequence there are; without them all.
        time_axis: the axis of steps.

    >>> flip_sequences(jnp.array([[1, 0, 0], [2, 3, 0]]), jnp.array([1, 2]), time_axis=1).tolist()
    [[1, 0, 0], [3, 2, 0]]
    """
    if lengths is None:
        return jnp.flip(x, time_axis)
    time_axis, steps = range(x.ndim)[time_axis], x.shape[time_axis]
    ends = jnp.expand_dims(lengths, time_axis)
    backwards = jnp.reshape(
        jnp.arange(steps - 1, -1, -1), [steps if axis == time_axis else 1 for axis in range(ends.ndim)]
    )
    # For a sequence of length n in T steps, output step i < n reads input step n - 1 - i, and the padding wraps around.
    sources = (backwards + ends) % steps
    return jnp.take_along_axis(x, jnp.reshape(sources, (*sources.shape, *[1] * (x.ndim - sources.ndim))), time_axis)


def last_step(  # weft: skip(batch and features may be any)
    carries: Shaped[Array, "time ..."], lengths: Int[Array, "*batch"]
) -> Shaped[Array, "..."]:
    """Returns for each sequence the carry after its last step, from carries stacked along time.

    Args:
        carries: time first, then the batch axes.
        lengths: how many steps of each sequence there are.

    >>> last_step(jnp.array([[1, 2], [3, 4]]), jnp.array([1, 2])).tolist()
    [1, 4]
    """
    # Sparse indices broadcast against each other, so that no index array of the whole batch is made.
    return carries[(lengths - 1, *jnp.indices(lengths.shape, sparse=True))]
