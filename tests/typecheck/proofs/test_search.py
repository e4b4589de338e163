"""The search by itself, on programs given as callables and shapes: what it takes for a need, and what for a fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from weft.typecheck.arguments.builder import Builder, Scope
from weft.typecheck.language.dims import Shape
from weft.typecheck.proofs.explaining import USUAL, Budget, Trials, shrink
from weft.typecheck.proofs.search import Outcome, search
from weft.typecheck.proofs.tracing import Target


def target(
    function: Callable[..., Any], *shapes: str, constants: tuple[int, ...] = (), separate: bool = False
) -> Target:
    """A program of arrays of some shapes (a word without one is a size), in one scope, or each in one of its own."""

    def prepare(builder: Builder) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        shared, arguments = Scope(), list[Any]()
        for number, text in enumerate(shapes):
            scope = Scope(f"a{number}.", f"a{number}.") if separate else shared
            if text.startswith("="):
                arguments.append(builder.size(text[1:], scope))
            else:
                arguments.append(jax.ShapeDtypeStruct(builder.shape(Shape.parse(text), f"a{number}", scope), "float32"))
        return function, tuple(arguments), {}

    return Target("program", __file__, 1, prepare, frozenset({__file__}), frozenset(constants))


def searched(wanted: Target, budget: Budget = USUAL, **dims: int) -> Outcome:
    return search(Trials(wanted, dims, budget))


def test_a_program_that_holds_needs_nothing():
    outcome = searched(target(lambda x, w: x @ w, "b i", "i o"))
    assert outcome.passed
    assert not outcome.failed
    assert outcome.needs.words() == ()


@pytest.mark.parametrize(
    ("function", "shapes", "constants", "words"),
    [
        (lambda x, h: x.reshape(h, x.shape[0] // h), ("w", "=h"), (), ("h divides w",)),
        (lambda x, k: jax.lax.top_k(x, k)[0], ("n", "=k"), (), ("k <= n",)),
        (lambda x: x @ jnp.ones((8, 3)), ("b n",), (8,), ("n = 8",)),
        (lambda x: x.reshape(2, -1), ("n",), (), ("2 divides n",)),
    ],
    ids=["a divisor", "an order", "a constant from outside", "a number that divides"],
)
def test_what_would_have_made_it_hold_is_a_need(function, shapes, constants, words):
    outcome = searched(target(function, *shapes, constants=constants))
    assert not outcome.failed
    assert outcome.needs.words() == words
    assert all(outcome.needs.allows(trial.assignment.sizes) for trial in outcome.passed[:3])


def test_two_dims_of_one_scope_are_never_joined():
    outcome = searched(target(lambda x, y: x + y, "n", "m"))
    (failure,) = outcome.failed
    assert "incompatible shapes for broadcasting" in str(failure.error)
    assert not outcome.needs.merged


def test_dims_of_two_records_are_joined_where_the_program_does():
    outcome = searched(target(lambda x, y: x + y, "n", "m", separate=True))
    assert not outcome.failed
    assert outcome.needs.words() == ("m = n",)


def test_the_sizes_that_are_tried_are_distinct_and_those_that_are_given_stay():
    outcome = searched(target(lambda x, y: x[:, None] * y, "n", "m"), m=6)
    assert all(trial.assignment.sizes["m"] == 6 for trial in outcome.passed)
    assert {*outcome.answers.free} == {"n"}


def test_a_failure_is_shown_at_the_smallest_sizes():
    trials = Trials(target(lambda x, y: x + y, "n", "m"), {}, USUAL)
    outcome = search(trials)
    (failure,) = outcome.failed
    small = shrink(trials, failure, outcome.needs)
    assert sorted(small.assignment.sizes.values()) == [2, 3]


def test_what_the_budget_ends_is_undecided():
    outcome = searched(target(lambda x, y: x + y, "n", "m", separate=True), Budget(trials=1))
    assert outcome.ended
    assert outcome.pending is not None
    assert not outcome.failed


def test_equal_trials_are_run_once():
    runs: list[None] = []
    trials = Trials(target(lambda x: runs.append(None) or x * 2, "n"), {}, USUAL)
    assignment = search(trials).passed[0].assignment
    trials.attempt(assignment)
    count = len(runs)
    trials.attempt(assignment)
    assert len(runs) == count
