"""The filter language, and the sorting of leaves by it."""

from __future__ import annotations

from typing import Annotated, Any

import jax
import jax.numpy as jnp
import pytest
import weft
from weft import All, BatchStat, Buffer, Cache, LoRAParam, Not, Param, PathContains, WithTag
from weft import Any as AnyOf
from weft.core.errors import FilterError
from weft.core.filters import format_filter, predicate, sort_leaves
from weft.core.leaves import iter_leaves


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


@pytest.mark.parametrize("filters", [[None, ...], [Param, False, ...], [Not(None)]])
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
