"""The filter language, and the sorting of leaves by it."""

from __future__ import annotations

import pydoc
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import pytest
import weft
from weft import BatchStat, Buffer, Cache, LoRAParam, Param
from weft.core.errors import FilterError
from weft.core.records.filters import format_filter, predicate
from weft.core.records.leaves import iter_leaves
from weft.core.records.sorting import sort_leaves
from weft.filters import All, Inside, InstanceOf, Maybe, Not, PathContains, WithTag
from weft.filters import Any as AnyOf


class Layer(weft.Module):
    weight: jax.Array
    adapter: Annotated[jax.Array, LoRAParam]
    mean: Annotated[jax.Array, BatchStat]
    table: Annotated[jax.Array, Buffer, "frozen"]


def leaves() -> list[Any]:
    layer = Layer(*(jnp.full((), float(i)) for i in range(4)))
    return list(iter_leaves({"layers": [layer], "decoder": jnp.zeros(())}))


ALL = ("decoder", "weight", "adapter", "mean", "table")


@pytest.mark.parametrize(
    ("filter", "names"),
    [
        (Param, ("decoder", "weight", "adapter")),
        (LoRAParam, ("adapter",)),
        (PathContains("decoder"), ("decoder",)),
        (PathContains(0), ALL[1:]),
        (PathContains("eigh"), ()),
        (PathContains("eigh", exact=False), ("weight",)),
        (WithTag("frozen"), ("table",)),
        ("frozen", ("table",)),
        (AnyOf(BatchStat, "frozen"), ("mean", "table")),
        ([BatchStat, "frozen"], ("mean", "table")),
        ((BatchStat, Buffer), ("mean", "table")),
        (All(Param, Not(LoRAParam)), ("decoder", "weight")),
        (InstanceOf(Layer), ALL[1:]),
        (InstanceOf(weft.Linear, Layer), ALL[1:]),
        (InstanceOf(weft.Linear), ()),
        (Not(InstanceOf(weft.Module)), ("decoder",)),
        (Inside("layers"), ALL[1:]),
        (Inside("layers", 0), ALL[1:]),
        (Inside("layers[0].mean"), ("mean",)),
        (Inside("layers", 0, "mean"), ("mean",)),
        (Inside("decoder"), ("decoder",)),
        (Inside("mean"), ()),
        (Maybe(BatchStat), ("mean",)),
        (All(Maybe(Param), InstanceOf(Layer)), ("weight", "adapter")),
        (All(), ALL),
        (AnyOf(), ()),
        (Not(None), ALL),
        (..., ALL),
        (True, ALL),
        (None, ()),
        (False, ()),
        (lambda path, kind, leaf: path[-1] == "mean" and kind is BatchStat and leaf == 2, ("mean",)),
    ],
)
def test_what_a_filter_matches(filter: Any, names: Any):
    test = predicate(filter)
    assert tuple(leaf.path[-1] for leaf in leaves() if test(leaf)) == names


def test_the_first_filter_that_matches_takes_a_leaf():
    assert sort_leaves(leaves(), [LoRAParam, Param, ...]) == [1, 1, 0, 2, 2]
    assert sort_leaves(leaves(), [Param], require_all=False) == [0, 0, 0, None, None]
    assert sort_leaves(leaves(), [Cache, ...], require_used=False) == [1] * 5


def test_leaves_that_nothing_matches_are_named():
    with pytest.raises(FilterError, match="no filter matches these leaves") as caught:
        sort_leaves(leaves(), [Param])
    assert "at: layers[0].mean: BatchStat" in str(caught.value)
    assert "at: layers[0].table: Buffer" in str(caught.value)
    assert "end with `...` for the rest" in str(caught.value)


def test_filters_that_match_nothing_are_named():
    with pytest.raises(FilterError, match="these filters match no leaf: Cache, PathContains") as caught:
        sort_leaves(leaves(), [Cache, PathContains("encoder"), ...])
    assert "the kinds here are BatchStat, Buffer, LoRAParam, Param" in str(caught.value)
    assert "at: decoder: Param" in str(caught.value)


def test_a_class_of_records_in_place_of_a_filter_is_told_how_to_be_one():
    with pytest.raises(FilterError, match=r"(?s)match no leaf: Layer.*fix: write InstanceOf\(Layer\) for"):
        sort_leaves(leaves(), [Layer, ...])


@pytest.mark.parametrize(
    "filters",
    [
        [None, ...],
        [Param, False, ...],
        [Not(None)],
        [Maybe(Cache), Param],
        [[Maybe(Cache), Maybe("frozen")], ...],
        [All(Maybe(Cache), InstanceOf(Layer)), ...],
    ],
)
def test_the_rest_and_nothing_may_be_idle(filters: Any):
    sort_leaves([leaf for leaf in leaves() if leaf.kind is Param], filters)


