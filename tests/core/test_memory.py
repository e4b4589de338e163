"""What is kept of functions: found again by the functions, bounded, and never what keeps them alive."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import weft
from weft.core.memory import MOST_KEPT, Recent, handle_of, live

pytestmark = pytest.mark.wide


class Scale(weft.Module):
    weight: jax.Array

    def __call__(self, x: Any) -> Any:
        return self.weight * x

    def shifted(self, x: Any) -> Any:
        return self.weight + x


def executables() -> int:
    gc.collect()
    return len(jax.devices()[0].client.live_executables())


ADD = jax.jit(lambda x, y: x + y)


# Each makes, calls and drops functions that close over a record, and gives weak references to them.
def conds(m: Scale) -> list[Any]:
    true_fun, false_fun = (lambda x: m(x)), (lambda x: x)
    weft.cond(True, true_fun, false_fun, 1.0)
    return [true_fun, false_fun]


def conds_without_closures(m: Scale) -> list[Any]:
    true_fun, false_fun = (lambda m: m(1.0)), (lambda m: m(2.0))
    weft.cond(True, true_fun, false_fun, m)
    return [true_fun, false_fun]


def conds_with_one_that_stays(m: Scale) -> list[Any]:
    double = lambda x: x * 2  # noqa: E731
    weft.cond(True, ADD_ONE, double, 1.0)
    weft.cond(True, double, ADD_ONE, 1.0)
    return [double]


def switches(m: Scale) -> list[Any]:
    branches = [lambda x: m(x), lambda x: x, lambda x: x + 1]
    weft.switch(1, branches, 1.0)
    return branches


def whiles(m: Scale) -> list[Any]:
    condition, body = (lambda x: x < 3), (lambda x: m(x) + 1)
    weft.while_loop(condition, body, 1.0)
    return [condition, body]


def foris(m: Scale) -> list[Any]:
    body = lambda i, x: m(x)  # noqa: E731
    weft.fori_loop(0, 2, body, 1.0)
    return [body]


def scans(m: Scale) -> list[Any]:
    body = lambda c, x: (m(c), x)  # noqa: E731
    weft.scan(body)(1.0, jnp.ones(2))
    return [body]


def jits(m: Scale) -> list[Any]:
    function = lambda x: m(x)  # noqa: E731
    weft.jit(function)(1.0)
    weft.jit(function, static_argnums=0)(1.0)
    return [function]


def vmaps(m: Scale) -> list[Any]:
    function = lambda x: m(x)  # noqa: E731
    weft.vmap(function)(jnp.ones(2))
    return [function]


def ADD_ONE(x: Any) -> Any:
    return x + 1


MAKERS: list[Callable[[Scale], list[Any]]] = [
    conds, conds_without_closures, conds_with_one_that_stays, switches, whiles, foris, scans, jits, vmaps
]  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("make", MAKERS)
def test_a_fresh_function_in_each_call_leaves_nothing_behind(make: Callable[[Scale], list[Any]]):
    def once() -> list[weakref.ref[Any]]:
        m = Scale(jnp.ones(()))
        return [weakref.ref(function) for function in make(m)] + [weakref.ref(m.weight)]

    once()
    before = executables()
    references = [ref for _ in range(2) for ref in once()]
    # A program that was compiled for one of them is gone with it.
    assert executables() == before
    assert [ref() for ref in references] == [None] * len(references)


def test_a_jitted_function_lives_as_long_as_what_was_made_of_it():
    step = weft.jit(lambda x: x + 1)
    gc.collect()
    assert float(step(1.0)) == 2.0


def test_a_function_and_its_memory_do_not_wait_for_the_collector():
    gc.collect()
    gc.disable()
    try:
        function = lambda x: x + 1  # noqa: E731
        weft.jit(function)(1.0)
        gone = weakref.ref(function)
        del function
        assert gone() is None
    finally:
        gc.enable()


def test_a_handle_is_one_for_each_function_and_holds_none():
    function: Any = lambda x: x  # noqa: E731
    handle = handle_of(function)
    assert handle_of(function) is handle
    assert live(handle) is function
    assert live(ADD_ONE) is ADD_ONE
    del function
    assert handle() is None


def test_what_was_used_last_is_kept():
    recent = Recent[int, str](most=3)
    for i in range(3):
        recent.add(i, str(i))
    assert recent.get(0) == "0"
    recent.add(3, "3")
    assert [recent.get(i) for i in range(4)] == ["0", None, "2", "3"]
    assert recent.add(3, "another") == "3"


def test_keys_whose_hash_changes_leave_room_again():
    class Key:
        hash = 0

        def __hash__(self) -> int:
            return self.hash

    recent = Recent[Key, int](most=3)
    for i in range(20):
        key = Key()
        recent.add(key, i)
        key.hash = i + 100
        assert len(recent) <= 3


def test_plans_of_one_function_are_bounded():
    step = weft.jit(lambda x, name: x)
    assert step._interpreted.memory.plans.most == MOST_KEPT


def test_an_object_that_cannot_be_known_weakly_is_transformed_all_the_same():
    class Slotted:
        __slots__ = ()

        def __call__(self, x: Any) -> Any:
            return x + 1

    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, x: Any) -> Any:
            return x + 1

    assert float(weft.vmap(jnp.add, in_axes=(0, None))(jnp.ones(1), 2.0)[0]) == 3.0
    assert float(weft.jit(Slotted())(1.0)) == 2.0
    assert float(weft.vmap(Unhashable().__call__)(jnp.ones(1))[0]) == 2.0
    assert float(weft.jit(functools.partial(ADD_ONE))(1.0)) == 2.0


def squared(x: jax.Array) -> jax.Array:
    TRACES.append(1)
    return (x**2).sum()


TRACES: list[int] = []
ANEW: dict[str, Callable[[], Callable[..., Any]]] = {
    "grad": lambda: weft.grad(squared),
    "value_and_grad": lambda: weft.value_and_grad(squared),
    "vmap": lambda: weft.vmap(squared, in_axes=(0,)),
    "grad of vmap": lambda: weft.vmap(weft.grad(squared)),
    "remat": lambda: weft.remat(squared),
    "partial": lambda: functools.partial(squared),
    "partial of grad": lambda: functools.partial(weft.grad(squared)),
}


@pytest.mark.parametrize("name", ANEW)
def test_what_a_transform_makes_anew_of_one_function_is_compiled_once(name: str) -> None:
    TRACES.clear()
    for _ in range(3):
        weft.jit(ANEW[name]())(jnp.ones((2, 3)))
    once = len(TRACES)
    weft.jit(ANEW[name]())(jnp.ones((2, 3)))
    assert once == len(TRACES) == 1


def test_other_options_and_other_functions_are_other_programs() -> None:
    pair = jnp.float32(2.0), jnp.float32(3.0)
    gradients = [float(weft.jit(weft.grad(lambda x, y: x * y, argnums=i))(*pair)) for i in (0, 1, 0)]
    assert gradients == [3.0, 2.0, 3.0]
    assert [float(weft.jit(functools.partial(jnp.add, one))(1.0)) for one in (1, 1.0, 2)] == [2.0, 2.0, 3.0]
    assert weft.jit(functools.partial(jnp.add, 1))(1).dtype != weft.jit(functools.partial(jnp.add, 1.0))(1).dtype


def test_what_is_remembered_of_a_transformed_function_ends_with_the_function() -> None:
    def made() -> weakref.ref[Any]:
        big = jnp.ones(3)

        def closed(x: jax.Array) -> jax.Array:
            return (x * big).sum()

        weft.jit(weft.grad(closed))(jnp.ones(3))
        return weakref.ref(closed)

    function = made()
    gc.collect()
    assert function() is None


def test_arrays_in_a_partial_are_told_apart() -> None:
    first, second = (weft.jit(functools.partial(jnp.add, jnp.full(2, value)))(jnp.zeros(2)) for value in (1.0, 2.0))
    assert first[0] == 1
    assert second[0] == 2
