"""cond, switch, while_loop and fori_loop outside of jit: compiled once, never stale, and nothing is kept alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import weft
from weft import nnx
from weft.core.caches import tables
from weft.core.interpreter.values import VALUES
from weft.transforms.branches import COND, COND_OPTIONS
from weft.transforms.transformed import interpreted_at_once

FACTOR = 2.0


class Model(nnx.Module):
    def __init__(self) -> None:
        self.w = nnx.Param(jnp.ones(2))
        self.calls = nnx.Variable(jnp.zeros((), int))


@contextmanager
def compilations() -> Iterator[list[str]]:
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


# Each writes its functions where it calls, as programs do: they are others in every call.
def cond(m: Model) -> Any:
    def add(m: Model) -> Any:
        m.calls[...] += 1
        return m.w[...] * FACTOR

    return nnx.cond(True, add, lambda m: m.w[...], m)


def switch(m: Model) -> Any:
    n = 3
    return nnx.switch(1, [lambda m: m.w[...], lambda m: m.w[...] + n], m)


def while_loop(m: Model) -> Any:
    return nnx.while_loop(lambda c: c[1] < 3, lambda c: (c[0], c[1] + 1), (m, jnp.zeros((), int)))[1]


def fori_loop(m: Model) -> Any:
    def body(i: Any, carry: tuple[Model, Any]) -> tuple[Model, Any]:
        m, y = carry
        m.calls[...] += i
        return m, y + m.w[...]

    return nnx.fori_loop(0, 3, body, (m, jnp.zeros(2)))[1]


@pytest.mark.parametrize("call", [cond, switch, while_loop, fori_loop])
def test_a_second_call_compiles_nothing(call: Callable[[Model], Any]):
    m = Model()
    jax.block_until_ready(call(m))
    with compilations() as compiled:
        again = call(m)
    assert compiled == []
    assert jax.tree.all(jax.tree.map(jnp.array_equal, again, call(Model())))


def test_over_records_a_second_call_of_functions_that_are_written_in_it_compiles_nothing():
    def run() -> Any:
        return weft.cond(True, lambda x: x + 1, lambda x: x - 1, jnp.ones(3))

    run()
    with compilations() as compiled:
        run()
    assert compiled == []


def test_updates_reach_the_objects_of_each_call():
    first, second = Model(), Model()
    for m in (first, second, first):
        cond(m)
        fori_loop(m)
    assert (int(first.calls[...]), int(second.calls[...])) == (8, 4)


def test_a_variable_that_is_closed_over_is_read_at_each_call():
    m, scale = Model(), nnx.Variable(jnp.array(2.0))
    seen = []
    for value in (2.0, 3.0):
        scale[...] = jnp.array(value)
        seen.append(float(nnx.cond(True, lambda m: m.w[0] * scale[...], lambda m: m.w[0], m)))
    assert seen == [2.0, 3.0]


@pytest.mark.parametrize("make", [jnp.array, float, lambda n: [n], lambda n: nnx.Variable(jnp.array(n))])
def test_what_is_closed_over_may_be_replaced_by_something_else(make: Callable[[float], Any]):
    def value(closed_over: Any) -> Any:
        return closed_over[0] if isinstance(closed_over, list) else jnp.asarray(closed_over)

    closed_over = make(2.0)

    def scaled(m: Model) -> Any:
        return m.w[0] * value(closed_over)

    def added(i: Any, carry: Any) -> Any:
        return carry + value(closed_over)

    m, seen = Model(), []
    for n in (2.0, 3.0):
        closed_over = make(n)
        seen.append(float(nnx.cond(True, scaled, lambda m: m.w[0], m)))
        seen.append(float(nnx.fori_loop(0, 1, added, 0.0)))
    assert seen == [2.0, 2.0, 3.0, 3.0]


def test_a_global_number_that_is_bound_anew_is_seen(monkeypatch: pytest.MonkeyPatch):
    m = Model()
    before = cond(m)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert (before.tolist(), cond(m).tolist()) == ([2.0, 2.0], [3.0, 3.0])


def test_a_step_of_scan_sees_a_number_that_is_bound_anew():
    factor = 2.0

    @nnx.scan(in_axes=(nnx.Carry, 0))
    def run(carry: Any, x: Any) -> Any:
        return carry + x * factor, None

    first = float(run(jnp.zeros(()), jnp.ones(3))[0])
    factor = 3.0
    assert (first, float(run(jnp.zeros(()), jnp.ones(3))[0])) == (6.0, 9.0)


def test_functions_inside_go_by_the_switches_in_force():
    def run(m: Model) -> Any:
        return nnx.cond(True, lambda m: int(nnx.set_graph_mode.current_value()) + 0 * m.w[0], lambda m: m.w[0], m)

    seen = [float(run(Model()))]
    with nnx.set_graph_mode(False):
        seen.append(float(run(Model())))
    assert seen == [1.0, 0.0]


def test_what_a_function_closes_over_is_free_after_the_call():
    def run() -> list[weakref.ref[Any]]:
        table, m = jnp.ones(2), Model()
        true_fun, false_fun = (lambda m: m.w[...] + table), (lambda m: m.w[...])
        nnx.cond(True, true_fun, false_fun, m)
        nnx.while_loop(lambda c: c[1] < 1, lambda c: (c[0], c[1] + table[0]), (m, 0.0))
        return [weakref.ref(thing) for thing in (table, m, true_fun, false_fun)]

    references = [ref for _ in range(3) for ref in run()]
    gc.collect()
    assert [ref() for ref in references] == [None] * len(references)


def test_what_is_kept_of_functions_is_bounded():
    for n in range(300):
        interpreted_at_once(COND, VALUES, (with_constant(n), with_constant(0)), COND_OPTIONS)
    assert [table.size() for table in tables() if table.name.endswith("transformed, by text")] == [256]


def with_constant(n: int) -> Callable[[Any], Any]:
    return lambda x: x + n
