"""Outcomes: what is put into effect on the caller's own objects, and that it is all of it or nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from weft import nnx
from weft.core.errors import WeftError
from weft.core.interpreter.rides import Placement
from weft.core.interpreter.values import FORWARDED
from weft.nnx.crossing.outcomes import to_be_placed, to_place

from .by_hand import ByHand, Node, param

X = jnp.asarray([5.0, 6.0])


def change(m: Any, x: Any) -> Any:
    """One of each: a value, metadata, something new, something taken out, and outputs old and new."""
    m.a[...] = m.a[...] + 1
    m.b.set_metadata(tag="new")
    m.new = Node(w=nnx.Param(x))
    m.swapped, m.other = m.other, m.swapped
    del m.gone
    return m.new, m.a, {"sum": x + m.a[...], "x": x}


def model() -> Node:
    return Node(
        a=param(1.0, 2.0), b=param(3.0), gone=param(4.0), swapped=Node(w=param(7.0)), other=Node(w=param(8.0, 9.0))
    )


def shown(node: Any) -> Any:
    """Everything of an object that a call may change."""
    graphdef, state = nnx.split(node)
    return graphdef, [(path, leaf.get_value().tolist(), leaf.get_metadata()) for path, leaf in nnx.to_flat_state(state)]


class TestHandingOver:
    def test_the_callers_own_objects_are_as_the_function_left_its_own(self):
        mine, reference = model(), model()
        call = ByHand(change, mine, X)
        call.hand_over(call.end())
        change(reference, X)
        assert shown(mine) == shown(reference)

    def test_objects_and_variables_keep_their_identity(self):
        mine = model()
        a, b, swapped_before, other_before = mine.a, mine.b, mine.swapped, mine.other
        call = ByHand(change, mine, X)
        new, returned, rest = call.hand_over(call.end())
        assert (mine.a, mine.b, mine.other, mine.swapped) == (a, b, swapped_before, other_before)
        assert mine.other is swapped_before
        assert mine.swapped is other_before
        # What is returned is the caller's own, too; something new is the very object that its argument has now.
        assert new is mine.new
        assert returned is mine.a
        assert rest["x"] is X
        assert rest["sum"].tolist() == [7.0, 9.0]

    def test_nothing_is_written_if_the_lanes_are_short(self):
        mine = model()
        call = ByHand(change, mine, X)
        ended, before = call.end(), shown(mine)
        short = dataclasses.replace(ended, updates=tuple(lane[:-1] for lane in ended.updates))
        with pytest.raises(IndexError):
            call.hand_over(short)
        assert shown(mine) == before

    def test_nothing_is_written_from_another_level(self):
        mine = model()
        call = ByHand(change, mine, X)
        ended, before = call.end(), shown(mine)

        def write(x):
            call.hand_over(ended)
            return x

        with pytest.raises(WeftError, match="trace level"):
            jax.make_jaxpr(write)(X)
        assert shown(mine) == before

    def test_nothing_is_written_if_one_of_several_is_of_another_level(self):
        def double(m, n):
            m.w[...], n.w[...] = m.w[...] * 2, n.w[...] * 2

        outer = Node(w=param(1.0, 2.0))

        def write(x):
            inner = Node(w=nnx.Param(x))
            call = ByHand(double, inner, outer, mode={"updates": False})
            with pytest.raises(WeftError, match="trace level"):
                call.hand_over(call.end())
            assert inner.w.get_value() is x
            return x

        jax.make_jaxpr(write)(X)
        assert outer.w.get_value().tolist() == [1.0, 2.0]

    def test_what_was_read_for_one_object_serves_another_of_the_same_make(self):
        # This is what a compiled call is: the outcome of the first, with the arrays and the objects of the second.
        first, second = ByHand(change, model(), X), ByHand(change, model(), X * 2)
        ended, others = first.end(), second.end()
        second.hand_over(dataclasses.replace(others, outcome=ended.outcome))
        reference = model()
        change(reference, X * 2)
        assert shown(second.call[1][0]) == shown(reference)


class TestWhatAnOutcomeIs:
    def test_it_is_equal_for_calls_of_one_make(self):
        first, second = (ByHand(change, model(), x).end().outcome for x in (X, X * 2))
        assert first == second
        assert hash(first) == hash(second)

    def test_it_differs_with_what_the_function_did(self):
        outcomes = [
            ByHand(f, model(), X).end().outcome
            for f in (
                change,
                lambda m, x: None,
                lambda m, x: x,
                lambda m, x: m.a.set_value(x),
                lambda m, x: m.b.set_metadata(tag="new"),
                lambda m, x: m.b.set_metadata(tag="other"),
                lambda m, x: setattr(m, "new", nnx.Param(x)),
            )
        ]
        assert all(one != other for i, one in enumerate(outcomes) for other in outcomes[:i])

    def test_it_holds_no_array_and_no_object(self):
        outcome = ByHand(change, model(), X).end().outcome
        pending: list[Any] = [outcome]
        seen: set[int] = set()
        while pending:
            value = pending.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            assert not isinstance(value, (jax.Array, np.ndarray, nnx.Variable, nnx.Pytree)), value
            if isinstance(value, (tuple, list, frozenset)):
                pending += value
            elif isinstance(value, dict):
                pending += value.values()
            elif hasattr(value, "__dict__") and not isinstance(value, type):
                pending += vars(value).values()

    def test_it_knows_which_leaves_are_updated(self):
        def f(m, x):
            m.b[...] = m.b[...] * 2

        call = ByHand(f, model(), X)
        outcome = call.end().outcome
        assert {call.paths[i] for i in outcome.updated} == {("m", "b")}
        assert outcome.replaced == frozenset()
        # With a new structure any Variable of the arguments may have another value.
        call = ByHand(change, model(), X)
        assert call.end().outcome.updated == {i for i, path in enumerate(call.paths) if path[0] == "m"}

    def test_outputs_that_jax_hands_on_are_forwarded(self):
        outcome = ByHand(lambda m, x: (x + 1, x + 2), model(), X).end().outcome
        assert outcome.forwarding({}) is outcome
        assert outcome.forwarding({outcome.sources[1]: 5}).sources == (outcome.sources[0], (FORWARDED, 5))


class TestSparseTrees:
    """Cotangents of an output: a tree like it, with values at what rides in its first lane."""

    def outcome(self) -> Any:
        return ByHand(lambda m, x: (Node(w=nnx.Param(x), n=Node(v=nnx.Param(x))), [x + 1]), model(), X).end().outcome

    def test_a_sparse_tree_is_like_the_output(self):
        node, (array,) = self.outcome().sparse([1.0, 2.0, 3.0])
        assert (node.n.v.get_value(), node.w.get_value(), array) == (1.0, 2.0, 3.0)

    def test_reading_is_the_inverse(self):
        outcome = self.outcome()
        assert outcome.read_sparse(outcome.sparse([1.0, 2.0, 3.0])) == [1.0, 2.0, 3.0]

    def test_parts_may_be_missing(self):
        outcome = self.outcome()
        node, rest = outcome.sparse([1.0, 2.0, 3.0])
        del node.n
        assert outcome.read_sparse((node, rest)) == [None, 2.0, 3.0]


class TestPlacing:
    here = NamedSharding(jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("i",)), PartitionSpec())

    def test_only_what_has_not_changed_is_to_be_placed(self):
        rides = [Placement(self.here), Placement(self.here), Placement(None), Placement(self.here)]
        variables = [param(1.0), param(2.0), param(3.0), None]
        assert to_be_placed(variables, rides, [(0, 0, 0)]) == ((1, self.here),)

    def test_what_is_committed_stays(self):
        loose, committed = param(1.0), nnx.Param(jax.device_put(X, self.here))
        ((variable, value),) = to_place([loose, committed], [self.here, self.here])
        assert variable is loose
        assert value.committed
