"""thread: which of the things that a part returns is its successor, and that none gets lost beside the handle."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
import weft
from weft.core import Keys, Module, SuccessorError, peek, thread


class Counter(Module):
    count: jax.Array

    def __call__(self, x: Any) -> Any:
        return x + self.count, self.replace(count=self.count + 1)

    def with_aux(self, x: Any) -> Any:
        return x, "aux", self.replace(count=self.count + 1)

    def with_two(self, x: Any) -> Any:
        return x, 1, 2, self.replace(count=self.count + 1)

    def tick(self) -> Any:
        return self.replace(count=self.count + 1)

    def alone(self) -> Any:
        return (self.replace(count=self.count + 1),)

    def look(self) -> Any:
        return self.count

    def first(self, x: Any) -> Any:
        return self.replace(count=self.count + 1), x

    def twins(self) -> Any:
        return self.replace(count=self.count + 1), self.replace(count=self.count + 2)

    def deep(self, x: Any) -> Any:
        return x, {"state": [self.replace(count=self.count + 1)]}

    def named(self, x: Any) -> Any:
        return Named(x, self.replace(count=self.count + 1))

    def listed(self, x: Any) -> Any:
        return [x, self.replace(count=self.count + 1)]

    def wrapped(self, x: Any) -> Any:
        return x, Holder(self.replace(count=self.count + 1))

    def with_keys(self, x: Any) -> Any:
        return x, 1, Keys(0)


class Named(NamedTuple):
    y: Any
    state: Counter


class Holder(Module):
    counter: Counter

    def __call__(self, x: Any) -> Any:
        y, counter = self.counter(x)
        return y, self.replace(counter=counter)

    def twice(self, x: Any) -> Any:
        with thread(self) as t:
            return t.done(t.counter(t.counter(x)))

    def forgetful(self, x: Any) -> Any:
        y, _ = self.counter(x)
        return y


class Net(Module):
    counter: Counter
    holder: Holder
    row: list[Counter]
    keys: Keys
    scale: jax.Array

    @property
    def double(self) -> Any:
        return self.scale * 2

    def pure(self, x: Any) -> Any:
        return x * self.scale


def counter(value: int = 0) -> Counter:
    return Counter(jnp.array(value))


def net() -> Net:
    return Net(counter(), Holder(counter()), [counter()], Keys(0), jnp.array(3))


VALUES = [
    ("with_aux", (5,), (5, "aux")),
    ("with_two", (5,), (5, 1, 2)),
    ("tick", (), None),
    ("alone", (), None),
]


@pytest.mark.parametrize(("method", "args", "value"), VALUES)
def test_a_successor_that_is_returned_last_or_alone_is_remembered(method: str, args: Any, value: Any):
    with thread(net()) as t:
        returned = getattr(t.counter, method)(*args)
        _, after = t.done(None)
    assert returned == value
    assert after.counter.count == 1


AMBIGUOUS = [
    ("first", (1,), ["result[0]"]),
    ("twins", (), ["result[0]", "result[1]"]),
    ("deep", (1,), ["result[1].state[0]"]),
    ("named", (1,), ["result.state"]),
    ("listed", (1,), ["result[1]"]),
    ("wrapped", (1,), ["result[1].counter"]),
]


@pytest.mark.parametrize(("method", "args", "paths"), AMBIGUOUS)
def test_a_successor_that_is_anywhere_else_is_an_error_with_its_path_and_the_way_out(
    method: str, args: Any, paths: Any
):
    with thread(net()) as t:
        with pytest.raises(SuccessorError) as error:
            getattr(t.counter, method)(*args)
        _, after = t.done(None)
    assert error.value.at == tuple(f"Net.counter.{method}(...): returned as {path}" for path in paths)
    assert f"y, t.counter = peek(t.counter).{method}(...)" in str(error.value)
    assert after.counter.count == 0


def test_a_record_of_another_type_in_a_successors_place_is_an_error():
    with thread(net()) as t:
        with pytest.raises(
            SuccessorError, match=r"the successor of a Counter is a Keys\n  at: Net.counter.with_keys\(...\)"
        ):
            t.counter.with_keys(1)
        t.done(None)


def test_keys_fork_in_a_block():
    with thread(net()) as t:
        forked, more = t.keys.fork(4), t.keys.fork()
        _, after = t.done(None)
    assert forked.streams["default"].key.shape == (4,)
    assert more.streams["default"].key.shape == ()
    assert after.keys.streams["default"].count == 2


def test_what_is_returned_in_another_order_is_sorted_out_by_hand():
    with thread(net()) as t:
        t.counter, y = peek(t.counter).first(7)
        _, after = t.done(None)
    assert (y, after.counter.count) == (7, 1)


# --- calls beside the handle -----------------------------------------------------------------------------------------

DIRECT = [
    (lambda record: record.counter(1), "Net.counter(...)", "t.counter(...)"),
    (lambda record: record.counter.tick(), "Net.counter.tick(...)", "t.counter.tick(...)"),
    (lambda record: record.counter.first(1), "Net.counter.first(...)", "t.counter.first(...)"),
    (lambda record: record.row[0](1), "Net.row[0](...)", "t.row[0](...)"),
    (lambda record: record.holder.twice(1), "Net.holder.twice(...)", "t.holder.twice(...)"),
    (lambda record: record.holder.forgetful(1), None, None),
    (lambda record: record.holder.counter(1), "Net.holder.counter(...)", "t.holder.counter(...)"),
    (lambda record: record.keys.next(), "Net.keys.next(...)", "t.keys.next(...)"),
    (lambda record: jax.vmap(lambda x: record.counter(x)[0])(jnp.ones(2)), "Net.counter(...)", "t.counter(...)"),
]


@pytest.mark.parametrize(("call", "where", "handle"), DIRECT)
def test_a_direct_call_that_loses_a_successor_is_an_error_at_the_first(
    call: Any, where: str | None, handle: str | None
):
    record = net()
    with thread(record) as t:
        if where is None:
            call(record)  # it returns no successor, to us or to the handle
        else:
            with pytest.raises(SuccessorError, match="called directly inside a thread block") as error:
                call(record)
            assert error.value.at == (where,)
            assert f"go through the handle, {handle}" in str(error.value)
            assert "peek(" in str(error.value)
        t.done(None)
    assert record.counter(1)[0] == 1  # the block is over


def test_direct_calls_that_return_no_successor_are_fine():
    record = net()
    with thread(record) as t:
        assert record.counter.look() == 0
        assert record.pure(2) == 6
        assert record.double == 6
        assert counter(4)(1)[0] == 5  # no part of the record
        t.done(None)


def test_parts_call_their_own_parts_as_they_like():
    record = net()
    with thread(record) as t:
        assert (t.holder(0), t.holder(0)) == (0, 1)
        assert t.holder.twice(0) == 5
        _, after = t.done(None)
    assert after.holder.counter.count == 4


def test_a_part_that_returns_the_successor_of_another_part_is_an_error():
    class Pair(Module):
        left: Counter
        right: Counter

    class Calls(Module):
        def __call__(self, part: Any, x: Any) -> Any:
            return part(x)

    class Both(Module):
        calls: Calls
        counter: Counter

    with thread(Both(Calls(), counter(3))) as t:
        with pytest.raises(SuccessorError, match=r"the successor of a .*Calls is a Counter"):
            t.calls(t.counter, 1)
        t.done(None)


def test_a_peeked_record_may_be_called_by_hand():
    record = net()
    with thread(record) as t:
        y, t.counter = peek(t.counter)(1)
        z, t.holder = weft.peek(t.holder)(1)
        assert peek(t.row)[0].first(1)[1] == 1
        _, after = t.done(y + z)
    assert (after.counter.count, after.holder.counter.count) == (1, 1)


def test_a_method_that_calls_parts_directly_answers_for_them_itself():
    class Outer(Module):
        counter: Counter

        def run(self, x: Any) -> Any:
            y, counter = self.counter(x)
            return y, self.replace(counter=counter)

        def __call__(self, x: Any) -> Any:
            with thread(self) as t:
                x, _ = self.run(x)
                return t.done(x)

        def right(self, x: Any) -> Any:
            with thread(self) as t:
                return t.done(t.run(t.run(x)))

    with pytest.raises(SuccessorError) as error:
        Outer(counter())(1)
    assert error.value.at[0].endswith("Outer.run(...)")
    assert Outer(counter()).right(1)[1].counter.count == 2


def test_a_part_is_guarded_in_its_own_block_too():
    class Inner(Module):
        counter: Counter

        def __call__(self, x: Any) -> Any:
            with thread(self) as t:
                x, _ = self.counter(x)
                return t.done(x)

    class Outer(Module):
        inner: Inner

        def __call__(self, x: Any) -> Any:
            with thread(self) as t:
                return t.done(t.inner(x))

    with pytest.raises(SuccessorError) as error:
        Outer(Inner(counter()))(1)
    assert error.value.at[0].endswith("Inner.counter(...)")


# --- fields ----------------------------------------------------------------------------------------------------------


def test_what_is_no_field_cannot_be_set_or_deleted_and_the_error_says_what_to_do():
    with thread(net()) as t:
        with pytest.raises(
            AttributeError,
            match=r"a Counter has no field 'total'; its fields are count\n(.|\n)*declare it in the class",
        ):
            t.counter.total = 1
        with pytest.raises(AttributeError, match=r"keeps its fields: set t.counter.count = None"):
            del t.counter.count
        with pytest.raises(AttributeError, match=r"a list has no fields to set: t.row\[...\] = value"):
            t.row.total = 1
        with pytest.raises(AttributeError, match="tottal"):
            t.counter.tottal  # noqa: B018
        t.done(None)


def test_help_tells_the_whole_language():
    text = thread.__doc__ or ""
    for form in ("scan(weft.remat(t.blocks))", "t.count = ", "(y, aux, successor)", "peek(t.part)", "**Errors**"):
        assert form in text
