"""One truth about configuration: what a record holds that is no array is in the tree's definition, for everybody."""

from __future__ import annotations

import copy
import dataclasses
import io
import math
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import weft
from hypothesis import given
from hypothesis import strategies as st
from weft.core.errors import StaticError
from weft.core.records.configuration import MixedContainer, iter_configuration, opened, spelled_out, stored
from weft.core.records.storage import Static


class Size(NamedTuple):
    height: int
    width: int


@dataclasses.dataclass(frozen=True)
class Options:
    rate: float = 0.5


class Block(weft.Module):
    weight: jax.Array
    heads: Any = 8
    eps: Any = 1e-6
    causal: bool = True
    name: str = "block"
    dtype: Any = jnp.bfloat16
    activation: Callable[..., Any] = jnp.tanh
    window: tuple[int, ...] = (3, 3)
    size: Size = Size(2, 3)
    options: Options = Options()
    nothing: None = None

    def __call__(self, x: Any) -> Any:
        scale = self.heads if self.causal else 1.0
        return self.activation(x * self.weight) / (scale + self.eps)


class Net(weft.Module):
    layers: Any
    table: Any
    steps: Any

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x * self.table["scale"]


def make_block(**changes: Any) -> Block:
    return Block(jnp.ones(3), **changes)


def make_net() -> Net:
    return Net(
        (make_block(), jax.nn.relu, make_block(heads=2)), {"scale": 2.0, "w": jnp.ones(2)}, [1, jnp.ones(1), "a"]
    )


def shapes(tree: Any) -> list[Any]:
    return [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)]


# --- what a user reads --------------------------------------------------------------------------------------------


def test_fields_read_as_what_was_put_there():
    block = make_block()
    assert (block.heads, block.eps, block.causal, block.name, block.dtype) == (8, 1e-6, True, "block", jnp.bfloat16)
    assert (block.activation, block.window, block.nothing) == (jnp.tanh, (3, 3), None)
    assert type(block.size) is Size
    assert block.options is Block.__dataclass_fields__["options"].default
    net = make_net()
    assert net.layers[1] is jax.nn.relu
    assert net.layers is net.layers
    assert net.table == {"scale": 2.0, "w": net.table["w"]}
    assert net.steps[::2] == [1, "a"]
    assert "heads=2" in repr(net)
    assert "Static" not in repr(net)


def test_arrays_keys_records_and_containers_of_them_are_leaves():
    class Holder(weft.Module):
        parts: Any

    parts = {"a": [jnp.ones(1)], "b": (make_block(), None), "c": jax.random.key(0), "d": np.ones(2), "e": np.float32(1)}
    holder = Holder(parts)
    assert holder.parts is parts
    assert holder.__dict__["parts"] is parts
    assert len(jax.tree.leaves(holder)) == 5


def test_numpys_texts_and_dates_are_configuration_as_pythons_are():
    block = Block(jnp.ones(2), name=np.str_("block"), heads=np.datetime64("2026-01-01"))
    assert len(jax.tree.leaves(block)) == 1
    assert weft.jit(lambda block: block)(block).heads == np.datetime64("2026-01-01")


def test_replacing_keeps_one_truth():
    block = make_block().replace(heads=4, weight=jnp.zeros(3))
    assert block.heads == 4
    assert shapes(block) == [(3,)]
    assert dataclasses.replace(block, eps=0.5).eps == 0.5


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda tree: pickle.loads(pickle.dumps(tree))])
def test_records_are_copied_and_pickled_whole(copied: Callable[[Any], Any]):
    net = Net((make_block(activation=math.sin), len), {"scale": 2.0, "w": jnp.ones(2)}, [1, jnp.ones(1)])
    duplicate = copied(net)
    assert jax.tree.structure(duplicate) == jax.tree.structure(net)
    assert duplicate.layers[1] is len
    assert (duplicate.table["scale"], duplicate.steps[0]) == (2.0, 1)


# --- the programs that lost it ------------------------------------------------------------------------------------


def test_an_average_of_models_leaves_their_numbers_alone():
    average = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, make_block(), make_block())
    assert (average.heads, type(average.heads), average.eps) == (8, int, 1e-6)


