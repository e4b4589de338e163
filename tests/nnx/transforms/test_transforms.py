"""Every transform, in each mode, does what flax.nnx does: outputs, state by path, sharing, identity, exceptions."""

import functools
import os

import jax
import jax.numpy as jnp
import pytest
from flax import nnx as flax_nnx
from weft import nnx as weft_nnx

from .. import agreement

pytestmark = pytest.mark.wide

MODES = {"updates": {}, "graph": {"graph_updates": False}, "tree": {"graph": False}}
PROGRAMS = {}
# Where weft does more than flax, on purpose, or flax misbehaves: (program, mode), see docs/differences.md.
DIFFERENCES = {}


def program(function=None, **differs):
    """Registers a program of `(nnx, make, mode)`; `differs` says in which modes, and how, the two differ."""
    if function is None:
        return functools.partial(program, **differs)
    PROGRAMS[function.__name__] = function
    DIFFERENCES.update({(function.__name__, mode): how for mode, how in differs.items()})
    return function


@functools.cache
def maker(nnx):
    """Makes models: `make()`, with everything in it, or `make("c")` with a child, and so on."""

    class Leaf(nnx.Module):
        def __init__(self, value=1.0, shape=(2,)):
            self.w = nnx.Param(jnp.full(shape, value))
            self.b = nnx.BatchStat(jnp.zeros(shape))
            self.tag = "leaf"

        def double(self, x):
            self.b[...] = self.b[...] + 1
            return (self.w[...] * x * 2).sum()

    def make(children="", value=1.0, shape=(2,)):
        model = Leaf(value, shape)
        if "c" in children:
            model.c = Leaf(value + 1, shape)
        if "l" in children:
            model.l = nnx.List([Leaf(value + 2, shape), nnx.Param(jnp.ones(shape))])
        if "t" in children:
            model.tied = model.w
        if "o" in children:
            model.c.parent = model
        return model

    make.Leaf = Leaf
    return make


def run(name, nnx, mode):
    return agreement.run(lambda nnx: PROGRAMS[name](nnx, maker(nnx), MODES[mode]), nnx)


def outcome(nnx, function, *args):
    """What a function returned, and its arguments afterwards with the objects that they were made of before."""
    before = agreement.members(nnx, args)
    return function(*args), args, before


X = jnp.arange(1.0, 3.0)

# ---------------------------------------------------------------------- what can happen to any transform's arguments

