"""A recursion that has no end at some sizes costs a few short trials, and is no accusation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from weft.typecheck.proofs.prover import verify
from weft.typecheck.proofs.report import Verdict


def halved(x: Float[Array, "n d"], least: int) -> Float[Array, "d"]:
    if x.shape[0] <= least:
        return x.sum(0)
    return halved(x[: max(x.shape[0] // 2, 3)], least)


def caught(x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    try:
        return caught(x)
    except RecursionError:
        return x


def deep(x: Float[Array, "n d"], rest: int = 60) -> Float[Array, "n d"]:
    return x if rest == 0 else deep(jnp.tanh(x), rest - 1)


class Counting:
    """A count that is no number, with a leaf that is made anew at each flattening."""

    def __init__(self, count):
        self.count = count


jax.tree_util.register_pytree_node(Counting, lambda it: ((object(),), None), lambda _, parts: Counting(0))


def counted(x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    def step(x, counting):
        return x if counting.count == 0 else step(jnp.tanh(x), Counting(counting.count - 1))

    return step(x, Counting(60))


def test_a_recursion_without_an_end_is_named_and_not_followed_to_pythons_limit():
    (contract,) = verify(caught).contracts
    assert contract.verdict is Verdict.UNDECIDED
    assert "caught calls itself without an end" in contract.reason


def test_what_ends_at_most_sizes_and_not_at_all_is_not_called_proved():
    (contract,) = verify(halved).contracts
    assert contract.verdict is Verdict.UNDECIDED
    assert "a recursion that has no end" in contract.reason


def test_a_deep_recursion_that_counts_is_followed_to_its_end():
    (contract,) = verify(deep).contracts
    assert contract.verdict is Verdict.HOLDS
    assert contract.assumptions == ("rest = 60 or 0",)


def test_objects_that_are_made_anew_at_each_look_are_not_taken_for_the_same():
    (contract,) = verify(counted).contracts
    assert contract.verdict is Verdict.PROVED, contract.reason
