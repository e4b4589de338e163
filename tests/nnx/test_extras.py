"""Contexts, trees, prefixes, views, recording, train states and hijax Variables, against flax.nnx."""

import jax
import jax.numpy as jnp
import optax
import pytest
from weft import nnx
from weft.core.edge.hijax import CHANGING
from weft.nnx.errors import AliasError, ImmutableVariableError

ARRAY = jnp.array([1.0, 2.0])


def update_contexts(nnx):
    class Foo(nnx.Module):
        def __init__(self):
            self.v = nnx.Param(ARRAY)
            self.inner = nnx.Dict(w=nnx.Cache(1))

    @jax.jit
    def f(graphdef, state):
        with nnx.merge_context("t", inner=True) as context:
            m = context.merge(graphdef, state)
        m.a, m.me, m.new = 1, m, nnx.Param(m.v * 2)
        m.v[...] += 1
        del m.inner
        with nnx.split_context("t") as context:
            return context.split(m)

    @nnx.update_context("t")
    def g(m):
        with nnx.split_context("t") as context:
            graphdef, state = context.split(m)
            assert nnx.current_update_context("t") is not None
        graphdef, state = f(graphdef, state)
        with nnx.merge_context("t", inner=False) as context:
            return context.merge(graphdef, state)

    m = Foo()
    v = m.v
    out = g(m)
    return out is m, m.me is m, m.v is v, m


def shared_contexts(nnx):
    shared = nnx.Dict(v=nnx.Param(ARRAY))
    with nnx.split_context() as context:
        first = context.split(nnx.Dict(s=shared))
        graphdef, params, rest = context.split(nnx.Dict(s=shared, c=nnx.Cache(1)), nnx.Param, ...)
        flat = context.flatten(nnx.List([shared]))
    with nnx.merge_context() as context:
        merged = context.merge(*first)
        from_parts = context.merge(graphdef, params, rest)
        unflattened = context.unflatten(*flat)
    return merged.s is from_parts.s, unflattened[0] is merged.s, params, rest, from_parts


def trees(nnx):
    m = nnx.Dict(a=nnx.Param(ARRAY), b=nnx.Cache(1))
    tree = nnx.to_tree({"x": m, "y": [m, ARRAY]})
    back = nnx.from_tree(jax.tree.map(lambda x: x * 2, tree))
    states = nnx.NodeStates.from_states(1, 2)
    return back, back["x"] is back["y"][0], [x.shape for x in jax.tree.leaves(tree)], states.states


def prefixes(nnx):
    m = nnx.Dict(a=nnx.Param(ARRAY), b=nnx.Dict(c=nnx.Cache(1)))
    tree = nnx.prefix(m, {nnx.Param: 0, ...: None}, graph=False)
    in_graph = nnx.prefix((m, m), lambda path, leaf: len(path), graph=True)
    return (
        tree.a,
        tree.b.c,
        jax.tree.leaves(in_graph),
        nnx.prefix({"a": nnx.Param(1), "b": ARRAY}, {nnx.Param: 0, ...: 1}),
    )


def layered(nnx):
    class Dropout(nnx.Module):
        def __init__(self):
            self.deterministic, self.rate = False, 0.5

        def set_view(self, deterministic: bool | None = None):
            """Changes the mode.

            Args:
              deterministic: if True, nothing is
                dropped.
            """
            self.deterministic = deterministic

    class Norm(nnx.Module):
        def __init__(self):
            self.use_running_average = False
            self.w = nnx.Param(ARRAY)

        def set_view(self, use_running_average: bool = True):
            self.use_running_average = use_running_average

    class Open(nnx.Module):
        def set_view(self, **kwargs):
            self.got = tuple(sorted(kwargs))

    return Dropout, Norm, Open


