"""A dim that only a result names is what an integer or a plain record of the arguments says: in calls and proofs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import pytest
import weft
from jaxtyping import Array, Float
from weft import ContractError
from weft.typecheck import contract, verify


class Row(NamedTuple):
    w: Float[Array, "n"]


@dataclasses.dataclass
class Data:
    w: Float[Array, "n"]


class Record(weft.Module):
    w: Float[Array, "n"]


def of_integer(n: int, x: Float[Array, "m"]) -> Float[Array, "n"]:
    return jnp.ones(n)


def of_another(n: int, x: Float[Array, "m"]) -> Float[Array, "n"]:
    return x


def one_more(n: int, x: Float[Array, "m"]) -> Float[Array, "n+1"]:
    return jnp.ones(n + 1)


def one_more_of_another(n: int, x: Float[Array, "m"]) -> Float[Array, "n+1"]:
    return x


def of_row(row: Row, x: Float[Array, "m"]) -> Float[Array, "n"]:
    return row.w * x.sum()


def of_another_row(row: Row, x: Float[Array, "m"]) -> Float[Array, "n"]:
    return x


def of_another_data(data: Data, x: Float[Array, "m"]) -> Float[Array, "n"]:
    return x


def of_a_module(record: Record, x: Float[Array, "m"]) -> Float[Array, "n"]:
    return x


FIVE = jnp.ones(5)
RIGHT: list[tuple[Callable[..., Any], Any]] = [
    (of_integer, 3),
    (one_more, 3),
    (of_row, Row(jnp.ones(3))),
    (of_a_module, Record(jnp.ones(3))),  # its names are its own
]
WRONG: list[tuple[Callable[..., Any], Any, str]] = [
    (of_another, 3, "return value of of_another should be f32[n=3], and is f32[5]"),
    (one_more_of_another, 3, "should be f32[n+1=4], and is f32[5]"),
    (of_another_row, Row(jnp.ones(3)), "return value of of_another_row should be f32[n=3], and is f32[5]"),
    (of_another_data, Data(jnp.ones(3)), "return value of of_another_data should be f32[n=3], and is f32[5]"),
]


@pytest.mark.parametrize(("function", "first"), RIGHT, ids=lambda one: getattr(one, "__name__", ""))
def test_results_of_that_size_pass_and_are_proved(function: Callable[..., Any], first: Any):
    contract(function)(first, FIVE)
    assert verify(function).proved


@pytest.mark.parametrize(("function", "first", "message"), WRONG, ids=lambda one: getattr(one, "__name__", ""))
def test_results_of_another_size_are_refused_and_fail(function: Callable[..., Any], first: Any, message: str):
    with pytest.raises(ContractError) as caught:
        contract(function)(first, FIVE)
    assert message in str(caught.value)
    assert verify(function).failures


def test_where_the_size_comes_from_is_said():
    with pytest.raises(ContractError, match=r"n = 3 from argument n of of_another"):
        contract(of_another)(3, FIVE)
    with pytest.raises(ContractError, match=r"n = 3 from field Row.w"):
        weft.jit(of_another_row)(Row(jnp.ones(3)), FIVE)


def test_two_records_and_a_number_that_is_no_size_say_nothing():
    def together(a: Row, b: Row) -> Float[Array, "n"]:
        return jnp.concatenate([a.w, b.w])

    def last(n: int, x: Float[Array, "m"]) -> Float[Array, "n"]:
        return x[:n]

    assert contract(together)(Row(FIVE), Row(FIVE)).shape == (10,)
    assert contract(last)(-1, FIVE).shape == (4,)


def test_a_size_that_an_array_of_the_arguments_has_is_the_arrays():
    def scaled(n: int, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x * n

    assert contract(scaled)(3, FIVE).shape == (5,)
