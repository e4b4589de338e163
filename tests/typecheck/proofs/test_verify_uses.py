"""Arguments that annotations alone do not make: plain classes, strings, keys of mappings, arrays without a shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float, PyTree
from weft.typecheck import verify


class Affine:
    """A plain class: no record, no dataclass."""

    def __init__(self, scale: float, shift: Float[Array, "n"]):
        self.scale, self.shift = scale, shift

    def apply(self, x: Float[Array, "b n"]) -> Float[Array, "b n"]:
        return x * self.scale + self.shift

    def turned(self, x: Float[Array, "b n"]) -> Float[Array, "n b"]:
        return x * self.scale + self.shift


class Inside(eqx.Module):
    affine: Affine

    def __call__(self, x: Float[Array, "b n"]) -> Float[Array, "n b"]:
        return self.affine.apply(x)


class Itself:
    def __init__(self, w: Float[Array, "n"]):
        self.me, self.w = self, w

    def add(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x + self.w


class Unsaid:
    def __init__(self, environment):
        self.environment = environment

    def step(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return self.environment(x)


def takes_plain(affine: Affine, x: Float[Array, "b n"]) -> Float[Array, "b n"]:
    return affine.apply(x)


def reduced(x: Float[Array, "n m"], how: str) -> Float[Array, "n"]:
    if how == "mean":
        return x.mean(-1)
    return {"sum": x.sum(0), "max": x.max(-1)}[how]


def matched(x: Float[Array, "n m"], how: str = "mean") -> Float[Array, "n"]:
    match how.lower():
        case "mean" | "average":
            return x.mean(-1)
        case "none":
            return x
    raise ValueError(how)


def keyed(batch: dict[str, Float[Array, "n"]]) -> Float[Array, "n"]:
    return batch["x"] + batch["y"]


def product(x: Array, y: Array) -> Float[Array, "n m"]:
    return x @ y


def summed(x: Float[Array, "..."]) -> Float[Array, "a b"]:
    return x.sum(0)


def added(x: Array, y: Array) -> Array:
    return jnp.add(x, y)


@pytest.mark.parametrize("thing", [Affine.apply, takes_plain, Itself, keyed])
def test_what_holds_is_proved_of_instances_and_keys_that_the_code_asks_for(thing: Any):
    report = verify(thing)
    assert report.ok, str(report)
    assert [one.verdict.value for one in report.contracts] == ["proved"]


@pytest.mark.parametrize("thing", [Affine.turned, Inside])
def test_a_plain_class_that_breaks_its_annotation_is_found(thing: Any):
    assert "found f32[2,1]: n is 1, not 2" in str(verify(thing))


@pytest.mark.parametrize(("function", "option"), [(reduced, "how = 'sum'"), (matched, "how = 'none'")])
def test_each_string_that_the_body_asks_for_is_tried(function: Callable[..., Any], option: str):
    report = verify(function)
    assert not report.ok
    assert option in str(report)


def test_what_nothing_says_is_not_made_up():
    (contract,) = verify(Unsaid).contracts
    assert contract.verdict.value == "not checked"
    assert contract.reason.startswith("self.environment: it has no annotation")


@pytest.mark.parametrize(
    ("function", "conditions"),
    [
        (product, ["y.shape[0] = x.shape[1]", "x is of 2 axes"]),
        (summed, ["x is of 3 axes"]),
        (added, ["x and y are of one shape"]),
    ],
)
def test_what_arrays_without_a_shape_must_be_is_said(function: Callable[..., Any], conditions: list[str]):
    (contract,) = verify(function).contracts
    assert set(conditions) <= set(contract.assumptions)


def padded(x: Float[Array, "n"], kernel: Float[Array, "k"]) -> Float[Array, "n"]:
    return jnp.convolve(jnp.pad(x, kernel.shape[0] // 2), kernel, "valid")


def quartered(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return x.reshape(4, -1)[0] if x.shape[0] % 4 == 0 else x


def clipped(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return x[:8] if x.shape[0] > 8 else x


def turned_at_eight(x: Float[Array, "n m"]) -> Float[Array, "n"]:
    return x.sum(0) if x.shape[1] == 8 else x.sum(1)


@pytest.mark.parametrize(
    ("function", "sizes"),
    [(padded, "n=1, k=2"), (quartered, "n=4"), (clipped, "n=9"), (turned_at_eight, "n=1, m=8")],
)
def test_what_branches_on_a_size_is_tried_on_both_sides(function: Callable[..., Any], sizes: str):
    report = verify(function)
    assert not report.ok
    assert f"(at {sizes})" in str(report)


def takes_another_tree(w: Float[Array, "n"], x: PyTree) -> Float[Array, "n"]:
    return w * x if isinstance(x, tuple) else (w * x)["a"]


def test_a_tree_of_another_kind_than_the_code_takes_is_no_failure():
    (contract,) = verify(takes_another_tree).contracts
    assert contract.verdict.value == "not checked"
    assert contract.reason.startswith("tree.b, tree.w, x: the annotation leaves it open (TypeError")


class Shifted(eqx.Module):
    by: Array

    def __call__(self, x: Array, condition: Array | None = None) -> Array:
        if x.shape != self.by.shape:
            raise ValueError("of one shape")
        return x + self.by


def test_arrays_that_only_together_may_have_other_numbers_of_axes_are_named_together():
    (contract,) = verify(Shifted).contracts
    assert contract.assumptions == (
        "x.shape[0] = by.shape[0]",
        "x.shape[1] = by.shape[1]",
        "by and x have the same number of axes, 2 at most",
    )


class ShiftedPlane(eqx.Module):
    by: Array

    def __call__(self, x: Array) -> Array:
        if x.shape != self.by.shape or x.ndim != 2:
            raise ValueError("of one shape, and in the plane")
        return x + self.by


def test_arrays_of_one_shape_are_tried_with_other_numbers_of_axes():
    (contract,) = verify(ShiftedPlane).contracts
    shape, axes = contract.assumptions
    assert shape == "by and x are of one shape"
    assert axes.startswith("by is of 2 axes (guard at ")


class ShiftedRow(eqx.Module):
    by: Array

    def __call__(self, x: Array, condition: Array | None = None) -> Array:
        if x.shape != self.by.shape:
            raise ValueError("of one shape")
        return x[0] + self.by[0]


def test_that_arrays_vary_together_is_tried_and_not_concluded():
    (contract,) = verify(ShiftedRow).contracts
    assert "x.shape[0] = by.shape[0]" in contract.assumptions
    assert not any("the same number" in words for words in contract.assumptions), contract.assumptions