# Each is done to a model with a child, inside each of the transforms that give everything back.
MUTATIONS = {
    "nothing": lambda nnx, m, n, make: None,
    "value": lambda nnx, m, n, make: m.w.set_value(m.w[...] * 2),
    "deep value": lambda nnx, m, n, make: m.c.b.set_value(m.c.b[...] + m.w[...]),
    "both arguments": lambda nnx, m, n, make: (m.b.set_value(n.w[...] * 3), n.b.set_value(m.w[...] * 5)),
    "new Variable": lambda nnx, m, n, make: setattr(m, "new", nnx.Param(m.w[...] * 3)),
    "new object": lambda nnx, m, n, make: setattr(m, "new", make()),
    "new static": lambda nnx, m, n, make: setattr(m, "size", 7),
    "changed static": lambda nnx, m, n, make: setattr(m.c, "tag", "other"),
    "deleted Variable": lambda nnx, m, n, make: delattr(m.c, "b"),
    "deleted object": lambda nnx, m, n, make: delattr(m, "c"),
    "replaced Variable": lambda nnx, m, n, make: setattr(m, "b", nnx.BatchStat(m.w[...] * 7)),
    "replaced by another kind": lambda nnx, m, n, make: setattr(m, "b", nnx.Cache(m.w[...] * 7)),
    "replaced object": lambda nnx, m, n, make: setattr(m, "c", make(value=9.0)),
    "swapped within": lambda nnx, m, n, make: swap(m, "w", m.c, "w"),
    "swapped between": lambda nnx, m, n, make: swap(m, "b", n, "b"),
    "swapped objects": lambda nnx, m, n, make: swap(m, "c", n, "c"),
    "moved": lambda nnx, m, n, make: (setattr(n, "moved", m.c), delattr(m, "c")),
    "tied": lambda nnx, m, n, make: setattr(m.c, "w", m.w),
    "tied and changed": lambda nnx, m, n, make: (setattr(m.c, "w", m.w), m.c.w.set_value(m.w[...] * 4)),
    "tied between": lambda nnx, m, n, make: setattr(n, "tied", m.c.w),
    "shared object": lambda nnx, m, n, make: setattr(n, "other", m.c),
    "cycle": lambda nnx, m, n, make: setattr(m.c, "parent", m),
    "crossed": lambda nnx, m, n, make: (setattr(m, "n", n), setattr(n, "m", m)),
    "metadata": lambda nnx, m, n, make: m.w.set_metadata(note="x"),
    "metadata and value": lambda nnx, m, n, make: (m.w.set_metadata(note="x"), m.w.set_value(m.w[...] * 2)),
    "list": lambda nnx, m, n, make: (setattr(m, "l", nnx.List([make(), nnx.Param(m.w[...])])), m.l.append(m.w)),
    "dict": lambda nnx, m, n, make: setattr(m, "d", nnx.Dict(a=m.w, b=nnx.Param(m.w[...] * 2))),
    "array attribute": lambda nnx, m, n, make: setattr(m, "raw", m.w[...] * 2),
    "value, then deleted": lambda nnx, m, n, make: (m.b.set_value(m.w[...] * 2), delattr(m, "b")),
    "update": lambda nnx, m, n, make: nnx.update(m, {"w": nnx.Param(m.w[...] * 8)}),
    "pop": lambda nnx, m, n, make: nnx.pop(m, nnx.BatchStat),
    "metadata, then deleted": lambda nnx, m, n, make: (m.b.set_metadata(note="x"), delattr(m, "b")),
}


def swap(a, first, b, second):
    from_a, from_b = getattr(a, first), getattr(b, second)
    setattr(a, first, from_b)
    setattr(b, second, from_a)


WHOLE = {
    "jit": lambda nnx, f, kw: nnx.jit(f, **kw),
    "jit_partial": lambda nnx, f, kw: lambda m, n, x: nnx.jit_partial(f, m, n, **kw)(x),
    "remat": lambda nnx, f, kw: nnx.remat(f, **kw),
    "grad": lambda nnx, f, kw: nnx.grad(f, **kw),
    "value_and_grad": lambda nnx, f, kw: nnx.value_and_grad(f, argnums=(0, 1), **kw),
    "vmap over None": lambda nnx, f, kw: nnx.vmap(f, in_axes=(None, None, 0), **kw),
    "vmap": lambda nnx, f, kw: nnx.vmap(f, in_axes=(0, 0, None), **kw),
    "checkify": lambda nnx, f, kw: lambda *args: nnx.checkify(f, **kw)(*args)[1],
    "switch": lambda nnx, f, kw: lambda *args: nnx.switch(1, [f, f], *args, **kw),
    "scan": lambda nnx, f, kw: nnx.scan(f, in_axes=(0, 0, None), out_axes=0, **kw),
    "jit of grad": lambda nnx, f, kw: nnx.jit(nnx.grad(f, argnums=2, **kw), **kw),
}
METADATA = ("metadata", "metadata and value")
# Programs in which weft deliberately differs, or flax misbehaves: see docs/differences.md.
WHOLE_DIFFERENCES = {
    *((name, what, "updates") for name in ("jit", "jit of grad") for what in METADATA),
    *(("jit_partial", what, mode) for what in (*METADATA, "metadata, then deleted") for mode in ("graph", "tree")),
    *(("jit_partial", what, "updates") for what in MUTATIONS),
    *((name, "array attribute", "updates") for name in WHOLE if name not in ("vmap over None", "jit_partial")),
}


