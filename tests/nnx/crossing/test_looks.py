"""One look at several graphs: structures between two marks, and what is below something that is met again."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from weft import nnx
from weft.nnx.crossing.looks import GraphWalk, Mark
from weft.nnx.graphs.definitions import IndexMap
from weft.nnx.graphs.plan import Plan, variables_below


def layer(**parts: Any) -> nnx.Dict:
    return nnx.Dict(w=nnx.Param(jnp.ones(2)), **parts)


def paths(entries: Any) -> list[tuple[Any, ...]]:
    return sorted(path for path, _ in entries)


def test_the_structure_between_two_marks_is_that_of_the_graphs_alone():
    nested, flat = layer(inner=layer()), layer()
    look = GraphWalk(None)
    first = look.at(nested)
    middle = look.here()
    second = look.at(flat)
    assert look.between(Mark(), middle) == nnx.graphdef(nested)
    assert [path for path, _ in look.leaves_of(first)] == [("inner", "w"), ("w",)]
    assert look.leaves_of(second) == [(("w",), flat["w"])]
    assert look.between(middle, look.here()).num_leaves == 1


def test_a_graph_that_is_met_again_has_no_leaves_but_is_known_below():
    model = layer(a=layer(), b=layer())
    look = GraphWalk(None)
    look.at(model)
    again = look.at((model["a"], model))
    assert look.leaves_of(again) == []
    variables = dict(look.met_again(again))
    assert sorted(variables) == [(0, "w"), (1, "a", "w"), (1, "b", "w"), (1, "w")]
    assert variables[0, "w"] is model["a"]["w"]
    assert variables[1, "b", "w"] is model["b"]["w"]


def test_what_is_below_is_what_a_walk_of_its_own_finds():
    shared = layer()
    model = layer(a=layer(x=shared), b=layer(y=shared, z=nnx.Dict(again=shared["w"])), n=nnx.List([shared, layer()]))
    look = GraphWalk(None)
    look.at(model)
    for node in (model, model["a"], model["b"], model["n"], shared, shared["w"]):
        expected = variables_below(node)
        actual = list(look.below(look.ref_index[node]))
        assert len(actual) == len(expected)
        assert {id(variable) for _, variable in actual} == {id(variable) for _, variable in expected}
        for path, variable in actual:
            value: Any = node
            for key in path:
                value = value[key]
            assert value is variable


def test_a_cycle_ends():
    model = layer()
    model["me"] = nnx.Dict(up=model)
    look = GraphWalk(None)
    look.at(model)
    assert paths(look.below(0)) == [("w",)]
    assert paths(variables_below(model)) == [("w",)]


def test_things_that_were_there_before_are_told_by_their_numbers():
    model = layer()
    before = IndexMap((number, Plan([model]).node(number)) for number in Plan([model]).by_number)
    model["new"] = layer()
    look = GraphWalk(before)
    look.at(model)
    outer = [definition.outer_index for definition in look.between(Mark(), look.here()).nodes]
    assert outer[0] == 0
    assert sorted(number for number in outer if number is not None) == [0, 1]
    assert outer.count(None) == 2
