"""What crosses into transforms and back: donated Variables, Variables that hold trees, prefixes made of the graph."""

import jax
import jax.numpy as jnp
import pytest
from weft import nnx
from weft.core.errors import AxisError, StructureError

MODES = {"updates": {}, "graph": {"graph_updates": False}, "tree": {"graph": False}}
modes = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
X = jnp.arange(1.0, 3.0)


class Model(nnx.Module):
    def __init__(self):
        self.a, self.b, self.c = (nnx.Param(jnp.ones(2)) for _ in range(3))


@modes
def test_a_donated_variable_that_does_not_change_keeps_a_value(mode):
    model = Model()

    @nnx.jit(donate_argnums=0, **mode)
    def f(model):
        model.c[...] = model.a[...] + model.c[...]

    f(model)
    f(model)
    assert [float(v[...].sum()) for v in (model.a, model.b, model.c)] == [2, 2, 6]


def test_an_array_attribute_of_a_donated_argument_comes_back():
    model = Model()
    model.raw = jnp.ones(2)

    @nnx.jit(donate_argnums=0)
    def f(model):
        model.c[...] = model.raw * 2

    f(model)
    f(model)
    assert float(model.raw.sum()) == 2


@modes
def test_a_variable_may_be_reached_through_a_donated_argument_and_another(mode):
    if "graph" in mode:
        pytest.skip("trees share nothing")
    model = Model()
    f = nnx.jit(lambda model, a: model.b.set_value(a[...] * 3), donate_argnums=0, **mode)
    f(model, model.a)
    assert float(model.b[...].sum()) == 6