# Every pair of a transform, a mutation and a mode; all triples, which take minutes, with WEFT_TEST_ALL_TRIPLES set.
TRIPLES = [
    (transform, mutation, mode)
    for i, transform in enumerate(WHOLE)
    for j, mutation in enumerate(MUTATIONS)
    for k, mode in enumerate(MODES)
    if "WEFT_TEST_ALL_TRIPLES" in os.environ or (i + j + k) % len(MODES) == 0
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("transform", "mutation", "mode"), TRIPLES)
def test_a_mutation_inside_a_transform(transform, mutation, mode):
    def theirs_or_ours(nnx):
        make = maker(nnx)
        m, n = make("c"), make("c", 5.0)

        def f(m, n, x):
            MUTATIONS[mutation](nnx, m, n, make)
            return (m.w[...] * x).sum()

        call = WHOLE[transform](nnx, f, MODES[mode])
        return outcome(nnx, call, m, n, X)

    theirs, ours = (agreement.run(theirs_or_ours, nnx) for nnx in (flax_nnx, weft_nnx))
    difference = agreement.difference(theirs, ours)
    if (transform, mutation, mode) in WHOLE_DIFFERENCES:
        assert difference is not None
    else:
        assert difference is None, difference


# ---------------------------------------------------------------------- programs of one transform each


@program
def what_comes_out_of_jit(nnx, make, kw):
    m = make("cl")
    results = []
    for give in (lambda m: m.w[...], lambda m: None, lambda m: (1, 2.5, True), lambda m: {"new": make()}):
        results.append(outcome(nnx, nnx.jit(give, **kw), m))
    return results


@program
def an_argument_that_is_returned(nnx, make, kw):
    return outcome(nnx, nnx.jit(lambda m: m, **kw), make("c"))


@program
def a_child_and_a_variable_that_are_returned(nnx, make, kw):
    return outcome(nnx, nnx.jit(lambda m: (m.c, m.w), **kw), make("c"))


@program
def one_new_object_returned_twice(nnx, make, kw):
    def f(x):
        p = nnx.Param(x)
        return p, [p]

    return nnx.jit(f, **kw)(X)


@program
def an_argument_in_a_new_object(nnx, make, kw):
    def f(m):
        new = make()
        new.inner = m
        return new

    return outcome(nnx, nnx.jit(f, **kw), make())


@program
def one_model_given_twice(nnx, make, kw):
    def f(m, n):
        m.w[...] = m.w[...] + 1
        n.w[...] = n.w[...] * 2

    m = make("c")
    return outcome(nnx, nnx.jit(f, **kw), m, m)


@program
def two_models_that_share_a_variable(nnx, make, kw):
    def f(m, n):
        n.w[...] = m.w[...] + 1
        return m.w[...] * 2

    m, n = make(), make()
    n.w = m.w
    return outcome(nnx, nnx.jit(f, **kw), m, n)


@program
def tied_weights_get_one_gradient(nnx, make, kw):
    return nnx.grad(lambda m: (m.w[...] * m.tied[...]).sum(), **kw)(make("t"))


@program
def a_cycle(nnx, make, kw):
    if "graph" in kw:
        return None  # flax overflows the stack
    return outcome(nnx, nnx.jit(lambda m: m.c.parent.w.set_value(m.w[...] * 2), **kw), make("co"))


@program
def variables_and_containers_as_arguments(nnx, make, kw):
    def f(v, tree):
        v[...] = v[...] + tree["a"][0][...] + tree["k"]
        tree["a"][0][...] = v[...] * 2
        return tree["a"][0][...]

    return outcome(nnx, nnx.jit(f, **kw), nnx.Param(X), {"a": [nnx.BatchStat(X)], "k": X})


@program
def state_and_graphdef_as_arguments(nnx, make, kw):
    _, state = nnx.split(make("c"))
    return nnx.jit(lambda state: jax.tree.map(lambda x: x * 2, state), **kw)(state)


