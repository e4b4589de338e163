"""split, merge, update, state and the rest, on graphs and trees, against flax.nnx."""

import collections
import copy

import jax
import jax.numpy as jnp
import pytest
from weft import nnx
from weft.nnx.errors import DuplicateError, FilterError

ARRAY = jnp.array([1.0, 2.0])
Pair = collections.namedtuple("Pair", "left right")


def classes(nnx):
    class Linear(nnx.Module):
        def __init__(self, size=2):
            self.kernel = nnx.Param(jnp.ones((size, 2)))
            self.bias = nnx.Param(jnp.zeros(2))
            self.size = size

        def __call__(self, x):
            return x @ self.kernel + self.bias

    class Model(nnx.Module):
        def __init__(self):
            self.b = Linear()
            self.a = Linear()
            self.stat = nnx.BatchStat(ARRAY)
            self.raw = ARRAY * 3
            self.layers = nnx.List([Linear(), jax.nn.relu, Linear(3)])
            self.nested = nnx.data({"x": [nnx.Param(1), 2, None, "s"], "y": Pair(nnx.Cache(3), ARRAY)})
            self.name = "model"

        def grow(self, by):
            self.stat[...] += by
            return by + 1

    return Linear, Model


def tied(nnx):
    """Sharing and cycles everywhere."""
    _, model = classes(nnx)
    m = model()
    m.again = m.a
    m.bias = m.a.bias
    m.me = m
    m.layers.append(m.b)
    return m


def sharing(nnx, node):
    return sorted(map(sorted, ([tuple(map(str, path)) for path in group] for group in nnx.find_duplicates(node))))


def split_and_merge(nnx):
    m = classes(nnx)[1]()
    graphdef, state = nnx.split(m)
    twin = nnx.merge(graphdef, state)
    copied = nnx.merge(graphdef, state, copy=True)
    pure = nnx.merge(graphdef, nnx.to_pure_dict(state))
    return state, twin, copied, pure, twin.a.kernel is m.a.kernel, copied.a.kernel is m.a.kernel, twin is m


def split_by_filters(nnx):
    m = classes(nnx)[1]()
    graphdef, params, stats, rest = nnx.split(m, nnx.Param, nnx.BatchStat, ...)
    return (
        params,
        stats,
        rest,
        nnx.merge(graphdef, rest, params, stats),
        nnx.state(m, "tag"),
        nnx.state(m, nnx.Param, nnx.Cache),
    )


def filters(nnx):
    m = classes(nnx)[1]()
    return [
        nnx.state(m, filter)
        for filter in (
            nnx.PathContains("layers"), nnx.PathContains("ern", exact=False), nnx.All(nnx.Param, nnx.PathContains("a")),
            nnx.Not(nnx.Param), nnx.Any(nnx.Cache, nnx.BatchStat), [nnx.Cache], lambda path, x: len(path) == 1, True,
            False, None, ..., nnx.OfType(nnx.Cache), nnx.Everything(), nnx.Nothing(),
            (nnx.Cache, nnx.PathContains("b")),
        )
    ]  # fmt: skip


def shared(nnx):
    m = tied(nnx)
    graphdef, state = nnx.split(m)
    twin = nnx.merge(graphdef, state)
    clone = nnx.clone(m)
    clone.a.bias[...] = ARRAY
    alias = nnx.clone(m, variables=False)
    again = copy.deepcopy(m)
    same = [
        x.me is x and x.again is x.a and x.bias is x.a.bias and x.layers[3] is x.b for x in (twin, clone, alias, again)
    ]
    return state, same, sharing(nnx, twin), alias.bias is m.bias, m.bias, clone.bias, graphdef.num_leaves


def equality(nnx):
    linear, _ = classes(nnx)
    defs = [nnx.graphdef(linear()), nnx.graphdef(linear()), nnx.graphdef(linear(3)), nnx.graphdef({"a": linear()})]
    return [[a == b for a in defs] for b in defs], len(set(map(hash, defs)))


def updating(nnx):
    m = classes(nnx)[1]()
    bias, stat = m.a.bias, m.stat
    nnx.update(m, {"a": {"bias": ARRAY}, "stat": nnx.BatchStat(ARRAY * 2, note=1), "raw": ARRAY * 9})
    nnx.update(m, nnx.State({"b": {"new": nnx.Param(5)}}), {"nested": {"x": {0: 10}}}, nnx.State({"fresh": ARRAY}))
    state = nnx.state(m)
    nnx.update(m.a, jax.tree.map(lambda x: x * 2, state.a))
    return m, m.a.bias is bias, m.stat is stat, m.b.new, m.fresh


