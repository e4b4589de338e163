"""Successors: what may follow what, and how it is put in place."""

from collections import OrderedDict
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from weft.core import Module, SuccessorError
from weft.core.records.leaves import iter_leaves
from weft.core.records.successors import check_successor, is_alike, with_part


class Point(NamedTuple):
    x: jax.Array
    y: jax.Array


class Record(Module):
    points: list[Point]
    table: dict


class Plain(eqx.Module):
    record: Record


def tree():
    return Plain(Record([Point(jnp.zeros(1), jnp.zeros(2))], OrderedDict(a=(jnp.zeros(3),))))


PLACES = [
    (("record", "points", 0, 0), lambda tree: tree.record.points[0].x),
    (("record", "points", 0, 1), lambda tree: tree.record.points[0].y),
    (("record", "table", "a", 0), lambda tree: tree.record.table["a"][0]),
]


@pytest.mark.parametrize(("path", "find"), PLACES)
def test_a_part_is_replaced_and_everything_else_is_shared(path, find):
    before, value = tree(), jnp.ones(5)
    after = with_part(before, path, value)
    assert find(after) is value
    assert jax.tree.structure(after) == jax.tree.structure(before)
    others = [leaf for leaf in jax.tree.leaves(before) if leaf is not find(before)]
    assert all(any(leaf is kept for kept in jax.tree.leaves(after)) for leaf in others)


def test_a_misfit_in_a_namedtuple_is_named_by_its_field():
    before = Point(jnp.zeros(1), jnp.zeros(2))
    with pytest.raises(SuccessorError, match=r"at: p.y: float32\[2\] -> float32\[3\]\n") as error:
        check_successor(before, Point(jnp.zeros(1), jnp.zeros(3)), "p")
    assert "p.x" not in str(error.value)


def test_the_leaves_of_a_namedtuple_have_paths_of_their_own():
    assert [leaf.path for leaf in iter_leaves(tree().record.points)] == [(0, "x"), (0, "y")]


@pytest.mark.parametrize("value", [jnp.zeros(2), jax.ShapeDtypeStruct((2,), jnp.float32)])
def test_arrays_follow_arrays_of_the_same_shape_and_dtype(value):
    check_successor(jnp.ones(2), value, "a")


def test_a_missing_array_is_named():
    with pytest.raises(SuccessorError, match=r"p.y: float32\[2\] -> None"):
        check_successor(Point(jnp.zeros(1), jnp.zeros(2)), Point(jnp.zeros(1), None), "p")


class Foreign(eqx.Module):
    weight: jax.Array
    size: int = eqx.field(static=True, default=1)


class Around(Module):
    weight: jax.Array
    rows: Any
    foreign: Foreign
    rate: float = 0.5


ALIKE = [
    ("other numbers", {"weight": jnp.zeros(2)}, True),
    ("another array in a list", {"rows": [jnp.ones(3), jnp.ones(())]}, True),
    ("another shape", {"weight": jnp.zeros(3)}, False),
    ("another dtype", {"weight": jnp.zeros(2, int)}, False),
    ("a shorter list", {"rows": [jnp.ones(3)]}, False),
    ("a tuple for a list", {"rows": (jnp.ones(3), jnp.ones(()))}, False),
    ("another configuration", {"rate": 0.25}, False),
    ("a static field that is equal and of another type", {"foreign": Foreign(jnp.ones(1), True)}, False),
]


@pytest.mark.parametrize(("changes", "alike"), [row[1:] for row in ALIKE], ids=[row[0] for row in ALIKE])
def test_what_is_told_to_be_alike_at_a_glance_is_what_may_follow(changes, alike):
    before = Around(jnp.ones(2), [jnp.zeros(3), jnp.zeros(())], Foreign(jnp.ones(1)))
    after = before.replace(**changes)
    assert is_alike(before, after) is alike
    if alike:
        check_successor(before, after, "here")
    else:
        with pytest.raises(SuccessorError):
            check_successor(before, after, "here")
