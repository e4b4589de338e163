"""jit: the same values as `jax.jit`, with records across, one trace a structure, and donated or forwarded leaves."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from jax.sharding import NamedSharding, PartitionSpec
from weft import BatchStat, Buffer, Param, axes, nnx
from weft.core.errors import (
    AliasError,
    BranchError,
    CarryError,
    DonatedError,
    StaticError,
    StructureError,
    TraceLevelError,
)

X = jnp.array([1.0, 2.0])


class Net(weft.Module):
    weight: jax.Array
    mean: Annotated[jax.Array, BatchStat]
    activation: Callable[[jax.Array], jax.Array] = jnp.tanh
    rate: float = 0.5
    name: str = weft.static(default="net")

    def __call__(self, x: Any) -> Any:
        y = self.activation(x * self.weight)
        return y, self.replace(mean=self.mean + self.rate * y)

    @weft.jit
    def compiled(self, x: Any) -> Any:
        return self(x)


class Pair(NamedTuple):
    a: Any
    b: Any


def make_net(scale: float = 1.0) -> Net:
    return Net(jnp.array([1.0, 2.0]) * scale, jnp.zeros(2))


def assert_same(actual: Any, wanted: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(wanted), strict=True):
        if eqx.is_array(b):
            assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
            np.testing.assert_allclose(a, b, rtol=1e-6)
        else:
            assert a == b
            assert type(a) is type(b)


# --- what comes out ----------------------------------------------------------------------------------------------


def test_a_record_goes_in_and_its_successor_comes_out(traces: Any):
    step = weft.jit(traces(lambda net, x: net(x)))
    plain = jax.jit(lambda w, m, x: (jnp.tanh(x * w), m + 0.5 * jnp.tanh(x * w)))
    net = make_net()
    for i in range(4):
        x = X + i
        y, mean = plain(net.weight, net.mean, x)
        out, net = step(net, x)
        np.testing.assert_allclose(out, y, rtol=1e-6)
        np.testing.assert_allclose(net.mean, mean, rtol=1e-6)
        assert (net.activation, net.rate, net.name) == (jnp.tanh, 0.5, "net")
    assert traces.count == 1


@pytest.mark.parametrize("value", [3, 3.0, True, 2j, np.float32(1), np.arange(3), jnp.arange(3), jnp.float32(2)])
def test_values_come_back_as_from_jax_jit(value: Any):
    for function in (lambda x: x, lambda x: x + 1, lambda x: (x * 2, {"x": x})):
        for _ in range(3):
            assert_same(weft.jit(function)(value), jax.jit(function)(value))
        compiled, plain = weft.jit(function), jax.jit(function)
        for _ in range(3):
            assert_same(compiled(value), plain(value))


def test_every_call_of_one_structure_gives_the_same_by_the_generated_way(traces: Any):
    def f(tree: Any, *more: Any, scale: Any) -> Any:
        return {"tree": tree, "sum": tree["pair"].a * scale, "more": more, "none": None, "static": "s"}

    step = weft.jit(traces(f))
    tree = {"pair": Pair(X, [1, (None, "x")]), "net": make_net(), "f": jnp.sin}
    wanted = f(tree, 2.0, scale=X)
    for _ in range(4):
        out = step(tree, 2.0, scale=X)
        assert isinstance(out["tree"]["pair"], Pair)
        assert out["tree"]["pair"].b[1] == (None, "x")
        assert_same(out["sum"], wanted["sum"])
        assert out["tree"]["f"] is jnp.sin
        assert list(out) == sorted(out)
        assert out["more"][0].item() == 2.0
    assert traces.count == 1


def test_the_generated_way_notices_what_changed_between_calls(traces: Any):
    step = weft.jit(traces(lambda tree, x: (tree, x)))
    tree: Any = {"list": [1.0, 2.0], "name": "a"}
    for _ in range(3):
        step(tree, X)
    tree["list"].append(3.0)
    assert len(step(tree, X)[0]["list"]) == 3
    tree["name"] = "b"
    assert step(tree, X)[0]["name"] == "b"
    tree["list"][0] = None
    assert step(tree, X)[0]["list"][0] is None
    tree["list"] = tuple(tree["list"])
    assert type(step(tree, X)[0]["list"]) is tuple
    tree["more"] = X
    assert "more" in step(tree, X)[0]
    del tree["name"]
    assert "name" not in step(tree, X)[0]
    assert traces.count == 7


@pytest.mark.filterwarnings("ignore::weft.errors.RetraceWarning")
@pytest.mark.parametrize("values", [(1, 1.0, True), (True, 1.0, 1), ("1", 1, 1.0), (0, False, None)])
def test_numbers_in_records_are_told_apart_by_type(values: Any, traces: Any):
    class Config(weft.Module):
        value: Any

    step = weft.jit(traces(lambda config, x: (config, x * 2)))
    for _ in range(3):
        for value in values:
            returned, _ = step(Config(value), X)
            assert returned.value == value
            assert type(returned.value) is type(value)
    assert traces.count == len(values)


EQUAL_STATICS = [
    (1, 1.0, True),
    (True, 1.0, 1),
    (0, False),
    ((1, 2), (1.0, 2), (True, 2)),
    ((("a", 0),), (("a", False),)),
]


class Configured(weft.Module):
    value: Any = weft.static()


@pytest.mark.filterwarnings("ignore::weft.errors.RetraceWarning")
@pytest.mark.parametrize("values", EQUAL_STATICS)
def test_equal_values_of_static_fields_are_told_apart_by_type(values: Any, traces: Any):
    step = weft.jit(traces(lambda config, x: (config, x * 2)))
    for _ in range(3):
        for value in values:
            returned, _ = step(Configured(value), X)
            assert repr(returned.value) == repr(value)
    assert traces.count == len(values)


def test_a_static_field_of_a_carry_or_a_branch_keeps_its_type():
    with pytest.raises(CarryError, match="the carry of while_loop changes"):
        weft.while_loop(lambda c: c[1] < 3, lambda c: (Configured(1.0), c[1] + 1), (Configured(1), 0))
    with pytest.raises(BranchError, match="do not return the same"):
        weft.cond(X[0] > 0, lambda: (Configured(1), X), lambda: (Configured(True), X))


def test_a_leaf_may_change_from_static_to_array_and_back(traces: Any):
    class Box(weft.Module):
        value: Any

    step = weft.jit(traces(lambda box: box))
    for _ in range(3):
        assert step(Box(1.0)).value == 1.0
        assert isinstance(step(Box(X)).value, jax.Array)
        assert step(Box("a")).value == "a"
        assert step(Box(None)).value is None
        assert step(Box(np.ones(2))).value.shape == (2,)
    # A NumPy array and a JAX array are one make of leaf, and one trace if their type is the same.
    assert traces.count == 4


def test_the_output_structure_may_depend_on_shapes():
    split = weft.jit(lambda x: tuple(x[i] for i in range(x.shape[0])))
    for n in (2, 3, 2, 3, 2):
        assert len(split(jnp.arange(n))) == n


def test_static_outputs_follow_the_trace_that_they_belong_to():
    describe = weft.jit(lambda x: {"ndim": str(x.ndim), "x": x})
    for _ in range(3):
        assert describe(jnp.zeros(()))["ndim"] == "0"
        assert describe(jnp.zeros((1, 1)))["ndim"] == "2"


def test_weak_types_are_those_of_jax_jit():
    for value in (1, 1.0, jnp.asarray(1.0), jnp.float32(1), np.float64(1)):
        for f in (lambda x: x, lambda x: x + 1, lambda x: x + jnp.float16(1)):
            actual, wanted = weft.jit(f)(value), jax.jit(f)(value)
            assert (actual.dtype, actual.weak_type) == (wanted.dtype, wanted.weak_type)


def test_recursion_and_reentrance():
    @weft.jit
    def power(x: Any, n: Any) -> Any:
        return x if n["n"] == "1" else x * power(x, {"n": "1"})

    assert float(power(3.0, {"n": "2"})) == 9.0


# --- how it runs -------------------------------------------------------------------------------------------------


def test_unchanged_leaves_do_not_leave_the_trace():
    def step(net: Net, x: Any) -> Any:
        return x + 1, net.replace(mean=net.mean + x)

    compiled = weft.jit(step)
    assert len(jax.tree.leaves(compiled.trace(make_net(), X).jaxpr.out_avals)) == 2
    assert len(jax.tree.leaves(compiled.trace(make_net(), X).out_info)) == 2
    net = make_net()
    for _ in range(3):
        _, after = compiled(net, X)
        assert after.weight is net.weight


def test_forwarding_gives_arrays_even_for_numbers():
    out = weft.jit(lambda x, y: (x, y + 1))(3, X)
    assert isinstance(out[0], jax.Array)
    assert out[0].weak_type


def test_a_donated_record_leaves_whole_and_frees_what_it_was():
    step = weft.jit(lambda net, x: (x + 1, net.replace(mean=net.mean + x)), donate_argnums=0)
    net = make_net()
    first = net
    for _ in range(4):
        _, net = step(net, X)
    assert first.weight.is_deleted()
    assert first.mean.is_deleted()
    np.testing.assert_allclose(net.mean, 4 * X)
    np.testing.assert_allclose(net.weight, [1.0, 2.0])


def test_a_donated_step_leaves_no_second_copy_alive():
    step = weft.jit(lambda net: net.replace(weight=net.weight + 1), donate_argnames="net")
    net = Net(jnp.zeros((123, 7)), jnp.zeros((123, 7)))
    for _ in range(4):
        net = step(net)
    assert len([a for a in jax.live_arrays() if a.shape == (123, 7)]) == 2


def test_the_function_and_its_plans_keep_no_arrays_alive():
    step = weft.jit(lambda net, x: net(x))
    net = make_net()
    for _ in range(3):
        y, _ = step(net, X)
    reference = weakref.ref(net.weight)
    del net, y, _
    assert reference() is None


@pytest.mark.slow
def test_dispatch_is_asynchronous():
    import time

    size = jnp.ones((700, 700))

    @weft.jit
    def slow(x: Any) -> Any:
        return jax.lax.fori_loop(0, 60, lambda i, c: jnp.tanh(c @ x), x)

    for _ in range(3):
        slow(size).block_until_ready()
    start = time.perf_counter()
    out = slow(size)
    dispatched = time.perf_counter() - start
    out.block_until_ready()
    assert dispatched < 0.5 * (time.perf_counter() - start)


def test_many_structures_in_turn_are_traced_once_each(traces: Any):
    step = weft.jit(traces(lambda tree: tree))
    for _ in range(3):
        for n in range(8):
            assert len(step({str(i): X for i in range(n)})) == n
    assert traces.count == 8


# --- static arguments, donation, sharding ------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"static_argnums": 1}, {"static_argnames": "n"}, {"static_argnums": -1}])
def test_static_arguments_by_number_and_by_name(options: Any, traces: Any):
    def repeat(x: Any, n: Any) -> Any:
        assert type(n) is int
        return jnp.concatenate([x] * n)

    f = weft.jit(traces(repeat), **options)
    for _ in range(3):
        assert f(X, 2).shape == f(X, n=2).shape == (4,)
        assert f(x=X, n=3).shape == (6,)
    # By position and by name are two makes of call.
    assert traces.count == 3


def test_static_arguments_are_told_apart_by_type(traces: Any):
    f = weft.jit(traces(lambda x, n: x * n), static_argnums=1)
    for _ in range(3):
        assert f(1, 2).dtype == jnp.int32
        assert f(1, 2.0).dtype == jnp.float32
        assert f(1, True).dtype == jnp.int32
    assert traces.count == 3


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        ({"static_argnames": "z"}, "has no parameter 'z'"),
        ({"donate_argnums": 5}, r"argument numbers \[5\] are out of range"),
    ],
)
def test_arguments_that_are_not_there_are_refused_at_once(options: Any, fragment: str):
    with pytest.raises(ValueError, match=fragment):
        weft.jit(lambda x, y: x, **options)


def test_an_unhashable_static_leaf_is_named():
    with pytest.raises(StaticError, match=r"static leaf must be hashable, but this bytearray is not") as caught:
        weft.jit(lambda model, x: x)({"layers": [bytearray(b"a")]}, X)
    assert "at: model.layers[0]" in str(caught.value)


@pytest.mark.parametrize("options", [{"donate_argnums": 0}, {"donate_argnames": "net"}])
def test_a_donated_record_used_again_is_named(options: Any):
    step = weft.jit(lambda net, x: net.replace(mean=net.mean + x, weight=net.weight + 1), **options)
    net = make_net()
    step(net, X)
    for _ in range(3):
        with pytest.raises(DonatedError) as caught:
            step(net, X)
        assert "at: net.weight: float32[2]\n" in str(caught.value)
        assert "use the successor that the call returned" in str(caught.value)
    # Other functions notice it too, whichever way they take.
    read = weft.jit(lambda record: record.weight + 1)
    read(make_net())
    read(make_net())
    with pytest.raises(DonatedError, match=r"at: record\.weight"):
        read(net)


def test_one_array_under_two_donated_paths_is_refused():
    step = weft.jit(lambda a, b: (a["w"] + 1, b["w"] + 1), donate_argnums=(0, 1))
    shared = jnp.ones(3)
    with pytest.raises(AliasError) as caught:
        step({"w": shared}, {"w": shared})
    assert "a.w and b.w" in str(caught.value)
    assert not shared.is_deleted()


def test_an_escaped_tracer_is_named():
    leaked: list[Any] = []
    weft.jit(lambda x: leaked.append(x) or x)(X)
    for function in (weft.jit(lambda net, x: net["w"] + x), weft.vmap(lambda net, x: net["w"] + x)):
        with pytest.raises(TraceLevelError, match="a tracer escaped from a transform that has ended") as caught:
            function({"w": leaked[0]}, X)
        assert "at: net.w: float32[2]" in str(caught.value)


def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))


def test_shardings_in_and_out():
    over = NamedSharding(mesh(), PartitionSpec("d"))
    everywhere = NamedSharding(mesh(), PartitionSpec())
    net = Net(jnp.arange(16.0), jnp.zeros(16))
    by_kind = axes({BatchStat: everywhere, ...: over})

    def double(net: Any, x: Any) -> Any:
        y, net = net(x)
        return y * 2, net

    step = weft.jit(double, in_shardings=(by_kind, over), out_shardings=(over, by_kind))
    for _ in range(3):
        y, after = step(net, jnp.arange(16.0))
        assert y.sharding.is_equivalent_to(over, 1)
        assert after.mean.sharding.is_equivalent_to(everywhere, 1)
        assert after.weight.sharding.is_equivalent_to(over, 1)
    np.testing.assert_allclose(y, 2 * jnp.tanh(jnp.arange(16.0) ** 2), rtol=1e-6)


def test_shardings_by_kind_follow_a_leaf_that_changes_its_kind():
    over, everywhere = NamedSharding(mesh(), PartitionSpec("d")), NamedSharding(mesh(), PartitionSpec())
    # An array that declares no kind is a Param or a Buffer, by its dtype.
    step = weft.jit(lambda t: t["x"] + 1, in_shardings=axes({Param: over, Buffer: everywhere}))
    others = {"f": jnp.ones(8), "n": jnp.arange(8)}
    for _ in range(3):
        assert step({**others, "x": jnp.arange(8.0)}).sharding.is_equivalent_to(over, 1)
    assert step({**others, "x": jnp.arange(8)}).sharding.is_equivalent_to(everywhere, 1)


def test_one_sharding_for_all_and_donation():
    over = NamedSharding(mesh(), PartitionSpec("d"))
    step = weft.jit(lambda x, y: x + y, in_shardings=over, out_shardings=over, donate_argnums=0)
    for _ in range(3):
        x = jax.device_put(jnp.arange(8.0), over)
        assert step(x, jnp.ones(8)).sharding.is_equivalent_to(over, 1)
        assert x.is_deleted()


def test_a_wrong_number_of_shardings():
    over = NamedSharding(mesh(), PartitionSpec("d"))
    with pytest.raises(StructureError, match="in_shardings has 1 entries for 2 positional arguments"):
        weft.jit(lambda x, y: x, in_shardings=(over,))(X, X)


# --- stages, partial, methods ------------------------------------------------------------------------------------


def test_trace_lower_and_compile_take_and_give_records():
    step = weft.jit(lambda net, x: net(x))
    net = make_net()
    wanted = step(net, X)
    abstract = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype) if eqx.is_array(v) else v, net)
    for stage in (step.lower(net, X), step.lower(abstract, jax.ShapeDtypeStruct((2,), "float32"))):
        assert "tanh" in stage.as_text()
        compiled = stage.compile()
        assert compiled.cost_analysis() is not None
        out = compiled(net, X)
        np.testing.assert_allclose(out[0], wanted[0])
        np.testing.assert_allclose(out[1].mean, wanted[1].mean)
        with pytest.raises(
            StructureError, match="the arguments have another structure than those that this function was compiled for"
        ):
            compiled({"net": net}, X)
    assert "tanh" in str(step.trace(net, X).jaxpr)


@pytest.mark.parametrize("lowered", [((X, "ab"), {"times": 3}), ((X,), {"text": "ab", "times": 3})])
def test_a_compiled_function_is_called_without_its_static_arguments(lowered: Any):
    def f(x: Any, text: str, *, times: int) -> Any:
        return x * len(text) * times

    args, kwargs = lowered
    jitted = weft.jit(f, static_argnums=1, static_argnames="times")
    compiled = jitted.lower(*args, **kwargs).compile()
    np.testing.assert_allclose(compiled(X + 1), 6 * (X + 1))
    # They may be given as they were; another value is another function.
    np.testing.assert_allclose(compiled(*args, **kwargs), 6 * X)
    with pytest.raises(
        StructureError, match="the arguments have another structure than those that this function was compiled for"
    ):
        compiled(X, times=4)


def test_a_compiled_function_that_is_given_other_arguments_says_by_their_paths_how_they_differ():
    net = make_net()
    for module in (weft, nnx):
        compiled = module.jit(lambda net, x: net(x)).lower(net, X).compile()
        with pytest.raises(StructureError, match=r"at: static: net\.rate: 0\.5 -> 0\.25\n"):
            compiled(net.replace(rate=0.25), X)
        with pytest.raises(TypeError, match=r"Argument 'net\.weight' compiled with float32\[2\] and called with f"):
            compiled(net.replace(weight=jnp.ones(3)), X)


def test_what_jax_refuses_is_told_by_paths_and_not_by_places_in_lanes():
    for module in (weft, nnx):
        with pytest.raises(OverflowError, match=r"whose argument path is x\.count"):
            module.jit(lambda net, x: x)(make_net(), {"count": 2**70})


def test_a_first_static_argument_is_left_out_too():
    compiled = weft.jit(lambda scale, x: scale * x, static_argnums=0).lower(3, X).compile()
    np.testing.assert_allclose(compiled(X), 3 * X)


def test_eval_shape_gives_shapes_without_running():
    out, after = weft.jit(lambda net, x: net(x)).eval_shape(make_net(), jax.ShapeDtypeStruct((2,), "float32"))
    assert (out.shape, out.dtype) == ((2,), jnp.float32)
    assert isinstance(out, jax.ShapeDtypeStruct)
    assert isinstance(after.weight, jax.ShapeDtypeStruct)
    assert after.activation is jnp.tanh


def test_partial_takes_arguments_apart_once(traces: Any):
    step = weft.jit(traces(lambda net, x, scale=1.0: net(x * scale)), static_argnames="scale")
    net = make_net()
    apply = step.partial(net)
    for _ in range(3):
        np.testing.assert_allclose(apply(X)[0], net(X)[0], rtol=1e-6)
        np.testing.assert_allclose(apply(X, scale=2.0)[0], net(2 * X)[0], rtol=1e-6)
    assert traces.count == 2
    np.testing.assert_allclose(step.partial(net, X, 2.0)()[0], net(2 * X)[0], rtol=1e-6)


def test_a_method_may_be_decorated():
    net = make_net()
    wanted = net(X)
    for _ in range(3):
        out = net.compiled(X)
        np.testing.assert_allclose(out[0], wanted[0], rtol=1e-6)
        assert isinstance(out[1], Net)


def test_a_record_or_its_method_as_the_function_is_an_argument():
    net = make_net()
    for function in (net, net.__call__):
        jaxpr = weft.jit(function).trace(X).jaxpr
        assert len(jaxpr.in_avals) == 3
        assert not jaxpr.consts
        compiled = weft.jit(function)
        for _ in range(3):
            np.testing.assert_allclose(compiled(X)[0], net(X)[0], rtol=1e-6)


def test_names_docs_and_use_as_decorator_with_arguments():
    @weft.jit(static_argnames=("n",), donate_argnums=())
    def scale(x: Any, n: int = 2) -> Any:
        """Scales."""
        return x * n

    assert (scale.__name__, scale.__doc__) == ("scale", "Scales.")
    assert repr(scale).startswith("weft.jit(")
    assert "name=scale" in str(jax.make_jaxpr(scale)(X))
    assert scale(2.0, n=3).item() == 6.0
    with pytest.raises(TypeError, match="expected a function, got int: 3"):
        weft.jit(3)  # pyright: ignore


def test_a_failing_function_leaves_nothing_behind(traces: Any):
    fails = [True]

    def f(x: Any) -> Any:
        if fails[0]:
            raise RuntimeError("no")
        return x + 1

    step = weft.jit(traces(f))
    for _ in range(3):
        with pytest.raises(RuntimeError, match="no"):
            step(X)
    fails[0] = False
    np.testing.assert_allclose(step(X), X + 1)
    assert traces.count == 4


def test_partial_functions_and_builtins_as_functions():
    assert float(weft.jit(functools.partial(jnp.add, 1.0))(2.0)) == 3.0
    assert float(weft.jit(jnp.sin)(0.0)) == 0.0
    assert float(weft.jit(jax.jit(jnp.cos))(0.0)) == 1.0


def test_keyword_order_does_not_matter(traces: Any):
    step = weft.jit(traces(lambda *, a, b: a - b))
    for _ in range(3):
        assert float(step(a=3.0, b=1.0)) == float(step(b=1.0, a=3.0)) == 2.0
    assert traces.count == 1
