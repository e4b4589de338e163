"""Prefixes of trees with graphs in them: one ride for each Variable, however the prefix is written."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from weft import nnx
from weft.core.errors import AxisError
from weft.core.interpreter.rides import CARRIED, Carry, axis_of, read_axis, read_step
from weft.nnx.crossing.flattening import take_apart
from weft.nnx.crossing.prefixes import OfGraph, finder, read_prefix, rides_of, specs
from weft.nnx.errors import AliasError, PrefixError

from .by_hand import Node, param


class Pair(NamedTuple):
    x: Any
    y: Any


def axes(prefix: Any, *args: Any, graph: bool = True) -> list[int | None]:
    """The axis of each leaf of arguments: those of graphs in the order of the plan, then arrays."""
    tree = take_apart(graph, args)
    return [axis_of(ride) for ride in rides_of(graph, prefix, tree, read_axis, "in_axes")]


def model() -> Node:
    return Node(b=nnx.BatchStat(jnp.ones(2)), inner=Node(w=param(1.0, 2.0)), w=param(3.0, 4.0))


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        (0, [0, 0, 0, 0]),
        ((0, None), [0, 0, 0, None]),
        ((nnx.StateAxes({nnx.BatchStat: None, ...: 1}), 0), [None, 1, 1, 0]),
        ((nnx.StateAxes({nnx.PathContains("inner"): 2, ...: None}), 0), [None, 2, None, 0]),
        # The first filter that matches decides, as in a `match` statement.
        ((nnx.StateAxes({nnx.Variable: 0, nnx.BatchStat: 1}), None), [0, 0, 0, None]),
    ],
)
def test_a_prefix_is_spread_over_what_is_in_an_object(prefix, expected):
    assert axes(prefix, model(), jnp.ones(2)) == expected


def test_a_prefix_reaches_objects_in_containers():
    tree = {"one": [model(), jnp.ones(2)], "two": Node(w=param(1.0, 1.0))}
    assert axes(({"one": [1, 0], "two": None},), tree) == [1, 1, 1, None, 0]
    assert axes(({"one": 1, "two": None},), tree) == [1, 1, 1, None, 1]
    assert axes(({"two": None, "one": 1},), tree) == [1, 1, 1, None, 1]


def test_a_containers_own_class_is_spread_by_jax():
    assert axes((Pair(0, None),), Pair(jnp.ones(2), Node(w=param(1.0, 1.0)))) == [None, 0]


@pytest.mark.parametrize("prefix", [(0,), ({"one": 0},), ((0, 0, 0),), ([0],)])
def test_a_prefix_that_does_not_fit_is_refused_as_it_was_written(prefix):
    with pytest.raises(PrefixError, match="in_axes does not fit") as error:
        axes(prefix, model(), {"one": jnp.ones(2), "other": jnp.ones(2)})
    assert f"in_axes={prefix!r}" in str(error.value)


def test_what_no_filter_matches_is_named_with_its_path():
    with pytest.raises(AxisError) as error:
        axes(nnx.StateAxes({nnx.Param: 0}), model())
    assert "no filter matches this BatchStat" in str(error.value)
    assert "at: b" in str(error.value)


def test_filters_are_for_graphs_and_not_for_arrays():
    with pytest.raises(AxisError, match="Cannot use StateAxes on non-graph nodes"):
        axes(nnx.StateAxes({...: 0}), jnp.ones(2))


def test_a_state_gives_each_path_of_an_object_its_ride():
    object = model()
    rides = nnx.map_state(lambda path, variable: 1 if "inner" in path else None, nnx.state(object))
    assert axes((rides,), object) == [None, 1, None]


class TestVariablesOfSeveralPaths:
    def test_is_one_leaf(self):
        w = param(1.0, 2.0)
        assert axes(0, Node(a=w, b=w), Node(c=w)) == [0]

    def test_whose_paths_agree_may_be_written_differently(self):
        w = param(1.0, 2.0)
        assert axes((nnx.StateAxes({...: 1}), 1), Node(a=w), Node(b=w)) == [1]

    def test_is_refused_with_every_path_if_two_disagree(self):
        w = param(1.0, 2.0)
        with pytest.raises(AliasError) as error:
            axes((0, [1, 0]), Node(a=w), [Node(b=w), Node(c=w)])
        message = str(error.value)
        assert "Inconsistent aliasing detected" in message
        assert "Duplicate Param" in message
        assert "[0].a: 0" in message
        assert "[1][0].b: 1" in message
        # The third path agrees with the first.
        assert "[1][1].c" not in message

    def test_is_found_below_an_object_that_is_met_again(self):
        shared = Node(inner=Node(w=param(1.0, 2.0)))
        with pytest.raises(AliasError) as error:
            axes((0, None), Node(x=shared), Node(y=shared))
        assert "[0].x.inner.w: 0" in str(error.value)
        assert "[1].y.inner.w: None" in str(error.value)

    def test_may_be_carried_by_one_path_and_not_be_by_another(self):
        # `Carry` says what happens to it, and not where it is: a second path has to say so, too.
        w = param(1.0, 2.0)
        tree = take_apart(True, (Node(a=w), Node(b=w)))
        assert rides_of(True, (Carry, Carry), tree, read_step, "in_axes") == [CARRIED]
        with pytest.raises(AliasError):
            rides_of(True, (Carry, 0), tree, read_step, "in_axes")


class TestPrefixesOfTheGraphItself:
    def made(self, tree: Any, filters: Any) -> Any:
        return read_prefix(nnx.prefix(tree, filters, graph=True))

    def test_is_one_ride_for_each_variable(self):
        object = model()
        assert axes((self.made(object, {nnx.BatchStat: None, ...: 1}),), object) == [None, 1, 1]

    def test_names_a_shared_variable_once(self):
        w = param(1.0, 2.0)
        object = Node(a=w, b=Node(again=w))
        assert axes((self.made(object, {nnx.PathContains("a"): 1, ...: 1}),), object) == [1]

    def test_is_not_asked_about_the_other_paths_if_it_has_no_answer(self):
        w = param(1.0, 2.0)
        rides = nnx.map_state(lambda path, variable: 1, nnx.state(Node(a=w)))
        assert axes((OfGraph(rides, None),), Node(a=w, b=Node(again=w))) == [1]


class TestFinders:
    def find(self, spec: Any, path: Any, leaf: Any) -> int | None:
        return axis_of(finder(spec, read_axis, "in_axes")(path, leaf))

    def test_answers_for_paths_that_did_not_exist(self):
        # So a Variable that the function makes finds its ride, by the prefix that the argument came with.
        spec = nnx.StateAxes({nnx.BatchStat: None, ...: 1})
        assert self.find(spec, ("new", "mean"), nnx.BatchStat(jnp.ones(2))) is None
        assert self.find(spec, ("new", "w"), param(1.0)) == 1
        assert self.find(2, ("new",), param(1.0)) == 2

    def test_says_what_is_there_when_there_is_no_answer(self):
        with pytest.raises(AxisError, match="no filter matches this Param"):
            self.find(nnx.StateAxes({nnx.BatchStat: 0}), ("new", "w"), param(1.0))


@pytest.mark.parametrize("prefix", [[0, None, {"a": 1, "b": 2}], [0, None, 1], [None, 1, 0]])
def test_the_short_way_of_spreading_says_what_jax_says(prefix):
    """Lists are spread without asking JAX, and a class that was registered by spreading it."""
    items = [Node(w=param(1.0)), jnp.ones(2), {"a": jnp.ones(2), "b": Node(w=param(1.0))}]
    spread = [
        specs(True, kind(given), take_apart(True, kind(items)), read_axis, "in_axes")
        for kind, given in ((list, prefix), (Registered, prefix))
    ]
    assert spread[0] == spread[1]


class Registered(list[Any]):
    """A list that JAX alone knows how to take apart."""


jax.tree_util.register_pytree_node(Registered, lambda node: (list(node), None), lambda _, parts: Registered(parts))


@pytest.mark.parametrize("cls", [nnx.StateAxes, nnx.StateSharding])
@pytest.mark.parametrize("filters", [3, [(nnx.Param,)], "ab"])
def test_what_is_no_filters_is_refused_by_name(cls: Any, filters: Any):
    with pytest.raises(TypeError, match=f"{cls.__name__} takes pairs of a filter and a ride, not "):
        cls(filters)
