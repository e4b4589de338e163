"""What each ride knows: on what paths to one leaf must agree, where its updates leave, and what cannot leave so."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec
from weft.core.errors import AxisError
from weft.core.interpreter.boundary import Departure, OutLanes
from weft.core.interpreter.rides import (
    CARRIED,
    Along,
    Axis,
    Carry,
    Placement,
    Ride,
    Role,
    Spec,
    Step,
    Unknown,
    as_written,
    axis_of,
    is_axis,
    read_axis,
    read_placement,
    read_role,
    read_spec,
    read_step,
    read_step_along,
    read_with,
)

CPU = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
SPEC = PartitionSpec("x")
EACH: list[Ride] = [
    Axis(None), Axis(0), Axis(1), Step(None), Step(0), CARRIED, Along(), Spec(None), Spec(SPEC),
    Placement(), Placement(CPU), Placement(None, donated=True), Role("role"), Role("other"), Unknown("x"),
]  # fmt: skip


def test_rides_are_equal_to_their_like_alone():
    assert len(set(EACH)) == len(EACH)
    assert [EACH.index(ride) for ride in EACH] == list(range(len(EACH)))
    assert Axis(0) != Step(0)


@given(st.sampled_from(EACH))
def test_place_and_update_say_the_same_again(ride: Ride):
    assert ride.place.place == ride.place
    assert ride.update is None or ride.update.update == ride.update


@pytest.mark.parametrize(
    ("read", "node", "ride"),
    [
        (read_axis, 1, Axis(1)),
        (read_axis, None, Axis(None)),
        (read_axis, True, None),
        (read_axis, Carry, None),
        (read_axis, "0", None),
        (read_step, Carry, CARRIED),
        (read_step, 0, Step(0)),
        (read_step, None, Step(None)),
        (read_step, Along(), Along()),
        (read_step_along, None, Step(None, along=True)),
        (read_step_along, Carry, CARRIED),
        (read_spec, SPEC, Spec(SPEC)),
        (read_spec, None, Spec(None)),
        (read_spec, 0, None),
        (read_placement, None, Placement()),
        (read_placement, CPU, Placement(CPU)),
        (read_placement, Placement(CPU, True), Placement(CPU, True)),
        (read_placement, "cpu", None),
        (read_role, Role("role"), Role("role")),
        (read_role, None, None),
    ],
)
def test_what_users_write_is_read_as_a_ride(read: Any, node: Any, ride: Any):
    assert read(node) == ride
    assert read_with(read, node) == (Unknown(node) if ride is None else ride)


def test_bools_are_no_axes():
    assert [is_axis(node) for node in (0, -1, None, True, "0", Carry)] == [True, True, True, False, False, False]


def test_lanes_go_to_jax_as_users_write_them():
    assert as_written([Axis(1), Spec(SPEC), Placement(CPU, True), Step(None), Unknown("x")]) == (
        1,
        SPEC,
        CPU,
        None,
        "x",
    )
    assert [axis_of(ride) for ride in (Axis(1), Axis(None), Step(2), CARRIED, Placement())] == [1, None, 2, None, None]


def test_errors_show_a_ride_as_it_is_written():
    assert [str(ride) for ride in (Axis(0), Axis(None), Step(1), CARRIED, Spec(SPEC), Placement(), Role("primal"))] == [
        "0", "None", "1", "Carry", repr(SPEC), "None", "primal",
    ]  # fmt: skip


def test_an_argument_that_comes_out_as_it_went_in_stays_outside():
    assert [ride for ride in EACH if ride.forwards] == [
        Axis(None), Axis(0), Axis(1), Step(None), Spec(None), Spec(SPEC), Placement(), Unknown("x"),
    ]  # fmt: skip
    assert Role("closed over", keeps=True).forwards


def test_updates_leave_as_their_argument_came_unless_the_transform_has_another_way():
    assert [ride.update for ride in (Axis(0), Axis(None), Spec(SPEC), Step(0))] == [
        Axis(0), Axis(None), Spec(SPEC), Step(0),
    ]  # fmt: skip
    assert Placement(CPU, donated=True).update == Placement(CPU)
    assert CARRIED.update is None
    assert Along().update == Along()
    assert Step(None).update is None
    assert Step(None, along=True).update == Along()
    assert Role("abstract", returns=False).update is None
    assert Role("differentiated").update == Role("differentiated")


def test_paths_to_one_leaf_agree_on_where_it_is_not_on_who_gives_it_away():
    assert Placement(CPU, donated=True).place == Placement(CPU)
    assert Placement(CPU).place != Placement().place
    assert Step(None, along=True).place == Step(None).place
    assert [ride.is_place for ride in (Axis(0), Spec(None), Placement(), Step(0))] == [True] * 4
    assert [ride.is_place for ride in (CARRIED, Along(), Role("primal"))] == [False] * 3


def test_an_argument_is_returned_as_it_came_or_in_a_role():
    assert Axis(0).may_return_on(Axis(0))
    assert not Axis(0).may_return_on(Axis(None))
    assert Axis(0).may_return_on(Role("primal"))
    assert Placement(CPU, donated=True).may_return_on(Placement(CPU))
    assert CARRIED.may_return_on(CARRIED)
    assert not CARRIED.may_return_on(Step(0))
    assert not Step(0).may_return_on(CARRIED)


def test_what_is_asked_to_be_somewhere_leaves_or_is_put_there():
    assert [ride for ride in EACH if ride.always_leaves] == [Spec(SPEC)]
    assert [ride for ride in EACH if ride.gives_away] == [Placement(None, donated=True)]
    assert [ride for ride in EACH if ride.kept_at is not None] == [Placement(CPU)]


# --- lanes on the way out -----------------------------------------------------------------------------------------


def lanes(outputs: Any, updates: Any = ()) -> OutLanes:
    return OutLanes(Departure(None, outputs, updates, read_axis, "out_axes", lambda call: None))


def here() -> str:
    return "output.w"


def test_output_and_updates_have_lanes_of_their_own():
    out = lanes((Axis(0), Axis(None)), (Axis(0),))
    assert [out.output(Axis(None), "a", here), out.update(Axis(0), "b", here), out.output(Axis(0), "c", here)] == [
        (1, 0), (2, 0), (0, 0),
    ]  # fmt: skip
    assert out.replace((2, 0), "d") == (2, 0)
    assert out.finished() == ((("c",), ("a",)), (("d",),))


def test_what_no_lane_takes_is_refused_with_its_path():
    with pytest.raises(AxisError) as caught:
        lanes((Axis(0),)).output(Axis(1), jnp.ones(2), here)
    assert "out_axes gives 1 to an array, which out_axes does not accept" in str(caught.value)
    assert "at: output.w: float32[2]" in str(caught.value)
    for ride in (Axis(1), None):
        with pytest.raises(AxisError, match="the function puts a new value into an argument whose updates"):
            lanes((Axis(1),)).update(ride, 1.0, here)


def test_what_a_ride_refuses_is_refused_in_its_words():
    with pytest.raises(AxisError) as caught:
        lanes((Step(None),)).output(Step(None), jnp.ones(2), here)
    assert "out_axes gives None to an output that the function has computed" in str(caught.value)
    assert "fix: carry it (Carry), or stack it (an axis)" in str(caught.value)
    with pytest.raises(AxisError) as caught:
        lanes((), (Step(None),)).update(Step(None), 1.0, here)
    assert "the function changes a leaf whose update cannot be returned under out_axes None" in str(caught.value)


def test_what_is_mapped_does_not_leave_without_an_axis():
    def run(x: Any) -> Any:
        lanes((Axis(None),)).output(Axis(None), 2.0, here)
        lanes((Axis(0),)).output(Axis(0), x, here)
        lanes((Axis(None),)).output(Axis(None), x, here)

    with pytest.raises(
        AxisError,
        match=r"a batched value is returned under axis None(.|\n)*at: output.w: float32\[\]",
    ):
        jax.vmap(run)(jnp.ones(2))