@program
def static_arguments_by_number_and_name(nnx, make, kw):
    def f(m, n, how="a"):
        m.w[...] = m.w[...] * (n if how == "a" else -n)
        return n

    m = make()
    g = nnx.jit(f, static_argnums=1, static_argnames="how", **kw)
    return g(m, 3), g(m, 3, how="b"), m


@program
def donated_arguments(nnx, make, kw):
    def f(m, x):
        m.w[...] = m.w[...] + x
        return x * 2

    m = make()
    g = nnx.jit(f, donate_argnums=0, **kw)
    return g(m, X), g(m, X), m


@program
def methods_decorated_in_their_class(nnx, make, kw):
    class Counter(nnx.Module):
        def __init__(self):
            self.n = nnx.Variable(jnp.zeros(()))

        @nnx.jit(**kw)
        def step(self, x):
            self.n[...] = self.n[...] + x.sum()
            return self.n[...] * 2

        @nnx.remat(**kw)
        def again(self, x):
            self.n[...] = self.n[...] + x.sum()
            return self.n[...] * 3

    counter = Counter()
    return counter.step(X), counter.again(X), counter


@program
def a_bound_method_is_refused(nnx, make, kw):
    return nnx.jit(make().double, **kw)(X)


@program
def lower_compile_and_call(nnx, make, kw):
    def f(m, x):
        m.b[...] = m.b[...] + x
        return m.w[...] * 2

    m = make("c")
    compiled = nnx.jit(f, **kw).lower(m, X).compile()
    return compiled(m, X), compiled(m, X), m


@program
def the_shapes_that_jit_returns(nnx, make, kw):
    m = make("c")
    return nnx.jit(lambda m, x: (m.b.set_value(x), m.w[...] * x)[1], **kw).eval_shape(m, X), m


@program
def keyword_arguments(nnx, make, kw):
    def f(m, *, x):
        m.w[...] = m.w[...] * x
        return x

    m = make()
    return nnx.jit(f, **kw)(m, x=X), m


@program
def an_exception_inside(nnx, make, kw):
    def f(m):
        m.w[...] = m.w[...] * 2
        m.new = nnx.Param(X)
        m.tag = "changed"
        raise KeyError("inside")

    m = make("c")
    for transform in (nnx.jit, nnx.remat, nnx.grad, nnx.vmap, nnx.checkify):
        with pytest.raises(KeyError):
            transform(f, **kw)(m)
    return m


@program
def a_variable_closed_over_and_written(nnx, make, kw):
    m = make()
    return nnx.jit(lambda x: m.w.set_value(x), **kw)(X)


@program
def a_variable_closed_over_and_read(nnx, make, kw):
    m = make()
    return nnx.jit(lambda x: m.w[...] + x, **kw)(X)


@program
def an_object_closed_over_and_attached(nnx, make, kw):
    n = make()

    def f(m):
        m.n = n
        return X

    m = make()
    return nnx.jit(f, **kw)(m) if not kw else nnx.jit(lambda m: X, **kw)(m), m


@program
def gradient_by_argument(nnx, make, kw):
    def f(m, n, x):
        m.b[...] = m.b[...] + x
        return (m.w[...] * n.w[...] * x**2).sum()

    return [nnx.grad(f, argnums=a, **kw)(make("c"), make("l"), X) for a in (0, 1, 2, (0, 2), (1,), -1)]


@program
def gradient_with_auxiliary_output(nnx, make, kw):
    def f(m, x):
        m.b[...] = m.b[...] + x
        return (m.w[...] * x).sum(), {"twice": x * 2, "new": nnx.BatchStat(m.w[...])}

    m = make()
    return nnx.value_and_grad(f, has_aux=True, **kw)(m, X), nnx.grad(f, has_aux=True, **kw)(m, X), m


@program
def gradient_of_a_mutated_variable(nnx, make, kw):
    def f(m):
        m.w[...] = m.w[...] * 3
        return (m.w[...] ** 2).sum()

    m = make()
    return nnx.grad(f, **kw)(m), m


