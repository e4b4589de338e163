"""What guards refuse of sizes and numbers of axes: each condition is stated whole, and is true wherever it allows."""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float
from weft.typecheck import verify
from weft.typecheck.proofs.explaining import USUAL
from weft.typecheck.proofs.prover import proofs_of

from .drawing import violations


def both_odd(x: Float[Array, "h w"]) -> Float[Array, "h w"]:
    assert x.shape[0] % 2 == x.shape[1] % 2 == 1
    return x


def each_odd(x: Float[Array, "h w"]) -> Float[Array, "h w"]:
    assert x.shape[0] % 2
    assert x.shape[1] % 2
    return x


def neither_three_nor_four(x: Float[Array, "n"]) -> Float[Array, "n"]:
    if x.shape[0] % 4 == 0 or x.shape[0] % 3 == 0:
        raise ValueError("3 or 4")
    return x


def not_five(x: Float[Array, "n"]) -> Float[Array, "n"]:
    if x.shape[0] % 5 == 0:
        raise ValueError("5")
    return x


def not_thirteen(x: Float[Array, "n"]) -> Float[Array, "n"]:
    assert x.shape[0] != 13
    return x


def few(x: Float[Array, "n"]) -> Float[Array, "n"]:
    if x.shape[0] > 10:
        raise ValueError("too many")
    return x


def a_thousand(x: Float[Array, "n"]) -> Float[Array, "n"]:
    if x.shape[0] > 1000:
        raise ValueError("too many")
    return x


def within(x: Float[Array, "n"]) -> Float[Array, "n"]:
    if not 3 <= x.shape[0] <= 10:
        raise ValueError("3 to 10")
    return x


def eights(x: Float[Array, "n"]) -> Float[Array, "n"]:
    if x.shape[0] % 8 or x.shape[0] > 64:
        raise ValueError("multiples of 8 up to 64")
    return x


def large_power(x: Float[Array, "n"]) -> Float[Array, "n"]:
    n = x.shape[0]
    if n & (n - 1) or n < 4:
        raise ValueError("a power of two from 4 on")
    return x


def one_in_four(x: Float[Array, "n"]) -> Float[Array, "n"]:
    if x.shape[0] % 4 != 1:
        raise ValueError("one more than a multiple of 4")
    return x


def together(x: Float[Array, "n"], y: Float[Array, "m"]) -> Float[Array, "n+m"]:
    if len(x) + len(y) > 20:
        raise ValueError("20 at most")
    return jnp.concatenate([x, y])


def colours(x: Float[Array, "h w c"]) -> Float[Array, "h w"]:
    if x.shape[-1] not in (1, 3):
        raise ValueError("grey or colours")
    return x.mean(-1)


def of_square(x: Float[Array, "h w"]) -> Float[Array, "h w"]:
    if x.shape[0] != x.shape[1]:
        raise ValueError("a square")
    return x.T


class Same(eqx.Module):
    weight: Float[Array, "out in"]
    channels: int = eqx.field(static=True)

    def __check_init__(self):
        if self.weight.shape != (self.channels, self.channels):
            raise ValueError("in = out = channels")

    def __call__(self, x: Float[Array, "in"]) -> Float[Array, "channels"]:
        return self.weight @ x + x


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (both_odd, ["(w % 2) = (h % 2)", "(w % 2) = 1"]),
        (each_odd, ["2 does not divide h", "2 does not divide w"]),
        (neither_three_nor_four, ["4 does not divide n", "3 does not divide n"]),
        (not_five, ["5 does not divide n"]),
        (not_thirteen, ["n != 13"]),
        (few, ["n <= 10"]),
        (a_thousand, ["n <= 1000"]),
        (within, ["n >= 3", "n <= 10"]),
        (eights, ["8 divides n", "n <= 64"]),
        (of_square, ["w = h"]),
        (Same, ["channels = out", "in = out"]),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_condition_says_all_that_guards_refuse_of_sizes(thing: Any, words: list[str]):
    (contract,) = verify(thing).contracts
    assert [assumption.partition(" (guard at ")[0] for assumption in contract.assumptions] == words


def test_what_asks_for_the_number_itself_is_said_of_the_sizes_tried_only():
    (words,) = verify(large_power).assumptions
    assert words.startswith("n is among the sizes tried: ")


def test_a_remainder_is_said_as_it_is():
    (words,) = verify(one_in_four).assumptions
    assert words.startswith("(n % 4) = 1 (guard at ")


def test_the_place_of_a_guard_stands_beside_what_it_refuses():
    line = few.__code__.co_firstlineno + 2
    assert verify(few).assumptions == (f"n <= 10 (guard at test_refused_sizes.py:{line})",)


CONDITIONS = [both_odd, each_odd, neither_three_nor_four, few, within, large_power, one_in_four, together, colours]


@pytest.mark.parametrize("thing", CONDITIONS, ids=lambda one: one.__name__)
def test_conditions_about_refused_sizes_are_true_wherever_they_allow(thing: Any):
    for proof in proofs_of(thing, {}, {}, USUAL):
        drawn, objections = violations(proof.target, 30)
        assert drawn
        assert not objections


def fails_when_large(x: Float[Array, "n"]) -> Float[Array, "n"]:
    if x.shape[0] < 4:
        raise ValueError("too few")
    return x[None] if x.shape[0] > 100 else x


def test_sizes_that_fail_and_no_guard_refuses_make_no_bound():
    (failure,) = verify(fails_when_large).failures
    assert failure.sizes == {"n": 101}


def grouped(q: Float[Array, "b t hq d"], k: Float[Array, "b t hk d"]) -> Float[Array, "b hq t t"]:
    repeats, rest = divmod(q.shape[2], k.shape[2])
    assert rest == 0
    return jnp.einsum("bqhd,bkdh->bhqk", q, jnp.repeat(k, repeats, axis=2))


def test_sizes_that_are_one_by_chance_explain_nothing_behind_a_guard():
    report = verify(grouped)
    assert not report.ok
    assert "Size of label 'd'" in str(report)


def coprime(x: Float[Array, "n"], y: Float[Array, "m"]) -> Float[Array, "n*m"]:
    if math.gcd(x.shape[0], y.shape[0]) != 1:
        raise ValueError("no common divisor")
    return jnp.outer(x, y).ravel()


def test_common_divisors_of_any_kind_are_not_said_to_be_even_sizes():
    (contract,) = verify(coprime).contracts
    assert {*contract.sampled} == {"n", "m"}
    assert not any(one.startswith("2 ") for one in contract.assumptions)


def of_seven(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return x[None] if x.shape[0] % 7 == 0 else x


def test_sizes_that_the_body_divides_by_are_tried():
    assert "n=7" in str(verify(of_seven))


def of_four_axes(x: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    return x if x.ndim < 4 else x[0]


def of_three_at_most(x: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    if x.ndim > 3:
        raise ValueError("three at most")
    return x


def of_any_rank(x: Float[Array, "..."], weight: Float[Array, "a b"]) -> Float[Array, "..."]:
    return x @ weight


def test_numbers_of_axes_that_the_body_compares_with_are_tried():
    assert not verify(of_four_axes).ok
    (words,) = verify(of_three_at_most).assumptions
    assert words.startswith("*b is of 0, 1 or 2 axes (guard at ")


def test_a_condition_about_an_axis_says_of_how_many():
    assert set(verify(of_any_rank).assumptions) == {"x is of 2 axes", "x.shape[1] = a"}