def test_halving_a_model_halves_its_arrays_only():
    halved = jax.tree.map(lambda x: x / 2, make_block())
    assert (halved.eps, halved.weight.tolist()) == (1e-6, [0.5, 0.5, 0.5])


def test_copying_every_leaf_takes_models_with_functions():
    net = jax.tree.map(jnp.copy, make_net())
    assert net.layers[1] is jax.nn.relu
    assert net(jnp.ones(3)).shape == (3,)


def test_a_stack_with_functions_can_be_indexed():
    stack = jax.tree.map(lambda *xs: jnp.stack(xs), make_net(), make_net())
    element = jax.tree.map(lambda x: x[1], stack)
    assert jax.tree.structure(element) == jax.tree.structure(make_net())
    np.testing.assert_array_equal(element(jnp.ones(3)), make_net()(jnp.ones(3)))


@pytest.mark.parametrize("transform", [jax.jit, weft.jit, jax.vmap, weft.vmap, jax.checkpoint, eqx.filter_jit])
def test_plain_jax_traces_no_number_of_a_record(transform: Any):
    seen: list[Any] = []

    def call(net: Net, x: Any) -> Any:
        seen.append((net.layers[0].heads, net.table["scale"], net.steps[2]))
        return net.layers[0](x)

    net = jax.tree.map(lambda x: x[None], make_net())
    transform(call)(net, jnp.ones((1, 3)))
    assert seen[-1] == (8, 2.0, "a")


def test_gradients_and_optax_go_through_records_with_functions():
    net = make_net()
    gradient = jax.grad(lambda net: net(jnp.ones(3)).sum())(net)
    assert jax.tree.structure(gradient) == jax.tree.structure(net)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))

    @jax.jit  # compiled as one: each operation of optax's would be compiled on its own
    def step(gradient: Any, net: Any) -> Any:
        updates, _ = optimizer.update(gradient, optimizer.init(net), net)
        return optax.apply_updates(net, updates)

    after = step(gradient, net)
    assert after.layers[1] is jax.nn.relu
    assert not np.array_equal(after.layers[0].weight, net.layers[0].weight)


def test_labels_and_masks_of_optax_are_records_too():
    net = make_net()
    # As functions of the parameters: optax calls labels and masks that can be called, as this record can.
    labels = jax.tree.map(lambda x: "fast" if x.shape == (3,) else "slow", net)
    assert jax.tree.leaves(labels) == ["fast", "fast", "slow", "slow"]
    optimizer = optax.multi_transform({"fast": optax.sgd(1.0), "slow": optax.set_to_zero()}, lambda _: labels)
    ones = jax.tree.map(jnp.ones_like, net)
    updates, _ = optimizer.update(ones, optimizer.init(net), net)
    assert [float(leaf.ravel()[0]) for leaf in jax.tree.leaves(updates)] == [-1.0, -1.0, 0.0, 0.0]
    mask = jax.tree.map(lambda x: x.shape == (3,), net)
    masked = optax.masked(optax.set_to_zero(), lambda _: mask)
    updates, _ = masked.update(ones, masked.init(net), net)
    assert [float(leaf.ravel()[0]) for leaf in jax.tree.leaves(updates)] == [0.0, 0.0, 1.0, 1.0]


# --- equality -----------------------------------------------------------------------------------------------------

DISTINCT = [0, 0.0, -0.0, False, 0j, None, "", (), (0,), (False,), (0.0,), ((0,),), frozenset({0}), frozenset({False})]


@pytest.mark.parametrize("first", DISTINCT, ids=repr)
def test_configuration_is_compared_by_type_and_value(first: Any):
    for second in DISTINCT:
        same = repr(first) == repr(second)
        assert (jax.tree.structure(make_block(heads=first)) == jax.tree.structure(make_block(heads=second))) is same


@pytest.mark.parametrize("value", [float("nan"), (1, float("nan")), complex(0, float("nan"))])
def test_nan_equals_itself_and_compiles_once(value: Any):
    traces: list[Any] = []

    @jax.jit
    def call(block: Block) -> Any:
        traces.append(block.eps)
        return block.weight

    call(make_block(eps=value))
    equal_value = (1, float("nan")) if isinstance(value, tuple) else type(value)(value)
    call(make_block(eps=equal_value))
    assert len(traces) == 1