def views(nnx):
    dropout, norm, free = layered(nnx)
    m = nnx.Dict(d=dropout(), n=norm())
    new = nnx.view(m, deterministic=True, use_running_average=True)
    only = nnx.view(m, only=dropout, deterministic=True)
    anything = nnx.view(nnx.Dict(o=free()), x=1, y=2)
    in_eval = nnx.with_attributes(m, deterministic=True)
    return (
        [(x.d.deterministic, x.n.use_running_average, x.n.w is m.n.w) for x in (m, new, only, in_eval)], anything.o.got,
        nnx.view(m, raise_if_not_found=False, nope=1).d.rate, nnx.view_info(m), nnx.view_info(m, only=norm),
    )  # fmt: skip


def attributes(nnx):
    dropout, norm, _ = layered(nnx)
    m = nnx.Dict(d=dropout(), n=norm())
    settings = []
    for change in (lambda: m.eval(), lambda: m.train(rate=0.1), lambda: m.set_attributes(dropout, rate=0.9)):
        change()
        settings.append((m.d.deterministic, m.d.rate, m.n.use_running_average))
    m.set_attributes(nope=1, raise_if_not_found=False)
    return settings, next(iter(m.iter_modules()))[0], [key for key, _ in m.iter_children()]


def recording(nnx):
    class Block(nnx.Module):
        def __call__(self, x):
            self.sow(nnx.Intermediate, "y", x * 2)
            self.sow(nnx.Intermediate, "total", x, init_fn=lambda: 0, reduce_fn=lambda a, b: a + b)
            self.sow("mine_sown", "z", x)
            return self.perturb("p", x) * 3

        def helper(self, x):
            return x + 1

    class Model(nnx.Module):
        def __init__(self):
            self.a, self.b = Block(), nnx.List([Block()])

        def __call__(self, x):
            return self.b[0].helper(self.b[0](self.a(self.a(x))))

    m = Model()
    out = nnx.capture(m, nnx.Intermediate)(ARRAY)
    both = nnx.capture(nnx.Intermediate, nnx.Perturbation)(lambda m, x: m(x))(m, ARRAY)
    method = nnx.capture(m.b[0].helper, nnx.Intermediate, method_outputs=nnx.Intermediate)(1)
    outputs = nnx.capture(m, nnx.Intermediate, method_outputs=nnx.Intermediate)(ARRAY)
    started = nnx.capture(m, nnx.Perturbation, init=jax.tree.map(lambda x: x + 1, both[2]))(ARRAY)
    plain = m(ARRAY), nnx.pop(m, nnx.Intermediate), m
    return out, both, method, outputs, started, nnx.capture(m)(ARRAY), plain, hasattr(m, "__captures__")


def training(nnx):
    m = nnx.Dict(w=nnx.Param(ARRAY), s=nnx.BatchStat(1))
    graphdef, params, stats = nnx.split(m, nnx.Param, ...)

    class State(nnx.TrainState):
        stats: nnx.State

    state = State.create(graphdef, params=params, tx=optax.sgd(0.5), stats=stats)
    grads = jax.tree.map(jnp.ones_like, params)
    new = jax.jit(lambda state, grads: state.apply_gradients(grads))(state, grads)
    value, _ = new.apply("params", "stats").get("w")
    return new.params, new.step, new.stats, value, state.replace(step=5).step


def hijax(nnx):
    v = nnx.Param(ARRAY, hijax=True, note=1)

    @jax.jit
    def f(v):
        assert isinstance(v, nnx.Param)
        return v * 2, v[0], -v, v[...] + 1

    out = f(v)
    v[...] = out[-1]
    with nnx.var_defaults(hijax=True):
        m = nnx.Dict(w=nnx.Param(ARRAY), c=nnx.Variable(jnp.array(0)))
    added = jax.jit(lambda m: m.w + m.c)(m)
    m.c[...] += 1
    plain = nnx.with_vars(m, hijax=False)
    clone = nnx.clone(m)
    v.set_metadata(note=2)
    return (
        out, v, isinstance(v, nnx.Param), isinstance(v, nnx.Cache), v.hijax, added, m.c[...], plain.w.hijax, plain,
        clone.w[...], repr(v), nnx.state(m), v.shape, v.copy(ARRAY * 3)[...],
        nnx.Param(ARRAY, hijax=True, ref=True)[...], jax.grad(lambda w: (w[...] ** 2).sum())(nnx.Param(ARRAY)),
    )  # fmt: skip


