"""Branches over objects: what one of them changes in its arguments, the others hand back as it was."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
from weft import nnx
from weft.errors import BranchError


class M(nnx.Module):
    def __init__(self):
        self.a = nnx.data(jnp.array(1.0))
        self.b = nnx.data(jnp.ones(2))
        self.v = nnx.Param(jnp.array(2.0))
        self.w = nnx.Param(jnp.array(0.0))


def values(m: M) -> list[Any]:
    return [float(m.a), m.b.tolist(), float(m.v[...]), float(m.w[...])]


def first(m: M) -> Any:
    m.a = m.a + 1
    return m.v[...]


def second(m: M) -> Any:
    m.b = m.b * 3
    m.v[...] += 1
    return m.v[...]


def nothing(m: M) -> Any:
    return m.v[...]


def swap(m: M) -> Any:
    m.a, m.w[...] = m.w[...], m.a
    return m.v[...]


@pytest.mark.parametrize("index", range(4))
def test_an_array_attribute_that_one_branch_replaces_stays_as_it_was_in_the_others(index: int):
    branches = [first, second, nothing, swap]
    wanted, chosen, jitted = M(), M(), M()
    y = branches[index](wanted)
    assert nnx.switch(index, branches, chosen) == y
    assert nnx.jit(lambda m, i: nnx.switch(i, branches, m))(jitted, index) == y
    assert values(chosen) == values(jitted) == values(wanted)


def test_an_array_attribute_in_one_of_two_arguments():
    m, n = M(), M()
    nnx.cond(jnp.array(True), lambda m, n: second(n), lambda m, n: first(m), m, n)
    assert values(m) == values(M())
    assert values(n) == [1, [3, 3], 3, 0]


def test_an_array_attribute_of_another_shape_is_an_error_that_names_it():
    def grow(m: M) -> None:
        m.a = jnp.zeros(3)

    m = M()
    with pytest.raises(BranchError, match=r"m\.a: float32\[3\] -> float32\[\]"):
        nnx.cond(jnp.array(True), grow, lambda m: None, m)
    assert values(m) == values(M())


@pytest.mark.parametrize("argnums", [(0, 0), (nnx.DiffState(0, "a"), nnx.DiffState(0, "b"))])
def test_an_argument_that_is_differentiated_twice_is_refused(argnums: Any):
    with pytest.raises(ValueError, match="argnum 0 is repeated"):
        nnx.grad(lambda m: m.v[...], argnums=argnums)
