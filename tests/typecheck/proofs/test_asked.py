"""Values that note what is asked of them: which uses are questions, which read the value, and what is tried next."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from weft.typecheck.arguments.concolic import OTHER, Values

X = jnp.ones((4, 3))


def seen(usual: Any, use: Callable[[Any], Any]) -> Values:
    values = Values("k", [usual])
    use(values.noting(usual))
    values.extend()
    return values


@pytest.mark.parametrize(
    ("usual", "use", "tried"),
    [
        (1, lambda k: k == 3, [1, 3]),
        (1, lambda k: 0 < k <= 5, [1, 0, 6]),
        (2, lambda k: k in (1, 5), [2, 1, 5]),
        (2, bool, [2, 0]),
        (0.0, lambda k: k > 0.5, [0.0, 1.5]),
        (0.3, lambda k: 0.25 < k < 0.5, [0.3, 0.25, 0.5]),
        (3, lambda k: min(k, 2), [3, 2]),
        ("relu", lambda a: a == "glu", ["relu", "glu"]),
        ("silu", lambda a: a in ("relu", "glu"), ["silu", "relu", "glu"]),
        ("relu", lambda a: a.startswith(("g", "s")), ["relu", "g", "s"]),
        ("relu", lambda a: "lu" in a, ["relu", OTHER]),
    ],
)
def test_a_comparison_is_a_question_whose_other_answers_are_tried(
    usual: Any, use: Callable[[Any], Any], tried: list[Any]
):
    values = seen(usual, use)
    assert values.tried == tried
    assert not values.is_read


@pytest.mark.parametrize(
    ("usual", "use"),
    [
        (2, range),
        (2, lambda k: (0, 0, 1)[k]),
        (2, lambda k: X[k:]),
        (2, lambda k: k % 2 == 0),
        (2, lambda k: divmod(k, 2)),
        (2, lambda k: divmod(7, k)),
        (2, lambda k: f"{k}"),
        (2, lambda k: X.sum(k - 1)),
        (2, lambda k: {2: 1}[k]),
        (2.0, math.sqrt),
        (0.5, lambda k: int(4 * k)),
        ("relu", lambda a: {"relu": 1}[a]),
        ("relu", lambda a: a in {"relu"}),
        ("relu", lambda a: a.upper() == "GLU"),
        ("relu", lambda a: "x" + a),
        ("relu", lambda a: a < "s"),
        ("relu", lambda a: getattr(jax.nn, a)),
        ("edge", lambda a: jnp.pad(X, 1, mode=a)),
    ],
)
def test_any_other_use_reads_the_value(usual: Any, use: Callable[[Any], Any]):
    assert seen(usual, use).is_read


@pytest.mark.parametrize(
    "use",
    [
        lambda k: X * k,
        lambda k: (1 - k) * X,
        lambda k: jnp.where(k < X, X, k),
        lambda k: jax.random.bernoulli(jax.random.key(0), 1 - k, (3,)),
        lambda k: jnp.clip(X, -k, k),
        lambda k: jax.jit(lambda x, k: x * k)(X, k),
        lambda k: isinstance(k, float),
    ],
)
def test_a_number_that_becomes_an_array_is_not_read(use: Callable[[Any], Any]):
    values = seen(0.5, lambda k: jax.eval_shape(lambda: use(k)))
    assert not values.is_read
    assert values.tried == [0.5]


@pytest.mark.parametrize("usual", [2, 0.5])
def test_a_number_has_what_python_numbers_have(usual: Any):
    number = Values("k", [usual]).noting(usual)
    assert [name for name in dir(type(usual)) if not hasattr(number, name)] == []
    assert not hasattr(number, "shape")


def test_what_is_read_is_tried_with_no_made_up_text():
    assert seen("relu", lambda a: {"relu": 1}[a] == 2).tried == ["relu"]


def test_of_many_combinations_of_answers_some_are_left_open():
    values = seen(0, lambda k: [k == one for one in range(0, 100, 7)])
    assert values.is_open
    assert len(values.tried) == 12
