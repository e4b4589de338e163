"""What a function finds outside of itself: when two functions do the same, and when one may do something else later."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft.core.constants import constants_of

FACTOR = 2
TABLE = jnp.ones(2)
STEPS: list[int] = []
LINEAR = weft.Linear(2, 2, key=jax.random.key(0))


class Color(enum.Enum):
    RED = 1


class Pair(NamedTuple):
    one: Any
    other: Any


class Plain:
    scale = 2

    def twice(self) -> int:
        return FACTOR * 2


class Holding:
    table = np.ones(2)


@dataclasses.dataclass(frozen=True)
class Settings:
    rate: float = 0.1


class Remembering:
    def last(self) -> Any:
        return STEPS[-1]


def by_factor(x: Any) -> Any:
    return x * FACTOR


def by_table(x: Any) -> Any:
    return x * TABLE


@jax.jit
def jitted(x: Any) -> Any:
    return x


@dataclasses.dataclass(frozen=True)
class Scaled:
    rate: Any = 0.1
    note: Any = dataclasses.field(default=None, compare=False)

    def scaled(self) -> Any:
        return self.rate * FACTOR


def with_default(n: Any) -> Callable[..., Any]:
    return lambda x, n=n: x + n


def with_closure(n: Any) -> Callable[..., Any]:
    return lambda x: x + n


def with_keyword(n: Any) -> Callable[..., Any]:
    def function(x: Any, *, n: Any = n) -> Any:
        return x + n

    return function


MAKERS = [with_default, with_closure, with_keyword]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    "n", [1, 1.5, "a", (1, ("b", None)), jnp.float32, np.float32(3), Color.RED, by_factor, math.pi, Scaled(2)]
)
def test_two_functions_of_one_text_and_equal_constants_have_one_key(make: Callable[[Any], Any], n: Any):
    key = constants_of(make(n), lasting=True)
    assert key is not None
    assert key == constants_of(make(n), lasting=True)
    assert hash(key) == hash(constants_of(make(n), lasting=True))


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, 2),
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        ("a", b"a"),
        ((1,), (2,)),
        (jnp.sin, jnp.cos),
        (Scaled(1), Scaled(2)),
        (Scaled(1), Settings(1)),
        (Scaled(1, "a"), Scaled(1, "b")),
    ],
)
def test_functions_of_other_constants_have_other_keys(make: Callable[[Any], Any], first: Any, second: Any):
    assert constants_of(make(first)) != constants_of(make(second))


@pytest.mark.parametrize(
    "thing",
    [jnp.ones(2), np.ones(2), [1], {"a": 1}, {1}, Plain(), LINEAR, STEPS.append, (1, [2]), Scaled([1]), Scaled(TABLE)],
    ids=lambda thing: type(thing).__name__,
)
@pytest.mark.parametrize("make", MAKERS)
def test_a_function_that_finds_something_that_may_change_has_no_key(make: Callable[[Any], Any], thing: Any):
    assert constants_of(make(thing)) is None
    assert constants_of(functools.partial(lambda x, y: x, thing)) is None


@pytest.mark.parametrize(
    "function",
    [
        lambda x: by_table(x),
        lambda x: Holding(),
        lambda x: Remembering().last(),
        lambda x: [by_table(y) for y in x],
        lambda x: STEPS,
    ],
)
def test_what_may_change_is_found_through_functions_and_classes(function: Callable[..., Any]):
    assert constants_of(function) is None


def test_a_global_number_that_is_bound_anew_changes_the_key(monkeypatch: pytest.MonkeyPatch):
    scaled = Scaled()
    functions = [by_factor, lambda x: by_factor(x), lambda x: Plain().twice(), lambda x: x * scaled.scaled()]
    before = [constants_of(function, lasting=True) for function in functions]
    monkeypatch.setitem(globals(), "FACTOR", 3)
    after = [constants_of(function, lasting=True) for function in functions]
    assert None not in before + after
    assert not any(one == other for one, other in zip(before, after, strict=True))


def test_a_number_in_a_module_or_class_of_the_program_counts(monkeypatch: pytest.MonkeyPatch):
    settings = types.ModuleType("settings")
    settings.__file__ = __file__
    settings.rate = 1  # pyright: ignore[reportAttributeAccessIssue]
    functions = [lambda x: x * settings.rate, lambda x: x * Plain.scale]
    before = [constants_of(function) for function in functions]
    monkeypatch.setattr(settings, "rate", 2)
    monkeypatch.setattr(Plain, "scale", 3)
    after = [constants_of(function) for function in functions]
    assert None not in before + after
    assert not any(one == other for one, other in zip(before, after, strict=True))


def test_functions_that_call_themselves_and_each_other_come_to_an_end():
    def even(n: int) -> bool:
        return n == 0 or odd(n - 1)

    def odd(n: int) -> bool:
        return n != 0 and even(n - 1)

    assert constants_of(even) is not None
    assert constants_of(even) != constants_of(odd)


def test_what_is_freed_while_the_program_runs_is_not_lasting():
    class Local:
        pass

    inner = jax.jit(lambda x: x)
    frozen = dataclasses.make_dataclass("Frozen", [("rate", int)], frozen=True)(1)
    for function in (lambda x: Local, lambda x: inner(x), lambda x: Pair(1, Local), lambda x: frozen.rate):
        assert constants_of(function) is not None
        assert constants_of(function, lasting=True) is None
    # With what a module has it is another matter: that stays as long as the program.
    assert constants_of(lambda x: Settings(0.2), lasting=True) is not None
    assert constants_of(lambda x: jitted(x) if x else Pair, lasting=True) is not None


def test_a_function_whose_globals_are_no_modules_is_not_lasting():
    space: dict[str, Any] = {"__name__": __name__}
    exec("def function(x): return x + 1", space)
    assert constants_of(space["function"]) is not None
    assert constants_of(space["function"], lasting=True) is None