def update_variable(nnx):
    v = nnx.Param(ARRAY)
    nnx.update(v, nnx.Param(ARRAY * 2, note=1))
    first = v.copy()
    nnx.update(v, ARRAY * 3)
    nnx.update(v, nnx.State({}), ARRAY * 4)
    return first, v


def popping(nnx):
    m = classes(nnx)[1]()
    m.a.kept = nnx.Intermediate(1)
    m.layers[0].kept = nnx.Intermediate(2)
    intermediates, caches = nnx.pop(m, nnx.Intermediate, nnx.BatchStat)
    return intermediates, caches, m, hasattr(m.a, "kept")


def mapping(nnx):
    m = tied(nnx)
    doubled = nnx.map(lambda path, v: v.replace(v * 2) if isinstance(v, nnx.Variable) else v, m)
    return doubled, doubled.again is doubled.a, nnx.map(lambda path, v: v.replace(7), nnx.Param(1))


def calling(nnx):
    m = {"m": classes(nnx)[1](), "n": 1}
    out, (graphdef, state) = nnx.call(nnx.split(m))["m"].grow(5)
    out2, (_, state2) = nnx.graphdef(m["m"]).apply(nnx.state(m["m"])).layers[0](jnp.ones((1, 2)))
    return out, nnx.merge(graphdef, state)["m"].stat, m["m"].stat, out2, state2


def unpacking(nnx):
    m = classes(nnx)[1]()
    whole = nnx.unpack(m)
    params, rest = nnx.unpack(m, nnx.Param, ...)
    doubled = jax.tree.map(lambda x: x * 2, params)
    return whole, params, list(params), "a" in params, params["a"], params.b.bias, nnx.merge(doubled, rest), len(rest)


def walking(nnx):
    m = tied(nnx)
    visited = [(tuple(map(str, path)), type(value).__name__) for path, value in nnx.iter_graph(m)]
    children = [(key, type(child).__name__) for key, child in nnx.iter_children(m)]
    modules = [(path, type(module).__name__) for path, module in nnx.iter_modules(m)]
    return visited, children, modules, [key for key, _ in nnx.iter_module_children(m)]


def walking_a_tree(nnx):
    m = classes(nnx)[1]()
    visited = [
        (tuple(map(str, path)), type(value).__name__)
        for path, value in nnx.iter_graph(m, graph=False)
        if "_pytree__state" not in map(str, path)
    ]
    return visited, [key for key, _ in nnx.iter_children(m, graph=False) if key != "_pytree__state"]


def recursive(nnx):
    m = classes(nnx)[1]()
    m.again = m.a
    names = []

    def visit(path, node):
        if isinstance(node, nnx.Module):
            names.append((path, type(node).__name__))
            node.seen = len(names)
        return node.replace(node.get_value()) if isinstance(node, nnx.BatchStat) else node

    out = nnx.recursive_map(visit, m)
    tree = nnx.recursive_map(lambda path, node: node, nnx.clone(m.layers), graph=False)
    return names, out, out.again is out.a, hasattr(m, "seen"), out.a.kernel is m.a.kernel, tree


def trees(nnx):
    m = classes(nnx)[1]()
    del m.nested
    graphdef, params, rest = nnx.split(m, nnx.Param, ..., graph=False)
    twin = nnx.merge(graphdef, params, rest)
    with nnx.set_graph_mode(False):
        state = nnx.state(m)
        clone = nnx.clone(m)
    return (
        params,
        rest,
        twin,
        state,
        clone,
        nnx.clone(m, graph=False, arrays=True),
        twin.stat is m.stat,
        clone.stat is m.stat,
    )


def plain_values(nnx):
    return [nnx.split(x) for x in ({"a": nnx.Param(1), "b": ARRAY, "c": 2}, [1, ARRAY], nnx.Param(2), (nnx.Cache(1),))]


def flat(nnx):
    m = classes(nnx)[1]()
    graphdef, leaves = nnx.flatten(m)
    _, values = nnx.flatten(m, with_paths=False)
    return (
        leaves,
        values,
        nnx.unflatten(graphdef, leaves),
        nnx.unflatten(graphdef, values),
        nnx.unflatten(graphdef, nnx.state(m)),
    )


def pure(nnx):
    m = classes(nnx)[1]()
    return nnx.as_pure(nnx.state(m)), nnx.as_pure({"a": nnx.Param(nnx.Param(1)), "b": 2})


def modes(nnx):
    m = classes(nnx)[0]()
    refs = nnx.with_vars(m, ref=True)
    back = nnx.with_vars(refs, ref=False, only=nnx.PathContains("bias"))
    refs.kernel[...] = jnp.zeros((2, 2))
    graphdef, state = nnx.split(refs)
    again = nnx.merge(graphdef, state)
    return refs.kernel[...], m.kernel, back.bias.ref, back.kernel.ref, again.kernel[...], again.kernel.ref


