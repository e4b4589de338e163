"""The end of a call over graphs, without a transform of JAX: what leaves, by which lane, and what is refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from weft import nnx
from weft.core.errors import AxisError, CarryError
from weft.core.interpreter.rides import Carry, Placement, read_placement, read_step, read_step_along
from weft.core.interpreter.values import FORWARDED
from weft.nnx.errors import AliasError, DuplicateError

from .by_hand import ByHand, Node, param

VALUES_ALONE = {"graph": {"updates": False}, "tree": {"graph": False}}
X = jnp.asarray([5.0, 6.0])


def shown(call: ByHand, places: Any) -> list[str]:
    return [".".join(map(str, call.paths[i])) for i, *_ in places]


class TestWhatLeaves:
    def test_is_what_changed_and_nothing_else(self):
        def f(m):
            m.a[...] = m.a[...] + 1

        call = ByHand(f, Node(a=param(1.0, 2.0), b=param(3.0, 4.0)))
        ended = call.end()
        assert shown(call, ended.outcome.updates) == ["m.a"]
        assert [ended.value(place) for _, *place in ended.outcome.updates] == [[2.0, 3.0]]
        assert ended.updates == ((ended.groups[1][0],),)
        assert ended.outputs == ((),)

    def test_is_told_by_identity_and_not_by_the_numbers(self):
        def f(m):
            m.a[...] = m.a[...] * 1
            m.b.set_value(m.b.get_value())

        call = ByHand(f, Node(a=param(1.0, 2.0), b=param(3.0, 4.0)))
        assert shown(call, call.end().outcome.updates) == ["m.a"]

    def test_leaves_once_however_often_it_is_met(self):
        def f(m, n):
            m.a[...] = m.a[...] + n.b[...]
            return {"again": m.a, "object": n}

        w = param(1.0, 2.0)
        ended = ByHand(f, Node(a=w), Node(b=w)).end()
        assert sum(map(len, ended.groups)) == 1
        # The output refers to the arguments by number, and has no leaf of its own.
        assert ended.outcome.sources == ()

    def test_leaves_on_the_ride_of_its_argument(self):
        def f(m, n):
            m.w[...], n.w[...] = n.w[...] * 1, m.w[...] * 1

        call = ByHand(f, Node(w=param(1.0, 2.0)), Node(w=param(3.0, 4.0)), in_axes=(0, 1), out_axes=0)
        ended = call.end()
        lanes = (*call.departure.lanes, *call.departure.update_lanes)
        assert [(i, lanes[lane].axis, ended.value((lane, at))) for i, lane, at in ended.outcome.updates] == [
            (0, 0, [3.0, 4.0]),
            (1, 1, [1.0, 2.0]),
        ]

    def test_is_in_the_lanes_of_updates_also_where_an_output_rides_alike(self):
        def f(m):
            m.w[...] = m.w[...] + 1
            return m.w[...] * 2

        ended = ByHand(f, Node(w=param(1.0, 2.0))).end()
        assert [[v.tolist() for v in lane] for lane in ended.outputs] == [[[4.0, 6.0]]]
        assert [[v.tolist() for v in lane] for lane in ended.updates] == [[[2.0, 3.0]]]

    def test_is_everything_that_was_given_away(self):
        # JAX may give a donated buffer to any output, so who donates a value has to get it back.
        call = ByHand(
            lambda m, n: None,
            Node(w=param(1.0, 2.0)),
            Node(w=param(3.0, 4.0)),
            in_axes=(Placement(donated=True), None),
            out_axes=None,
            read=read_placement,
        )
        ended = call.end()
        assert shown(call, ended.outcome.updates) == ["m.w"]
        assert ended.value(ended.outcome.updates[0][1:]) == [1.0, 2.0]

    def test_stays_though_it_is_to_be_placed(self):
        here = NamedSharding(jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("i",)), PartitionSpec())
        call = ByHand(lambda m: None, Node(w=param(1.0, 2.0)), in_axes=(here,), out_axes=None, read=read_placement)
        outcome = call.end().outcome
        assert outcome.updates == ()
        assert outcome.placed == ((0, here),)

    def test_is_what_was_learned_where_that_is_known(self):
        # Branches return the same set, though each of them changes other Variables.
        def f(m):
            m.a[...] = m.a[...] + 1

        call = ByHand(f, Node(a=param(1.0), b=param(3.0)), updated=frozenset({0, 1}))
        ended = call.end()
        assert [ended.value(place) for _, *place in ended.outcome.updates] == [[2.0], [3.0]]


class TestNewStructure:
    def test_is_part_of_the_outcome_only_if_it_changed(self):
        def same(m):
            m.n = m.n

        assert ByHand(same, Node(n=Node(w=param(1.0)))).end().outcome.arguments is None

    def test_refers_to_what_was_there_before_by_its_number(self):
        def f(m):
            m.second, m.first = m.first, m.second

        model = Node(first=Node(w=param(1.0)), second=Node(w=param(2.0)))
        call = ByHand(f, model)
        graphdef, sources = call.end().outcome.arguments
        assert graphdef.with_no_outer_index() == nnx.graphdef(model)
        assert sorted(sources) == [(FORWARDED, 0), (FORWARDED, 1)]

    def test_of_a_new_variable_rides_where_the_prefix_says_of_its_path(self):
        def f(m):
            m.mean = nnx.BatchStat(X)
            m.scale = nnx.Param(X + 1)

        axes = nnx.StateAxes({nnx.BatchStat: None, ...: 0})
        call = ByHand(f, Node(w=param(1.0, 2.0), seen=nnx.BatchStat(X)), in_axes=(axes,))
        ended = call.end()
        lanes = (*call.departure.lanes, *call.departure.update_lanes)
        new = [source for source in ended.outcome.arguments[1] if source[0] != FORWARDED]
        assert [(lanes[lane].axis, ended.value((lane, at))) for lane, at in new] == [
            (None, [5.0, 6.0]),
            (0, [6.0, 7.0]),
        ]

    def test_of_a_variable_that_was_taken_out_has_no_update(self):
        # It is nobody's any more, so that neither its value nor its metadata comes back.
        def f(m):
            m.a[...] = m.a[...] + 1
            m.a.set_metadata(tag="changed")
            del m.a

        outcome = ByHand(f, Node(a=param(1.0), b=param(2.0))).end().outcome
        assert (outcome.updates, outcome.metadata) == ((), ())

    def test_of_an_array_attribute_is_the_array_in_its_place(self):
        def f(m):
            m.raw = m.raw + 1

        node = Node(w=param(1.0))
        node.raw = X
        call = ByHand(f, node)
        ended = call.end()
        assert ended.outcome.replaced == {i for i, path in enumerate(call.paths) if "raw" in path}
        assert [v.tolist() for v in ended.updates[0]] == [[6.0, 7.0]]

    def test_of_an_array_under_another_axis_leaves_on_that(self):
        # Outside, the array of the first axis is another than the one that the second axis makes of its slices.
        def f(m, n):
            n.taken = m.raw

        first, second = Node(w=param(1.0)), Node(w=param(2.0))
        first.raw = X
        call = ByHand(f, first, second, in_axes=(0, 1), out_axes=None)
        ended = call.end()
        lanes = (*call.departure.lanes, *call.departure.update_lanes)
        new = [source for source in ended.outcome.arguments[1] if source[0] != FORWARDED]
        assert [(lanes[lane].axis, ended.value((lane, at))) for lane, at in new] == [(1, [5.0, 6.0])]

    @pytest.mark.parametrize("mode", VALUES_ALONE.values(), ids=VALUES_ALONE)
    def test_is_no_part_of_it_where_values_alone_come_back(self, mode):
        def f(m):
            m.w[...] = m.w[...] + 1
            m.new = nnx.Param(X)

        outcome = ByHand(f, Node(w=param(1.0)), mode=mode).end().outcome
        assert outcome.arguments is None
        assert [i for i, *_ in outcome.updates] == [0]


class TestMetadata:
    def test_that_changed_is_in_the_outcome(self):
        def f(m):
            m.a.set_metadata(tag="new")

        ((i, metadata),) = ByHand(f, Node(a=param(1.0), b=param(2.0))).end().outcome.metadata
        assert (i, metadata["tag"]) == (0, "new")

    def test_that_was_set_to_what_it_was_is_not(self):
        def f(m):
            m.a.set_metadata(tag="same")

        assert ByHand(f, Node(a=nnx.Param(X, tag="same"))).end().outcome.metadata == ()


class TestWhatIsReturned:
    def test_is_forwarded_if_it_is_an_argument_of_the_same_ride(self):
        call = ByHand(lambda m, x: (x, x + 1), Node(w=param(1.0)), X)
        ended = call.end()
        assert ended.outcome.sources[0] == (FORWARDED, 1)
        assert ended.value(ended.outcome.sources[1]) == [6.0, 7.0]

    def test_is_not_forwarded_on_another_ride(self):
        ended = ByHand(lambda x: x, X, in_axes=(1,), out_axes=0).end()
        assert ended.value(ended.outcome.sources[0]) == [5.0, 6.0]

    def test_of_the_arguments_is_refused_under_another_axis(self):
        with pytest.raises(AliasError) as error:
            ByHand(lambda m: m, Node(w=param(1.0, 2.0)), in_axes=(0,), out_axes=1).end()
        assert "a Param leaves under different in_axes and out_axes" in str(error.value)
        assert "m.w: 0" in str(error.value)
        assert "output.w: 1" in str(error.value)

    @pytest.mark.parametrize("mode", VALUES_ALONE.values(), ids=VALUES_ALONE)
    def test_of_the_arguments_is_refused_where_values_alone_come_back(self, mode):
        with pytest.raises(DuplicateError) as error:
            ByHand(lambda m: (X, m.w), Node(w=param(1.0, 2.0)), mode=mode).end()
        assert "an input is returned as an output" in str(error.value)
        assert "m.w" in str(error.value)
        assert "output[1]" in str(error.value)

    def test_of_the_arguments_is_a_copy_where_all_outputs_are(self):
        call = ByHand(lambda m: m, Node(w=param(1.0, 2.0)), mode={"copies": True, "updates": False})
        ended = call.end()
        assert ended.value(ended.outcome.sources[0]) == [1.0, 2.0]
        assert call.hand_over(ended) is not call.call[1][0]

    def test_in_tree_mode_shares_nothing(self):
        def f(x):
            w = nnx.Param(x)
            return {"one": w, "other": w}

        with pytest.raises(DuplicateError, match="does not support shared references") as error:
            ByHand(f, X, mode={"graph": False}).end()
        assert "output.one" in str(error.value)


class TestWhatIsPutIntoAnotherArgument:
    def f(self, m, n):
        m.taken = n.w

    def test_is_refused_under_another_axis(self):
        with pytest.raises(AliasError) as error:
            ByHand(self.f, Node(w=param(1.0, 2.0)), Node(w=param(3.0, 4.0)), in_axes=(0, None)).end()
        assert "a Param leaves under different in_axes" in str(error.value)
        assert "m.taken: 0" in str(error.value)
        assert "n.w: None" in str(error.value)

    def test_is_one_variable_under_the_same(self):
        model, source = Node(w=param(1.0, 2.0)), Node(w=param(3.0, 4.0))
        call = ByHand(self.f, model, source)
        call.hand_over(call.end())
        assert model.taken is source.w


class TestLoops:
    def test_what_is_carried_keeps_its_order(self):
        def step(m, x):
            m.a[...] = m.a[...] + x
            return m, x * 2

        axes = (Carry, 0)
        call = ByHand(step, Node(a=param(1.0, 1.0), b=param(2.0, 2.0)), X, in_axes=axes, out_axes=axes, read=read_step)
        ended = call.end()
        assert [[v.tolist() for v in lane] for lane in ended.outputs] == [[[6.0, 7.0], [2.0, 2.0]], [[10.0, 12.0]]]
        # Both are written, also the one that this step did not change: the carry is what comes out.
        assert [i for i, *_ in ended.outcome.carried] == [0, 1]
        assert ended.outcome.updates == ()

    def test_what_is_the_same_at_every_step_may_not_change(self):
        def step(m, x):
            m.w[...] = m.w[...] + 1
            return x

        # It leaves nowhere, so nothing of it is in the outcome; that it is refused is for the loop to say.
        call = ByHand(step, Node(w=param(1.0)), X, in_axes=(None, 0), out_axes=0, read=read_step)
        assert call.end().outcome.updates == ()

    def test_what_is_carried_along_is_in_its_place_whether_it_changed_or_not(self):
        def step(m, x):
            m.b[...] = m.b[...] + 1
            return x

        call = ByHand(
            step,
            Node(a=param(1.0), b=param(2.0)),
            X,
            in_axes=(None, 0),
            out_axes=0,
            read=read_step_along,
            updated=frozenset({0, 1}),
        )
        along, *_ = call.end().updates
        assert [v.tolist() for v in along] == [[1.0], [3.0]]

    def test_metadata_of_what_is_carried_along_may_not_change(self):
        def step(m, x):
            m.w.set_metadata(tag="new")
            return x

        call = ByHand(step, Node(w=param(1.0)), X, in_axes=(None, 0), read=read_step_along, updated=frozenset())
        with pytest.raises(CarryError, match="metadata of a Variable") as error:
            call.end()
        assert "m.w" in str(error.value)

    def test_what_is_new_cannot_leave_on_what_is_the_same_at_every_step(self):
        def step(m, x):
            m.new = nnx.Param(x)
            return x

        call = ByHand(step, Node(w=param(1.0)), X, in_axes=(None, 0), read=read_step)
        with pytest.raises(AxisError, match="an argument whose updates are not returned") as error:
            call.end()
        assert "carry the argument" in str(error.value)
