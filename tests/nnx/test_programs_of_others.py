"""What programs written for NNX rely on, found by running them: each as it is in both libraries."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from weft import nnx
from weft.errors import AxisError, StructureError


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.linear = nnx.Linear(2, 2, rngs=rngs)
        self.node = nnx.Variable(jnp.ones((2,)))

    def __call__(self, x: Any) -> Any:
        return self.linear(x)


def test_what_a_mapped_constructor_makes_leaves_on_any_axis_of_its_prefix():
    axes = nnx.StateAxes({nnx.Param: 0, ...: None})

    class Stack(nnx.Module):
        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=(axes, 0))
        def __init__(self, rngs: nnx.Rngs):
            self.block = Block(rngs)

        @nnx.scan(in_axes=(axes, nnx.Carry))
        def __call__(self, x: Any) -> Any:
            return self.block(x), None

    stack = Stack(nnx.Rngs(0))
    assert stack.block.linear.kernel.shape == (3, 2, 2)
    assert stack.block.node.shape == (2,)
    assert stack(jnp.ones((1, 2)))[0].shape == (1, 2)


@pytest.mark.parametrize("static", [{"static_argnums": 2}, {"static_argnames": "relu"}])
def test_shardings_are_of_the_arguments_that_are_not_static(static: Any):
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    rows = NamedSharding(mesh, PartitionSpec("data"))

    def f(x, scale, relu):
        return jnp.maximum(x * scale, 0.0) if relu else x * scale

    jitted = nnx.jit(f, in_shardings=(rows, None), **static)
    assert jitted(jnp.array([-1.0]), 2.0, True).tolist() == [0.0]
    assert jitted(jnp.array([-1.0]), 2.0, False).tolist() == [-2.0]
    with pytest.raises(StructureError, match="1 entries for 2 positional arguments that are not static"):
        nnx.jit(f, in_shardings=(rows,), **static)(jnp.array([-1.0]), 2.0, True)


def test_shard_map_leaves_variables_where_it_put_them():
    mesh = Mesh(np.array(jax.devices()[:1]), ("a",))
    w, count = nnx.Param(jnp.ones((2, 2))), nnx.BatchStat(jnp.array(0))

    @nnx.shard_map(mesh=mesh, in_specs=(PartitionSpec(None, "a"), PartitionSpec()), out_specs=None)
    def f(w, count):
        count[...] += 1

    f(w, count)
    assert isinstance(w.sharding, NamedSharding)
    assert count[...] == 1


@pytest.mark.parametrize("graph", [True, False])
def test_a_state_is_a_prefix_of_a_state(graph: bool):
    model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(model)
    mesh = Mesh(np.array(jax.devices()[:1]), ("a",))
    specs = nnx.State({"kernel": PartitionSpec(None, "a"), "bias": PartitionSpec()})

    @nnx.shard_map(mesh=mesh, in_specs=(specs,), out_specs=PartitionSpec(None, "a"), graph=graph, graph_updates=False)
    def f(state):
        return nnx.merge(graphdef, state)(jnp.ones((1, 2)))

    np.testing.assert_allclose(f(state), model(jnp.ones((1, 2))), rtol=1e-6)


@pytest.mark.parametrize("graph", [True, False])
def test_a_prefix_made_of_a_graph_in_scan(graph: bool):
    rngs = nnx.Rngs(0).split(3)

    @nnx.scan(in_axes=(nnx.prefix(rngs, {...: 0}, graph=graph),), out_axes=0, graph=graph, graph_updates=False)
    def f(rngs):
        return jax.random.key_data(rngs.params())

    assert len({tuple(key) for key in np.asarray(f(rngs)).tolist()}) == 3


WEIGHT = nnx.Param(jnp.ones(()))


def test_the_trace_of_a_scan_is_kept_unless_its_body_closes_over_state():
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    def free(carry, x):
        return carry + x, x

    def bound(carry, x):
        return carry + WEIGHT[...] * x, x

    def last(scan):
        return float(scan(jnp.zeros(()), xs)[0])

    xs, free, bound = jnp.arange(3.0), nnx.scan(free), nnx.scan(bound)
    assert (last(free), last(bound)) == (3.0, 3.0)
    WEIGHT[...] = jnp.array(2.0)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        assert (last(free), compiled) == (3.0, [])
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert last(bound) == 6.0


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (
            {"in_axes": (nnx.Carry, 0), "out_axes": 0},
            "If one of in_axes or out_axes has Carry, the other must also have Carry",
        ),
        (
            {"in_axes": 0, "out_axes": (nnx.Carry, 0)},
            "If one of in_axes or out_axes has Carry, the other must also have Carry",
        ),
        ({"out_axes": (nnx.Carry, None)}, "Cannot broadcast output state"),
        ({"out_axes": (nnx.Carry, nnx.StateAxes({...: None}))}, "Cannot broadcast output state"),
        ({"in_axes": (nnx.Carry, nnx.Carry)}, "Found multiple Carry definitions in in_axes"),
        ({"out_axes": (nnx.Carry, nnx.Carry)}, "Found multiple Carry definitions in out_axes"),
    ],
)
def test_axes_that_no_scan_could_have_are_refused_before_it_is_called(axes: Any, message: str):
    with pytest.raises(AxisError, match=message):
        nnx.scan(lambda carry, x: (carry, x), **axes)


def wrong(model: nnx.Conv, x: int) -> None:
    return model(x)


def test_annotations_that_name_no_shape_are_notes():
    model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    assert nnx.jit(wrong)(model, jnp.ones((1, 2))).shape == (1, 2)


# ---------------------------------------------------------------------- custom_vjp


class Pair(nnx.Module):
    def __init__(self, z: Any = 0.0):
        self.x, self.y, self.z = nnx.Param(jnp.array(2.0)), nnx.Param(jnp.array(3.0)), nnx.BatchStat(jnp.array(z))


@pytest.mark.parametrize("z", [0.5, 1])
@pytest.mark.parametrize("graph", [True, False])
def test_a_backward_function_that_declares_it_is_given_cotangents_of_updates(graph: bool, z: float):
    cotangents = []

    @nnx.custom_vjp(graph=graph, graph_updates=False)
    def f(m):
        m.z[...] *= 2
        return m.x[...] * m.y[...]

    def backward(m, g, *, updates_g):
        (updates,) = updates_g
        cotangents.append((updates.x, updates.y, type(updates.z).__name__, len(jax.tree.leaves(updates))))
        grads = nnx.clone(m)
        grads.x[...], grads.y[...] = g * m.y[...], g * m.x[...]
        return (grads,)

    f.defvjp(lambda m: (f(m), m), backward)
    m = Pair(z)
    params, rest = nnx.unpack(m, nnx.Param, ...)
    grads = nnx.grad(lambda params, rest: f(nnx.merge(params, rest)), graph=graph, graph_updates=False)(params, rest)
    assert sorted(float(leaf) for leaf in jax.tree.leaves(grads)) == [2.0, 3.0]
    assert cotangents == [(None, None, "BatchStat", 1)]
    assert m.z[...] == z * 2


IN: dict[str, Any] = {
    "nothing": lambda f, **mode: f,
    "jit": nnx.jit,
    "remat": nnx.remat,
    "cond": lambda f, **mode: lambda m: nnx.cond(m.x[...] > 0, f, f, m, **mode),
}


@pytest.mark.parametrize("under", IN)
@pytest.mark.parametrize("mode", [{"graph_updates": False}, {"graph": False}])
def test_a_function_with_a_custom_vjp_may_mutate_what_it_differentiates(mode: Any, under: str):
    @nnx.custom_vjp(**mode)
    def f(m):
        m.z[...] += m.x[...]
        return m.x[...] * m.y[...]

    f.defvjp(lambda m: (f(m), nnx.clone(m)), lambda m, g: (jax.tree.map(lambda leaf: g * 10 * leaf, m),))

    def loss(m, through_z):
        return IN[under](f, **mode)(m) + (m.z[...] if through_z else 0.0)

    m = Pair(1.0)
    assert float(f(m)) == 6.0
    assert float(m.z[...]) == 3.0
    assert float(nnx.grad(lambda m: loss(m, False), **mode)(m).x[...]) == 20.0
    assert float(m.z[...]) == 5.0
    with pytest.raises(
        weft.errors.DifferentiationError, match=r"the new value of an argument(.|\n)*m\.z(.|\n)*updates_g"
    ):
        nnx.grad(lambda m: loss(m, True), **mode)(m)
    assert float(m.z[...]) == 5.0


def test_numbers_that_are_not_differentiated_stay_numbers():
    @nnx.custom_vjp(nondiff_argnums=(0,), graph_updates=False)
    def f(n, x):
        return x**n if n > 1 else x

    def backward(n, x, g):
        assert type(n) is int
        return (g * n * x ** (n - 1),)

    f.defvjp(lambda n, x: (f(n, x), x), backward)
    assert float(jax.grad(lambda x: f(3, x))(2.0)) == 12.0


def test_a_custom_vjp_may_return_an_argument():
    @nnx.custom_vjp
    def f(m, returned):
        return m.x[...] * m.y[...], returned

    def backward(m, g):
        (_, other_g), (y_g, _) = g
        return nnx.State({"x": y_g * m.y[...], "y": y_g * m.x[...]}), other_g

    f.defvjp(lambda m, returned: (f(m, returned), m), backward)

    def loss(m, returned):
        y, same = f(m, returned)
        assert same is returned
        return y + same.x[...]

    select = nnx.Any(nnx.PathContains("x"), nnx.PathContains("y"))
    grads = nnx.grad(loss, argnums=(nnx.DiffState(0, select), nnx.DiffState(1, select)))(Pair(), Pair())
    assert [float(grads[0]["x"][...]), float(grads[1]["x"][...])] == [3.0, 1.0]


# ---------------------------------------------------------------------- hijax, jit_partial


@pytest.mark.parametrize("mode", [{}, {"graph_updates": False}, {"graph": False}])
def test_hijax_variables_go_through_jit(mode: Any):
    class Model(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.ones(2), hijax=True)

    model, total = Model(), nnx.jit(lambda model: model.w[...].sum(), **mode)
    first = float(total(model))
    model.w[...] += 1
    assert [first, float(total(model))] == [2.0, 4.0]


def test_a_hijax_variable_that_is_shared_is_refused_in_tree_mode():
    v = nnx.Variable(jnp.array(1.0), hijax=True)
    with pytest.raises(ValueError, match="Duplicate"):
        nnx.jit(lambda a, b: None, graph=False)(v, v)


def test_the_shape_of_a_hijax_variable():
    with nnx.var_defaults(hijax=True):
        weight = nnx.eval_shape(lambda: nnx.Param(jnp.ones(2)))
    assert isinstance(weight.get_value(), jax.ShapeDtypeStruct)


@pytest.mark.parametrize("graph", [True, False])
def test_a_partial_function_is_lowered_and_compiled(graph: bool):
    count = nnx.Variable(jnp.array(0))

    def step(count, x):
        count[...] += 1
        return x * 2

    compiled = nnx.jit_partial(step, count, graph=graph, graph_updates=False).lower(1.0).compile()
    assert [float(compiled(1.0)), float(compiled(3.0))] == [2.0, 6.0]
    assert count[...] == 2


def test_the_type_of_a_split_graph_takes_a_parameter():
    assert nnx.PureState[Pair].__args__[1] is nnx.State


@pytest.mark.parametrize("mode", [{"graph_updates": False}, {"graph": False}])
def test_a_variable_that_is_closed_over_is_not_returned(mode: Any):
    captured = nnx.Param(jnp.ones(2))
    with pytest.raises(ValueError, match=r"captured Variable: this Param is closed over.*\n  at: output"):
        nnx.vmap(lambda x: captured, **mode)(jnp.zeros(3))


@pytest.mark.parametrize("mode", [{}, {"graph_updates": False}, {"graph": False}])
def test_what_is_closed_over_may_be_part_of_an_abstract_model(mode: Any):
    captured = nnx.Param(jnp.ones(2))
    model = nnx.eval_shape(lambda: nnx.Dict(w=captured), **mode)
    assert model.w.shape == (2,)


def test_stages_of_a_jitted_function_are_of_the_types_that_flax_names():
    lowered = nnx.jit(lambda x: x + 1).lower(1.0)
    assert isinstance(lowered, nnx.transforms.compilation.Lowered)
    assert isinstance(lowered.compile(), nnx.transforms.compilation.Compiled)


def test_metadata_of_a_variable_that_a_transform_makes_keeps_its_order():
    made = nnx.vmap(lambda x: nnx.Param(x, z=1, a=2))(jnp.ones(2))
    assert list(made.get_metadata())[:2] == ["z", "a"]