@program
def gradient_by_filter(nnx, make, kw):
    def f(m):
        return (m.w[...] * m.b[...] * m.c.w[...]).sum()

    state = nnx.DiffState(0, nnx.BatchStat), nnx.DiffState(0, nnx.PathContains("c")), nnx.DiffState(0, ...)
    return [nnx.grad(f, argnums=s, **kw)(make("c")) for s in state]


@program
def gradient_of_what_is_no_scalar(nnx, make, kw):
    return nnx.grad(lambda m: m.w[...], **kw)(make())


@program
def nested_gradients(nnx, make, kw):
    def inner(m, x):
        m.b[...] = m.b[...] + 1
        return (m.w[...] * x**3).sum()

    m = make()
    return nnx.grad(lambda m, x: nnx.grad(inner, argnums=1, **kw)(m, x).sum(), argnums=1, **kw)(m, X), m


@program(updates="only flax raises NotImplementedError")
def pullback(nnx, make, kw):
    y, pull = nnx.vjp(lambda m, x: (m.w[...] * x).sum(), make("c"), X, **kw)
    return y, pull(jnp.ones(()))


@program(updates="only flax raises NotImplementedError")
def pushforward(nnx, make, kw):
    m = make("c")
    return nnx.jvp(lambda m, x: m.w[...] * x, (m, X), (jax.tree.map(jnp.ones_like, m), X), **kw)


@program
def a_custom_derivative(nnx, make, kw):
    @nnx.custom_vjp(**kw)
    def f(m, x):
        return (jnp.sin(m.w[...]) * x).sum()

    def backward(saved, g):
        m, x = saved
        if not kw:
            (updates, _), out = g
            updates = jax.tree.map(lambda v: v, updates)
            updates["w"][...] = jnp.cos(m.w[...]) * x * out * 10
            return updates, out * x
        gradient = nnx.clone(m)
        gradient.w[...] = jnp.cos(m.w[...]) * x * g * 10
        return gradient, g * x

    f.defvjp(lambda m, x: (f(m, x), (m, x)), backward)
    return nnx.grad(f, argnums=(0, 1), **kw)(make(), X), f(make(), X)


@program(updates="only flax raises TypeError")
def a_custom_derivative_that_updates(nnx, make, kw):
    @nnx.custom_vjp(nondiff_argnums=(1,), **kw)
    def f(x, m):
        m.b[...] = m.b[...] + 1
        return (jnp.sin(x) * m.w[...]).sum()

    f.defvjp(lambda x, m: (f(x, m), x), lambda m, x, g: ((g[1] if not kw else g) * x * 7,))
    m = make()
    return nnx.grad(f, **kw)(X, m), m


@program
def a_custom_derivative_that_updates_what_it_differentiates(nnx, make, kw):
    @nnx.custom_vjp(**kw)
    def f(m):
        m.w[...] = m.w[...] + 1
        return m.w[...].sum()

    f.defvjp(lambda m: (f(m), m), lambda m, g: (m,))
    m = make()
    return f(m), m


@program
def mapped_by_filter(nnx, make, kw):
    def f(m, x):
        m.b[...] = m.b[...] + 1
        return m.w[...] * x

    axes = nnx.StateAxes({nnx.Param: 0, ...: None})
    return outcome(nnx, nnx.vmap(f, in_axes=(axes, 0), **kw), make("c"), X)


@program
def mapped_by_prefix(nnx, make, kw):
    if "graph" not in kw:
        return None
    m = make("c")
    axes = nnx.prefix(m, {nnx.Param: 0, ...: None}, graph=False)

    def f(m, x):
        m.w[...] = m.w[...] * 2
        return m.w[...] * x

    return outcome(nnx, nnx.vmap(f, in_axes=(axes, 0), **kw), m, X)


@program
def a_filter_that_matches_not_everything(nnx, make, kw):
    return nnx.vmap(lambda m: X, in_axes=(nnx.StateAxes({nnx.Param: 0}),), **kw)(make())


