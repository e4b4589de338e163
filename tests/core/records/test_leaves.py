"""Which leaves there are, in what order, and which of them JAX can trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from hypothesis import given
from hypothesis import strategies as st
from weft import BatchStat
from weft.core.records.kinds import Param
from weft.core.records.leaves import is_array, iter_leaves


class Point(NamedTuple):
    x: Any
    y: Any


class Box(weft.Module):
    value: Any
    name: str = weft.static(default="box")


class Outer(weft.Module):
    inner: Annotated[Any, BatchStat, "outer"]
    activation: Callable[..., Any] = jnp.tanh
    eps: float = 1e-5


class HasArray:
    def __jax_array__(self) -> Any:
        return jnp.ones(2)


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        (jnp.ones(2), True),
        (np.ones(2), True),
        (np.float32(1), True),
        (np.bool_(True), True),
        (jax.ShapeDtypeStruct((2,), "float32"), True),
        (jax.random.key(0), True),
        (HasArray(), True),
        (1, False),
        (1.0, False),
        (True, False),
        (1j, False),
        ("relu", False),
        (jnp.tanh, False),
        (jnp.float32, False),
        (jnp.dtype("float32"), False),
        (np.ndarray, False),
        (object(), False),
        (None, False),
    ],
)
def test_what_jax_can_trace(value: Any, answer: bool):
    for _ in range(2):
        assert is_array(value) is answer


def test_tracers_are_arrays_in_any_trace():
    def check(x: Any) -> Any:
        assert is_array(x)
        return x

    jax.jit(check)(1.0)
    jax.vmap(check)(jnp.ones(2))
    jax.grad(check)(1.0)
    jax.linearize(check, 1.0)


def test_numbers_are_dynamic_outside_records_and_configuration_inside():
    leaves = {leaf.path: leaf.dynamic for leaf in iter_leaves({"a": 1.0, "b": Box([2.0, jnp.ones(1)]), "c": "text"})}
    assert leaves == {("a",): True, ("b", "value", 1): True, ("c",): False}


def test_a_number_that_a_tree_function_puts_into_a_record_is_a_leaf_as_in_jax():
    (leaf,) = iter_leaves(jax.tree.map(lambda _: 2.0, Box(jnp.ones(1))))
    assert leaf.dynamic
    assert leaf.value == 2.0


def test_numbers_in_equinox_records_are_static():
    leaves = {leaf.path: leaf.dynamic for leaf in iter_leaves(eqx.nn.Dropout(0.5))}
    assert leaves == {("p",): False, ("inference",): False}


def test_kinds_and_tags_reach_into_what_a_field_holds():
    leaves = {leaf.path: leaf for leaf in iter_leaves(Outer({"a": jnp.ones(1), "b": [Box(jnp.ones(1))]}))}
    assert leaves["inner", "a"].kind is BatchStat
    assert leaves["inner", "b", 0, "value"].kind is BatchStat
    assert leaves["inner", "a"].tags == {"outer"}
    assert leaves.keys() == {("inner", "a"), ("inner", "b", 0, "value")}


def test_a_field_that_is_none_is_no_leaf():
    class Partial(weft.Module):
        a: jax.Array
        b: jax.Array | None

        def __init__(self):
            self.a = jnp.ones(1)
            self.b = None

    assert [leaf.path for leaf in iter_leaves(Partial())] == [("a",)]


def test_equinox_records_are_records():
    linear = eqx.nn.Linear(2, 3, key=jax.random.key(0))
    leaves = list(iter_leaves(linear))
    assert [leaf.path for leaf in leaves] == [("weight",), ("bias",)]
    assert {leaf.kind for leaf in leaves} == {Param}
    assert all(leaf.dynamic for leaf in leaves)


values = st.one_of(
    st.none(),
    st.integers(),
    st.floats(allow_nan=False),
    st.booleans(),
    st.text(max_size=2),
    st.builds(lambda n: jnp.ones(n), st.integers(0, 2)),
)
trees = st.recursive(
    values,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.builds(Point, inner, inner),
        st.builds(Box, inner, st.text(max_size=2)),
        st.builds(Outer, inner),
    ),
    max_leaves=8,
)


@given(trees)
def test_the_leaves_are_those_of_jax_in_its_order_and_with_its_paths(tree: Any):
    leaves = list(iter_leaves(tree))
    wanted = jax.tree_util.tree_flatten_with_path(tree)[0]
    assert [id(leaf.value) for leaf in leaves] == [id(value) for _, value in wanted]
    assert [len(leaf.path) for leaf in leaves] == [len(path) for path, _ in wanted]


@pytest.mark.parametrize(
    "use", [weft.jit(lambda tree: 0), weft.vmap(lambda tree: 0), lambda tree: weft.tree.split({"tree": tree}, ...)]
)
def test_a_dict_whose_keys_cannot_be_sorted_is_named_by_its_place(use: Any):
    with pytest.raises(weft.errors.StructureError, match=r"keys that can be sorted(.|\n)*at: tree.by_kind"):
        use({"by_kind": {weft.Param: jnp.ones(2), ...: jnp.ones(2)}})


def test_a_returned_dict_whose_keys_cannot_be_sorted_is_refused():
    with pytest.raises(weft.errors.StructureError, match="keys that can be sorted"):
        weft.jit(lambda x: {weft.Param: x, ...: x})(1.0)
