"""thread: successors by path, through containers, nesting and transforms; and what its guard refuses."""

import gc
import threading
import weakref
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from jaxtyping import Int
from weft.core import Module, SuccessorError, static
from weft.core.records import module as module_core
from weft.core.records.keys import Keys
from weft.core.threads.handle import peek, thread
from weft.errors import TraceLevelError


class Counter(Module):
    """A stateful layer that adds how often it was called."""

    count: jax.Array
    step: int = static(default=1)

    def __call__(self, x):
        return x + self.count, self.replace(count=self.count + self.step)

    def twice(self, x):
        with thread(self) as t:
            return t.done(t(t(x)))

    def look(self):
        return self.count


class Shift(Module):
    by: jax.Array

    def __call__(self, x):
        return x + self.by


class Pair(NamedTuple):
    left: Counter
    right: Counter


class Net(Module):
    counter: Counter
    shift: Shift
    row: list
    table: dict
    pair: Pair
    keys: Keys
    activation: Callable
    total: jax.Array
    sizes: tuple[int, ...] = static(default=(1, 2))


def counter(value=0):
    return Counter(jnp.array(value))


def net():
    return Net(
        counter(),
        Shift(jnp.array(1)),
        [counter(), (counter(),)],
        {"a": counter(), "b": counter(5)},
        Pair(counter(), counter()),
        Keys(0),
        jax.nn.relu,
        jnp.array(0),
    )


def run(body, record=None):
    with thread(net() if record is None else record) as t:
        return t.done(body(t))


@pytest.fixture(autouse=True)
def _nothing_is_watched_afterwards():
    before = list(module_core.method_watchers)
    yield
    assert module_core.method_watchers == before


def test_a_stateful_call_gives_its_value_and_remembers_the_successor():
    record = net()
    y, after = run(lambda t: t.counter(t.counter(t.counter(10))), record)
    assert (y, after.counter.count, record.counter.count) == (13, 3, 0)
    assert after.shift is record.shift


def test_a_pure_call_gives_its_value():
    assert run(lambda t: t.shift(1))[0] == 2


def test_a_function_field_is_just_called():
    assert run(lambda t: t.activation(jnp.array(-1)))[0] == 0


def test_methods_are_called_on_the_latest_successor():
    y, after = run(lambda t: (t.counter.twice(0), t.counter.look()))
    assert y == (1, 2)
    assert after.counter.count == 2


def test_arrays_and_attributes_give_their_values():
    y, _ = run(lambda t: (t.total, t.sizes, t.counter.step, t.shift.by))
    assert y == (0, (1, 2), 1, 1)


CONTAINERS = [
    (lambda t: t.row[0](1), lambda after: after.row[0]),
    (lambda t: t.row[-1][0](1), lambda after: after.row[1][0]),
    (lambda t: t.table["a"](1), lambda after: after.table["a"]),
    (lambda t: t.pair.left(1), lambda after: after.pair.left),
    (lambda t: t.pair[0](1), lambda after: after.pair[0]),
    (lambda t: next(iter(t.row))(1), lambda after: after.row[0]),
    (lambda t: t.row[:1][0](1), lambda after: after.row[0]),
    (lambda t: dict(t.table.items())["a"](1), lambda after: after.table["a"]),
    (lambda t: t.table.values()[0](1), lambda after: after.table["a"]),
]


@pytest.mark.parametrize(("call", "find"), CONTAINERS)
def test_records_in_containers_are_threaded_by_path(call, find):
    record = net()
    y, after = run(call, record)
    assert y == 1
    assert find(after).count == 1
    assert jax.tree.structure(after) == jax.tree.structure(record)


def test_containers_are_read_like_containers():
    def body(t):
        assert len(t.row) == 2
        assert list(t.table) == ["a", "b"] == t.table.keys()
        assert "a" in t.table
        assert len(t.table) == 2
        with pytest.raises(IndexError):
            t.row[2]
        with pytest.raises(KeyError):
            t.table["c"]
        with pytest.raises(AttributeError, match="list has no attribute 'append' inside a thread block"):
            t.row.append(1)

    run(body)


def test_a_record_that_is_a_sequence_is_read_like_one():
    chain = weft.StatefulSequential(counter(), jax.nn.relu, counter(5))

    def body(t):
        assert len(t) == 3
        assert t[1] is jax.nn.relu
        first, _, last = t
        return t[0](1), first(1), last(1), t[-1](1)

    values, after = run(body, chain)
    assert len(values) == 4
    assert [int(after[0].count), int(after[2].count)] == [2, 7]


def test_a_part_that_is_made_when_asked_for_has_no_place_for_its_successor():
    with pytest.raises(SuccessorError, match=r"t\[slice\(None, 1, None\)\] is no part of the StatefulSequential"):
        run(lambda t: t[:1], weft.StatefulSequential(counter()))


