"""Several options taken otherwise at once: pairs where there are many."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float
from weft.typecheck import verify
from weft.typecheck.proofs.report import Verdict


def transposed(
    points: Float[Array, "n d"],
    others: Float[Array, "m d"] | None = None,
    mean: Float[Array, "m 1"] | None = None,
) -> Float[Array, "1"]:
    own = points.T if others is None else others
    mean = jnp.zeros((points.shape[0], 1)) if mean is None else mean
    return (mean + own.sum(1, keepdims=True)).sum(0)


def test_what_fails_with_all_of_a_size_left_out_fails():
    assert not verify(transposed)


def of_six(
    x: Float[Array, "n d"],
    a: Float[Array, "d"] | None = None,
    b: Float[Array, "d"] | None = None,
    c: Float[Array, "d"] | None = None,
    e: Float[Array, "d"] | None = None,
    f: Float[Array, "d"] | None = None,
    g: Float[Array, "d"] | None = None,
) -> Float[Array, "n d"]:
    for term in (a, b, c, e, f, g):
        x = x if term is None else x + term
    return x


def broken_without_two(
    x: Float[Array, "n d"],
    a: Float[Array, "d"] | None = None,
    b: Float[Array, "d"] | None = None,
    c: Float[Array, "d"] | None = None,
    e: Float[Array, "d"] | None = None,
    f: Float[Array, "d"] | None = None,
    g: Float[Array, "d"] | None = None,
) -> Float[Array, "n d"]:
    out = of_six(x, a, b, c, e, f, g)
    return out.T if b is None and f is None else out


def shifted(x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    return x + 1


def broken_behind_a_return(
    x: Float[Array, "n d"],
    a: Float[Array, "d"] | None = None,
    b: Float[Array, "d"] | None = None,
    c: Float[Array, "d"] | None = None,
    e: Float[Array, "d"] | None = None,
    f: Float[Array, "d"] | None = None,
    g: Float[Array, "d"] | None = None,
) -> Float[Array, "n d"]:
    if a is None:
        return x
    out = shifted(of_six(x, a, b, c, e, f, g))
    return out.T if b is None and c is None else out


@pytest.mark.parametrize("program", [broken_without_two, broken_behind_a_return])
def test_two_of_many_options_that_break_it_together_are_found(program):
    assert not verify(program)


def test_many_options_are_tried_in_pairs_and_the_verdict_says_so():
    (contract,) = verify(of_six).contracts
    assert contract.verdict is Verdict.HOLDS
    assert "alone and in pairs" in contract.reason


class Samples(eqx.Module):
    values: Float[Array, "*samples k"]
    has_chains: bool = eqx.field(static=True)


def means(samples: Samples) -> Float[Array, "k"]:
    values = samples.values.mean(axis=-2)
    return values.mean(axis=-2) if samples.has_chains else values


def means_of_two(samples: Samples, k: Float[Array, "k"]) -> Float[Array, "k"]:
    return k * (samples.values.mean(axis=2).mean(axis=0) if samples.has_chains else samples.values.mean(axis=-2))


def means_of_values(values: Float[Array, "*samples k"], has_chains: bool = False) -> Float[Array, "k"]:
    return values.mean(axis=(-3, -2)) if has_chains else values.mean(axis=-2)


def test_a_field_may_say_how_many_axes_the_others_of_its_record_have():
    (contract,) = verify(means).contracts
    assert contract.verdict in (Verdict.PROVED, Verdict.HOLDS), contract
    assert "samples.has_chains is not True" in contract.assumptions
    assert "*samples is of 1 axis" in contract.assumptions


@pytest.mark.parametrize("program", [means_of_two, means_of_values])
def test_what_no_number_of_axes_makes_hold_fails_and_so_does_what_is_no_field(program):
    assert not verify(program)


class Weights(NamedTuple):
    of_states: Float[Array, "s s"]
    of_inputs: Float[Array, "s u"]


def stepped_in_vain(
    weights: Weights, states: Float[Array, "t s"], inputs: Float[Array, "t u"] | None = None
) -> Float[Array, "t s"]:
    inputs = jnp.zeros((0, 0)) if inputs is None else inputs
    return states @ weights.of_states.T + inputs @ weights.of_inputs.T


def test_what_fails_without_an_argument_fails():
    assert not verify(stepped_in_vain)
