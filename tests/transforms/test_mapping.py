"""vmap, pmap and shard_map: the same as JAX's, with axes and specs by kind, and errors that list every offender."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as Spec
from weft import BatchStat, Buffer, Cache, Param, axes
from weft.core.errors import AxisError

KINDS = (Param, BatchStat, Cache, Buffer)


class Net(weft.Module):
    weight: jax.Array
    mean: Annotated[jax.Array, BatchStat]
    cache: Annotated[jax.Array, Cache]
    table: Annotated[jax.Array, Buffer]
    activation: Callable[[jax.Array], jax.Array] = jnp.tanh
    name: str = "net"


def step(net: Net, x: Any) -> Any:
    """Sees single examples, scalars all."""
    for leaf in (net.weight, net.mean, net.cache, net.table, x):
        assert leaf.shape == ()
    y = net.activation(net.weight * x) + net.table
    return y, net.replace(mean=net.mean + y, cache=net.cache * 2)


def plain(w: Any, m: Any, c: Any, t: Any, x: Any) -> Any:
    y = jnp.tanh(w * x) + t
    return y, w, m + y, c * 2, t


def of_axis(axis: int | None, value: float) -> Any:
    return jnp.asarray(value) if axis is None else value + jnp.arange(3.0)


optional_axis = st.sampled_from([None, 0, -1])


@given(st.tuples(optional_axis, optional_axis, optional_axis), st.sampled_from([0, -1]), st.permutations(KINDS))
def test_axes_by_kind_are_those_of_jax_vmap(chosen: Any, mean_axis: int, order: Any):
    weight_axis, cache_axis, table_axis = chosen
    by_kind = {Param: weight_axis, BatchStat: mean_axis, Cache: cache_axis, Buffer: table_axis}
    arrays = [of_axis(axis, i + 0.5) for i, axis in enumerate(by_kind.values())]
    net, x = Net(*arrays), jnp.arange(3.0)
    spec = axes({kind: by_kind[kind] for kind in order})
    y, after = weft.vmap(step, in_axes=(spec, 0), out_axes=(0, spec))(net, x)
    in_axes = tuple(by_kind.values())
    wanted = jax.vmap(plain, in_axes=(*in_axes, 0), out_axes=(0, *in_axes))(*arrays, x)
    for actual, expected in zip((y, after.weight, after.mean, after.cache, after.table), wanted, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5)
    assert (after.activation, after.name) == (jnp.tanh, "net")


shapes = st.lists(st.integers(1, 3), min_size=0, max_size=2)


@pytest.mark.slow
@given(st.lists(st.tuples(shapes, st.integers(-3, 2)), min_size=1, max_size=4), st.integers(-1, 0))
def test_any_axis_of_any_leaf_is_that_of_jax_vmap(leaves: Any, out_axis: int):
    # A tuple of arrays with the mapped axis, of size 4, put anywhere, negative axes included.
    arrays, in_axes = [], []
    for shape, axis in leaves:
        axis = max(-len(shape) - 1, min(axis, len(shape)))
        full = list(shape)
        full.insert(axis if axis >= 0 else len(shape) + 1 + axis, 4)
        arrays.append(jnp.arange(np.prod(full), dtype=jnp.float32).reshape(full))
        in_axes.append(axis)

    def f(*args: Any) -> Any:
        return [arg * 2 for arg in args], sum(arg.sum() for arg in args)

    mapped = weft.vmap(f, in_axes=tuple(in_axes), out_axes=out_axis)(*arrays)
    wanted = jax.vmap(f, in_axes=tuple(in_axes), out_axes=out_axis)(*arrays)
    jax.tree.map(np.testing.assert_allclose, mapped, wanted)


def test_prefixes_reach_into_containers():
    tree = {"a": jnp.arange(3.0), "b": [jnp.ones(()), jnp.arange(3.0)], "name": "tree"}
    in_axes = ({"a": 0, "b": [None, 0], "name": None},)
    out = weft.vmap(lambda t: {"sum": t["a"] + t["b"][0] + t["b"][1], "name": t["name"]}, in_axes=in_axes)(tree)
    np.testing.assert_allclose(out["sum"], jnp.array([1.0, 3.0, 5.0]))
    assert out["name"] == "tree"


def test_arguments_by_name_ride_on_axis_zero_or_as_a_dict_says():
    def f(x: Any, *, scale: Any) -> Any:
        return x * scale

    x = jnp.arange(3.0)
    np.testing.assert_allclose(weft.vmap(f)(x, scale=x), x * x)
    np.testing.assert_allclose(weft.vmap(f, in_axes={"x": 0, "scale": None})(x, scale=2.0), 2 * x)
    np.testing.assert_allclose(weft.vmap(f, in_axes={"scale": None})(x=x, scale=2.0), 2 * x)
    with pytest.raises(AxisError, match="in_axes names arguments that are not there: shift") as caught:
        weft.vmap(f, in_axes={"shift": None})(x, scale=x)
    assert "at: parameters: x, scale" in str(caught.value)


def test_named_axes_collectives_and_sizes():
    def f(net: Any, x: Any) -> Any:
        return net["w"] * x - jax.lax.pmean(x, "batch"), jax.lax.axis_index("batch"), jax.lax.axis_size("batch")

    net, x = {"w": 2.0, "name": "net"}, jnp.arange(4.0)
    y, index, size = weft.vmap(f, in_axes=(None, 0), out_axes=(0, 0, None), axis_name="batch")(net, x)
    np.testing.assert_allclose(y, 2 * x - 1.5)
    assert index.tolist() == [0, 1, 2, 3]
    assert int(size) == 4


def test_axis_size_maps_over_nothing():
    keys = weft.vmap(lambda: {"index": jax.lax.axis_index("i"), "name": "made"}, axis_name="i", axis_size=3)()
    assert keys["index"].tolist() == [0, 1, 2]
    assert keys["name"] == "made"


def test_records_may_be_built_and_stacked_inside():
    nets = weft.vmap(lambda w: Net(w, w, w, w))(jnp.arange(3.0))
    assert nets.weight.shape == (3,)
    # A leaf that was not mapped, and rides out on an axis, is broadcast as by jax.vmap.
    out = weft.vmap(lambda net, x: net, in_axes=(None, 0))(Net(*jnp.ones((4,))), jnp.arange(5.0))
    assert out.weight.shape == (5,)


def test_unchanged_leaves_need_not_be_mapped_out():
    net = Net(*jnp.ones((4,)))
    _, after = weft.vmap(lambda net, x: (x, net), in_axes=(None, 0), out_axes=(0, None))(net, jnp.arange(3.0))
    assert after.weight is net.weight


def test_what_differs_from_example_to_example_cannot_leave_unmapped():
    with pytest.raises(ValueError, match="a batched value is returned under axis None") as caught:
        weft.vmap(lambda net, x: net.replace(weight=net.weight + x), in_axes=(None, 0), out_axes=None)(
            Net(*jnp.ones((4,))), jnp.arange(3.0)
        )
    assert caught.value.at == ("output.weight: float32[] for each index",)


def test_spmd_axis_name_shards_the_mapped_axis():
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, Spec())

    def f(x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x * 2, sharding)

    compiled = weft.jit(weft.vmap(f, spmd_axis_name="d"))
    assert compiled(jnp.ones((8, 2))).sharding.spec[0] == "d"


# --- errors ------------------------------------------------------------------------------------------------------


def test_inconsistent_sizes_list_every_argument_with_path_and_size():
    net = Net(jnp.ones(3), jnp.ones(4), jnp.ones((2, 5)), jnp.ones(3))
    with pytest.raises(
        AxisError, match="vmap got arguments with inconsistent sizes on their mapped axes: 2, 3, 4"
    ) as c:
        weft.vmap(step)(net, jnp.ones(3))
    for line in (
        "at: net.weight: axis 0 of shape (3,) has size 3",
        "at: net.mean: axis 0 of shape (4,) has size 4",
        "at: net.cache: axis 0 of shape (2, 5) has size 2",
        "at: net.table: axis 0 of shape (3,) has size 3",
        "at: x: axis 0 of shape (3,) has size 3",
        "fix: make the sizes agree, or map over None the arguments that differ",
    ):
        assert line in str(c.value)


@pytest.mark.parametrize(
    ("options", "message", "line"),
    [
        ({"in_axes": 1}, "vmap is given an axis that these arguments do not have", "net.weight: axis 1 of shape (3,)"),
        ({"in_axes": (0, -2)}, "an axis that these arguments do not have", "x: axis -2 of shape (3,)"),
        ({"axis_size": 4}, "differ from the requested size, 4", "net.weight: axis 0 of shape (3,) has size 3"),
        ({"in_axes": (0,)}, "in_axes has 1 entries for 2 positional arguments", "in_axes=(0,)"),
        ({"in_axes": (axes({BatchStat: 0}), 0)}, "in_axes: no filter matches these leaves", "net.weight: Param"),
        (
            {"in_axes": (axes({weft.OptState: None, ...: 0}), 0)},
            "in_axes: these filters match no leaf: OptState",
            "net.mean: BatchStat",
        ),
        ({"in_axes": ({"weight": 0}, 0)}, "in_axes does not fit", "in_axes=({'weight': 0}, 0)"),
        ({"in_axes": None}, "vmap has nothing to map over", "give axis_size"),
    ],
)
def test_axes_that_do_not_fit(options: Any, message: str, line: str):
    net = Net(*(jnp.ones(3) for _ in range(4)))
    with pytest.raises(AxisError) as caught:
        weft.vmap(step, **options)(net, jnp.ones(3))
    assert message in str(caught.value)
    assert line in str(caught.value)


def test_out_axes_that_do_not_fit():
    with pytest.raises(AxisError, match="out_axes does not fit"):
        weft.vmap(lambda x: x, out_axes=(0, 0))(jnp.arange(3.0))
    with pytest.raises(AxisError, match="out_axes: these filters match no leaf: Cache"):
        weft.vmap(lambda x: {"y": x}, out_axes=axes({Cache: 0, ...: 0}))(jnp.arange(3.0))


def test_an_error_inside_tells_the_frames():
    def f(x: Any) -> Any:
        return weft.scan(lambda c, x: (c.astype(int), x))(x, jnp.ones(3))

    with pytest.raises(weft.errors.CarryError) as caught:
        weft.jit(weft.vmap(f, axis_name="batch"))(jnp.ones(2))
    assert "inside: jit > vmap(axis_name='batch', size=2) > scan(length=3)" in str(caught.value)


# --- over devices ------------------------------------------------------------------------------------------------


def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))


def train(net: Net, x: Any) -> Any:
    y = net.activation(net.weight * x)
    return y, net.replace(mean=net.mean + jax.lax.pmean(y.mean(), "d"))


def test_pmap_maps_over_devices():
    x = jnp.arange(16.0).reshape(8, 2)
    net = Net(jnp.array(0.1), jnp.zeros(8), jnp.ones(()), jnp.ones(()))
    by_kind = axes({BatchStat: 0, ...: None})
    y, after = weft.pmap(train, in_axes=(by_kind, 0), out_axes=(0, by_kind), axis_name="d")(net, x)
    np.testing.assert_allclose(y, jnp.tanh(0.1 * x), rtol=1e-5)
    np.testing.assert_allclose(after.mean, jnp.full(8, jnp.tanh(0.1 * x).mean()), rtol=1e-5)
    assert after.weight is net.weight
    assert after.name == "net"
    with pytest.raises(AxisError, match="pmap got arguments with inconsistent sizes"):
        weft.pmap(train, axis_name="d")(net.replace(weight=jnp.ones(2), cache=jnp.ones(8), table=jnp.ones(8)), x)


def test_shard_map_takes_specs_by_kind():
    x = jnp.arange(16.0).reshape(8, 2)
    net = Net(jnp.array(0.1), jnp.zeros(()), jnp.ones((8, 1)), jnp.ones(()))
    by_kind = axes({Cache: Spec("d"), ...: Spec()})

    def f(net: Net, x: Any) -> Any:
        assert x.shape == (1, 2)
        assert net.cache.shape == (1, 1)
        y, net = train(net, x)
        return y, net.replace(cache=net.cache + jax.lax.axis_index("d"))

    mapped = weft.shard_map(f, mesh=mesh(), in_specs=(by_kind, Spec("d")), out_specs=(Spec("d"), by_kind))
    for function in (mapped, weft.jit(mapped)):
        y, after = function(net, x)
        np.testing.assert_allclose(y, jnp.tanh(0.1 * x), rtol=1e-5)
        np.testing.assert_allclose(after.mean, jnp.tanh(0.1 * x).mean(), rtol=1e-5)
        np.testing.assert_allclose(after.cache[:, 0], 1 + jnp.arange(8.0))
        assert after.activation is jnp.tanh


def test_shard_map_and_pmap_agree_with_jax():
    x = jnp.arange(8.0)

    def f(x: Any) -> Any:
        return x - jax.lax.psum(x, "d")

    wanted = jax.shard_map(f, mesh=mesh(), in_specs=Spec("d"), out_specs=Spec("d"))(x)
    np.testing.assert_allclose(weft.shard_map(f, mesh=mesh(), in_specs=Spec("d"), out_specs=Spec("d"))(x), wanted)
    np.testing.assert_allclose(weft.pmap(f, axis_name="d")(x), wanted)
    with jax.set_mesh(mesh()):
        np.testing.assert_allclose(weft.shard_map(f, in_specs=Spec("d"), out_specs=Spec("d"))(x), wanted)


@pytest.mark.slow
def test_shard_map_may_be_differentiated_and_is_differentiable_inside():
    def loss(net: Any, x: Any) -> Any:
        return jax.lax.pmean(((net["w"] * x) ** 2).mean(), "d")

    x, net = jnp.arange(8.0), {"w": jnp.array(2.0), "name": "net"}
    specs: dict[str, Any] = {"mesh": mesh(), "in_specs": (Spec(), Spec("d")), "out_specs": Spec()}
    outside = weft.grad(weft.shard_map(loss, **specs))(net, x)
    np.testing.assert_allclose(outside["w"], (4 * x**2).mean(), rtol=1e-5)
    # Gradients by a replicated weight are summed over the mesh, each divided by its size.
    inside = weft.shard_map(weft.grad(loss), **specs)(net, x)
    wanted = jax.shard_map(lambda w, x: jax.grad(lambda w: loss({"w": w}, x))(w), **specs)(net["w"], x)
    np.testing.assert_allclose(inside["w"], wanted, rtol=1e-5)
    assert inside["name"] is None


def test_specs_that_do_not_fit():
    with pytest.raises(AxisError, match="in_specs has 1 entries for 2 positional arguments"):
        weft.shard_map(lambda x, y: x, mesh=mesh(), in_specs=(Spec(),), out_specs=Spec())(1.0, 2.0)
    with pytest.raises(AxisError, match="in_specs: these filters match no leaf: Cache"):
        weft.shard_map(lambda x: x, mesh=mesh(), in_specs=axes({Cache: Spec(), ...: Spec()}), out_specs=Spec())(
            {"x": 1.0}
        )