def test_keys_draw_in_turn():
    y, after = run(lambda t: (t.keys("dropout"), t.keys.next("dropout")))
    key, keys = Keys(0).next("dropout")
    assert y[0] == key
    assert y[1] == keys.next("dropout")[0]
    assert after.keys.streams["default"].count == 2


def test_a_record_may_be_the_handle_itself():
    (a, b), after = run(lambda t: (t(), t()), Keys(0))
    first, keys = Keys(0).next()
    assert a == first
    assert b == keys.next()[0]
    assert after.streams["default"].count == 2


def test_explicit_replacement_is_checked_and_remembered():
    def body(t):
        t.total = t.total + 1
        t.total += 1
        t.counter.count = t.counter.count + 5
        t.row[1][0].count = jnp.array(7)
        t.row[0] = t.counter
        t.table["a"] = counter(9)
        y, t.counter = peek(t.counter)(1)
        return y

    y, after = run(body)
    counts = after.counter, after.row[1][0], after.row[0], after.table["a"]
    assert (y, after.total, *(c.count for c in counts)) == (6, 2, 6, 7, 5, 9)


def test_equinox_modules_are_threaded_too():
    class Plain(eqx.Module):
        inner: Counter

    y, after = run(lambda t: t.inner(1), Plain(counter()))
    assert (y, after.inner.count) == (1, 1)


class Outer(Module):
    inner: list[Counter]
    net: Net

    def __call__(self, x):
        with thread(self) as t:
            for layer in t.inner:
                x = layer.twice(x)
            return t.done(t.net.counter(x))


def outer():
    return Outer([counter(), counter(3)], net())


def test_blocks_nest():
    y, after = outer()(0)
    assert y == 1 + 7
    assert [layer.count for layer in after.inner] == [2, 5]
    assert after.net.counter.count == 1


def test_blocks_run_inside_every_transform():
    y, after = eqx.filter_jit(outer())(0)
    assert (y, after.inner[1].count) == (8, 5)

    record = Counter(jnp.array(0.0))

    def scanned(record, x):
        y, record = record.twice(x)
        return record, y

    last, ys = jax.lax.scan(scanned, record, jnp.zeros(3))
    assert ys.tolist() == [1.0, 5.0, 9.0]
    assert last.count == 6

    batch = Counter(jnp.arange(3.0))
    y, after = jax.vmap(lambda record: record.twice(0.0))(batch)
    np.testing.assert_array_equal(after.count, batch.count + 2)
    assert jax.grad(lambda record: record.twice(0.0)[0])(record).count == 2


class Bad(Module):
    """A stateful layer whose successor is of another make."""

    state: dict | None
    mode: str = static(default="train")
    size: float = 1.0

    def __call__(self, how):
        changes = {
            "shape": {"state": {"x": jnp.zeros(3), "y": jnp.zeros(2)}},
            "dtype": {"state": {"x": jnp.zeros(2, int), "y": jnp.zeros(2)}},
            "key": {"state": {"x": jnp.zeros(2)}},
            "static": {"mode": "eval"},
            "number": {"size": 2.0},
            "none": {"state": None},
        }
        return how, Keys(0) if how == "type" else self.replace(**changes[how])


class Holder(Module):
    bads: list[Bad]


MISFITS = [
    ("type", r"the successor of a Bad is a Keys\n  at: Holder.bads\[0\]\(...\)\n  fix: .*peek"),
    ("shape", r"Holder.bads\[0\]\(...\).state.x: float32\[2\] -> float32\[3\]"),
    ("dtype", r"Holder.bads\[0\]\(...\).state.x: float32\[2\] -> int32\[2\]"),
    ("key", r"Holder.bads\[0\]\(...\).state.y: float32\[2\] -> nothing"),
    ("static", r"Holder.bads\[0\]\(...\).mode: static 'train' -> static 'eval'"),
    ("number", r"Holder.bads\[0\]\(...\).size: static 1.0 -> static 2.0"),
    ("none", r"Holder.bads\[0\]\(...\).state: dict -> None"),
]


@pytest.mark.parametrize(("how", "message"), MISFITS)
def test_a_successor_that_does_not_fit_is_named_before_and_after(how, message):
    record = Holder([Bad({"x": jnp.zeros(2), "y": jnp.zeros(2)})])
    with pytest.raises(SuccessorError, match=message):
        run(lambda t: t.bads[0](how), record)


@pytest.mark.parametrize("transform", [lambda f: f, weft.jit, weft.vmap], ids=["eager", "jit", "vmap"])
def test_a_number_in_an_arrays_place_is_its_next_value(transform):
    class Env(Module):
        time: Int[jax.Array, "env"]

        def reset(self, x):
            with thread(self) as t:
                t.time = 0
                return t.done(x + t.time)

    x, env = transform(Env.reset)(Env(jnp.ones((2, 3), jnp.int16)), jnp.zeros((2, 3)))
    assert env.time.dtype == jnp.int16
    np.testing.assert_array_equal(env.time, jnp.zeros((2, 3)))
    np.testing.assert_array_equal(x, jnp.zeros((2, 3)))