def test_what_comes_after_everything_is_refused():
    with pytest.raises(FilterError, match=r"`\.\.\.` matches everything, so nothing is left for Param"):
        sort_leaves(leaves(), [..., Param])


@pytest.mark.parametrize("filter", [3, 1.5, b"x", {"a": 1}])
def test_what_is_no_filter_is_refused(filter: Any):
    with pytest.raises(FilterError, match="not a filter"):
        predicate(filter)


def test_filters_are_compared_hashed_and_written():
    assert All(Param, "x") == All(Param, "x") != AnyOf(Param, "x")
    assert len({Not(Param), Not(Param), Not(Buffer)}) == 2
    assert format_filter(All(Param, Not("x"), ...)) == "All(Param, Not('x'), ...)"
    assert Inside("layers", 0) == Inside("layers[0]") != Inside("layers")
    assert InstanceOf(Layer) == InstanceOf(Layer) != InstanceOf(weft.Linear)
    assert len({Inside("a"), Inside("a"), InstanceOf(Layer), Maybe(Param), Maybe(Param), Param}) == 4
    assert str([Inside("layers", 0), Maybe(InstanceOf(Layer))]) == "[Inside('layers[0]'), Maybe(InstanceOf(Layer))]"


def test_a_filter_with_an_alternative_that_must_be_there_is_not_optional():
    with pytest.raises(FilterError, match=r"match no leaf: Any\(Maybe\(Cache\), PathContains") as caught:
        sort_leaves(leaves(), [AnyOf(Maybe(Cache), PathContains("encoder")), ...])
    assert "mark what may be absent: Maybe(Any(Maybe(Cache), " in str(caught.value)


def model() -> Any:
    return {"encoder": [leaves_of_layer(), leaves_of_layer()], "a.b": jnp.zeros(())}


def leaves_of_layer() -> Layer:
    return Layer(*(jnp.full((), float(i)) for i in range(4)))


def test_inside_begins_at_the_argument_of_a_transform():
    def loss(net: Any, x: Any) -> Any:
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(net)) * x

    gradient = weft.grad(loss, wrt=All(Inside("encoder", 1), Param))(model(), 2.0)
    assert [leaf.path for leaf in iter_leaves(gradient)] == [("encoder", 1, "weight"), ("encoder", 1, "adapter")]
    by_kind = weft.axes({Inside("encoder[0]"): None, InstanceOf(Layer): None, ...: 0})
    stacked = {**model(), "a.b": jnp.zeros(3)}
    assert weft.vmap(lambda net: net["a.b"] + net["encoder"][0].weight, in_axes=(by_kind,))(stacked).shape == (3,)


def test_inside_and_instance_of_choose_what_is_selected_and_split():
    part = weft.tree.select(model(), Inside("['a.b']"))
    assert [leaf.path for leaf in iter_leaves(part)] == [("a.b",)]
    structure, layers, rest = weft.tree.split(model(), InstanceOf(Layer), ...)
    assert len(jax.tree.leaves(layers)) == 8
    assert jax.tree.structure(weft.tree.merge(structure, layers, rest)) == jax.tree.structure(model())


def test_what_may_be_absent_has_an_empty_gradient():
    gradient, aux = weft.grad(lambda net, x: (x**2, net), wrt=Maybe(InstanceOf(weft.Linear)), has_aux=True)(
        model(), jnp.array(2.0)
    )
    assert jax.tree.leaves(gradient) == []
    assert len(jax.tree.leaves(aux)) == 9


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Inside(), "Inside takes a path, and this one is empty"),
        (lambda: Inside("encoder..layers"), "cannot be read as a path: 'encoder..layers'"),
        (lambda: InstanceOf(), "InstanceOf takes classes"),
        (lambda: InstanceOf(leaves_of_layer()), "InstanceOf takes classes, not"),  # type: ignore[arg-type]
    ],
)
def test_filters_that_make_no_sense_are_refused_as_they_are_made(make: Any, message: str):
    with pytest.raises(FilterError, match=message):
        make()


def test_help_of_filter_tells_the_whole_language():
    text = pydoc.render_doc(weft.filters.Filter, renderer=pydoc.plaintext)
    for word in ("InstanceOf(", "Inside(", "PathContains(", "WithTag(", "Any(", "All(", "Not(", "Maybe(", "`...`"):
        assert word in text
    assert "a callable" in text
    assert "a kind" in text


def test_filters_are_instances_of_filter_and_may_be_fields_of_records():
    class Chooser(weft.Module):
        filter: weft.filters.Filter = weft.static()

    for filter in (Param, Inside("a"), "frozen", ..., None, True, (Param, Not("x")), lambda path, kind, leaf: True):
        assert isinstance(filter, weft.filters.Filter)
        assert Chooser(filter).filter == filter
    assert not isinstance((Param, 3), weft.filters.Filter)
    with pytest.raises(TypeError):
        Chooser(3)  # type: ignore[arg-type]
