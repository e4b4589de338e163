"""Generated code does what the walk through JAX's registry does, for any structure, and notices any other."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental.sparse import BCOO
from weft.core.interpreter import extracting
from weft.core.interpreter.building import FORWARDED
from weft.core.interpreter.extracting import make_extractor
from weft.core.interpreter.values import Outcome
from weft.core.records.partition import take_apart

ARRAYS = [jnp.ones(2), jnp.arange(3), np.zeros(1), np.float32(2)]


class Point(NamedTuple):
    x: Any
    y: Any


class Box(weft.Module):
    value: Any
    more: Any = None
    activation: Callable[..., Any] = jnp.tanh
    name: str = weft.static(default="box")


class Plain(eqx.Module):
    value: Any
    size: int = eqx.field(static=True, default=3)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    value: Any
    label: str = dataclasses.field(default="r", metadata={"static": True})


@jax.tree_util.register_pytree_node_class
class Strict:
    """A node of another library, which refuses what is no array."""

    def __init__(self, value: Any):
        if not hasattr(value, "shape"):
            raise TypeError("no array")
        self.value = value

    def tree_flatten(self) -> Any:
        return (self.value,), None

    @classmethod
    def tree_unflatten(cls, data: Any, children: Any) -> Any:
        return cls(*children)


leaves = st.one_of(
    st.sampled_from(ARRAYS),
    st.none(),
    st.integers(-2, 2),
    st.sampled_from([0.0, 1.0, 1.5]),
    st.booleans(),
    st.sampled_from(["a", "b"]),
    st.sampled_from([jnp.sin, jnp.float32, jnp.dtype("int8")]),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.tuples(),
        st.dictionaries(st.sampled_from(["a", "b", "c d", "e'\"\n"]), inner, max_size=3),
        st.dictionaries(st.integers(0, 3), inner, max_size=2),
        st.builds(Point, inner, inner),
        st.builds(Box, inner, inner, name=st.sampled_from(["a", "b"])),
        st.builds(Plain, inner, size=st.sampled_from([1, 2])),
        st.builds(Registered, inner, st.sampled_from(["a", "b"])),
        st.builds(lambda x: OrderedDict(b=x, a=1), inner),
        st.builds(lambda x: jax.tree_util.Partial(jnp.add, x), inner),
    ),
    max_leaves=8,
)


def extractor_of(tree: Any) -> Any:
    structure, tree_leaves = take_apart(tree)
    return make_extractor(structure, [(0, i) for i in range(len(tree_leaves))], 1)


def same(a: Any, b: Any) -> bool:
    """Equal trees, in whose place each the very same leaves are."""
    first, second = take_apart(a), take_apart(b)
    return first[0] == second[0] and [id(leaf.value) for leaf in first[1]] == [id(leaf.value) for leaf in second[1]]


@given(trees)
def test_an_extractor_reads_the_leaves_in_order(tree: Any):
    _, values, (group,) = extractor_of(tree)(tree)
    wanted = [leaf.value for leaf in take_apart(tree)[1]]
    assert len(values) == len(wanted) == len(group)
    assert all(a is b for a, b in zip(values, wanted, strict=True))


@given(trees, trees)
def test_an_extractor_takes_just_the_trees_of_its_structure(tree: Any, argument: Any):
    is_accepted = extractor_of(tree)(argument) is not None
    assert is_accepted == (take_apart(tree)[0] == take_apart(argument)[0])


@given(trees)
def test_a_builder_makes_what_the_registry_makes(tree: Any):
    structure, tree_leaves = take_apart(tree)
    values = [leaf.value for leaf in tree_leaves]
    built = Outcome(structure, tuple((0, i) for i in range(len(values)))).builder((), (values,))
    assert same(built, tree)


@given(trees, st.randoms())
def test_lanes_and_forwarded_leaves_find_their_places(tree: Any, random: Any):
    structure, tree_leaves = take_apart(tree)
    groups: list[list[Any]] = [[], [], []]
    arguments: list[Any] = []
    sources = []
    for leaf in tree_leaves:
        lane = random.choice([FORWARDED, 0, 1, 2])
        row = arguments if lane == FORWARDED else groups[lane]
        sources.append((lane, len(row)))
        row.append(leaf.value)
    built = Outcome(structure, tuple(sources)).builder(arguments, tuple(map(tuple, groups)))
    for made, leaf, (lane, _) in zip(take_apart(built)[1], tree_leaves, sources, strict=True):
        if lane != FORWARDED or isinstance(leaf.value, jax.Array):
            assert made.value is leaf.value
        else:
            assert isinstance(made.value, jax.Array)


def called_three_times(function: Callable[[Any], Any], argument: Any) -> Any:
    """From the third call on, the generated code is used."""
    jitted = weft.jit(function)
    jitted(argument)
    jitted(argument)
    return jitted(argument)


def test_a_record_of_which_nothing_changed_is_the_callers_own():
    box = Box(Box(jnp.ones(2)), (Box(jnp.zeros(2), jnp.ones(3)), jnp.ones(1)))
    after = called_three_times(lambda box: dataclasses.replace(box, more=(box.more[0], box.more[1] + 1)), box)
    assert after.value is box.value
    assert after.more[0] is box.more[0]
    assert after is not box
    assert called_three_times(lambda box: jax.tree.map(lambda x: x, box), box) is box


def test_what_was_changed_or_moved_is_built():
    box = Box(Box(jnp.ones(2), name="a"), Box(jnp.zeros(2), name="b"))
    swapped = called_three_times(lambda box: Box(Box(box.more.value, name="a"), box.value), box)
    assert swapped.value.name == "a"
    assert swapped.value.value is box.more.value
    assert swapped.more.name == "a"
    assert swapped.more is box.value
    renamed = called_three_times(lambda box: Box(Box(box.value.value, name="c"), box.more), box)
    assert renamed.value.name == "c"
    assert renamed.value.value is box.value.value


@pytest.mark.parametrize("configuration", [1.0, True])
def test_configuration_of_another_type_is_not_taken_for_the_callers(configuration: Any):
    ours = called_three_times(lambda box: Box(box.value, configuration), Box(jnp.ones(2), 1))
    theirs = called_three_times(lambda record: Plain(record.value, configuration), Plain(jnp.ones(2), 1))
    assert type(ours.more) is type(theirs.size) is type(configuration)


def test_a_record_with_a_list_is_no_one_elses():
    box = Box([jnp.ones(2), jnp.ones(2)], Box(jnp.ones(1)))
    after = called_three_times(lambda box: box, box)
    assert after.more is box.more
    assert after.value is not box.value
    after.value.append(3)
    assert len(box.value) == 2


def test_an_array_of_numpys_comes_back_as_one_of_jaxs():
    box = Box(np.ones(2, np.float32), Box(jnp.ones(1)))
    after = called_three_times(lambda box: box, box)
    assert isinstance(after.value, jax.Array)


@given(trees)
def test_a_compiled_identity_gives_the_same_each_way(tree: Any):
    identity = weft.jit(lambda tree: tree)
    first, second, third = identity(tree), identity(tree), identity(tree)
    for output in (second, third):
        assert jax.tree.structure(first) == jax.tree.structure(output)
        for a, b in zip(take_apart(first)[1], take_apart(output)[1], strict=True):
            assert (a.value.dtype, a.value.weak_type) == (b.value.dtype, b.value.weak_type)
            np.testing.assert_array_equal(a.value, b.value)


CHANGES: list[tuple[Any, Any]] = [
    ({"a": 1.0}, {"a": None}),
    ({"a": 1.0}, {"b": 1.0}),
    ({"a": 1.0}, {"a": 1.0, "b": 1.0}),
    ({"a": 1.0}, OrderedDict(a=1.0)),
    ({"a": 1.0}, defaultdict(float, a=1.0)),
    ([1.0], (1.0,)),
    ([1.0], [1.0, 1.0]),
    ([1.0], 1.0),
    (Point(1.0, 2.0), (1.0, 2.0)),
    (Box(1), Box(1.0)),
    (Box(1), Box(True)),
    (Box("a"), Box("b")),
    (Box(jnp.ones(1)), Box(1.0)),
    (Box(1, name="a"), Box(1, name="b")),
    (Box(1, activation=jnp.sin), Box(1, activation=jnp.cos)),
    (Box([1.0]), Plain([1.0])),
    (Plain(1, size=1), Plain(1, size=2)),
    (Registered(1, "a"), Registered(1, "b")),
    (None, 1.0),
    ("a", "b"),
    (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
    (jax.tree_util.Partial(jnp.add, 1), jax.tree_util.Partial(jnp.multiply, 1)),
]


@pytest.mark.parametrize(("tree", "argument"), CHANGES, ids=lambda tree: repr(tree)[:30])
def test_an_extractor_notices(tree: Any, argument: Any):
    assert extractor_of(tree)(tree) is not None
    assert extractor_of(tree)(argument) is None
    assert extractor_of(argument)(tree) is None


def test_an_extractor_takes_other_arrays_of_any_sort():
    extract = extractor_of([jnp.ones(2), Box(jnp.ones(2))])
    for value in (np.zeros(3), np.int8(1), jnp.arange(2), jax.ShapeDtypeStruct((), "int32")):
        take_apart(value)  # learns the type, as the slow way does
        assert extract([value, Box(value)])[1] == (value, value)
    assert extract([3.0, Box(jnp.ones(2))]) is not None
    assert extract([jnp.ones(2), Box(3.0)]) is None


def test_a_record_without_a_field_is_of_another_make():
    whole, bare = Box(jnp.ones(1)), Box(jnp.ones(1))
    del bare.__dict__["more"]
    extract = extractor_of(whole)
    assert extract(whole) is not None
    assert extract(bare) is None


@pytest.mark.parametrize(
    "node",
    [Strict(jnp.ones(2)), BCOO.fromdense(jnp.eye(2)), eqx.nn.Linear(2, 2, key=jax.random.key(0)), weft.Keys(0)],
    ids=lambda node: type(node).__name__,
)
def test_nodes_of_other_libraries_go_through_jit(node: Any):
    step = weft.jit(lambda node: (node, jax.tree.map(lambda x: x, node)))
    for _ in range(4):
        for output in step(node):
            assert jax.tree.structure(output) == jax.tree.structure(node)


def test_structures_too_large_to_pay_are_left_to_the_registry(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(extracting, "MOST_LEAVES", 3)
    assert extractor_of([1, 2, 3, 4]) is None
    step = weft.jit(lambda xs: [x + 1 for x in xs])
    for _ in range(4):
        assert [int(x) for x in step([1, 2, 3, 4])] == [2, 3, 4, 5]


def test_a_builder_of_a_large_output_compiles():
    step = weft.jit(lambda x: {str(i): [x + i] for i in range(200)})
    for _ in range(3):
        assert int(step(1)["199"][0]) == 200
