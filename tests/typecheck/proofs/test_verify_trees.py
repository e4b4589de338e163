"""Proofs about pytrees: composite leaves, TypedDicts among them, and structures made of others."""

from __future__ import annotations

from typing import TypedDict

import jax
import pytest
from jaxtyping import Array, Float, PyTree
from weft.errors import AnnotationError
from weft.typecheck.proofs.prover import verify


class Layer(TypedDict):
    weight: Float[Array, "i o"]
    bias: Float[Array, "o"]


def total(pairs: PyTree[tuple[Float[Array, "n"], Float[Array, "m"]]]) -> Float[Array, ""]:
    return sum(x.sum() * y.sum() for x, y in jax.tree.leaves(pairs, is_leaf=lambda one: isinstance(one, tuple)))


def swapped(pairs: PyTree[tuple[Float[Array, "n"], Float[Array, "m"]]]) -> list[Float[Array, "n"]]:
    return [y for _, y in jax.tree.leaves(pairs, is_leaf=lambda one: isinstance(one, tuple))]


def halved(layers: PyTree[Layer]) -> PyTree[Layer]:
    return jax.tree.map(lambda leaf: leaf / 2, layers)


def transposed(layers: PyTree[Layer]) -> PyTree[Layer]:
    return jax.tree.map(lambda leaf: leaf.T[None], layers)


def paired(params: PyTree[Float[Array, "?n"], "T"]) -> PyTree[tuple[Float[Array, "..."], Float[Array, "..."]], "T"]:
    return jax.tree.map(lambda leaf: (leaf, leaf), params)


def moments(params: PyTree[Float[Array, "..."], "T"], ones: PyTree[Array, "S"]) -> PyTree[Array, "S T"]:
    return jax.tree.map(lambda _: params, ones)


def inverted(params: PyTree[Float[Array, "..."], "T"], ones: tuple[Array, Array]) -> PyTree[Array, "T ..."]:
    return jax.tree.map(lambda _: params, ones)


def scaled(state: PyTree[Array, "S T"], params: PyTree[Array, "T"], ones: PyTree[Array, "S"]) -> PyTree[Array, "S T"]:
    return jax.tree.map(lambda leaf: leaf * 2, state)


def unbound(state: PyTree[Array, "S T"], params: PyTree[Array, "T"]) -> PyTree[Array, "S T"]:
    return jax.tree.map(lambda leaf: leaf * 2, state)


def doubled(tables: PyTree[dict[str, Float[Array, "n"]]]) -> PyTree[dict[str, Float[Array, "n"]]]:
    return jax.tree.map(lambda leaf: leaf * 2, tables)


@pytest.mark.parametrize("function", [total, halved, doubled, paired, moments, scaled], ids=lambda one: one.__name__)
def test_right_programs_hold(function):
    report = verify(function)
    assert report.ok, str(report)
    assert not report.skipped


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (swapped, 'return: [0]: expected Float[Array, "n"], found f32['),
        (transposed, 'transposed, field bias (in return.b): expected Float[Array, "o"], found f32['),
        (inverted, "(not the structure that T ... has)"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_wrong_programs_are_found(function, message):
    (failure,) = verify(function).failures
    assert message in str(failure)


def test_a_structure_that_nothing_binds_is_said_in_one_line():
    with pytest.raises(AnnotationError, match="nothing binds the structure 'S'"):
        verify(unbound)
