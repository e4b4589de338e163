"""The two lints, on programs whose shapes are all right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Array, Float
from weft.typecheck.proofs.axis_lints import regroup
from weft.typecheck.proofs.prover import verify


def promoted_against_a_column(a: Float[Array, "b 1"], y: Float[Array, "b"]) -> Float[Array, ""]:
    return (a * y).sum()


def promoted_against_a_kept_axis(x: Float[Array, "b d"], y: Float[Array, "b"]) -> Float[Array, ""]:
    return (x.sum(axis=1, keepdims=True) - y).sum()


def row_against_a_product(x: Float[Array, "b d"], w: Float[Array, "d 1"], y: Float[Array, "b"]) -> Float[Array, ""]:
    return ((x @ w - y[None]) ** 2).mean()


def inside_a_gradient(w: Float[Array, "d 1"], x: Float[Array, "b d"], y: Float[Array, "b"]) -> Float[Array, "d 1"]:
    return jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)


def merged_without_a_transpose(x: Float[Array, "h s c"]) -> Float[Array, "s h*c"]:
    return x.reshape(x.shape[1], -1)


def split_in_the_wrong_order(x: Float[Array, "b s d"]) -> Float[Array, "s b d"]:
    return x.reshape(x.shape[1], x.shape[0], x.shape[2])


def merged_in_the_other_order(x: Float[Array, "n p"], y: Float[Array, "n q"]) -> Float[Array, "n p*q"]:
    return (y[:, :, None] * x[:, None, :]).reshape(x.shape[0], -1)


@pytest.mark.parametrize(
    ("function", "rule"),
    [
        (promoted_against_a_column, "outer-product"),
        (promoted_against_a_kept_axis, "outer-product"),
        (row_against_a_product, "outer-product"),
        (inside_a_gradient, "outer-product"),
        (merged_without_a_transpose, "memory-order"),
        (split_in_the_wrong_order, "memory-order"),
        (merged_in_the_other_order, "memory-order"),
    ],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_what_looks_wrong_is_a_warning_at_its_line(function: Callable[..., Any], rule: str):
    report = verify(function)
    assert report.ok
    assert [warning.rule for warning in report.warnings] == [rule]
    assert report.warnings[0].file == __file__
    first = function.__code__.co_firstlineno
    assert first <= report.warnings[0].line <= first + 1


def pairwise(x: Float[Array, "n d"]) -> Float[Array, "n n"]:
    return ((x[:, None] - x[None]) ** 2).sum(-1)


def asked_with_promotion(x: Float[Array, "n"]) -> Float[Array, ""]:
    return (x[:, None] * x).sum()


def kept_and_transposed(x: Float[Array, "n d"]) -> Float[Array, ""]:
    sq = (x**2).sum(axis=1, keepdims=True)
    return (sq + sq.T - 2 * x @ x.T).sum()


def bias_and_scale(x: Float[Array, "*b d"], scale: Float[Array, "d"]) -> Float[Array, "*b d"]:
    return x * scale + scale


def normalised(x: Float[Array, "b d"]) -> Float[Array, "b d"]:
    return x / x.sum(axis=1, keepdims=True)


def heads(x: Float[Array, "b s h*c"], h: int) -> Float[Array, "b h s c"]:
    return x.reshape(x.shape[0], x.shape[1], h, -1).transpose(0, 2, 1, 3)


def merged_heads(x: Float[Array, "b h s c"]) -> Float[Array, "b s h*c"]:
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def frequencies(t: Float[Array, "b 1"], freqs: Float[Array, "f"]) -> Float[Array, "b f"]:
    return jnp.sin(t * freqs)


def flattened(x: Float[Array, "b h w c"]) -> Float[Array, "b h*w*c"]:
    return x.reshape(x.shape[0], -1)


@pytest.mark.parametrize(
    "function",
    [
        pairwise,
        asked_with_promotion,
        kept_and_transposed,
        bias_and_scale,
        normalised,
        heads,
        merged_heads,
        frequencies,
        flattened,
    ],
    ids=lambda one: one.__name__,
)
def test_what_was_asked_for_is_no_warning(function: Callable[..., Any]):
    report = verify(function)
    assert report.ok, report
    assert report.warnings == (), report


@given(st.lists(st.sampled_from([2, 3, 5, 7]), min_size=1, max_size=5), st.data())
def test_merging_neighbours_and_splitting_again_is_in_memory_order(sizes: list[int], data: st.DataObject):
    atoms = [(f"n{number}", size) for number, size in enumerate(sizes)]
    shape: list[int] = []
    for size in sizes:
        if shape and data.draw(st.booleans()):
            shape[-1] *= size
        else:
            shape.append(size)
    groups = regroup(atoms, shape)
    assert groups is not None
    assert [atom for group in groups for atom in group] == atoms
