"""Rides from prefixes, by kind and by place, and the sizes of mapped axes."""

from __future__ import annotations

from typing import Annotated, Any

import jax
import jax.numpy as jnp
import pytest
import weft
from hypothesis import given
from hypothesis import strategies as st
from weft import BatchStat, Cache, Param
from weft.core.errors import AxisError
from weft.core.interpreter.prefixes import (
    axes,
    depends_on_leaves,
    distinct,
    mapped_size,
    resolve,
    resolve_nodes,
    rides_in,
    subtrees,
)
from weft.core.interpreter.rides import CARRIED, Axis, Carry, Unknown, axis_of, read_axis, read_step
from weft.core.records.leaves import iter_leaves
from weft.filters import InstanceOf


class Layer(weft.Module):
    weight: jax.Array
    mean: Annotated[jax.Array, BatchStat]
    name: str = "layer"


def make_layer() -> Layer:
    return Layer(jnp.ones(3), jnp.ones((3, 2)))


def dynamic(tree: Any) -> list[Any]:
    return [leaf for leaf in iter_leaves(tree) if leaf.dynamic]


def rides(prefix: Any, tree: Any) -> list[Any]:
    return list(map(axis_of, resolve(prefix, tree, dynamic(tree), read_axis, option="in_axes")))


BY_KIND = axes({BatchStat: None, ...: 0})


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        (0, [0, 0, 0]),
        (None, [None, None, None]),
        ({"layer": 1, "x": None}, [1, 1, None]),
        ({"layer": BY_KIND, "x": 2}, [0, None, 2]),
        (BY_KIND, [0, None, 0]),
        ({"layer": jax.tree.unflatten(jax.tree.structure(make_layer()), [1, 2]), "x": 0}, [1, 2, 0]),
    ],
)
def test_a_prefix_gives_each_dynamic_leaf_its_ride(prefix: Any, expected: list[Any]):
    assert rides(prefix, {"layer": make_layer(), "x": 1.0}) == expected


@given(st.recursive(st.integers(0, 3), lambda inner: st.one_of(st.lists(inner, max_size=3), st.tuples(inner, inner))))
def test_a_full_prefix_is_read_leaf_by_leaf(prefix: Any):
    tree = jax.tree.map(float, prefix)
    assert rides(prefix, tree) == jax.tree.leaves(prefix)


def test_two_arguments_may_share_one_spec():
    tree = (make_layer(), make_layer())
    assert rides((BY_KIND, BY_KIND), tree) == [0, None, 0, None]


@pytest.mark.parametrize(
    ("prefix", "fragment", "place"),
    [
        ([0], "in_axes does not fit", "in_axes=[0]"),
        ({"layer": 0}, "in_axes does not fit", "in_axes={'layer': 0}"),
        ({"layer": 0, "x": axes({Cache: 0, ...: 0})}, "in_axes: these filters match no leaf: Cache", "x: Param"),
        (axes({Param: 0}), "in_axes: no filter matches these leaves", "layer.mean: BatchStat"),
    ],
)
def test_a_prefix_that_does_not_fit_is_refused(prefix: Any, fragment: str, place: str):
    with pytest.raises(AxisError) as caught:
        rides(prefix, {"layer": make_layer(), "x": 1.0})
    assert fragment in str(caught.value)
    assert f"at: {place}" in str(caught.value)


def test_the_rides_that_a_prefix_mentions():
    assert rides_in((BY_KIND, [1, None]), read_axis) == list(map(Axis, [None, 0, 1, None]))
    assert depends_on_leaves((BY_KIND, 1), read_axis)
    assert not depends_on_leaves(([0, None], 1), read_axis)


def test_lanes_are_the_distinct_rides_in_their_order():
    assert distinct([Axis(1), Axis(None), Axis(1), Axis(0)]) == (Axis(1), Axis(None), Axis(0))


def test_what_a_transform_does_not_know_in_a_prefix_is_left_to_jax():
    resolved = resolve(("x", 0), (1.0, 2.0), dynamic((1.0, 2.0)), read_axis, option="in_axes")
    assert resolved == [Unknown("x"), Axis(0)]
    with pytest.raises(weft.errors.AxisError, match="out_axes gives 'x' to an array, which out_axes does not accept"):
        weft.vmap(lambda x: x + 1, out_axes="x")(jnp.ones(2))


def test_nodes_ride_whole():
    tree = {"a": make_layer(), "b": (1.0, make_layer())}

    def is_layer(node: Any) -> bool:
        return isinstance(node, Layer)

    assert list(map(axis_of, resolve_nodes({"a": 0, "b": (None, 1)}, tree, is_layer, read_axis))) == [0, None, 1]


