"""Calls taken apart, rebuilt in a trace, and their changes applied to the caller's own objects."""

import jax
import jax.numpy as jnp
import pytest
from weft import nnx
from weft.nnx.calls import apply_changes, rebuild, take_apart
from weft.nnx.errors import StaticError, TraceContextError
from weft.nnx.walk import variable_paths

ARRAY = jnp.array([1.0, 2.0])


def through_jit(f, *args, structural=True, counts=None):
    """A minimal boundary: the steps of `calls` around `jax.jit`."""
    apart = take_apart(args)
    found = []

    @jax.jit
    def traced(values):
        live = rebuild(apart.make, values)
        out = f(*live.tree)
        changes, values = live.changes(out, structural=structural)
        found.append(changes)
        return values

    values = traced(apart.values)
    if counts is not None:
        counts.append(len(values))
    return apply_changes(apart, found[0], values)


class Linear(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(ARRAY)
        self.raw = ARRAY
        self.size = 1


class Model(nnx.Module):
    def __init__(self):
        self.a, self.b = Linear(), Linear()
        self.tied = self.a.w
        self.box = nnx.data([nnx.Param(ARRAY), {"n": 1}])
        self.state = nnx.Variable({"k": ARRAY, "l": [ARRAY, 0]})


def snapshot(node):
    return [
        (path, value, value.get_raw_value() if isinstance(value, nnx.Variable) else value)
        for path, value in nnx.iter_graph(node)
        if "_pytree__state" not in path
    ]


def same(before, after):
    return len(before) == len(after) and all(
        p == q and (x is y or x == y) and (v is w or v == w) for (p, x, v), (q, y, w) in zip(before, after, strict=True)
    )


def test_written_values_reach_the_callers_variables_and_nothing_else_leaves():
    m, counts = Model(), []
    w, raw = m.a.w, m.raw if hasattr(m, "raw") else None

    def f(m, x):
        m.a.w[...] += x
        return x * 2

    assert through_jit(f, m, jnp.ones(()), counts=counts).item() == 2.0
    assert m.a.w is w
    assert m.tied is w
    assert raw is None
    assert w[...].tolist() == [2.0, 3.0]
    assert m.b.w[...] is ARRAY
    assert counts == [2]


def test_unchanged_variables_keep_the_very_same_array():
    m = Model()
    before = [variable.get_raw_value() for _, variable in nnx.to_flat_state(nnx.state(m, nnx.Param))]
    through_jit(lambda m: None, m)
    after = [variable.get_raw_value() for _, variable in nnx.to_flat_state(nnx.state(m, nnx.Param))]
    assert all(x is y for x, y in zip(before, after, strict=True))


def test_structural_changes_reach_the_callers_objects_by_identity():
    m = Model()
    a, b = m.a, m.b

    def f(m):
        m.a, m.b = m.b, m.a
        m.new = nnx.Dict(v=nnx.Param(m.a.w * 3), back=m)
        m.a.size = 5
        m.me = m
        del m.b.raw
        m.tied = nnx.Cache(1)
        return m.new, m.a

    new, out = through_jit(f, m)
    assert (m.a, m.b, m.me, new.back, m.new, out) == (b, a, m, m, new, b)
    assert b.size == 5
    assert not hasattr(a, "raw")
    assert new.v[...].tolist() == [3.0, 6.0]
    assert type(m.tied) is nnx.Cache
    m.new.v[...] = ARRAY  # of the caller's level
    assert nnx.clone(m).me is not m


def test_containers_inside_of_objects_and_of_variables():
    m = Model()
    state, box, first = m.state, m.box, m.box[0]

    def f(m):
        m.box.append(nnx.Param(ARRAY * 7))
        m.box[1]["n"] = 2
        m.state["k"] = m.state["k"] + 1

    through_jit(f, m)
    assert m.state is state
    assert m.state["k"].tolist() == [2.0, 3.0]
    assert m.box[0] is first
    assert m.box is not box
    assert m.box[1] == {"n": 2}
    assert m.box[2][...].tolist() == [7.0, 14.0]


def test_metadata_changes_come_back():
    m = Model()
    through_jit(lambda m: m.a.w.set_metadata(note="seen"), m)
    assert m.tied.note == "seen"


def test_without_structure_only_values_come_back():
    m = Model()

    def f(m):
        m.a.w[...] *= 2
        m.a.size = 9
        m.a.w.set_metadata(note=1)
        m.extra = nnx.Param(1)

    through_jit(f, m, structural=False)
    assert (m.a.size, hasattr(m, "extra"), m.a.w.has_metadata("note")) == (1, False, False)
    assert m.a.w[...].tolist() == [2.0, 4.0]


def test_sharing_between_arguments_is_kept():
    a = Linear()

    def f(one, two, tree):
        assert one is two
        assert tree["x"][0] is one.w
        one.w[...] += 1
        return tree["x"][0][...]

    assert through_jit(f, a, a, {"x": [a.w]}).tolist() == [2.0, 3.0]
    assert a.w[...].tolist() == [2.0, 3.0]


def test_makes_are_free_of_identities():
    one, two, three = Model(), Model(), Model()
    three.b = three.a
    makes = [take_apart((m, ARRAY, "s")).make for m in (one, two, three)]
    assert makes[0] == makes[1]
    assert hash(makes[0]) == hash(makes[1])
    assert makes[0] != makes[2]
    assert makes[0] != take_apart((one, ARRAY, "t")).make


def test_an_exception_leaves_everything_as_it_was():
    m = Model()
    before = snapshot(m)

    def f(m):
        m.a.w[...] += 1
        m.b = nnx.Cache(1)
        m.box.append(3)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        through_jit(f, m)
    assert same(before, snapshot(m))


def test_applying_from_another_level_changes_nothing():
    m = Model()
    before = snapshot(m)

    def f(m):
        m.a.w[...] += 1
        m.a.size = 4
        return m.a

    def outer(x):
        with pytest.raises(
            TraceContextError, match=r"Cannot mutate Variables from a different trace level\n  at: a\.w: Param"
        ):
            through_jit(f, m)
        return x

    jax.make_jaxpr(outer)(1.0)
    assert same(before, snapshot(m))


def test_what_cannot_cross_is_named():
    with pytest.raises(StaticError, match=r"a set is neither an array nor hashable.*\n  at: \[0\]\.x\[1\]"):
        take_apart(({"x": [1, {2}]},))


def test_paths_of_leaves_and_of_shared_variables():
    m = Model()
    apart = take_apart(((m,), {"k": m.a}))
    assert apart.paths()[:4] == [(0, 0, "a", "raw"), (0, 0, "a", "w"), (0, 0, "b", "raw"), (0, 0, "b", "w")]
    found = {id(variable): paths for variable, paths in variable_paths(((m,), {"k": m.a}))}
    assert found[id(m.a.w)] == [(0, 0, "a", "w"), (0, 0, "tied"), (1, "k", "w")]


def test_nothing_leaks():
    m = Model()
    with jax.checking_leaks():
        through_jit(lambda m: m.a.w.set_value(m.a.w * 2), m)
    assert m.a.w[...].tolist() == [2.0, 4.0]


def test_nested_traces():
    m = Model()

    def inner(m):
        m.a.w[...] += 1
        m.b.size += 1

    def outer(m):
        through_jit(inner, m)
        m.a.w[...] *= 10
        through_jit(inner, m)

    through_jit(outer, m)
    assert m.a.w[...].tolist() == [21.0, 31.0]
    assert m.b.size == 3


def test_refs_made_inside_come_out():
    m = nnx.Dict(r=nnx.Param(ARRAY, ref=True))
    ref = m.r.get_raw_value()

    def f(m):
        m.r[...] = m.r[...] + 1
        m.new = nnx.Param(ARRAY * 2, ref=True)

    through_jit(f, m)
    assert m.r.get_raw_value() is ref
    assert m.r[...].tolist() == [2.0, 3.0]
    assert m.new.ref
    assert m.new[...].tolist() == [2.0, 4.0]
