"""The words, numbers and shapes that proofs read in errors, each provoked in Python, NumPy or JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from weft.typecheck.proofs.wording import (
    AXES,
    DTYPES,
    SHAPES_OR_DTYPES,
    SIZES,
    UNPACKED,
    UNPAIRED,
    rank_in,
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
    (lambda: X[0, 0, 0], AXES),
    (lambda: jnp.diag(jnp.zeros((2, 2, 2))), AXES),
    (lambda: jnp.linalg.inv(X), SIZES),
    (lambda: jnp.cross(X, X), SIZES),
    (lambda: X + jnp.zeros(5), SHAPES_OR_DTYPES),
    (lambda: np.zeros((5, 7)) + np.zeros(5), SHAPES_OR_DTYPES),
)


@pytest.mark.parametrize("number", range(len(SAID)))
def test_each_error_says_one_of_its_words(number: int):
    call, words = SAID[number]
    error = raised(call)
    assert says(str(error).lower() if words is SHAPES_OR_DTYPES else str(error), words), error


def test_a_refused_name_says_nothing_of_shapes_or_dtypes():
    error = raised(lambda: jnp.pad(X, 1, mode="mirrored"))
    assert not says(str(error).lower(), SHAPES_OR_DTYPES), error


@pytest.mark.parametrize(
    ("call", "rank"),
    [
        (lambda: X.sum(axis=3), 2),
        (lambda: unpacked(X.shape), 2),
        (lambda: jax.vmap(lambda x: x, in_axes=3)(X), set()),
        (lambda: unpacked(iter([1, 2, 3, 4])), set()),
    ],
)
def test_the_number_of_axes_is_read(call: Callable[[], Any], rank: Any):
    assert rank_in(raised(call)) == (rank if isinstance(rank, set) else {rank})


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
