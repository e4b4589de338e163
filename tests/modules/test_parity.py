"""Record layers beside their twins of flax.nnx and equinox.nn, with the same arrays: outputs and gradients.

Looked at are the output, called eagerly and in `jit`, under `vmap` and under `scan`; the gradients by the input and by
all parameters; the output in bfloat16. What "the same" means is in the third column:

| layers | the same |
|---|---|
| flax's, in `ONE_PROGRAM` | bit for bit, gradients too: the jaxprs are one text (eagerly: 1e-6 of the largest entry) |
| flax's, in `OTHER_PROGRAMS` | but for rounding, since operations or sums are in another order |
| equinox's | but for rounding |

But for rounding: no further apart than 1e-6 of the largest entry in float32, 1e-12 of it in float64 (so
that nothing but rounding differs), and 2% of it in bfloat16 (what XLA rounds between two operations is up to it).

Without a twin in either: SinusoidalPositions, LearnedPositions, QuantizedLinear, MoE, TransformerBlock, DiagonalSSM,
`Stack` and the other combinators (their tests compare with maths written out). SpectralNorm has another state in
equinox.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft

from .twins_of_equinox import EQUINOX
from .twins_of_flax import FLAX

# What has operations of its own, or the same in another order.
OTHER_PROGRAMS = {
    "Conv1d, causal and dilated",  # the convolution pads
    "RMSNorm",  # no mean of zero is subtracted
    "Embed",  # a negative id is NaN
    "Embed.attend",  # the table is not transposed
    "BatchNorm, training",  # the place of `stop_gradient`
    "LoRA",
    "Dropout",  # flax's makes the key
    "MultiHeadAttention",
    "MultiHeadAttention, norms of queries and keys",
    "MultiHeadAttention, cross and masked",
    "LSTMCell",
    "RNN, padded",
    "RNN, padded and reversed",
    "Bidirectional",
}
ONE_PROGRAM = set(FLAX) - OTHER_PROGRAMS
# What computes in float32 whatever it is given (a table in its own dtype, angles, equinox's softmax), and a state of
# equinox's that counts in 32 bits.
NOT_IN_FLOAT64 = {"Embed", "Embed.attend"} | {
    f"equinox: {name}" for name in ("Embed", "MultiHeadAttention", "RoPE", "BatchNorm, training")
}
# Its moments are of the whole batch, so it refuses a `vmap` that has no name.
NOT_MAPPED = {"BatchNorm, training", "equinox: BatchNorm, training"}
# Statistics in float32 make flax's output float32; a record's has the dtype of its input.
WIDER_IN_FLAX = {"BatchNorm, inference"}


def differentiated(apply):
    def square(layer, x):
        return sum((y**2).sum() for y in jax.tree.leaves(apply(layer, x)))

    return lambda layer, x: {"y": apply(layer, x), "gradients": jax.grad(square, argnums=(0, 1))(layer, x)}


def cast(layer, dtype):
    """A record in another dtype, but for running statistics."""

    def cast_leaf(path, leaf):
        return leaf if jax.tree_util.keystr(path) in (".mean", ".var") else leaf.astype(dtype)

    return jax.tree_util.tree_map_with_path(cast_leaf, layer)


def measured(name, apply):
    """All that is compared, as one function: one program to compile for each side."""

    def run(layer, x):
        two = jnp.stack([x, 2 * x])
        small = cast(layer, jnp.bfloat16), x.astype(jnp.bfloat16)
        return {
            **differentiated(apply)(layer, x),
            **({} if name in NOT_MAPPED else {"vmap": jax.vmap(lambda x: apply(layer, x))(two)}),
            "scan": jax.lax.scan(lambda carry, x: (carry, apply(layer, x)), 0, two)[1],
            "bfloat16": apply(*small),
        }

    return run


def assert_close(ours, theirs, part):
    """No further apart than a part of the largest entry, over all arrays: the bias of keys has a gradient of zero."""
    if isinstance(theirs, dict):
        for name, expected in theirs.items():
            assert_close(ours[name], expected, part)
        return
    actual, expected = ([np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)] for tree in (ours, theirs))
    assert [leaf.shape for leaf in actual] == [leaf.shape for leaf in expected]
    largest = max(np.abs(leaf).max() for leaf in expected)
    for mine, their in zip(actual, expected, strict=True):
        np.testing.assert_allclose(mine, their, rtol=0, atol=part * largest)


def text(apply, *args):
    with jax.disable_jit():  # inner functions stand in the outer program
        return str(jax.make_jaxpr(differentiated(apply))(*args))


@pytest.mark.parametrize("name", sorted(ONE_PROGRAM))
def test_a_layers_program_is_flaxs_gradients_included(name):
    layer, ours, theirs, x = FLAX[name]()
    with weft.debug.debug_successors(False):  # its marks are equations too
        assert text(ours, layer, x) == text(theirs, layer, x)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ONE_PROGRAM))
def test_a_layer_of_the_same_program_is_flaxs_bit_for_bit(name):
    layer, ours, theirs, x = FLAX[name]()
    actual, expected = (jax.jit(measured(name, apply))(layer, x) for apply in (ours, theirs))
    if name in WIDER_IN_FLAX:
        assert_close(actual.pop("bfloat16"), expected.pop("bfloat16"), 0.02)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)
    with weft.ops.op_by_op():
        actual, expected = ours(layer, x), theirs(layer, x)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)
    assert_close(ours(layer, x), expected, 1e-6)  # an eager op is compiled as one, and rounds as one


def same_but_for_rounding(name, layer, ours, theirs, x):
    actual, expected = (jax.jit(measured(name, apply))(layer, x) for apply in (ours, theirs))
    assert_close(actual.pop("bfloat16"), expected.pop("bfloat16"), 0.02)
    assert_close(actual, expected, 1e-6)
    assert_close(ours(layer, x), expected["y"], 1e-6)
    if name in NOT_IN_FLOAT64:
        return
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), (layer, x))
        actual, expected = (jax.jit(differentiated(apply))(*wide) for apply in (ours, theirs))
        assert {leaf.dtype for leaf in jax.tree.leaves((actual, expected))} == {jnp.dtype(jnp.float64)}
        assert_close(actual, expected, 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OTHER_PROGRAMS))
def test_a_layer_is_flaxs_but_for_rounding(name):
    same_but_for_rounding(name, *FLAX[name]())


@pytest.mark.slow
@pytest.mark.parametrize("name", EQUINOX)
def test_a_layer_is_equinoxs_but_for_rounding(name):
    same_but_for_rounding("equinox: " + name, *EQUINOX[name]())