def sizes(tree: Any, prefix: Any, size: int | None = None) -> int | None:
    return mapped_size(dynamic(tree), rides(prefix, tree), size=size, name="vmap")


def test_the_size_of_the_mapped_axis():
    assert sizes(make_layer(), 0) == 3
    assert sizes(make_layer(), axes({BatchStat: -1, ...: None})) == 2
    assert sizes(make_layer(), None) is None
    assert sizes(make_layer(), None, size=7) == 7


@pytest.mark.parametrize(
    ("prefix", "size", "fragment", "lines"),
    [
        (1, None, "vmap is given an axis that these arguments do not have", ["weight: axis 1 of shape (3,)"]),
        (
            axes({BatchStat: 1, ...: 0}),
            None,
            "inconsistent sizes on their mapped axes: 2, 3",
            ["weight: axis 0 of shape (3,) has size 3", "mean: axis 1 of shape (3, 2) has size 2"],
        ),
        (0, 5, "differ from the requested size, 5", ["weight: axis 0 of shape (3,) has size 3", "mean: axis 0"]),
        (-3, None, "an axis that these arguments do not have", ["weight: axis -3", "mean: axis -3 of shape (3, 2)"]),
    ],
)
def test_all_offenders_are_listed(prefix: Any, size: int | None, fragment: str, lines: list[str]):
    with pytest.raises(AxisError) as caught:
        sizes(make_layer(), prefix, size)
    assert fragment in str(caught.value)
    for line in lines:
        assert f"at: {line}" in str(caught.value)


def test_rides_by_kind_are_shown_as_they_are_written():
    by_kind = axes({BatchStat: None, InstanceOf(weft.Linear): 1, ...: 0})
    assert repr(by_kind) == "axes({BatchStat: None, InstanceOf(Linear): 1, ...: 0})"


@pytest.mark.parametrize("prefix", [{Cache: None, ...: 0}, {"layer": {Cache: None, ...: 0}, "x": 0}, {Param: 0}])
def test_a_dict_by_kind_that_is_not_marked_as_one_is_told_how(prefix: dict[Any, Any]):
    with pytest.raises(AxisError, match="in_axes has a dict by kind") as caught:
        rides(prefix, {"layer": make_layer(), "x": 1.0})
    assert "weft.axes({" in str(caught.value)


def test_filters_see_paths_that_begin_where_they_were_given():
    def first(path: Any, kind: Any, value: Any) -> bool:
        return path == ("weight",)

    layer, by_path = make_layer(), axes({first: 1, ...: None})
    assert rides(by_path, layer) == [1, None]
    assert rides({"layer": by_path, "x": 0}, {"layer": layer, "x": 1.0}) == [1, None, 0]
    by_part = axes({weft.filters.PathContains(1): 0, ...: None})
    assert rides([0, by_part], [1.0, [layer, 2.0]]) == [0, None, None, 0]


@pytest.mark.parametrize("name", ["weight", "model"])
def test_a_parameter_s_name_is_no_part_of_the_paths_that_filters_see(name: str):
    loss = eval(f"lambda {name}: {name}.weight.sum() + {name}.mean.sum()")
    for chosen in (
        weft.filters.PathContains("weight"),
        lambda path, kind, value: path == ("weight",),
        weft.filters.Inside("weight"),
    ):
        gradient = weft.grad(loss, wrt=chosen)(make_layer())
        assert gradient.mean is None
        mapped = weft.vmap(lambda *args: loss(*args), in_axes=(axes({chosen: 0, ...: None}),))(make_layer())
        assert mapped.shape == (3,)


def test_by_kind_in_an_output_is_about_the_part_of_the_output_that_it_is_given_for():
    stack = jax.tree.map(lambda x: jnp.stack([x, x]), make_layer())
    by_part = axes({weft.filters.PathContains(1): 1, ...: 0})
    outputs = weft.vmap(lambda layer: (layer.weight, [layer, layer.mean]), out_axes=(0, by_part))(stack)
    assert outputs[0].shape == (2, 3)
    assert outputs[1][0].weight.shape == (2, 3)
    assert outputs[1][1].shape == (3, 2, 2)


@pytest.mark.parametrize(
    ("prefix", "parts"),
    [
        (Carry, [({"a": 1, "b": 2}, 3)]),
        ((Carry, 0), [{"a": 1, "b": 2}]),
        (({"a": Carry, "b": 0}, Carry), [1, 3]),
        ((0, None), []),
    ],
)
def test_the_parts_that_ride_in_one_way(prefix: Any, parts: list[Any]):
    tree = ({"a": 1, "b": 2}, 3)
    assert subtrees(prefix, tree, read_step, CARRIED) == parts