def hijax_that_changes(nnx):
    v = nnx.Param(ARRAY, hijax=True)
    m = nnx.Dict(c=nnx.Variable(jnp.array(0), hijax=True))

    @jax.jit
    def f(v, m):
        v[...] = v[...] + 1
        m.c[...] += 1
        return v * 2, v[0], -v

    out = f(v, m)
    scanned = jax.jit(lambda v: jax.lax.scan(lambda c, x: (c, v.set_value(v[...] + x)), 0, ARRAY))(v)[0]
    return out, v, m.c[...], scanned


PROGRAMS = [
    update_contexts, shared_contexts, trees, prefixes, views, attributes, recording, training, hijax,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs(agree, program):
    agree(program)


def test_hijax_variables_that_change_in_a_trace(agree):
    # Where JAX has none, each side says that the Variable cannot be updated there.
    agree(hijax_that_changes, expect=None if CHANGING else ImmutableVariableError)


def _mismatched(nnx):
    m = nnx.Dict(y=nnx.Cache(1))
    m.sow(nnx.Intermediate, "y", 2)


def _other_prefix(nnx):
    v = nnx.Param(ARRAY)
    nnx.to_tree((nnx.Dict(v=v), nnx.Dict(v=v)), prefix=(0, None))


def _filters_without_paths(nnx):
    with nnx.split_context() as context:
        context.flatten(nnx.Dict(), nnx.Param, with_paths=False)


def _hijax_value(nnx):
    return nnx.Param(ARRAY, hijax=True).value


RAISING = {
    "no context": lambda nnx: nnx.current_update_context("never"),
    "filters without paths": lambda nnx: (
        nnx.split_context().__enter__().flatten(nnx.Dict(), nnx.Param, with_paths=False)
    ),
    "unknown attribute": lambda nnx: nnx.Dict().set_attributes(nope=1),
    "unknown attribute of a copy": lambda nnx: nnx.with_attributes(nnx.Dict(), nope=1),
    "unused view": lambda nnx: nnx.view(nnx.Dict(), nope=1),
    "sow of another kind": _mismatched,
    "other prefix": _other_prefix,
    "no filter for a prefix": lambda nnx: nnx.prefix({"a": nnx.Cache(1)}, {nnx.Param: 0}),
    "two states": lambda nnx: nnx.NodeStates.from_states(1, 2).state,
    "no structure": lambda nnx: nnx.NodeStates.from_states(1).graphdef,
    "from no tree": lambda nnx: nnx.from_tree({"a": nnx.Param(1)}, is_leaf=lambda x: isinstance(x, nnx.Variable)),
    "value of hijax": _hijax_value,
    "hijax by metadata": lambda nnx: nnx.Param(ARRAY, hijax=True).set_metadata(hijax=False),
    "cached_partial of trees": lambda nnx: nnx.cached_partial(print, graph=False),
}


@pytest.mark.parametrize("case", sorted(RAISING))
def test_errors_are_of_the_same_builtin(agree, case):
    agree(RAISING[case], expect=Exception)


def test_one_variable_under_two_prefixes_is_named_with_both_paths():
    v = nnx.Param(ARRAY)
    with pytest.raises(AliasError) as error:
        nnx.to_tree((nnx.Dict(v=v), nnx.Dict(w=v)), prefix=(0, None))
    assert "at: [0].v: Param under 0\n  at: [1].w: Param under None\n  fix:" in str(error.value)


def test_a_failed_capture_leaves_no_boxes():
    m = nnx.Dict(a=nnx.Dict())
    with pytest.raises(ZeroDivisionError):
        nnx.capture(lambda m: 1 / 0, nnx.Intermediate)(m)
    assert not hasattr(m, "__captures__")
    assert not hasattr(m.a, "__captures__")


def test_attributes_are_set_on_all_modules_or_none():
    m = nnx.Dict(a=nnx.Dict(rate=1))
    with pytest.raises(ValueError, match=r"\['nope'\]"):
        m.set_attributes(rate=2, nope=3)
    assert m.a.rate == 1