def shared_refs(nnx):
    ref = jax.new_ref(ARRAY)
    node = nnx.data(ref)

    class Foo(nnx.Module):
        def __init__(self):
            self.a = nnx.data(ref)
            self.b = nnx.data(ref)
            self.v = nnx.Param(ARRAY, ref=True)

    foo = nnx.clone(Foo()) if node is None else nnx.merge(*nnx.split(Foo()))
    foo.a[...] = ARRAY * 5
    return foo.b[...], foo.a is foo.b, len(jax.tree.leaves(nnx.state(foo)))


def metadata(nnx):
    m = classes(nnx)[1]()
    nnx.set_metadata(m, frozen=True, only=nnx.Param)
    return m


def foreign(nnx):
    class Box:
        def __init__(self):
            self.items = {}

    nnx.graphlib.register_graph_node_type(
        Box,
        flatten=lambda box: (sorted(box.items.items()), "aux"),
        set_key=lambda box, key, value: box.items.__setitem__(key, value),
        pop_key=lambda box, key: box.items.pop(key),
        create_empty=lambda aux: Box(),
        clear=lambda box: box.items.clear(),
        init=lambda box, items: box.items.update(items),
    )
    box = Box()
    box.items.update(a=nnx.Param(ARRAY), me=box, n=3)
    twin = nnx.clone(box)
    popped = nnx.pop(box, nnx.Param)
    nnx.update(twin, {"b": nnx.Cache(1)})
    return nnx.state(twin), twin.items["me"] is twin, popped, sorted(box.items), twin.items["n"]


def custom_pytree(nnx):
    @jax.tree_util.register_pytree_with_keys_class
    class Wrapped:
        def __init__(self, value):
            self.value = value

        def tree_flatten_with_keys(self):
            return ((jax.tree_util.GetAttrKey("value"), self.value),), None

        @classmethod
        def tree_unflatten(cls, aux, children):
            return cls(*children)

    m = nnx.Dict(w=nnx.data(Wrapped(nnx.Param(ARRAY))))
    return nnx.state(m), nnx.clone(m).w.value


