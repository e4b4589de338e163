"""The words, numbers and shapes that proofs read in errors, each provoked in Python, NumPy or JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from weft.typecheck.proofs.violations import (
    DTYPES,
    UNPACKED,
    UNPAIRED,
    says,
    sizes_that_disagree,
    without_numbers,
)

X = jnp.zeros((5, 7))


def raised(call: Callable[[], Any]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("the call raises nothing")


def unpacked(value: Any) -> None:
    _, _, _ = value


SAID: tuple[tuple[Callable[[], Any], tuple[str, ...]], ...] = (
    (lambda: list(zip([1], [1, 2], strict=True)), UNPAIRED),
    (lambda: [1][2], UNPAIRED),
    (lambda: (1,)[2], UNPAIRED),
    (lambda: unpacked(X.shape), UNPACKED),
    (lambda: unpacked((1, 2, 3, 4)), UNPACKED),
    (lambda: jnp.take(X, X), DTYPES),
    (lambda: X & X, DTYPES),
)


@pytest.mark.parametrize("number", range(len(SAID)))
def test_each_error_says_one_of_its_words(number: int):
    call, words = SAID[number]
    error = raised(call)
    assert says(str(error), words), error


@pytest.mark.parametrize(
    ("call", "sizes"),
    [
        (lambda: X + jnp.zeros((5, 11)), {7, 11}),
        (lambda: jax.lax.scan(lambda c, _: (c[:5], None), jnp.zeros(11), None, length=2), {5, 11}),
        (lambda: X.reshape(6, 6), set()),
    ],
)
def test_the_sizes_that_disagree_are_read(call: Callable[[], Any], sizes: set[int]):
    assert sizes_that_disagree(str(raised(call))) == sizes


def test_texts_at_two_sizes_are_one_text_without_their_numbers():
    errors = (raised(lambda: X + jnp.zeros(5)), raised(lambda: X + jnp.zeros(11)))
    assert len({without_numbers(str(error)) for error in errors}) == 1
