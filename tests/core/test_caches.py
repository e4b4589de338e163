"""What is kept has a bound and does not keep alive what a user has let go of."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import weft
from jaxtyping import Array, Float
from weft.core.caches import Table, cached_by, clear_caches, kept_in, kept_with_class, tables
from weft.typecheck import verify

KEY = jax.random.key(0)


def sizes() -> dict[str, int]:
    return {table.name: table.size() for table in tables()}


def test_a_table_holds_no_more_than_its_bound():
    @cached_by("number", most=3)
    def double(x: int) -> int:
        return 2 * x

    assert [double(x) for x in range(10)] == list(range(0, 20, 2))
    name = next(table.name for table in tables() if table.name.endswith("double"))
    assert sizes()[name] == 3


def test_every_table_says_what_it_is_found_by_and_how_much_it_holds():
    assert len(tables()) >= 4
    for table in tables():
        assert table.key, table
        assert table.most is None or table.size() <= table.most, table


def test_clearing_goes_back_to_what_was_there_when_a_table_was_registered():
    mine: dict[str, int] = {"first": 1}
    kept_in("tests.mine", "text", mine)
    mine["second"] = 2
    clear_caches()
    assert mine == {"first": 1}


def test_what_could_not_be_read_again_outlives_a_clearing_but_not_its_class():
    read: list[type] = []

    @kept_with_class
    def look(cls: type) -> str:
        read.append(cls)
        return cls.__name__

    class Local:
        pass

    assert (look(Local), clear_caches(), look(Local)) == ("Local", None, "Local")
    assert read == [Local]
    read.clear()
    gone = weakref.ref(Local)
    del Local
    gc.collect()
    assert gone() is None


def test_clearing_changes_no_result():
    net = weft.Sequential(weft.Linear(2, 3, key=KEY), jax.nn.relu)
    step = weft.jit(lambda net, x: net(x))
    before = step(net, jnp.ones(2))
    clear_caches()
    assert sizes()["weft.core.interpreter.interpret"] == 0
    assert jnp.array_equal(step(net, jnp.ones(2)), before)
    assert isinstance(tables()[0], Table)


class Holding(weft.Module):
    function: Callable[[Any], Any] = weft.static()


def record_with_a_static_closure(array: Any) -> Any:
    Holding(lambda x: x * array).function(jnp.ones(2))


def jitted_closure(array: Any) -> Any:
    weft.jit(lambda x: x * array)(jnp.ones(2))


def scanned_closure(array: Any) -> Any:
    weft.scan(lambda carry, x: (carry * array, x))(jnp.ones(2), jnp.ones((2, 2)))


def branch_of_a_closure(array: Any) -> Any:
    weft.cond(True, lambda x: x * array, lambda x: x, jnp.ones(2))


def class_of_its_own(array: Any) -> Any:
    class Net(weft.Module):
        weight: jax.Array

        def __call__(self, x: Any) -> Any:
            return x * self.weight

    weft.jit(lambda net, x: net(x))(Net(array), jnp.ones(2))


def proved_closure(array: Any) -> Any:
    def scaled(x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x * array.sum()

    def twice(x: Float[Array, "n"]) -> Float[Array, "n"]:
        return scaled(scaled(x))

    assert verify(twice).ok


def mistaken_closure(array: Any) -> Any:
    def scaled(x: Float[Array, "n 2"]) -> Float[Array, "n"]:
        return x.sum() * array

    with pytest.raises(weft.ContractError):
        weft.jit(scaled)(jnp.ones(3))


@pytest.mark.parametrize(
    "use",
    [
        proved_closure,
        mistaken_closure,
        record_with_a_static_closure,
        jitted_closure,
        scanned_closure,
        branch_of_a_closure,
        class_of_its_own,
    ],
)
def test_what_a_user_lets_go_of_does_not_live_on(use: Callable[[Any], Any]):
    array = jnp.array([1.0, 2.0])
    use(array)
    known = weakref.ref(array)
    del array
    jax.clear_caches()
    gc.collect()
    assert known() is None


@pytest.mark.slow
def test_models_that_come_and_go_leave_nothing_in_the_tables():
    def make_and_call(i: int) -> None:
        net = weft.Sequential(weft.Linear(2, 2, key=KEY), lambda x: x * i)
        assert net(jnp.ones(2)).shape == (2,)

    make_and_call(0)
    before = sizes()
    for i in range(1000):
        make_and_call(i)
    gc.collect()
    after = sizes()
    assert {name: (before.get(name), size) for name, size in after.items() if size > before.get(name, 0) + 5} == {}
