"""Properties of records: cached ones are each record's own; contracts check them, operators and static methods too."""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from jaxtyping import Array, Float
from weft import ContractError


class Doubled(weft.Module):
    a: jax.Array
    name: str = "doubled"

    @functools.cached_property
    def twice(self) -> Any:
        return self.a * 2


class Holder(weft.Module):
    part: Doubled

    @functools.cached_property
    def four_times(self) -> Any:
        return self.part.twice * 2


class Equinoxes(eqx.Module):
    a: jax.Array

    @functools.cached_property
    def twice(self) -> Any:
        return self.a * 2


FIVE = jnp.array(5.0)
COPIES: dict[str, Any] = {
    "replace": lambda d: d.replace(a=FIVE),
    "at, set": lambda d: weft.at(d).a.set(FIVE),
    "at, apply": lambda d: weft.at(d).a.apply(lambda a: a * 5),
    "at, replace": lambda d: weft.at(d).replace(a=FIVE),
    "tree map": lambda d: jax.tree.map(lambda a: a * 5, d),
    "update": lambda d: weft.tree.update(d, jax.tree.map(lambda a: a * 5, d)),
    "jit": lambda d: weft.jit(lambda d: d.replace(a=d.a * 5))(d),
    "in jit, after it was read": lambda d: weft.jit(lambda d: (d.twice, d.replace(a=d.a * 5))[1])(d),
}


@pytest.mark.parametrize("how", COPIES)
def test_a_cached_property_is_never_an_earlier_records(how: str):
    record = Doubled(jnp.array(1.0))
    assert record.twice == 2
    assert COPIES[how](record).twice == 10


def test_a_cached_property_of_what_holds_a_record_is_its_own_too():
    holder = Holder(Doubled(jnp.array(1.0)))
    assert holder.four_times == 4
    assert weft.at(holder).part.a.set(FIVE).four_times == 20
    with weft.thread(holder) as t:
        t.part.a = FIVE
        successor = t.done(None)[1]
    assert successor.four_times == 20


def test_a_cached_property_has_the_gradient_of_the_record_it_is_read_from():
    def loss(record: Doubled) -> Any:
        return (record.twice, record.replace(a=record.a * 3).twice)[1]

    record = Doubled(jnp.array(1.0))
    assert record.twice == 2
    assert weft.grad(loss)(record).a == 6


def test_a_module_of_equinox_in_a_block_hands_on_no_cached_property():
    class Around(weft.Module):
        inner: Equinoxes

    around = Around(Equinoxes(jnp.array(1.0)))
    assert around.inner.twice == 2
    assert weft.at(around).inner.a.set(FIVE).inner.twice == 10


def test_reading_a_cached_property_changes_no_structure_and_traces_nothing_anew():
    traces: list[None] = []

    @weft.jit
    def run(record: Doubled) -> Any:
        traces.append(None)
        return record.a

    record, addend = Doubled(jnp.array(1.0)), Doubled(jnp.array(2.0))
    before = jax.tree.structure(record)
    for _ in range(3):
        run(record)
        record.twice  # noqa: B018
    assert jax.tree.structure(record) == before
    assert len(traces) == 1
    assert jax.tree.map(jnp.add, record, addend).a == 3
    carried, _ = weft.scan(lambda d, _: ((d.twice, d.replace(a=d.a + 1))[1], None), length=3)(record, None)
    assert carried.a == 4


def test_a_cached_property_is_computed_once():
    calls: list[None] = []

    class Counts(weft.Module):
        a: jax.Array

        @functools.cached_property
        def total(self) -> Any:
            """What it is."""
            calls.append(None)
            return self.a.sum()

    record = Counts(jnp.ones(3))
    assert record.total is record.total
    assert len(calls) == 1
    assert Counts.total.__doc__ == "What it is."


def test_a_record_that_outlives_a_trace_keeps_no_tracer():
    record = Doubled(jnp.array(1.0))
    assert jax.jit(lambda x: record.twice + record.twice + x)(1.0) == 5
    assert record.twice == 2


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda d: pickle.loads(pickle.dumps(d))])
def test_copies_and_pickles_hold_fields_alone(how: Any):
    record = Doubled(jnp.array(1.0))
    assert record.twice == 2
    again = how(record)
    assert jax.tree.structure(again) == jax.tree.structure(record)
    np.testing.assert_array_equal(again.twice, 2.0)
    assert again.replace(a=FIVE).twice == 10


TWO, WRONG = jnp.ones(2), jnp.ones((2, 3))


class Point(weft.Module):
    w: Float[Array, "n"]

    @functools.cached_property
    def halved(self) -> Float[Array, "n"]:
        return self.w / 2

    @functools.cached_property
    def cubed(self) -> Float[Array, "n n n"]:
        return self.w

    @property
    def doubled(self) -> Float[Array, "n"]:
        return self.w * 2

    @property
    def squared(self) -> Float[Array, "n n"]:
        """What it says it is not."""
        return self.w

    def __add__(self, other: Float[Array, "n"]) -> Float[Array, "n"]:
        return self.w + other

    def __getitem__(self, index: Float[Array, "n"]) -> Float[Array, "n"]:
        return index

    @staticmethod
    def static(x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x

    @classmethod
    def filled(cls, x: Float[Array, "n"]) -> Point:
        return cls(jnp.zeros_like(x))


POINT = Point(TWO)


@pytest.mark.parametrize(
    ("use", "fragment"),
    [
        (lambda: POINT.squared, "return value of Point.squared should be f32[n=2,n=2], and is f32[2]"),
        (lambda: POINT.cubed, "return value of Point.cubed should be f32[n=2,n=2,n=2], and is f32[2]"),
        (lambda: POINT + jnp.ones(3), "argument other of Point.__add__ should be f32[n=2], and is f32[3]"),
        (lambda: POINT[jnp.ones(3)], "argument index of Point.__getitem__ should be f32[n=2]"),
        (lambda: Point.static(WRONG), "argument x of Point.static should be f32[n]"),
        (lambda: POINT.static(WRONG), "argument x of Point.static should be f32[n]"),
        (lambda: Point.filled(WRONG), "argument x of Point.filled should be f32[n]"),
        (lambda: jax.jit(lambda point: point.squared)(POINT), "return value of Point.squared"),
    ],
)
def test_a_broken_contract_is_told(use, fragment):
    with pytest.raises(ContractError) as caught:
        use()
    assert fragment in str(caught.value)


def test_what_keeps_its_contract_gives_what_it_gives_without():
    assert (POINT.doubled == 2).all()
    assert (POINT.halved == 0.5).all()
    assert POINT.halved is POINT.halved
    assert ((POINT + TWO) == 2).all()
    assert (POINT[TWO] == TWO).all()
    assert (Point.static(jnp.ones(3)) == 1).all()
    assert (Point.filled(TWO).w == 0).all()
    assert Point.squared.__doc__ == "What it says it is not."


def test_a_class_method_of_a_subclass_makes_the_subclass():
    class Sub(Point):
        pass

    assert type(Sub.filled(TWO)) is Sub
