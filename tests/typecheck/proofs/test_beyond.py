"""What is about the numbers in an array is skipped, unless no numbers would do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float, Int
from weft.typecheck.proofs.prover import verify
from weft.typecheck.proofs.report import Verdict

Edges = Int[Array, "e"]


def as_many_segments(x: Float[Array, "e d"], to: Edges, n: int) -> Float[Array, "n d"]:
    return jax.ops.segment_sum(x, n, to)  # the arguments are swapped


def test_an_array_with_axes_where_an_integer_is_wanted_fails():
    (contract,) = verify(as_many_segments).contracts
    assert contract.verdict is Verdict.FAILS
    assert "traced array with shape int32[" in str(contract.failures[0])


def repeated(x: Float[Array, "e d"], to: Edges) -> Float[Array, "m d"]:
    return jnp.repeat(x, to, axis=0)


def sized(n: Int[Array, ""]) -> Float[Array, "m"]:
    return jnp.zeros(n)


def segments(x: Float[Array, "e d"], to: Edges, n: Int[Array, ""]) -> Float[Array, "m d"]:
    return jax.ops.segment_sum(x, to, n)


@pytest.mark.parametrize("function", [repeated, sized, segments])
def test_what_some_numbers_would_do_for_is_skipped(function: Callable[..., Any]):
    (contract,) = verify(function).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert contract.reason.startswith("it needs the numbers in an array, not only its shape")
