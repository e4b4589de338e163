"""Described trees, and the differences between two."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from weft.core.records.agree import Fixed, describe, differences


def disagreements(before: Any, after: Any, **options: Any) -> list[str]:
    return differences(describe(before, "carry"), describe(after, "carry"), **options)


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        (1.0, 2.0, []),
        ({"a": jnp.ones(2)}, {"a": jnp.zeros(2)}, []),
        ({"a": jnp.ones(2)}, {"a": jnp.ones(3)}, ["carry.a: float32[2] -> float32[3]"]),
        ({"a": jnp.ones(2)}, {"a": jnp.ones(2, int)}, ["carry.a: float32[2] -> int32[2]"]),
        ({"a": jnp.ones(2)}, {"a": "text"}, ["carry.a: float32[2] -> static 'text'"]),
        ({"a": "x"}, {"a": "y"}, ["carry.a: static 'x' -> static 'y'"]),
        ({"a": jnp.sin}, {"a": jnp.cos}, ["carry.a: static sin -> static cos"]),
        ({"a": 1.0}, {"b": 1.0}, ["carry.a: float32[] -> nothing", "carry.b: nothing -> float32[]"]),
        ([1.0], [1.0, 1.0], ["carry[1]: nothing -> float32[]"]),
        (None, 1.0, ["carry: None -> float32[]"]),
    ],
)
def test_every_difference_is_listed_by_path(before: Any, after: Any, lines: list[str]):
    assert disagreements(before, after) == lines


def test_trees_with_the_same_leaves_may_differ_in_make():
    assert disagreements([1.0, 2.0], (1.0, 2.0)) == ["carry: list -> tuple"]
    assert disagreements({"a": [[], 1.0]}, {"a": [(), 1.0]}) == ["carry.a[0]: list -> tuple"]
    assert disagreements({"a": [], "b": 1.0}, {"c": [], "b": 1.0}) == [
        "carry.a: list -> nothing",
        "carry.c: nothing -> list",
    ]


def test_shapes_may_be_left_out():
    assert disagreements(jnp.ones(2), jnp.ones(3), shapes=False) == []
    assert disagreements(jnp.ones(2), jnp.ones(3, int), shapes=False) == ["carry: float32[2] -> int32[3]"]


@pytest.mark.parametrize(
    ("before", "after", "promoted"),
    [(1, 1.0, True), (1, jnp.int8(1), True), (1.0, 1, False), (1.0, jnp.bfloat16(1), True), (True, 1, False)],
)
def test_a_weak_type_may_be_promoted(before: Any, after: Any, promoted: bool):
    assert disagreements(before, after) != []
    assert (disagreements(before, after, promotes=True) == []) is promoted


def test_fixed_leaves_are_compared_by_type_too():
    assert Fixed(1) == Fixed(1)
    assert Fixed(1) != Fixed(1.0)
    assert Fixed(1) != Fixed(True)
    assert hash(Fixed(1)) == hash(Fixed(2))
    assert str(Fixed("relu")) == "static 'relu'"
    assert str(Fixed(jnp.tanh)) == "static tanh"


def test_describing_keeps_no_tracer(checking_leaks: Any):
    with checking_leaks():
        descriptions: list[Any] = []
        jax.jit(lambda x: descriptions.append(describe({"x": x}, "carry")) or x)(1.0)
    assert str(descriptions[0].leaves[0][1]).endswith("float32[]")
