"""State and FlatState, filters and nested mappings, against flax.nnx."""

import jax
import jax.numpy as jnp
import pytest
import weft
from weft import nnx
from weft.core.records.partition import split as core_split
from weft.nnx.errors import FilterError, StructureError

ARRAY = jnp.array([1.0, 2.0])


def example(nnx):
    return nnx.State(
        {"b": {"x": nnx.Param(ARRAY), "y": nnx.Cache(1)}, "a": nnx.BatchStat(2), "l": {0: nnx.Param(3), 10: 4}}
    )


def access(nnx):
    state = example(nnx)
    state["new"] = nnx.State({"z": 1})
    state.other = 2
    state["b"]["x"] = nnx.Param(9)
    state.b.more = 5
    del state["a"]
    return state, state.b.x, list(state), len(state), "a" in state, state.raw_mapping["b"]["x"], state.get("zz", 1)


def as_pytree(nnx):
    state = example(nnx)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)]
    return jax.tree.map(lambda x: x * 2, state), paths, jax.jit(lambda s: s)(state)


def flat(nnx):
    state = example(nnx)
    flat = nnx.to_flat_state(state)
    params, rest = flat.split(nnx.Param, ...)
    merged = nnx.FlatState.merge(params, rest)
    return (
        flat, flat.paths, len(flat), flat[0], flat[1:3], params, flat.filter(nnx.Cache), merged, flat.to_nested_state(),
        nnx.from_flat_state({("a", "b"): 1, ("c",): 2}), jax.tree.map(lambda x: x, flat),
    )  # fmt: skip


def parts(nnx):
    state = example(nnx)
    return (
        nnx.split_state(state, nnx.Param, ...), nnx.split_state(state, ...), nnx.filter_state(state, nnx.Param),
        nnx.filter_state(state, nnx.Cache, nnx.BatchStat),
        nnx.merge_state(nnx.State({"a": {"b": 1}}), nnx.State({"a": {"c": 2}}), {"a": {"b": 3}}),
        nnx.map_state(lambda path, v: path, state), nnx.State({"a": 1}) | nnx.State({"b": 2}),
        nnx.State({"a": 1, "b": {"c": 2}}) - nnx.State({"a": 5}), nnx.statelib.diff(state, nnx.State({})),
    )  # fmt: skip


def deprecated_methods(nnx):
    state = example(nnx)
    return (
        state.split(nnx.Param, ...), state.filter(nnx.Cache), state.flat_state(), state.map(lambda path, v: 1),
        nnx.State.merge(state, nnx.State({"q": 1})), nnx.State.from_flat_path({("a",): 1}), state.to_pure_dict(),
    )  # fmt: skip


def pure_dicts(nnx):
    state = example(nnx)
    pure = nnx.to_pure_dict(state)
    strings = {"l": {"0": 7}, "b": {"y": 8}}
    nnx.replace_by_pure_dict(state, strings)
    replaced = example(nnx)
    nnx.replace_by_pure_dict(replaced, {"a": 1}, lambda old, new: old.replace(new + 100))
    return (
        pure,
        state,
        replaced,
        nnx.restore_int_paths({"a": {"0": 1, "x": {"12": 2}}}),
        nnx.to_pure_dict(state, lambda v: 1),
    )


def traversals(nnx):
    xs = {"foo": 1, "bar": {"a": 2, "b": {}}}
    flatten = nnx.traversals.flatten_mapping
    return (
        flatten(xs), flatten(xs, sep="/"), len(flatten(xs, keep_empty_nodes=True)), flatten({}, keep_empty_nodes=True),
        flatten(xs, is_leaf=lambda path, x: path == ("bar",)), nnx.traversals.flatten_to_sequence(xs),
        nnx.traversals.unflatten_mapping({"a/b": 1, "a/c": 2}, sep="/"),
        nnx.traversals.unflatten_mapping([(("a", "b"), 1), (("c",), 2)]),
        nnx.traversals.unflatten_mapping(flatten(xs, keep_empty_nodes=True)),
    )  # fmt: skip