def test_frozen_dataclasses_are_compared_by_the_types_in_them():
    assert Static(Options(1)) != Static(Options(1.0))
    assert Static(Options(1.0)) == Static(Options(1.0))


@pytest.mark.parametrize(
    ("value", "place"),
    [({1}, "Block.heads"), ([bytearray(b"a")], "Block.heads[0]"), ({"a": (1, {2})}, "Block.heads.a[1]")],
)
def test_what_cannot_be_hashed_is_refused_by_its_field(value: Any, place: str):
    with pytest.raises(StaticError, match="a static value must be hashable") as caught:
        make_block(heads=value)
    assert f"at: {place}\n" in str(caught.value)


values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-1, 1),
        st.floats(),
        st.text(max_size=1),
        st.sampled_from([jnp.tanh, jnp.float32, np.dtype("int8")]),
        st.builds(lambda n: jnp.ones(n), st.integers(0, 2)),
        st.builds(lambda n: Block(jnp.ones(2), heads=n), st.integers(0, 2)),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.sampled_from(["a", "b"]), inner),
        st.builds(Size, inner, inner),
    ),
    max_leaves=6,
)


@pytest.mark.slow
@given(values)
def test_any_value_reads_as_itself_and_has_the_leaves_that_are_arrays(value: Any):
    node = stored(value)
    assert opened(node) is value
    arrays = [leaf for leaf in jax.tree.leaves(value) if isinstance(leaf, jax.Array)]
    leaves, definition = jax.tree.flatten(node)
    assert [id(leaf) for leaf in leaves] == [id(leaf) for leaf in arrays]
    assert definition == jax.tree.structure(stored(value))
    again = opened(definition.unflatten(leaves))
    assert jax.tree.structure(stored(again)) == definition
    paths = [jax.tree_util.keystr(path) for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]]
    assert {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(node)[0]} <= set(paths)


@given(values)
def test_spelled_out_a_record_holds_its_configuration_among_its_leaves(value: Any):
    class Holder(weft.Module):
        value: Any

    spelled = spelled_out(Holder(value))
    assert len(jax.tree.leaves(spelled)) == len(jax.tree.leaves(spelled_out(value)))
    assert not any(
        isinstance(node, Static | MixedContainer)
        for node in jax.tree.leaves(spelled, is_leaf=lambda n: n is not spelled)
    )


# --- lists and dicts may be changed in place, as everywhere in Python ---------------------------------------------


def test_a_list_that_is_changed_in_place_is_changed_for_jax_too():
    net = make_net()
    net.steps.append(jnp.ones(7))
    net.steps[0] = 5
    net.table["more"] = 3
    assert (net.steps[0], net.table["more"]) == (5, 3)
    assert (7,) in shapes(net)
    after = jax.tree.map(lambda x: x + 1, net)
    assert (after.steps[0], after.table["more"], len(after.steps)) == (5, 3, 4)
    assert weft.jit(lambda net: net.steps[0])(net) == 5


def test_a_constructor_may_build_its_lists_step_by_step():
    class Built(weft.Module):
        layers: list[Any]

        def __init__(self) -> None:
            self.layers = []
            self.layers.append(make_block())
            self.layers.append(jax.nn.relu)

    assert len(Built().layers) == 2
    assert shapes(Built()) == [(3,)]


# --- a tree of axes, of labels, of updates: numbers where arrays were ---------------------------------------------


def test_a_tree_of_axes_made_by_jax_or_by_replace_is_a_prefix():
    stack = jax.tree.map(lambda *xs: jnp.stack(xs), make_net(), make_net())
    wanted = jax.vmap(lambda net, x: net(x), in_axes=(0, None))(stack, jnp.ones(3))
    by_map = jax.tree.map(lambda _: 0, stack)
    by_replace = stack.replace(layers=(0, None, 0), table={"scale": None, "w": 0}, steps=0)
    by_field = stack.replace(layers=0, table=0, steps=0)
    for axes in (by_map, by_replace, by_field):
        actual = weft.vmap(lambda net, x: net(x), in_axes=(axes, None))(stack, jnp.ones(3))
        np.testing.assert_array_equal(actual, wanted)
        back = weft.vmap(lambda net: net, in_axes=(axes,), out_axes=axes)(stack)
        assert jax.tree.structure(back) == jax.tree.structure(stack)
        np.testing.assert_array_equal(back.layers[0].weight, stack.layers[0].weight)


