"""Errors about aliases name the argument, by the function's own name for it, and the path in it."""

import jax
import jax.numpy as jnp
import pytest
from weft import nnx
from weft.nnx.errors import DuplicateError

X = jnp.ones(2)
P = jax.sharding.PartitionSpec


class Model(nnx.Module):
    def __init__(self, share=False):
        self.w = nnx.Param(jnp.ones(2))
        self.layers = nnx.List([nnx.Param(jnp.ones(2))])
        if share:
            self.layers.append(self.w)


def f(model, x):
    return (model.w[...] * x).sum()


def step(model, x):
    return model, x


def custom():
    function = nnx.custom_vjp(f, graph=False)
    function.defvjp(lambda model, x: (f(model, x), None), lambda saved, g: (None, None))
    return function


def mesh():
    return jax.sharding.Mesh(jax.devices()[:1], ("i",))


CALLS = {
    "jit": lambda m: nnx.jit(f, graph=False)(m, X),
    "jit by name": lambda m: nnx.jit(f, graph=False)(x=X, model=m),
    "jit_partial": lambda m: nnx.jit_partial(f, m, graph=False)(X),
    "remat": lambda m: nnx.remat(f, graph=False)(m, X),
    "grad": lambda m: nnx.grad(f, graph=False)(m, X),
    "vjp": lambda m: nnx.vjp(f, m, X, graph=False),
    "jvp": lambda m: nnx.jvp(f, (m, X), (m, X), graph=False),
    "custom_vjp": lambda m: custom()(m, X),
    "vmap": lambda m: nnx.vmap(f, in_axes=(None, 0), graph=False)(m, X),
    "pmap": lambda m: nnx.pmap(f, in_axes=(None, 0), devices=jax.devices()[:2], graph=False)(m, X),
    "shard_map": lambda m: nnx.shard_map(f, mesh=mesh(), in_specs=(P(), P()), out_specs=P(), graph=False)(m, X),
    "scan": lambda m: nnx.scan(step, graph=False)(m, X),
    "while_loop": lambda m: nnx.while_loop(lambda model: False, lambda model: model, m, graph=False),
    "fori_loop": lambda m: nnx.fori_loop(0, 2, lambda i, model: model, m, graph=False),
    "cond": lambda m: nnx.cond(True, f, f, m, X, graph=False),
    "switch": lambda m: nnx.switch(0, [f, f], m, X, graph=False),
    "eval_shape": lambda m: nnx.eval_shape(f, m, X, graph=False),
    "checkify": lambda m: nnx.checkify(f, graph=False)(m, X),
    "make_jaxpr": lambda m: nnx.make_jaxpr(f, graph=False)(m, X),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_is_shared_in_an_argument(call):
    with pytest.raises(DuplicateError, match=r"\n  at: model\.layers\[1\]\n  at: model\.w\n"):
        CALLS[call](Model(share=True))


@pytest.mark.parametrize("call", ["jit", "remat", "vmap", "cond", "checkify"])
def test_an_argument_that_is_returned(call):
    def give(model, x):
        return {"again": model.layers[0]}

    calls = {
        "jit": nnx.jit(give, graph=False),
        "remat": nnx.remat(give, graph=False),
        "vmap": nnx.vmap(give, in_axes=(0, 0), graph=False),
        "cond": lambda *args: nnx.cond(True, give, give, *args, graph=False),
        "checkify": nnx.checkify(give, graph=False),
    }
    with pytest.raises(DuplicateError, match=r"\n  at: model\.layers\[0\]\n  at: output\.again\n"):
        calls[call](Model(), X)


def test_what_is_shared_in_the_output():
    def give(x):
        new = nnx.Param(x)
        return [new, {"again": new}]

    with pytest.raises(DuplicateError, match=r"Duplicate Param in the output.*\n  at: output\[0\]\n  at: output\[1\]"):
        nnx.jit(give, graph=False)(X)


def test_what_two_arguments_share():
    model, second = Model(), Model()
    second.w = model.w
    with pytest.raises(DuplicateError, match=r"\n  at: model\.w\n  at: other\.w\n"):
        nnx.jit(lambda model, other: None, graph=False)(model, second)


class Holder(nnx.Module):
    def __init__(self, value):
        self.w = nnx.Param(value)


def put_object(m, n):
    m.n = n


def put_variable(m, n):
    m.v = n.w


@pytest.mark.parametrize(("put", "place"), [(put_object, "m.n.w"), (put_variable, "m.v")])
@pytest.mark.parametrize("name", ["vmap", "scan"])
def test_an_argument_that_is_put_into_another_with_another_axis_is_named_by_both_paths(put, place, name):
    m, n = Holder(jnp.ones((2, 3))), Holder(jnp.ones(3))
    with pytest.raises(ValueError, match="Inconsistent aliasing") as caught:
        getattr(nnx, name)(put, in_axes=(0, None), out_axes=None if name == "vmap" else 0)(m, n)
    assert caught.value.at == (f"{place}: 0", "n.w: None")
    assert set(vars(m)) == {"w"}


def test_arguments_of_one_axis_may_be_put_into_each_other():
    m, n = Holder(jnp.ones((2, 3))), Holder(jnp.ones((2, 3)))
    nnx.vmap(put_object, in_axes=(0, 0))(m, n)
    assert m.n is n
    k = Holder(jnp.ones(3))
    nnx.jit(put_object, donate_argnums=0)(n, k)
    assert n.n is k


def new_in_both(m, n):
    m.n = n.n = Holder(jnp.ones(3))


def new_in_argument_and_output(m, n):
    n.n = Holder(jnp.ones(3))
    return n.n


def new_in_two_outputs(m, n):
    new = Holder(jnp.ones(3))
    return new, {"b": new}


def deleted_and_returned_twice(m, n):
    w = m.w
    del m.w
    return w, w


@pytest.mark.parametrize(
    ("put", "out_axes", "at"),
    [
        (new_in_both, None, ("m.n.w: 0", "n.n.w: None")),
        (new_in_argument_and_output, 0, ("n.n.w: None", "output.w: 0")),
        (new_in_argument_and_output, nnx.StateAxes({...: 0}), ("n.n.w: None", "output.w: 0")),
        (new_in_two_outputs, (0, 1), ("output[0].w: 0", "output[1].b.w: 1")),
        (deleted_and_returned_twice, (0, 1), ("output[0]: 0", "output[1]: 1")),
    ],
)
@pytest.mark.parametrize("name", ["vmap", "pmap"])
def test_a_variable_that_leaves_at_two_places_is_refused_under_two_axes(put, out_axes, at, name):
    for axes in (None, nnx.StateAxes({nnx.PathContains("elsewhere"): 0, ...: None})):
        m, n = Holder(jnp.ones((1, 3))), Holder(jnp.ones(3))
        with pytest.raises(ValueError, match=r"Inconsistent aliasing detected\. The following nodes") as caught:
            getattr(nnx, name)(put, in_axes=(0, axes), out_axes=out_axes)(m, n)
        assert caught.value.at == at
        assert set(vars(m)) == set(vars(n)) == {"w"}


def test_filters_are_not_asked_about_a_second_path_in_one_argument():
    def twice(m):
        m.n = m.elsewhere = Holder(jnp.ones(3))

    m = Holder(jnp.ones(3))
    axes = nnx.StateAxes({nnx.PathContains("n"): 0, ...: None})
    nnx.vmap(twice, in_axes=(axes,), out_axes=None, axis_size=2)(m)
    assert m.n is m.elsewhere
    assert m.n.w.shape == (3,)  # `elsewhere` comes first
    del m.elsewhere, m.n
    nnx.vmap(twice, in_axes=(nnx.StateAxes({nnx.PathContains("elsewhere"): 0, ...: None}),), axis_size=2)(m)
    assert m.n.w.shape == (2, 3)


@pytest.mark.parametrize(("before", "after", "shape"), [(0, 1, (3, 2)), (None, 0, (2, 2, 3)), (0, 0, (2, 3))])
def test_a_variable_leaves_on_the_axis_of_the_path_that_it_is_at_then(before, after, shape):
    def move(m):
        m.moved = m.w
        del m.w

    def take(m):
        w = m.w
        del m.w
        return w

    axes = nnx.StateAxes({nnx.PathContains("moved"): after, ...: before})
    m, n = Holder(jnp.ones((2, 3))), Holder(jnp.ones((2, 3)))
    w, v = m.w, n.w
    nnx.vmap(move, in_axes=(axes,), out_axes=None, axis_size=2)(m)
    assert m.moved is w
    assert nnx.vmap(take, in_axes=(before,), out_axes=after, axis_size=2)(n) is v
    assert w.shape == v.shape == shape


def test_a_variable_is_not_moved_from_an_axis_to_none():
    def move(m):
        m.moved = m.w
        del m.w

    m = Holder(jnp.ones((2, 3)))
    with pytest.raises(ValueError, match=r"returned under axis None(.|\n)*at: m\.moved"):
        nnx.vmap(move, in_axes=(nnx.StateAxes({nnx.PathContains("moved"): None, ...: 0}),), out_axes=None)(m)
    assert set(vars(m)) == {"w"}


@pytest.mark.parametrize("caught_as", [TypeError, ValueError])
@pytest.mark.parametrize("mode", [{}, {"graph_updates": False}, {"graph": False}])
@pytest.mark.parametrize(
    ("aux", "kind"),
    [
        (lambda y: y, "an array"),
        (lambda y: (y,), "a sequence of 1"),
        (lambda y: [y, 1, 2], "a sequence of 3"),
        (lambda y: {"y": y}, "dict"),
    ],
)
def test_has_aux_without_a_pair_is_both_kinds_of_error(aux, kind, mode, caught_as):
    text = rf"has_aux does not fit: the function returned {kind}, not a pair\n  fix: return \(value, auxiliary output\)"
    with pytest.raises(caught_as, match=text):
        nnx.grad(lambda m: aux(m.w[...].sum()), has_aux=True, **mode)(Holder(jnp.ones(3)))


@pytest.mark.parametrize("name", ["vmap", "pmap"])
def test_axes_by_filter_on_their_own_are_refused_when_the_function_is_mapped(name):
    refused = rf"in_axes of {name} is a StateAxes instead of a tuple\n  at: in_axes=StateAxes.*\n  fix: pass a tuple"
    with pytest.raises(TypeError, match=refused):
        getattr(nnx, name)(lambda m: m.w[...], in_axes=nnx.StateAxes({...: 0}))


@pytest.mark.parametrize(
    ("f", "path"),
    [
        (lambda m, x: m.n.set_value(x), "m.n: float32[]"),
        (lambda m, x: nnx.jit(lambda m, x: m.n.set_value(x * 2))(m, x), "m.n: float32[]"),
        (lambda m, x: m.n.set_value(jnp.ones(3) * x), "m.n: float32[3]"),
        (lambda m, x: nnx.Dict(a=nnx.Param(x)), "output.a: float32[]"),
        (lambda m, x: x, "output: float32[]"),
    ],
)
@pytest.mark.parametrize("mode", [{}, {"graph_updates": False}, {"graph": False}])
def test_what_is_mapped_and_leaves_under_none_is_named(f, path, mode):
    m = nnx.Dict(n=nnx.Variable(jnp.zeros(())))
    with pytest.raises(ValueError, match="a batched value is returned under axis None") as caught:
        nnx.vmap(f, in_axes=(None, 0), out_axes=None, **mode)(m, jnp.ones(2))
    assert caught.value.at == (f"{path} for each index",)
    assert float(m.n[...]) == 0


def test_what_was_reduced_may_leave_under_none():
    m = nnx.Dict(n=nnx.Variable(jnp.zeros(())))
    nnx.vmap(lambda m, x: m.n.set_value(jax.lax.psum(x, "i")), in_axes=(None, 0), axis_name="i")(m, jnp.ones(2))
    assert float(m.n[...]) == 2
