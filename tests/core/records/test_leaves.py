"""Which leaves there are, in what order, which of them JAX can trace, and which are the same array."""

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
from weft import AliasError, BatchStat, Linear
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


KEY = jax.random.key(0)


class Net(weft.Module):
    first: Linear
    second: Linear

    def __call__(self, x: Any) -> Any:
        return self.second(jax.nn.tanh(self.first(x)))


def layer() -> Linear:
    return Linear(2, 2, key=KEY)


def loss(model: Any, x: Any) -> Any:
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(model)) * x.sum()


class Pair(NamedTuple):
    left: Any
    right: Any


ONE, W = layer(), jnp.ones(2)

CASES: list[tuple[Any, list[str]]] = [
    (Net(ONE, ONE), ["model.second: the same Linear as model.first"]),
    ([ONE, layer(), ONE], ["model[2]: the same Linear as model[0]"]),
    ([ONE, ONE, ONE], ["model[1]: the same Linear as model[0]", "model[2]: the same Linear as model[0]"]),
    ({"a": {"w": W}, "b": [W]}, ["model.b[0]: the same array as model.a.w"]),
    (Pair(ONE, (ONE,)), ["model.right[0]: the same Linear as model.left"]),
    (Net(ONE, ONE.replace(bias=jnp.ones(2))), ["model.second.kernel: the same array as model.first.kernel"]),
    ([np.ones(2)] * 2, ["model[1]: the same array as model[0]"]),
]


@pytest.mark.parametrize(("model", "places"), CASES)
@pytest.mark.parametrize("transform", [weft.grad, weft.value_and_grad])
def test_gradients_name_both_places(transform: Any, model: Any, places: list[str]):
    with pytest.raises(AliasError, match="would give one array in two places two different values") as caught:
        transform(loss)(model, W)
    assert list(caught.value.at) == places
    assert "weft.Shared(model); or give each place its own: weft.tree.copy(model)" in str(caught.value)


WRAPPERS: dict[str, Any] = {
    "jit": weft.jit,
    "jit in jit": lambda f: weft.jit(lambda *args: weft.jit(f)(*args)),
    "vmap": lambda f: weft.vmap(f, in_axes=(None, 0), axis_size=2),
    "remat": weft.remat,
    "cond": lambda f: lambda model, x: weft.cond(x.sum() > 0, f, f, model, x),
    "scan": lambda f: weft.scan(
        lambda model, x: (model, jax.tree.leaves(f(model, x))[0]), in_axes=(weft.Carry, 0), out_axes=(weft.Carry, 0)
    ),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_what_was_one_outside_of_a_transform_is_known_as_one_inside(name: str):
    step = WRAPPERS[name](lambda model, x: weft.grad(loss)(model, x))
    x = jnp.ones((2, 2))
    with pytest.raises(AliasError, match=r"\.second\.kernel: the same array as \w+\.first\.kernel"):
        step(Net(ONE, ONE), x)
    assert len(jax.tree.leaves(step(Net(ONE, layer()), x))) >= 1


@pytest.mark.parametrize("calls", range(5))
@pytest.mark.parametrize("x", [jnp.ones((2, 2)), jnp.ones(1)], ids=["compiled for separate arrays", "a new shape"])
def test_what_is_one_array_is_known_however_often_the_function_was_called_before(calls: int, x: Any):
    step = weft.jit(lambda model, x: weft.grad(loss)(model, x))
    for _ in range(calls):
        step(Net(layer(), layer()), jnp.ones((2, 2)))
    with pytest.raises(AliasError, match=r"model\.second\.kernel: the same array as model\.first\.kernel"):
        step(Net(ONE, ONE), x)


def test_a_call_in_which_other_leaves_are_one_array_is_traced_anew():
    traced: list[Any] = []
    step = weft.jit(lambda models: (traced.append(0), weft.tree.map(lambda x: 2 * x, models))[1])
    a, b = jnp.ones(2), jnp.ones(2)
    with weft.debug.explain_retraces() as why:
        for models in ([a, b, a], [a, b, b], [a, b, jnp.ones(2)]):
            for _ in range(4):
                assert [leaf.tolist() for leaf in step(models)] == [[2, 2]] * 3
    assert len(traced) == 3
    assert "one array in two places: models[2] is models[0] -> models[2] is models[1]" in str(why[1])
    assert "one array in two places: models[2] is models[1] -> none" in str(why[2])


def test_what_is_not_differentiated_may_be_shared():
    model = {"online": ONE, "target": ONE}
    gradient = weft.grad(loss, wrt=weft.filters.All(weft.Param, weft.filters.Inside("online")))(model, W)
    assert gradient["target"].kernel is None
    assert weft.grad(lambda model, other, x: loss(model, x))(ONE, ONE, W).kernel.shape == (2, 2)


def test_two_arguments_may_be_one_array():
    first, second = weft.grad(lambda x, y: (x * y).sum(), argnums=(0, 1))(W, W)
    assert first.tolist() == second.tolist() == [1, 1]


def test_equal_arrays_and_numbers_are_not_the_same():
    assert len(jax.tree.leaves(weft.grad(loss)(Net(layer(), layer()), W))) == 4
    assert weft.jit(weft.grad(lambda xs: xs[0] * xs[1]))([2.0, 2.0])[0] == 2.0


def test_derivatives_that_are_no_updates_take_shared_arrays():
    out, pullback = weft.vjp(lambda xs: xs[0] * xs[1], [W, W])
    assert out.tolist() == [1, 1]
    assert [leaf.tolist() for leaf in jax.tree.leaves(pullback(W))] == [[1, 1], [1, 1]]


def test_copies_and_shared_are_the_ways_out():
    model = Net(ONE, ONE)
    assert len(jax.tree.leaves(weft.grad(loss)(weft.tree.copy(model), W))) == 4
    assert len(jax.tree.leaves(weft.grad(lambda model, x: model(x).sum())(weft.Shared(model), W))) == 2