@pytest.mark.parametrize("number", [0.5, 1j])
def test_a_number_that_an_array_cannot_hold_is_refused(number):
    with pytest.raises(SuccessorError, match=r"(?s)the successor of an ArrayImpl is a (float|complex).*Net.total"):
        run(lambda t: setattr(t, "total", number))


def test_a_number_in_the_place_of_a_key_is_refused():
    with thread(Shift(jax.random.key(0))) as t:
        with pytest.raises(SuccessorError, match=r"(?s)the successor of a PRNGKeyArray is a int.*Shift.by"):
            t.by = 0
        t.done(None)


def test_replacement_that_does_not_fit_is_refused_and_nothing_changes():
    def body(t):
        with pytest.raises(SuccessorError, match=r"Net.total: .*int32\[\] -> float32\[2\]"):
            t.total = jnp.zeros(2)
        with pytest.raises(SuccessorError, match="the successor of a Counter is a Shift"):
            t.counter = t.shift
        with pytest.raises(AttributeError, match="Net has no field 'tottal'; its fields are counter, shift"):
            t.tottal = 1

    record = net()
    _, after = run(body, record)
    assert after is record


def test_a_record_used_after_its_successor_was_taken_is_named():
    record = net()

    def body(t):
        t.row[0](1)
        record.shift(1)  # has no successor
        with pytest.raises(SuccessorError, match=r"this Counter was used after(.|\n)*Net.row\[0\](.|\n)*t.row\[0\]"):
            record.row[0](1)
        with pytest.raises(SuccessorError):
            record.row[0].look()

    run(body, record)
    assert record.row[0](1)[0] == 1  # the block is over


def test_inner_blocks_are_guarded_by_outer_ones():
    record = outer()

    def body(t):
        t.net.counter(1)
        with thread(record) as inner, pytest.raises(SuccessorError, match=r"Outer.net.counter"):
            inner.net.counter(1)
        return inner

    with pytest.raises(SuccessorError, match="left without done"):
        run(body, record)


def test_leaving_without_done_is_an_error():
    with (
        pytest.raises(SuccessorError, match=r"the thread block of a Net was left without done\(\)"),
        thread(net()) as t,
    ):
        t.counter(1)


def test_an_error_in_flight_is_not_hidden():
    with pytest.raises(ZeroDivisionError), thread(net()):
        raise ZeroDivisionError


def test_the_handle_is_closed_by_done_and_by_the_end_of_the_block():
    with thread(net()) as t:
        proxy = t.counter
        t.done(None)
        for use in (lambda: t.total, lambda: proxy(1), lambda: t.done(None)):
            with pytest.raises(SuccessorError, match=r"closed: done\(\) was called"):
                use()
    with pytest.raises(SuccessorError, match="closed: its block was left"):
        t.total = 1


def test_a_block_opens_once():
    block = thread(net())
    with block as t:
        t.done(None)
    with pytest.raises(SuccessorError, match="already opened"):
        block.__enter__()


def test_only_records_without_a_field_called_done_are_threaded():
    class Job(Module):
        done: bool

    with pytest.raises(SuccessorError, match=r"a field called 'done'(.|\n)*Job.done"):
        thread(Job(True))
    with pytest.raises(SuccessorError, match="only a record can be threaded, not a list"):
        thread([1])


def test_a_successor_taken_inside_another_transform_is_refused():
    with pytest.raises(TraceLevelError, match=r"Net.counter\(...\)"), thread(net()) as t:
        jax.jit(lambda x: t.counter(x))(1)


def test_a_pure_call_inside_another_transform_is_fine():
    y, _ = run(lambda t: jax.vmap(lambda x: t.shift(x))(jnp.arange(2)))
    assert y.tolist() == [1, 2]


def test_a_kept_handle_keeps_no_tracer_alive(checking_leaks):
    handles = []

    def f(x):
        with thread(Counter(x)) as t:
            handles.append(t)
            return t.done(t(x))

    with checking_leaks():
        jax.jit(f)(1)


def test_records_are_freed_when_the_block_ends():
    record = net()
    reference = weakref.ref(record)
    run(lambda t: t.counter(1), record)
    del record
    gc.collect()
    assert reference() is None


def test_threads_do_not_see_each_others_blocks():
    record, errors = net(), []
    started, finish = threading.Event(), threading.Event()

    def thread_in_a_worker():
        with thread(record) as t:
            t.counter(1)
            started.set()
            finish.wait(10)
            t.done(None)

    worker = threading.Thread(target=thread_in_a_worker)
    worker.start()
    started.wait(10)
    try:
        record.counter(1)  # replaced there, not here
    except SuccessorError as error:
        errors.append(error)
    finish.set()
    worker.join()
    assert errors == []