def test_configuration_is_listed_with_its_paths():
    configuration = {
        ".".join(map(str, path)): value for path, value in iter_configuration({"net": make_net(), "n": 3, "s": "x"})
    }
    assert configuration["net.layers.1"] is jax.nn.relu
    assert (
        configuration["net.layers.0.heads"],
        configuration["net.layers.0.window"],
        configuration["net.table.scale"],
    ) == (8, (3, 3), 2.0)
    assert configuration["s"] == "x"
    assert "n" not in configuration
    linear = dict(iter_configuration(eqx.nn.Linear(2, 3, key=jax.random.key(0))))
    assert linear["in_features",] == 2


# --- what equinox's tools see --------------------------------------------------------------------------------------


def test_equinox_partition_leaves_configuration_in_both_parts():
    arrays, rest = eqx.partition(make_net(), eqx.is_array)
    assert jax.tree.leaves(rest) == []
    assert (arrays.layers[1], rest.layers[1]) == (jax.nn.relu, jax.nn.relu)
    combined = eqx.combine(arrays, rest)
    assert jax.tree.structure(combined) == jax.tree.structure(make_net())


def test_equinox_tree_at_replaces_arrays_and_records_and_refuses_configuration():
    net = make_net()
    after = eqx.tree_at(lambda net: net.layers[0].weight, net, jnp.zeros(3))
    assert after.layers[0].weight.tolist() == [0.0, 0.0, 0.0]
    assert after.layers[1] is jax.nn.relu
    after = eqx.tree_at(lambda net: net.steps[1], net, jnp.zeros(4))
    assert (after.steps[0], after.steps[1].shape, after.steps[2]) == (1, (4,), "a")
    after = eqx.tree_at(lambda net: net.layers[0], net, jax.nn.gelu)
    assert after.layers[0] is jax.nn.gelu
    for where in (lambda net: net.layers[1], lambda net: net.layers[0].heads, lambda net: net.layers):
        with pytest.raises((ValueError, TypeError)):
            eqx.tree_at(where, net, 3)
    assert not any("LeafWrapper" in repr(leaf) for leaf in jax.tree.leaves(net))


def test_equinox_serialisation_holds_the_arrays():
    file = io.BytesIO()
    eqx.tree_serialise_leaves(file, make_net())
    file.seek(0)
    like = jax.tree.map(jnp.zeros_like, make_net())
    loaded = eqx.tree_deserialise_leaves(file, like)
    assert eqx.tree_equal(loaded, make_net())


def test_a_record_that_is_set_says_how_to_make_its_successor():
    block = make_block()
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"make its successor: record.replace\(heads=...\)"):
        block.heads = 3
    with pytest.raises(AttributeError, match="a Block has no field 'head'; its fields are weight, heads") as caught:
        block.head = 3
    assert "declare it in the class, with its type" in str(caught.value)

    class Undeclared(weft.Module):
        def __init__(self) -> None:
            self.w = jnp.ones(2)

    with pytest.raises(AttributeError, match=r"Undeclared has no field 'w'; its fields are none"):
        Undeclared()


@pytest.mark.parametrize(
    ("compare", "text"),
    [
        (lambda first, second: jax.tree.map(lambda a, b: a, first, second), "3"),
        (lambda first, second: jax.jit(lambda m: m).lower(first).compile()(second), "metadata 3 but now given"),
        (lambda first, second: jax.lax.cond(True, lambda: first, lambda: second), "metadata 3 but"),
    ],
    ids=["tree.map", "compiled", "cond"],
)
def test_errors_of_jax_name_configuration_by_its_value_and_none_of_wefts_nodes(compare: Any, text: str):
    first, second = (Net(heads, (jnp.ones(1), heads), 1) for heads in (3, 4))
    with pytest.raises((ValueError, TypeError)) as caught:
        compare(first, second)
    assert text in str(caught.value)
    assert "configuration of a record" in str(caught.value)
    for internal in ("Static", "Mixed", "weft.core"):
        assert internal not in str(caught.value)
    assert pickle.loads(pickle.dumps(first)).layers == 3
