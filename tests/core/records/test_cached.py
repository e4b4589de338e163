"""Cached properties of records: each record's own, and none of what it is made of."""

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
