"""What a value is made of: nothing of it is overlooked, and what holds itself comes to an end."""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from weft.core.makeup import Makeup, digest_of, fold, is_all_attributes, makeup_of


class Pair(NamedTuple):
    one: Any
    other: Any


class Private:
    __slots__ = "__held"  # one slot, given as a text

    def __init__(self, value: Any):
        self.__held = value


@dataclasses.dataclass
class Options:
    width: Any
    memo: Any = dataclasses.field(default=None, compare=False)


def function_of(value: Any) -> Any:
    def function(x: Any, a: Any = value, *, b: Any = value) -> Any:
        return x, a, b, value

    return function


SECRET = object()
HOLDING: dict[str, tuple[Any, int]] = {
    "a function's cell, default and keyword default": (function_of(SECRET), 3),
    "a jitted function": (jax.jit(function_of(SECRET)), 3),
    "a partial application": (functools.partial(print, SECRET, sep=SECRET), 2),
    "a bound method": (Options(SECRET).__eq__, 1),
    "a bound method that is written in C": ([SECRET].append, 1),
    "a named tuple": (Pair(SECRET, [SECRET]), 2),
    "a mapping": (types.MappingProxyType({"a": SECRET}), 1),
    "a set": ({SECRET}, 1),
    "a private slot": (Private(SECRET), 1),
    "an attribute": (types.SimpleNamespace(a=SECRET), 1),
    "a slice": (slice(SECRET), 1),
}


def occurrences(value: Any, compared: bool = True) -> int:
    def look(value: Any) -> int | Makeup:
        if value is SECRET or isinstance(value, str | types.ModuleType | types.BuiltinFunctionType):
            return int(value is SECRET) if not is_bound(value) else makeup_of(value)
        return makeup_of(value, compared=compared)

    return fold(value, look, lambda value, makeup, parts: sum(parts), lambda level: 0, deepest=6)


def is_bound(value: Any) -> bool:
    return not isinstance(getattr(value, "__self__", None), types.ModuleType | None)


@pytest.mark.parametrize("name", HOLDING)
def test_all_that_a_value_holds_is_a_part_of_it(name: str):
    value, times = HOLDING[name]
    assert occurrences(value) == times


def test_a_field_that_is_not_compared_is_a_part_where_all_counts():
    assert occurrences(Options(1, SECRET)) == 0
    assert occurrences(Options(1, SECRET), compared=False) == 1


def test_what_holds_itself_says_how_far_out_it_is():
    holder: list[Any] = [1]
    holder.append([holder])
    levels: list[int] = []
    fold(
        holder,
        lambda x: makeup_of(x) if isinstance(x, list) else 0,
        lambda *_: 0,
        lambda level: levels.append(level) or 0,
    )
    assert levels == [2]


class Log(collections.deque[Any]):
    """Holds more than its attributes."""


@pytest.mark.parametrize(
    ("kind", "is_all"),
    [(Private, True), (Options, True), (types.SimpleNamespace, True), (Log, False), (Pair, False), (object, False)],
)
def test_what_is_more_than_its_attributes_is_told(kind: type, is_all: bool):
    assert is_all_attributes(kind) is is_all


def test_arrays_are_told_apart_by_their_numbers_and_keys_by_their_data():
    assert digest_of(jnp.arange(3)) == digest_of(jnp.arange(3)) != digest_of(jnp.arange(3) + 1)
    assert digest_of(jax.random.key(0)) == digest_of(jax.random.key(0)) != digest_of(jax.random.key(1))