PROGRAMS = [
    split_and_merge, split_by_filters, filters, shared, equality, updating, update_variable, popping, mapping, calling,
    unpacking, walking, walking_a_tree, recursive, trees, plain_values, flat, pure, modes, shared_refs, metadata,
    foreign, custom_pytree,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs(agree, program):
    agree(program)


def _raising(nnx):
    linear, model = classes(nnx)
    m = model()
    graphdef, state = nnx.split(m)
    plain = nnx.Dict(t=nnx.data((nnx.Param(1),)))
    loop = nnx.Dict(a=nnx.Param(1))
    loop.inner = nnx.Dict(back=loop)
    twice = nnx.Dict(a=linear())
    twice.b = twice.a

    class Bag(nnx.Object):
        pass

    return {
        "remainder": lambda: nnx.split(m, nnx.Param),
        "rest is not last": lambda: nnx.split(m, ..., nnx.Param),
        "no filter at all": lambda: nnx.state(m, object()),
        "too few leaves": lambda: nnx.merge(graphdef, nnx.state(m, nnx.Param)),
        "merge without state": lambda: nnx.merge(graphdef),
        "merge without structure": lambda: nnx.merge(state),
        "two lists": lambda: nnx.merge(graphdef, [1], [2]),
        "GraphStates of two": lambda: nnx.merge(nnx.unpack(m), nnx.unpack(linear())),
        "GraphState and State": lambda: nnx.merge(nnx.unpack(m), state),
        "no state at all": lambda: nnx.GraphState(graphdef, {}),
        "update of a leaf": lambda: nnx.update(m, {"a": nnx.Param(1)}),
        "update of a tuple": lambda: nnx.update(plain, {"t": {5: nnx.Param(1)}}),
        "two states for a Variable": lambda: nnx.update(nnx.Param(1), 1, 2),
        "pop nothing": lambda: nnx.pop(m),
        "pop from a tuple": lambda: nnx.pop(plain, nnx.Param),
        "arrays without variables": lambda: nnx.clone(m, False, arrays=True),
        "shared in a tree": lambda: nnx.split(twice, graph=False),
        "shared in a walk": lambda: list(nnx.iter_graph(twice, graph=False)),
        "shared in a map": lambda: nnx.recursive_map(lambda path, x: x, twice, graph=False),
        "cycle in a walk": lambda: list(nnx.iter_graph(loop, graph=False)),
        "cycle in a map": lambda: nnx.recursive_map(lambda path, x: x, loop),
        "cycle in a map of a tree": lambda: nnx.recursive_map(lambda path, x: x, loop, graph=False),
        "no pytree in a tree": lambda: nnx.split({"a": Bag()}, graph=False),
        "children of a leaf": lambda: list(nnx.iter_children(3)),
        "children of a leaf of a tree": lambda: list(nnx.iter_children(3, graph=False)),
        "duplicates in with_vars": lambda: nnx.with_vars([m.a.bias, m.a.bias], ref=True),
        "registered twice": lambda: nnx.graphlib.register_pytree_node_type(list, None, None),
        "leaves of no kind": lambda: nnx.unflatten(graphdef, 3),
    }


@pytest.mark.parametrize("case", sorted(_raising(nnx)))
def test_errors_are_of_the_same_builtin(agree, case):
    agree(lambda library: _raising(library)[case](), expect=Exception)


def test_sharing_in_a_tree_names_both_paths():
    shared = nnx.Param(1)
    with pytest.raises(DuplicateError) as error:
        nnx.split({"a": [shared], "b": shared}, graph=False)
    for part in ("Duplicate Param", "at: a[0]\n", "at: b\n", "graph=True"):
        assert part in str(error.value)


def test_filters_that_leave_something_name_it():
    with pytest.raises(FilterError) as error:
        nnx.split(nnx.Dict(a=nnx.Param(1), b=nnx.Dict(c=nnx.Cache(2))), nnx.Param)
    assert "no filter matches these\n  at: b.c: Cache\n  fix: add filters for them" in str(error.value)


def test_deep_graphs_can_be_walked():
    node = nnx.Dict(end=nnx.Param(1))
    for _ in range(3000):
        node = nnx.Dict(next=node)
    assert sum(1 for _, value in nnx.iter_graph(node) if isinstance(value, nnx.Param)) == 1


def test_failed_merge_leaves_existing_objects_alone():
    m = nnx.Dict(a=nnx.Param(ARRAY), b=nnx.Dict(c=nnx.Param(1)))
    with nnx.update_context("t"):
        with nnx.split_context("t") as context:
            graphdef, _ = context.split(m)
        with (
            pytest.raises(ValueError, match="Incorrect number of leaves"),
            nnx.merge_context("t", inner=False) as context,
        ):
            context.merge(graphdef.with_same_outer_index(), {"a": 1})
    assert m.a[...] is ARRAY
    assert m.b.c.get_value() == 1


def test_elements_that_a_list_lacks_are_set_in_the_order_of_their_places():
    numbers = nnx.List([nnx.Param(0.0)])
    nnx.update(numbers, {place: nnx.Param(float(place)) for place in (2, 11, *range(3, 11), 1)})
    assert [param.get_value() for param in numbers] == list(range(12))


def test_an_update_that_is_refused_takes_back_the_elements_that_it_has_added():
    model = nnx.Dict(a=nnx.List([nnx.Param(1.0)]), z=nnx.Dict(text="static"))
    with pytest.raises(ValueError, match="static"):
        nnx.update(model, {"a": {1: nnx.Param(2.0), 5: nnx.Param(3.0)}, "z": {"text": nnx.Param(3.0)}})
    assert [param.get_value() for param in model.a] == [1.0]


def test_a_list_closes_the_gaps_of_elements_that_are_popped():
    numbers = nnx.List([(nnx.Intermediate if place % 3 else nnx.Param)(float(place)) for place in range(12)])
    popped = nnx.pop(numbers, nnx.Intermediate)
    assert [param.get_value() for param in numbers] == [0.0, 3.0, 6.0, 9.0]
    assert nnx.to_pure_dict(popped) == {place: float(place) for place in range(12) if place % 3}


def test_a_pop_that_is_refused_removes_nothing():
    model = nnx.Dict(a=nnx.Intermediate(1.0), b=nnx.data((nnx.Intermediate(2.0),)))
    with pytest.raises(ValueError, match="Cannot pop from a tuple"):
        nnx.pop(model, nnx.Intermediate)
    assert model.a.get_value() == 1.0


@pytest.mark.parametrize("graph", [True, False])
def test_an_update_that_does_not_fit_writes_nothing(graph: bool):
    class Layer(nnx.Module):
        def __init__(self):
            self.a = nnx.Cache(jnp.zeros(2))
            self.ref = jax.new_ref(jnp.zeros(2))
            self.w = nnx.Param(jnp.ones(2))

    before, after = Layer(), Layer()
    after.a[...], after.w[...], after.ref[...] = 5.0, 7.0, jnp.full(2, 3.0)
    after.new, after.unknown = nnx.Param(jnp.ones(())), Layer()
    before.plain, after.plain = jnp.zeros(2), jnp.ones(2)
    with pytest.raises(ValueError, match="static attribute"):
        nnx.update(before, nnx.state(after, graph=graph))
    assert [float(x[0]) for x in (before.a, before.ref, before.w, before.plain)] == [0.0, 0.0, 1.0, 0.0]
    assert not hasattr(before, "new")