def predicates(nnx):
    make = nnx.filterlib.to_predicate
    cases = [nnx.Param, "t", ..., None, True, False, [nnx.Param, "t"], nnx.filterlib.PathIn(("a",)), nnx.Not(nnx.Param)]
    values = [(("a",), nnx.Param(1)), (("b", 0), nnx.Cache(1, tag="t")), (("c",), 3)]
    return [[bool(make(case)(path, value)) for path, value in values] for case in cases], [
        repr(make(c)) for c in cases[1:6]
    ]


def equal_filters(nnx):
    pairs = [
        (nnx.Any(nnx.Param, "a"), nnx.Any(nnx.Param, "a")),
        (nnx.Not("a"), nnx.Not("b")),
        (nnx.WithTag("a"), nnx.WithTag("a")),
    ]
    return [(a == b, hash(a) == hash(b)) for a, b in pairs], nnx.Everything() == nnx.Everything()


PROGRAMS = [access, as_pytree, flat, parts, deprecated_methods, pure_dicts, traversals, predicates, equal_filters]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs(agree, program):
    agree(program)


RAISING = {
    "attribute": lambda nnx: example(nnx).nope,
    "item": lambda nnx: example(nnx)["nope"],
    "no dict": lambda nnx: nnx.State([("a", 1)], _copy=False),
    "remainder": lambda nnx: nnx.split_state(example(nnx), nnx.Param),
    "flat remainder": lambda nnx: nnx.to_flat_state(example(nnx)).split(nnx.Param),
    "rest first": lambda nnx: nnx.filter_state(example(nnx), ..., nnx.Param),
    "unknown path": lambda nnx: nnx.replace_by_pure_dict(example(nnx), {"nope": 1}),
}


@pytest.mark.parametrize("case", sorted(RAISING))
def test_errors_are_of_the_same_builtin(agree, case):
    agree(RAISING[case], expect=Exception)


def test_a_wrong_path_replaces_nothing():
    state = nnx.State({"a": 1, "b": 2})
    with pytest.raises(StructureError, match=r"not available in state\n  at: c\.d"):
        nnx.replace_by_pure_dict(state, {"a": 5, "c": {"d": 1}})
    assert dict(state) == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("filter", "paths"),
    [
        (weft.filters.Inside("a"), [("a", "w")]),
        (weft.filters.Any(weft.filters.Inside("a.w"), weft.filters.WithTag("t")), [("a", "w"), ("c",)]),
        (weft.filters.Not(weft.filters.PathContains("a")), [("b",), ("c",)]),
        (weft.filters.All(nnx.Param, weft.filters.Not(weft.filters.Inside("a"))), [("b",)]),
        (weft.filters.Maybe(nnx.Cache), []),
        ([weft.filters.Inside("b"), nnx.BatchStat], [("b",), ("c",)]),
        (weft.filters.Any(lambda path, kind, value: kind is nnx.BatchStat), [("c",)]),
    ],
)
def test_filters_of_the_core_are_filters_here(filter, paths):
    state = nnx.State({"a": {"w": nnx.Param(1)}, "b": nnx.Param(2), "c": nnx.BatchStat(3, tag="t")})
    assert list(nnx.to_flat_state(nnx.filter_state(state, filter)).paths) == paths


def test_what_only_records_know_is_refused_here():
    state = nnx.State({"w": nnx.Param(1)})
    with pytest.raises(FilterError, match="InstanceOf selects by the records around a leaf"):
        nnx.filter_state(state, weft.filters.InstanceOf(weft.Linear))


def test_a_kind_selects_from_records_too():
    from weft.core.records.kinds import Param

    assert issubclass(nnx.Param, Param)
    _, floats, rest = core_split({"w": ARRAY, "n": jnp.arange(2)}, Param, ...)
    assert floats["n"] is None
    assert rest["w"] is None


@pytest.mark.parametrize("state", [{nnx.Param: 1, nnx.BatchStat: 2}, nnx.State({"a": {1: 0, "b": 0}})])
def test_keys_that_cannot_be_sorted_are_named(state):
    with pytest.raises(ValueError, match="keys that can be sorted"):
        nnx.map_state(lambda path, value: value, state)


@pytest.mark.parametrize("use", [nnx.split, nnx.jit(lambda tree: 0)])
def test_a_dict_in_a_graph_whose_keys_cannot_be_sorted_is_named(use):
    with pytest.raises(ValueError, match="keys that can be sorted"):
        use({nnx.Param: jax.numpy.ones(2), ...: jax.numpy.ones(2)})