@program
def models_made_by_vmap(nnx, make, kw):
    return nnx.vmap(lambda x: nnx.Param(x * jnp.ones(3)), out_axes=1, **kw)(X)


@program
def ensembles(nnx, make, kw):
    stack = nnx.vmap(lambda x: make(value=x), **kw)(X)

    def f(m, x):
        m.b[...] = m.b[...] + x.sum()
        return (m.w[...] * x).sum()

    return outcome(nnx, nnx.vmap(f, in_axes=(0, None), **kw), stack, X)


@program
def one_variable_on_two_axes(nnx, make, kw):
    m = make()
    return nnx.vmap(lambda m, n: X, in_axes=(0, None), **kw)(m, m)


@program
def an_argument_returned_on_another_axis(nnx, make, kw):
    return nnx.vmap(lambda m: m.w, in_axes=0, out_axes=None, **kw)(make())


@program
def a_mapped_update_of_what_is_not_mapped(nnx, make, kw):
    return nnx.vmap(lambda m, x: m.b.set_value(m.b[...] + x), in_axes=(None, 0), **kw)(make(), X)


@program
def axes_from_the_end_and_collectives(nnx, make, kw):
    def f(m, x):
        m.b[...] = jax.lax.psum(m.w[...], "i")
        return x - jax.lax.pmean(x, "i")

    f = nnx.vmap(f, in_axes=(0, -1), out_axes=-1, axis_name="i", **kw)
    return outcome(nnx, f, make(), jnp.arange(6.0).reshape(3, 2))


@program
def pmap_over_two_devices(nnx, make, kw):
    def f(m, x):
        m.b[...] = m.b[...] + x
        return jax.lax.psum(m.w[...] * x, "i")

    f = nnx.pmap(f, in_axes=(0, 0), axis_name="i", devices=jax.devices()[:2], **kw)
    return outcome(nnx, f, make("c"), X)


@program
def shard_map_over_two_devices(nnx, make, kw):
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("i",))
    P = jax.sharding.PartitionSpec

    def f(m, x):
        m.b[...] = m.b[...] + x
        return m.w[...] * x

    return outcome(nnx, nnx.shard_map(f, mesh=mesh, in_specs=(P("i"), P("i")), out_specs=P("i"), **kw), make("c"), X)


@program
def shard_map_by_filter(nnx, make, kw):
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("i",))
    P = jax.sharding.PartitionSpec

    def f(m, x):
        m.w[...] = m.w[...] * 2
        return m.w[...] * m.b[...].sum() * x

    specs = nnx.StateSharding({nnx.Param: P("i"), ...: P()})
    return outcome(nnx, nnx.shard_map(f, mesh=mesh, in_specs=(specs, P("i")), out_specs=P("i"), **kw), make(), X)


@program
def jit_with_shardings_by_filter(nnx, make, kw):
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("i",))
    split, whole = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(a)) for a in ("i", None))

    def f(m, x):
        m.b[...] = m.w[...] + x
        return m.w[...] * 2

    f = nnx.jit(f, in_shardings=(nnx.StateSharding({nnx.Param: split, ...: whole}), whole), out_shardings=whole, **kw)
    return outcome(nnx, f, make(), X)


def step(m, x):
    m.b[...] = m.b[...] + x
    return m, m.w[...] * x


@program
def a_carried_model(nnx, make, kw):
    return outcome(nnx, nnx.scan(step, **kw), make("cl"), jnp.arange(3.0))


@program
def a_carried_model_with_sharing(nnx, make, kw):
    return outcome(nnx, nnx.scan(step, **kw), make("ct"), jnp.arange(3.0))


@program
def carry_in_another_place(nnx, make, kw):
    def f(m, x, c):
        m.b[...] = m.b[...] + x
        return m.w[...].sum() * x, c + m.w[...].sum()

    f = nnx.scan(f, in_axes=(0, 0, nnx.Carry), out_axes=(0, nnx.Carry), **kw)
    return outcome(nnx, f, make("c"), X, 0.0)


