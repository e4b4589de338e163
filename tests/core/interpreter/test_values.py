"""The values boundary: calls taken apart and rebuilt, forwarding by identity, and sparse trees."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from hypothesis import given
from hypothesis import strategies as st
from weft.core.edge import trees
from weft.core.errors import StructureError
from weft.core.interpreter.boundary import Crossing, parameter_names
from weft.core.interpreter.values import VALUES, flatten_sparse


class Pair(NamedTuple):
    a: Any
    b: Any


class Net(weft.Module):
    weight: jax.Array
    activation: Callable[..., Any] = jnp.tanh

    def __call__(self, x: Any, *, scale: Any = 1.0) -> Any:
        return self.activation(self.weight * x) * scale


def f(model: Any, x: Any, *rest: Any, scale: Any = 1.0) -> Any:
    return model, x, rest, scale


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def net() -> Net:
    return Net(jnp.ones(2))


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (f, ("model", "x")),
        (lambda: None, ()),
        (decorated(f), ("model", "x")),
        (weft.jit(f), ("model", "x")),
        (functools.partial(f, 1), ("x",)),
        (net(), ("x",)),
        (net().__call__, ("x",)),
        (print, ()),
        (jnp.sin, ("x",)),
        (jax.jit(f), ("model", "x")),
    ],
)
def test_paths_start_at_parameter_names(function: Any, names: Any):
    assert parameter_names(function) == names


def crossing_of(call: Any) -> tuple[Crossing, list[Any]]:
    structure, leaves, _ = VALUES.enter(call)
    rides = tuple(None for _ in leaves)
    return Crossing(structure, rides, (None,)), [leaf.value for leaf in leaves]


def test_a_call_is_taken_apart_with_paths_and_rebuilt():
    call = ((f,), (net(), {"a": 1.0}, 2, "text"), {"scale": Pair(3.0, None), "also": jnp.ones(1)})
    structure, leaves, _ = VALUES.enter(call)
    paths = [".".join(map(str, leaf.path)) for leaf in leaves]
    assert paths == ["model.weight", "x.a", "args.2", "also", "scale.a"]
    rebuilt, _ = VALUES.rebuild(Crossing(structure, (None,) * 5, (None,)), [leaf.value for leaf in leaves])
    assert jax.tree.structure(rebuilt) == jax.tree.structure(call)
    assert rebuilt[1][3] == "text"
    assert rebuilt[1][0].activation is jnp.tanh


def test_lanes_group_and_ungroup():
    crossing = Crossing(None, (0, None, 0, 1), (None, 0, 1))
    groups = crossing.group(["a", "b", "c", "d"])
    assert groups == (("b",), ("a", "c"), ("d",))
    assert crossing.ungroup(groups) == ["a", "b", "c", "d"]


@given(st.lists(st.sampled_from([None, 0, 1, "x"]), max_size=8))
def test_ungroup_is_the_inverse_of_group(rides: list[Any]):
    crossing = Crossing(None, tuple(rides), (None, 0, 1, "x"))
    assert crossing.ungroup(crossing.group(list(range(len(rides))))) == list(range(len(rides)))


def test_sparse_calls_are_read_back():
    crossing, values = crossing_of(((f,), ({"a": 1.0, "s": "text", "b": [2.0]}, net()), {}))
    assert len(values) == 3
    sparse = crossing.structure.sparse({0: "da", 2: "dw"})
    assert sparse[1][0] == {"a": "da", "s": None, "b": [None]}
    assert sparse[1][1].weight == "dw"
    assert crossing.structure.read_sparse(sparse) == ["da", None, "dw"]
    # None stands for a whole argument, or any part of one.
    assert crossing.structure.read_sparse(((), (None, None), {})) == [None, None, None]
    assert crossing.structure.read_sparse(((), ({"a": "da", "s": None, "b": None}, None), {})) == ["da", None, None]


trees_ = st.recursive(
    st.sampled_from([1.0, 2.0]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.tuples(inner),
        st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
        st.builds(Pair, inner, st.none()),
    ),
    max_leaves=5,
)


@given(trees_)
def test_a_sparse_tree_that_is_whole_flattens_as_by_jax(tree: Any):
    definition = jax.tree.structure(tree)
    assert flatten_sparse(definition, tree) == jax.tree.leaves(tree)
    assert flatten_sparse(definition, None) == [None] * definition.num_leaves


@pytest.mark.parametrize(
    ("tree", "sparse"),
    [
        ({"a": 1.0}, {"b": 1.0}),
        ({"a": 1.0}, [1.0]),
        ([1.0], [1.0, 2.0]),
        ([1.0], (1.0,)),
        (Pair(1.0, 2.0), (1.0, 2.0)),
        ([1.0], 1.0),
    ],
)
def test_a_sparse_tree_of_another_make_is_refused(tree: Any, sparse: Any):
    with pytest.raises(StructureError, match="must have the structure of its value: expected") as caught:
        flatten_sparse(trees.structure(tree), sparse)
    assert "None wherever it is zero" in str(caught.value)


# --- forwarding --------------------------------------------------------------------------------------------------


def test_forwarded_leaves_are_the_callers_own():
    record, x = net(), jnp.ones(2)
    for transform in (weft.jit, weft.remat, weft.checkify):
        out = transform(lambda record, x: (record, x, x + 1, record.weight))(record, x)
        outputs = out[1] if transform is weft.checkify else out
        assert outputs[0].weight is record.weight
        assert outputs[1] is x
        assert outputs[3] is record.weight
        np.testing.assert_allclose(outputs[2], 2.0)


def test_what_is_computed_anew_is_not_forwarded_though_equal():
    x = jnp.ones(2)
    output = weft.jit(lambda x: x * 1)(x)
    assert output is not x


def test_one_output_in_two_places_leaves_once_or_twice_but_is_right():
    output = weft.jit(lambda x: (lambda y: {"a": y, "b": [y]})(x * 2))(jnp.ones(2))
    np.testing.assert_allclose(output["a"], output["b"][0])


def test_nothing_is_forwarded_where_it_would_ride_otherwise():
    x = jnp.ones(3)
    record = {"w": jnp.ones(())}
    # Given unmapped, asked for on axis 0: it is broadcast.
    output = weft.vmap(lambda r, x: r, in_axes=(None, 0))(record, x)
    assert output["w"].shape == (3,)
    # Differentiated leaves come out of grad's trace.
    _, aux = weft.grad(lambda r: (r["w"], r), has_aux=True)(record)
    assert not isinstance(aux["w"], jax.core.Tracer)