CALLS = {
    "jit": lambda f: nnx.jit(f),
    "checkify": lambda f: lambda model: nnx.checkify(f)(model)[1],
    "checkify of remat": lambda f: lambda model: nnx.checkify(lambda model: nnx.remat(f)(model))(model)[1],
    "vmap": lambda f: nnx.vmap(f, in_axes=None, out_axes=None, axis_size=2),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("returned", [False, True])
def test_a_variable_that_was_taken_out_changes_in_value_and_metadata_or_in_neither(call, returned):
    model = Model()
    a = model.a

    def f(model):
        a = model.a
        a.set_metadata(note="x")
        a[...] = a[...] * 2
        model.a = nnx.Param(a[...] + 1)
        return a if returned else 0.0

    out = call(f)(model)
    assert not returned or out is a
    assert (a.get_metadata().get("note"), float(a[0])) == (("x", 2) if returned else (None, 1))
    assert ("note" in model.a.get_metadata(), float(model.a[0])) == (False, 3)


TREES = {
    "jit": lambda f, mode: nnx.jit(f, **mode),
    "remat": lambda f, mode: nnx.remat(f, **mode),
    "vmap": lambda f, mode: nnx.vmap(f, in_axes=(0, 0), **mode),
    "scan": lambda f, mode: nnx.scan(f, in_axes=(0, 0), out_axes=0, **mode),
    "cond": lambda f, mode: lambda v, x: nnx.cond(True, f, f, v, x, **mode),
    "checkify": lambda f, mode: lambda v, x: nnx.checkify(f, **mode)(v, x)[1],
    "pmap": lambda f, mode: nnx.pmap(f, in_axes=(0, 0), devices=jax.devices()[:2], **mode),
}


@modes
@pytest.mark.parametrize("transform", TREES)
def test_what_is_done_to_the_values_of_a_dict_in_a_variable_comes_back(transform, mode):
    v = nnx.Variable({"n": X, "empty": {}})

    def f(v, x):
        v["n"] = v["n"] + x

    TREES[transform](f, mode)(v, X)
    assert v["n"].tolist() == [2.0, 4.0]


def test_what_is_sown_inside_of_transforms_is_captured_outside():
    @nnx.jit
    def f(model, x):
        model.sow(nnx.Intermediate, "twice", x * 2)

    _, captured = nnx.capture(lambda model: f(model, X), nnx.Intermediate)(Model())
    assert captured.twice.get_value()[0].tolist() == [2.0, 4.0]


@modes
def test_a_pullback_when_the_auxiliary_output_is_an_object(mode):
    def f(model, x):
        return (model.a[...] * x).sum(), nnx.Param(x)

    _, pull, aux = nnx.vjp(f, Model(), X, has_aux=True, **mode)
    assert pull(jnp.ones(()))[1].tolist() == [1.0, 1.0]
    assert aux[...].tolist() == [1.0, 2.0]


def test_a_prefix_made_of_the_graph_names_what_is_shared_once():
    model, partner = Model(), Model()
    partner.model, model.other = model, partner
    axes = nnx.prefix((model, partner), {nnx.PathContains("a"): 0, ...: None}, graph=True)

    def f(model, partner, x):
        model.a[...] = model.a[...] * x

    nnx.vmap(f, in_axes=(*axes, 0), graph_updates=False)(model, partner, X)
    assert model.a[...].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("mode", [MODES["updates"], MODES["tree"]])
def test_a_prefix_for_graph_mode_is_refused_in_the_other_modes(mode):
    axes = nnx.prefix(Model(), {...: 0}, graph=True)
    with pytest.raises(StructureError, match="made for graph mode without graph updates"):
        nnx.vmap(lambda model: None, in_axes=(axes,), **mode)(Model())


def test_something_new_that_no_filter_matches_is_named():
    def f(model):
        model.new = nnx.Cache(X)

    with pytest.raises(AxisError, match=r"in_axes: no filter matches this Cache\n  at: new\n"):
        nnx.vmap(f, in_axes=(nnx.StateAxes({nnx.Param: 0}),))(Model())


def test_cached_partial_that_refuses_leaves_values_alone():
    model = Model()

    def f(model):
        model.a[...] = model.a[...] * 2
        model.a.set_metadata(note=2)
        model.b = nnx.Param(X)

    with pytest.raises(StructureError, match="Model added to cached_partial was mutated inside") as caught:
        nnx.cached_partial(nnx.jit(f), model)()
    assert caught.value.at == ("cached_args[0].b: Param -> another Param", "cached_args[0].a.note: nothing -> 2")
    assert model.a[...].tolist() == [1.0, 1.0]
    assert "note" not in model.a.get_metadata()


class Counted(nnx.Module):
    def __init__(self):
        self.w, self.count = nnx.Param(jnp.ones(2)), nnx.Variable(jnp.array(3))

    def __call__(self, x):
        return (self.w * x).sum() * self.count[...]


@pytest.mark.parametrize("mode", [MODES["graph"], MODES["tree"]], ids=["graph", "tree"])
def test_integers_among_the_primals_of_vjp_and_jvp_have_no_derivative(mode):
    model = Counted()
    y, pull = nnx.vjp(lambda m, n: m(2.0) * n, model, 2, **mode)
    cotangent, of_number = pull(1.0)
    assert float(y) == 24
    assert cotangent.w[...].tolist() == [12, 12]
    assert cotangent.count.get_value().dtype == of_number.dtype == jax.dtypes.float0
    # What has no derivative is a tangent too.
    assert float(nnx.jvp(lambda m: m(2.0), (model,), (cotangent,), **mode)[1]) == 2 * 3 * (12 + 12)


@pytest.mark.parametrize(
    "transform",
    [
        nnx.jit,
        lambda grow: nnx.jit(grow, donate_argnums=0),
        lambda grow: nnx.jit(grow, in_shardings=jax.sharding.SingleDeviceSharding(jax.devices()[0])),
        nnx.remat,
        lambda grow: nnx.vmap(grow, in_axes=None, axis_size=3),
        lambda grow: lambda model: nnx.cond(True, grow, grow, model),
    ],
    ids=["jit", "donated", "placed", "remat", "vmap", "cond"],
)
def test_an_object_that_holds_no_array_may_get_some(transform):
    def grow(model):
        model.made = nnx.Param(jnp.ones(2))

    model = nnx.Dict()
    transform(grow)(model)
    assert model.made.shape == (2,)


class Tied(nnx.Module):
    def __init__(self):
        self.a, self.b = nnx.Param(jnp.ones(2)), nnx.Param(jnp.full(2, 2.0))
        self.z = self.a


@pytest.mark.parametrize(("name", "paths"), [("a", {("a",)}), ("z", set())])
def test_a_filter_by_path_is_asked_for_the_first_path_to_a_variable(name: str, paths: set[tuple[str, ...]]):
    tied = nnx.DiffState(0, nnx.PathContains(name))
    grads = nnx.grad(lambda model: (model.a[...] * model.z[...] * model.b[...]).sum(), argnums=tied)(Tied())
    assert {path for path, _ in nnx.to_flat_state(grads)} == paths
    axes = nnx.StateAxes({nnx.PathContains(name): 0, ...: None})
    out = nnx.vmap(lambda model: model.z[...] * 1, in_axes=(axes,), axis_size=2)(Tied())
    assert out.shape == ((2,) if paths else (2, 2))


def test_two_arguments_have_to_agree_on_what_they_share():
    model, second = Tied(), Tied()
    second.b = model.a
    axes = nnx.StateAxes({nnx.PathContains("a"): 0, ...: None})
    with pytest.raises(ValueError, match=r"Inconsistent aliasing(.|\n)*at: model.a: 0\n  at: other.b: None"):
        nnx.vmap(lambda model, other: model.a + other.b, in_axes=(axes, axes))(model, second)
