"""A stated condition is true: at sizes drawn at random of those that it allows, jaxtyping with beartype finds nothing.

`WEFT_DRAWS=500` draws that many times for each function, and goes over the right version of each program of the corpus.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float
from weft.typecheck.proofs.explaining import USUAL
from weft.typecheck.proofs.prover import proofs_of, verify

from .. import corpus
from . import test_conditions as conditions
from .drawing import violations

MANY = int(os.environ.get("WEFT_DRAWS", "0"))
DRAWS = MANY or 6


def windows(x: Float[Array, "n d"], k: int) -> Float[Array, "k d"]:
    return jax.lax.top_k(x.T, k)[0].T


def in_heads(x: Float[Array, "n d"], heads: int) -> Float[Array, "n d"]:
    return x.reshape(x.shape[0], heads, -1).swapaxes(1, 2).reshape(x.shape)


def between(x: Float[Array, "n"]) -> Float[Array, "n"]:
    if not 5 <= x.shape[0] <= 30:
        raise ValueError("between 5 and 30")
    return x


def either(x: Float[Array, "n"]) -> Float[Array, "n"]:
    if x.shape[0] % 2 and x.shape[0] % 3:
        raise ValueError("neither 2 nor 3 divides it")
    return x


def at_most_half(x: Float[Array, "n"], k: Float[Array, "m"]) -> Float[Array, "n"]:
    if 2 * k.shape[0] > x.shape[0] or x.shape[0] < 10:
        raise ValueError("at most half, of ten or more")
    return x


def frames(x: Float[Array, "n"], width: int, hop: int) -> Float[Array, "{width} 1+(n-{width})//{hop}"]:
    starts = jnp.arange(1 + (x.shape[0] - width) // hop) * hop
    return jax.vmap(jax.lax.dynamic_slice_in_dim, (None, 0, None), 1)(x, starts, width)


def centred(x: Float[Array, "*channels n"], size: int) -> Float[Array, "*channels {size}"]:
    before = (size - x.shape[-1]) // 2
    return jnp.pad(x, [*[(0, 0)] * (x.ndim - 1), (before, size - x.shape[-1] - before)])


def beside_one_another(x: Float[Array, "a b"], room: int) -> Float[Array, "a b"]:
    if room <= x.shape[0]:
        raise ValueError("no room for the first")
    if x.shape[1] > room - x.shape[0]:
        raise ValueError("no room for the second")
    return x


OF_CONDITIONS = [
    conditions.long_enough,
    conditions.a_power,
    conditions.fewer,
    conditions.Attention,
    conditions.Residual,
]
FUNCTIONS = [windows, in_heads, between, either, at_most_half, frames, centred, beside_one_another, *OF_CONDITIONS]


@pytest.mark.parametrize("thing", FUNCTIONS, ids=lambda one: one.__name__)
def test_a_stated_condition_is_true_wherever_it_allows(thing: Any):
    for proof in proofs_of(thing, {}, {}, USUAL):
        assert not violations(proof.target, DRAWS)[1]


@pytest.mark.parametrize(("thing", "condition"), [(frames, "width <= hop + n"), (centred, "n <= size")])
def test_an_order_that_the_dealt_sizes_happen_to_keep_is_found_by_one_size_against_the_others(
    thing: Any, condition: str
):
    """There are no frames much wider than what they are cut from; the bound that was found, `hop >= 4`, was untrue."""
    (contract,) = verify(thing).contracts
    assert contract.assumptions == (condition,)


if MANY:

    @pytest.mark.slow
    @pytest.mark.parametrize("program", corpus.PROGRAMS, ids=lambda one: one.stem)
    def test_the_conditions_of_the_corpus_are_true(program: Path, tmp_path: Path):
        module = corpus.load(corpus.write(program, "right", tmp_path))
        for proof in proofs_of(module.entry, {}, {}, USUAL):
            assert not violations(proof.target, DRAWS)[1]
