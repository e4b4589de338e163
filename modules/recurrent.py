"""Recurrent steps: the pure ops that take a cell's carry from one step of a sequence to the next.

They begin where the linear maps end: an op is given what the maps made of the input and of the carry, so that a layer
chooses its own maps, and how they are promoted. Gates are in the order of flax and cuDNN: `i, f, g, o` and `r, z, n`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from weft.modules.op import op

Hidden = Float[Array, "*batch hidden"]


@op("activation", "residual")
def simple_step(
    carry: Hidden, from_input: Hidden, from_carry: Hidden, *, activation: Any = jnp.tanh, residual: bool = False
) -> Hidden:
    """A step of a plain recurrent cell: `activation(from_input + from_carry)`.

    Args:
        carry: what the cell gave before.
        from_input, from_carry: what its maps made of the input and of the carry.
        activation: a function of an array.
        residual: whether the carry is added inside of the activation.

    >>> simple_step(jnp.ones(2), jnp.zeros(2), jnp.zeros(2)).tolist()
    [0.0, 0.0]
    """
    total = from_input + from_carry
    return activation(total + carry if residual else total)


@op("gate", "activation")
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
        carry: what the cell gave before.
        from_input, from_carry: what its maps made of the input and of the carry, for the gates `r, z, n`: what of the
            carry is seen, what of it is kept, and what is new.
        gate, activation: functions of an array.

    >>> gru_step(jnp.ones(1), jnp.zeros(3), jnp.zeros(3)).tolist()
    [0.5]

    Source: Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014.
    """
    input_r, input_z, input_n = jnp.split(from_input, 3, axis=-1)
    carry_r, carry_z, carry_n = jnp.split(from_carry, 3, axis=-1)
    seen, kept = gate(input_r + carry_r), gate(input_z + carry_z)
    new = activation(input_n + seen * carry_n)
    return (1.0 - kept) * new + kept * carry


@op("gate", "activation")
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
        memory: of the cell, so far.
        i, f, g, o: what its maps made of input and carry, summed: for what is written, what is kept, what is new, and
            what is shown.
        gate, activation: functions of an array.

    Returns:
        The memory, and what is shown of it.

    >>> [part.tolist() for part in lstm_step(jnp.ones(1), *[jnp.zeros(1)] * 4)]
    [[0.5], [0.23105858266353607]]

    Source: Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997.
    """
    memory = gate(f) * memory + gate(i) * activation(g)
    return memory, gate(o) * activation(memory)
