"""split, merge, select, update and changes: inverse to each other, for any tree of records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import weft
from hypothesis import given
from hypothesis import strategies as st
from weft import BatchStat, Buffer, Cache, Param
from weft.core.errors import FilterError, StaticError, StructureError
from weft.core.records.partition import Structure, take_apart
from weft.filters import Not
from weft.tree import changes, merge, select, split, update


class Pair(NamedTuple):
    left: Any
    right: Any


class Layer(weft.Module):
    weight: jax.Array
    mean: Annotated[Any, BatchStat]
    table: Annotated[Any, Buffer] = None
    activation: Callable[..., Any] = jnp.tanh
    rate: float = 0.1
    name: str = weft.static(default="layer")


def make_layer(value: float = 1.0) -> Layer:
    return Layer(jnp.full(2, value), jnp.zeros(2), jnp.arange(3))


leaves = st.one_of(
    st.builds(lambda n: jnp.full(2, n), st.floats(-1, 1)),
    st.builds(lambda n: jnp.full(2, n), st.integers(-3, 3)),
    st.builds(lambda n: np.full(2, n), st.integers(-3, 3)),
    st.none(),
    st.sampled_from(["text", jnp.sin, 3, 2.5, True]),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
        st.builds(Pair, inner, inner),
        st.builds(lambda a, b: make_layer().replace(mean=a, table=b), inner, inner),
    ),
    max_leaves=8,
)
filters = st.lists(st.sampled_from([Param, BatchStat, Buffer, Cache, None, Not(Param)]), max_size=3)


def same(a: Any, b: Any) -> bool:
    first, second = take_apart(a), take_apart(b)
    return first[0] == second[0] and all(x.value is y.value for x, y in zip(first[1], second[1], strict=True))


def used(tree: Any, wanted: list[Any]) -> list[Any]:
    """The filters that match something, each and in this order; any other is an error."""
    matching: list[Any] = []
    for filter in wanted:
        try:
            split(tree, *matching, filter, ...)
        except FilterError:
            continue
        matching.append(filter)
    return matching


@given(trees, filters, st.randoms())
def test_merge_is_the_inverse_of_split_in_any_order(tree: Any, wanted: list[Any], random: Any):
    structure, *parts = split(tree, *used(tree, wanted), ...)
    random.shuffle(parts)
    assert same(merge(structure, *parts), tree)


@given(trees, filters)
def test_every_array_is_in_just_one_part_and_nothing_else_is(tree: Any, wanted: list[Any]):
    _, *parts = split(tree, *used(tree, wanted), ...)
    ids = [id(leaf) for part in parts for leaf in jax.tree.leaves(part)]
    assert sorted(ids) == sorted(id(leaf.value) for leaf in take_apart(tree)[1])


@given(trees, filters)
def test_update_puts_back_what_select_took(tree: Any, wanted: list[Any]):
    parts = [select(tree, filter) for filter in used(tree, wanted)]
    assert same(update(tree, *parts), tree)


def is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)


@given(trees)
def test_changes_are_what_update_needs(tree: Any):
    after = jax.tree.map(lambda leaf: leaf + 1 if is_array(leaf) and leaf[0] > 0 else leaf, tree)
    sparse = changes(tree, after)
    changed = sum(a is not b for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(after), strict=True))
    assert len(jax.tree.leaves(sparse)) == changed
    assert same(update(tree, sparse), after)
    assert jax.tree.leaves(changes(tree, tree)) == []


@given(trees)
def test_structures_are_equal_for_trees_of_equal_make(tree: Any):
    structure, *_ = split(tree)
    doubled, *_ = split(jax.tree.map(lambda leaf: leaf * 2 if is_array(leaf) else leaf, tree))
    assert structure == doubled
    assert hash(structure) == hash(doubled)


def test_parts_go_through_plain_jax_and_optax():
    layer = make_layer()
    structure, params, rest = split(layer, Param, ...)

    @jax.jit
    def step(params: Any, rest: Any, state: Any) -> Any:
        def loss(params: Any) -> Any:
            model = merge(structure, params, rest)
            return (model.activation(model.weight) ** 2).sum()

        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    optimizer = optax.adam(0.1)
    params, _ = step(params, rest, optimizer.init(params))
    merged = merge(structure, params, rest)
    assert (merged.activation, merged.rate, merged.name) == (jnp.tanh, 0.1, "layer")
    assert float(merged.weight[0]) < 1.0


def test_select_gives_one_tree_or_several():
    layer = make_layer()
    params = select(layer, Param)
    assert (params.mean, params.table) == (None, None)
    assert (params.activation, params.rate) == (layer.activation, layer.rate)  # configuration is in every part
    params, stats = select(layer, Param, BatchStat)
    assert stats.weight is None
    assert stats.mean is layer.mean


def test_later_updates_win():
    updated = update({"a": 1, "b": 2}, {"a": 3, "b": None}, {"a": 4, "b": None})
    assert updated == {"a": 4, "b": 2}


def test_split_without_filters_is_one_part():
    structure, part = split({"x": jnp.ones(1), "s": "text"})
    assert part["s"] is None
    assert merge(structure, part)["s"] == "text"
    assert repr(structure) == "Structure(1 arrays, 1 static leaves)"


# --- errors ------------------------------------------------------------------------------------------------------


def test_leaves_without_a_filter_are_named():
    with pytest.raises(FilterError, match="no filter matches these leaves") as caught:
        split({"model": make_layer()}, Param)
    assert "at: model.mean: BatchStat" in str(caught.value)
    assert "at: model.table: Buffer" in str(caught.value)


@pytest.mark.parametrize("function", [split, select])
def test_filters_without_a_leaf_are_named(function: Any):
    with pytest.raises(FilterError, match="these filters match no leaf: Cache"):
        function(make_layer(), Cache, Param, ...)


def test_parts_that_are_missing_or_twice_there_are_named():
    structure, params, rest = split(make_layer(), Param, ...)
    with pytest.raises(StructureError, match="no part holds these leaves") as caught:
        merge(structure, params)
    assert "at: mean" in str(caught.value)
    with pytest.raises(StructureError, match="two parts hold these leaves") as caught:
        merge(structure, params, rest, params)
    assert "at: weight" in str(caught.value)


@pytest.mark.parametrize(
    ("run", "fragment"),
    [
        (lambda s, layer: merge(s, {"x": 1}), "part 0 has another structure than the tree"),
        (lambda s, layer: update(layer, {"x": 1}), "update 0 has another structure than the tree"),
        (
            lambda s, layer: update(layer, layer, layer.replace(name="b")),
            "update 1 has another structure than the tree",
        ),
        (lambda s, layer: changes(layer, [1]), "the tree after has another structure than the tree"),
    ],
)
def test_trees_of_another_make_are_refused(run: Any, fragment: str):
    layer = make_layer()
    structure, *_ = split(layer)
    with pytest.raises(StructureError, match=fragment):
        run(structure, layer)


def test_static_leaves_must_be_hashable():
    with pytest.raises(StaticError, match="a static leaf must be hashable, but this bytearray is not") as caught:
        split({"layers": [bytearray(b"a")]})
    assert "at: layers[0]" in str(caught.value)


def test_structures_with_other_statics_differ():
    first, second = (take_apart(make_layer().replace(rate=rate))[0] for rate in (1.0, 2.0))
    assert isinstance(first, Structure)
    assert first != second
    # Equal numbers of different types are different statics.
    assert take_apart(Layer(*[jnp.ones(1)] * 2, rate=1.0))[0] != take_apart(make_layer().replace(table=None, rate=1))[0]


@jax.tree_util.register_pytree_node_class
class OfArrays:
    """A node of another library, which can be made of arrays only."""

    def __init__(self, value: Any):
        if not isinstance(value, jax.Array):
            raise ValueError("no array")
        self.value = value

    def tree_flatten(self) -> Any:
        return (self.value,), None

    @classmethod
    def tree_unflatten(cls, data: Any, children: Any) -> Any:
        return cls(*children)


def test_a_tree_that_cannot_be_made_of_shapes_is_still_compared():
    with pytest.raises(StructureError, match="the tree after has another structure than the tree"):
        changes({"node": OfArrays(jnp.ones(2))}, {"other": OfArrays(jnp.ones(2))})
