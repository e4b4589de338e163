"""Recurrent cells are flax's: state, attributes, first carries and steps, in each dtype."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx as flax_nnx
from jax.nn import initializers
from weft import nnx

from .twins import assert_equal, assert_same_state, attributes, twins

pytestmark = [
    pytest.mark.wide,
    pytest.mark.filterwarnings("ignore:.*keep_rngs.*deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*carry_init.*:UserWarning"),
]

CELLS = ["SimpleCell", "GRUCell", "LSTMCell", "OptimizedLSTMCell"]
NORMAL = initializers.normal(0.5)
METADATA = {
    "kernel_metadata": {"note": "k"},
    "recurrent_kernel_metadata": {"note": "r"},
    "bias_metadata": {"note": "b"},
}
OPTIONS = {
    "plain": {},
    "initializers": {"kernel_init": NORMAL, "recurrent_kernel_init": NORMAL, "bias_init": NORMAL},
    "half": {"dtype": jnp.bfloat16},
    "half parameters": {"dtype": None, "param_dtype": jnp.bfloat16, "recurrent_kernel_init": NORMAL},
    "metadata": METADATA,
    "own activation": {"activation_fn": jax.nn.relu},
    "keeps streams": {"keep_rngs": True},
    "draws its carry": {"carry_init": NORMAL, "keep_rngs": True},
}


def x_of(*shape, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(7), shape).astype(dtype)


def cells(name, **options):
    return twins(lambda library: getattr(library, name)(3, 4, **options, rngs=library.Rngs(3, carry=5)))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", CELLS)
def test_a_cell_is_made_and_makes_a_step_like_flaxs(name, options):
    theirs, ours = cells(name, **options)
    assert_same_state(theirs, ours)
    their_attributes, our_attributes = attributes(flax_nnx, theirs), attributes(nnx, ours)
    assert list(their_attributes) == list(our_attributes)
    assert {k: v for k, v in their_attributes.items() if v is not None} == {
        k: v for k, v in our_attributes.items() if v is not None
    }
    for shape in [(3,), (2, 3), (2, 5, 3)]:
        their_carry = theirs.initialize_carry(shape, None if "keep_rngs" in options else flax_nnx.Rngs(1))
        our_carry = ours.initialize_carry(shape, None if "keep_rngs" in options else nnx.Rngs(1))
        assert_equal(their_carry, our_carry)
        x = x_of(*shape)
        assert_equal(
            theirs(their_carry, x), ours(our_carry, x), 1e-2 if {"dtype", "param_dtype"} & options.keys() else 1e-6
        )
        assert_same_state(theirs, ours)


@pytest.mark.parametrize("name", CELLS)
def test_a_cells_numbers_are_flaxs_in_each_dtype(name):
    theirs, ours = cells(name, **OPTIONS["initializers"])
    for dtype, tolerance in ((jnp.float32, 1e-6), (jnp.bfloat16, 1e-2)):
        x = x_of(2, 3, dtype=dtype)
        carry = ours.initialize_carry((2, 3), nnx.Rngs(0), NORMAL)
        assert_equal(theirs(carry, x), ours(carry, x), tolerance)


def test_a_simple_cell_may_be_residual():
    theirs, ours = cells("SimpleCell", residual=True)
    carry, x = x_of(2, 4), x_of(2, 3)
    assert_equal(theirs(carry, x), ours(carry, x), 1e-6)
    assert not jnp.allclose(ours(carry, x)[0], cells("SimpleCell")[1](carry, x)[0])


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize(
    "streams", [lambda nnx: nnx.Rngs(2), lambda nnx: nnx.Rngs(carry=2), lambda nnx: nnx.Rngs(carry=2).carry]
)
def test_a_first_carry_draws_what_flaxs_draws(name, streams):
    theirs, ours = cells(name)
    their_stream, our_stream = streams(flax_nnx), streams(nnx)
    for init in (None, NORMAL):
        their_carry, our_carry = (
            cell.initialize_carry((2, 3), stream, init) for cell, stream in ((theirs, their_stream), (ours, our_stream))
        )
        assert_equal(their_carry, our_carry)
    # Keys are drawn for zeros as well.
    assert_same_state(their_stream, our_stream)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: cells("GRUCell")[1].initialize_carry((2, 3)), ValueError, "RNGs must be provided to initialize the"),
        (lambda: cells("GRUCell")[1].initialize_carry((2, 3), 3), TypeError, "draws its carry from Rngs or a stream"),
    ],
)
def test_a_first_carry_without_streams_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("name", CELLS)
def test_deprecated_options_warn(name):
    with pytest.warns(UserWarning, match="keep_rngs"):
        getattr(nnx, name)(3, 4, keep_rngs=True, rngs=nnx.Rngs(0))
    with pytest.warns(UserWarning, match="carry_init"):
        getattr(nnx, name)(3, 4, carry_init=NORMAL, rngs=nnx.Rngs(0))