@program
def an_array_that_is_carried_and_stacked(nnx, make, kw):
    def f(c, m):
        m.b[...] = m.b[...] + c
        return c, {"again": c, "w": m.w[...] * 1}

    return outcome(nnx, nnx.scan(f, in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0), **kw), jnp.ones(()), make("c"))


@program
def carry_alone(nnx, make, kw):
    def f(m):
        m.w[...] = m.w[...] * 2
        return m

    return outcome(nnx, nnx.scan(f, in_axes=nnx.Carry, out_axes=nnx.Carry, length=3, **kw), make())


@program
def a_stack_of_layers(nnx, make, kw):
    def f(x, m):
        m.b[...] = m.b[...] + x.sum()
        return x * m.w[...]

    f = nnx.scan(f, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry, reverse=True, unroll=2, **kw)
    return outcome(nnx, f, X, make("c", shape=(3, 2)))


@program
def scan_by_filter(nnx, make, kw):
    def f(m, x):
        m.b[...] = m.b[...] + x
        return m.w[...].sum()

    axes = nnx.StateAxes({nnx.Param: None, ...: nnx.Carry})
    return outcome(nnx, nnx.scan(f, in_axes=(axes, 0), out_axes=0, **kw), make("c"), jnp.arange(3.0))


@program
def a_broadcast_model_that_is_updated(nnx, make, kw):
    def f(c, m, x):
        m.b[...] = m.b[...] + x
        return c + 1, m.w[...] * x

    f = nnx.scan(f, in_axes=(nnx.Carry, None, 0), out_axes=(nnx.Carry, 0), **kw)
    return outcome(nnx, f, 0, make(), jnp.arange(3.0))


@program
def another_object_as_the_carry(nnx, make, kw):
    return nnx.scan(lambda m, x: (make(), x), **kw)(make(), X)


@program
def a_carry_that_changes_shape(nnx, make, kw):
    return nnx.scan(lambda m, x: (m.w.set_value(jnp.ones(3)), (m, x))[1], **kw)(make(), X)


@program(updates="only weft raises CarryError")
def a_carry_that_changes_a_static_attribute(nnx, make, kw):
    def f(m, x):
        m.tag = "other"
        return m, x

    return nnx.scan(f, **kw)(make(), X)


@program
def while_loop(nnx, make, kw):
    def body(c):
        m, i = c
        m.b[...] = m.b[...] + m.w[...]
        return m, i + 1

    return outcome(nnx, lambda m: nnx.while_loop(lambda c: c[1] < 3, body, (m, 0), **kw), make("c"))


@program
def fori_loop(nnx, make, kw):
    def body(i, c):
        c["m"].b[...] = c["m"].b[...] + i
        return c

    return outcome(nnx, lambda m: nnx.fori_loop(0, 3, body, {"m": m, "n": make("l")}, **kw), make("c"))


@program
def branches_that_update_different_variables(nnx, make, kw):
    def first(m, x):
        m.w[...] = m.w[...] * 2
        return x

    def second(m, x):
        m.c.b[...] = m.c.b[...] + 1
        return x * 2

    m = make("c")
    return [nnx.cond(p, first, second, m, X, **kw) for p in (True, False)], m


@program
def branches_that_change_the_structure_differently(nnx, make, kw):
    def first(m):
        m.new = nnx.Param(X)
        return X

    return nnx.cond(True, first, lambda m: X, make(), **kw) if not kw else None


@program
def branches_of_different_shapes(nnx, make, kw):
    return nnx.cond(True, lambda m: m.w[...], lambda m: m.w[...].sum(), make(), **kw)


@program
def a_switch(nnx, make, kw):
    def branch(k):
        def f(m, x):
            m.b[...] = m.b[...] + k
            return x * k

        return f

    m = make("c")
    return [nnx.switch(i, [branch(k) for k in range(3)], m, X, **kw) for i in (0, 2, 5)], m


@program
def shapes_of_a_new_model(nnx, make, kw):
    return nnx.eval_shape(lambda: make("cl"), **kw)


@program
def shapes_leave_arguments_alone(nnx, make, kw):
    def f(m, x):
        m.b[...] = m.b[...] + x
        return m.w[...] * x

    return outcome(nnx, lambda m: nnx.eval_shape(f, m, X, **kw), make("c"))


@program
def checks(nnx, make, kw):
    def f(m, x):
        jax.experimental.checkify.check(jnp.all(x > 0), "negative")
        m.b[...] = m.b[...] + 1
        return m.w[...] * x

    m = make()
    results = [nnx.checkify(f, **kw)(m, x) for x in (X, -X)]
    return [(bool(e.get()), out) for e, out in results], m


@program(updates="only flax raises ValueError", tree="only flax raises ValueError")
def a_jaxpr(nnx, make, kw):
    def f(m, x):
        m.b[...] = m.b[...] + 1
        return m.w[...] * x

    m = make()
    jaxpr = nnx.make_jaxpr(f, **kw)(m, X)
    return [str(v.aval) for v in jaxpr.jaxpr.invars], sorted(e.primitive.name for e in jaxpr.eqns)[-1:], m


@program
def axis_names_in_metadata(nnx, make, kw):
    def create(x):
        return nnx.Param(x * jnp.ones((2, 3)), out_sharding=("a", None))

    def use(v, x):
        assert v.get_metadata("out_sharding") == ("a", None)
        return v[...].sum() * x

    options = {"transform_metadata": {nnx.PARTITION_NAME: "layers"}} if not kw else {}
    inside = (
        (lambda f, **o: f) if not kw else functools.partial(nnx.transform_metadata, partition="layers", **mode_of(kw))
    )
    with jax.sharding.set_mesh(jax.make_mesh((1, 1), ("a", "layers"), axis_types=(jax.sharding.AxisType.Auto,) * 2)):
        v = nnx.vmap(inside(create, out_axes=1), out_axes=1, **options, **kw)(X)
        y = nnx.vmap(inside(use, in_axes=(1, 0)), in_axes=(1, 0), **options, **kw)(v, X)
    return v, y


def mode_of(kw):
    return {name: value for name, value in kw.items() if name == "graph"}


@program
def random_streams(nnx, make, kw):
    rngs = nnx.Rngs(0, dropout=1)

    def f(rngs, x):
        return rngs.dropout.normal((2,)) * x + rngs.params.uniform((2,))

    return nnx.jit(f, **kw)(rngs, X), nnx.jit(f, **kw)(rngs, X), rngs


@program
def random_streams_split_for_vmap(nnx, make, kw):
    rngs = nnx.Rngs(0)

    @nnx.split_rngs(splits=2, **mode_of(kw))
    @nnx.vmap(in_axes=(0, 0), **kw)
    def f(rngs, x):
        return rngs.normal((2,)) * x

    return f(rngs, X), rngs


@program
def variables_that_are_refs(nnx, make, kw):
    v = nnx.Variable(jnp.zeros(2), ref=True)

    def f(v, x):
        v[...] = v[...] + x
        return x * 2

    return nnx.jit(f, **kw)(v, X), nnx.jit(f, **kw)(v, X), v[...]


@program
def array_refs_as_arguments(nnx, make, kw):
    class WithRef(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.ones(2))
            self.n = jax.new_ref(jnp.zeros(()))

    m = WithRef()

    def f(m, x):
        m.n[...] += 1
        return m.w[...] * x

    return nnx.jit(f, **kw)(m, X), m.n[...]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(name, mode):
    difference = agreement.difference(run(name, flax_nnx, mode), run(name, weft_nnx, mode))
    expected = DIFFERENCES.get((name, mode))
    assert (difference or "").startswith(expected or "\0") if expected else difference is None, difference


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_leaks(name, mode, checking_leaks):
    with checking_leaks():
        result = run(name, weft_nnx, mode)
    assert "Leaked" not in str(result), result
