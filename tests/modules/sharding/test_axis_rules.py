"""Inside of a block of rules the names of dims say how arrays of a trace lie on the mesh."""

from __future__ import annotations

import asyncio
import dataclasses
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import weft
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PyTree
from weft import Sharded, nnx
from weft.core.edge.equations import iter_equations
from weft.errors import AxisError, FilterError
from weft.modules.sharding.block import UnusedRuleWarning
from weft.typecheck import contract, mode

P = PartitionSpec
OPEN = P.UNCONSTRAINED
RULES = {"batch": "data", "embed": "data", "heads": "model", "mlp": "model", ...: None}
X = jnp.ones((8, 3, 4))
Tokens = Float[Array, "batch seq embed"]


def make_mesh(kind: AxisType = AxisType.Auto, shape: tuple[int, int] = (4, 2)) -> Any:
    return jax.make_mesh(shape, ("data", "model"), axis_types=(kind, kind))


MESH = make_mesh()


def specs_of(function: Callable[..., Any], *args: Any) -> list[PartitionSpec]:
    """The specs of all constraints in a traced function."""
    jaxpr: Any = weft.make_jaxpr(function)(*args)
    eqns = [eqn for eqn in iter_equations(jaxpr.eqns) if eqn.primitive.name == "sharding_constraint"]
    return [full(eqn.params["sharding"].spec, eqn.outvars[0].aval.ndim) for eqn in eqns]


def full(spec: Any, rank: int) -> PartitionSpec:
    return P(*spec, *(None,) * (rank - len(spec)))


def placed_by(rules: Any, function: Callable[..., Any], *args: Any) -> list[PartitionSpec]:
    with weft.axis_rules(MESH, rules):
        return specs_of(function, *args)


def spec_for(dims: str, shape: tuple[int, ...], rules: Any) -> Any:
    """The spec of an argument with these dims; None if it is left alone."""

    def function(x: Any) -> None:
        return None

    function.__annotations__["x"] = Float[Array, dims]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnusedRuleWarning)
        specs = placed_by(rules, contract(function), jnp.ones(shape))
    return specs[0] if specs else None


# ---- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dims", "shape", "rules", "spec"),
    [
        ("batch seq embed", (8, 3, 4), RULES, P("data", None, None)),
        ("embed mlp", (4, 8), RULES, P("data", "model")),
        ("embed batch", (4, 8), RULES, P(None, "data")),
        ("n n", (4, 4), {"n": "data"}, P("data", None)),
        ("batch", (8,), {"batch": ("data", "model")}, P(("data", "model"))),
        ("batch embed", (8, 8), {"embed": "model", "batch": ("data", "model")}, P("data", "model")),
        ("batch embed", (8, 8), {"batch": "data"}, P("data", OPEN)),
        ("batch embed", (8, 8), {"batch": None}, P(None, OPEN)),
        ("a b", (8, 8), {"batch": "data"}, None),
        (
            "#batch 2*n n+1 8 _ batch",
            (1, 8, 5, 8, 2, 4),
            RULES | {"n": "model"},
            P(OPEN, OPEN, OPEN, OPEN, OPEN, "data"),
        ),
        ("*batch embed", (8, 3, 4), {"batch": "data", "embed": "model"}, P(OPEN, OPEN, "model")),
        ("*batch embed", (8, 3, 4), {"*batch": "data", "embed": "model"}, P("data", OPEN, "model")),
        ("*batch embed", (4,), {"*batch": "data", "embed": "model"}, P("model")),
        ("... embed", (8, 3, 4), RULES, P(OPEN, OPEN, "data")),
        ("rows=8 batch", (8, 4), RULES, P(OPEN, "data")),
    ],
)
def test_an_array_takes_each_axis_of_the_mesh_once_in_the_order_of_the_table(
    dims: str, shape: tuple[int, ...], rules: Any, spec: Any
):
    assert spec_for(dims, shape, rules) == spec
    assert spec_for(dims, shape, list(rules.items())) == spec


# ---- where -----------------------------------------------------------------------------------------------------------


class Layer(weft.Module):
    kernel: Float[Array, "embed mlp"]
    back: Annotated[Float[Array, "mlp out"], Sharded("mlp", "embed")]

    def __call__(self, x: Tokens) -> Tokens:
        return self.hidden(x) @ self.back

    def hidden(self, x: Tokens) -> Float[Array, "batch seq mlp"]:
        return x @ self.kernel


def make_layer() -> Layer:
    return Layer(jnp.ones((4, 8)), jnp.ones((8, 4)))


ROW, HIDDEN = P("data", None, None), P("data", None, "model")


def test_arguments_and_results_of_methods_are_placed():
    assert placed_by(RULES, lambda layer, x: layer(x), make_layer(), X) == [ROW, ROW, HIDDEN, ROW]


def test_contracts_that_are_off_place_all_the_same():
    @contract
    def double(x: Tokens) -> Tokens:
        return 2 * x

    def run(layer: Layer, x: Any) -> Any:
        return layer(double(x))

    expected = placed_by(RULES, run, make_layer(), X)
    with mode("off"):
        assert placed_by(RULES, run, make_layer(), X) == expected
        with weft.axis_rules(MESH, RULES):  # what breaks the contract is left alone
            assert specs_of(lambda layer, x: layer(x), make_layer(), X[0]) == []


def test_a_program_without_a_block_or_without_annotations_is_as_it_was():
    run = lambda layer, x: layer(x)  # noqa: E731
    assert specs_of(run, make_layer(), X) == []
    plain = str(jax.make_jaxpr(lambda x: jnp.sin(x))(X))
    with weft.axis_rules(MESH, RULES):
        assert str(jax.make_jaxpr(lambda x: jnp.sin(x))(X)) == plain


def test_eagerly_nothing_is_moved():
    layer = make_layer()
    with weft.axis_rules(MESH, RULES):
        assert layer(X).sharding == X.sharding
        gradient = weft.grad(lambda layer, x: layer(x).sum())(layer, X)
        mapped = weft.vmap(lambda x: contract_double(x))(X)
    assert gradient.kernel.sharding == layer.kernel.sharding
    assert mapped.sharding == X.sharding


@contract
def contract_double(x: Float[Array, "seq embed"]) -> Float[Array, "seq embed"]:
    return 2 * x


class Pair(NamedTuple):
    x: Float[Array, "batch"]
    y: Float[Array, "mlp"]


class Named(TypedDict):
    x: Float[Array, "batch"]


@dataclasses.dataclass
class Plain:
    x: Float[Array, "batch"]


jax.tree_util.register_dataclass(Plain, ["x"], [])


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (tuple[Float[Array, "batch"], int], (jnp.ones(8), 3)),
        (list[Float[Array, "batch"]], [jnp.ones(8)]),
        (dict[str, Float[Array, "batch"]], {"x": jnp.ones(8)}),
        (Float[Array, "batch"] | None, jnp.ones(8)),
        (Float[Array, "batch mlp"] | Float[Array, "batch"], jnp.ones(8)),
        (tuple[Float[Array, "mlp"], str] | tuple[Float[Array, "batch"], int], (jnp.ones(8), 3)),
        (PyTree[Float[Array, "batch"]], {"a": [jnp.ones(8)]}),
        (Named, {"x": jnp.ones(8)}),
        (Plain, Plain(jnp.ones(8))),
    ],
    ids=str,
)
def test_arrays_inside_of_values_are_placed(annotation: Any, value: Any):
    def function(value: Any) -> Any:
        return value

    function.__annotations__ |= {"value": annotation, "return": annotation}
    specs = placed_by({"batch": "data", "mlp": "model"}, weft.jit(function), value)
    assert specs == [P("data")] * 2


def test_a_named_tuple_has_a_spec_for_each_field():
    def function(pair: Pair) -> Pair:
        return Pair(*map(jnp.sin, pair))

    specs = placed_by(RULES, weft.jit(function), Pair(jnp.ones(8), jnp.ones(4)))
    assert specs == [P("data"), P("model")] * 2


def test_records_that_are_made_have_their_fields_placed():
    class State(weft.Module):
        cache: Float[Array, "batch heads"]
        sub: Layer

        def __init__(self, layer: Layer):
            self.cache, self.sub = jnp.zeros((8, 2)), layer

    specs = placed_by(RULES, lambda: State(make_layer()))
    # Of the layer: `kernel` by its dims and `back` by `Sharded`.
    assert specs == [P("data", "model"), P("model", "data"), P("data", "model")]


def test_records_in_arguments_and_results_are_placed_by_their_fields():
    def update(layer: Layer, pair: tuple[weft.Linear, int]) -> Layer:
        return jax.tree.map(jnp.sin, layer)

    inside = [P("data", "model"), P("model", "data")]
    assert placed_by(RULES, weft.jit(update), make_layer(), (weft.Linear(4, 8, key=jax.random.key(0)), 3)) == 2 * inside


def test_generators_and_coroutines_are_placed_as_they_run():
    @contract
    def rows(x: Float[Array, "batch embed"]) -> Iterator[Float[Array, "embed"]]:
        yield x[0]

    @contract
    def talk(x: Float[Array, "batch"]) -> Generator[Float[Array, "batch"], Float[Array, "embed"], Float[Array, "mlp"]]:
        sent = yield x
        return sent

    @contract
    async def later(x: Float[Array, "batch"]) -> Float[Array, "mlp"]:
        return x

    def talked(x: Any) -> Any:
        generator = talk(x)
        next(generator)
        try:
            generator.send(x)
        except StopIteration as stop:
            return stop.value

    rules = {"batch": "data", "mlp": "model", "embed": ("data", "model")}
    assert placed_by(rules, lambda x: list(rows(x)), jnp.ones((8, 8))) == [P("data", "model"), P(("data", "model"))]
    assert placed_by(rules, talked, jnp.ones(8)) == [P("data"), P("data"), P(("data", "model")), P("model")]
    assert placed_by(rules, lambda x: asyncio.run(later(x)), jnp.ones(8)) == [P("data"), P("model")]

    with weft.axis_rules(MESH, rules):
        outlives = rows(jnp.ones((8, 8)))
    assert specs_of(lambda: jnp.sin(next(outlives))) == []


def test_methods_of_nnx_modules_are_placed_and_their_modules_stay():
    class Model(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.ones((4, 8)))
            self.seen = nnx.Variable(jnp.zeros(()))

        @contract
        def __call__(self, x: Tokens) -> Float[Array, "batch seq mlp"]:
            self.seen.set_value(self.seen[...] + 1)
            return x @ self.w

    @nnx.jit
    def run(both: tuple[Model, Tokens]) -> Any:
        model, x = both
        return model(x)

    model = Model()
    with weft.axis_rules(MESH, RULES):
        out = run((model, X))
        assert out.sharding.is_equivalent_to(NamedSharding(MESH, HIDDEN), 3)
    assert model.seen[...] == 1


# ---- transforms ------------------------------------------------------------------------------------------------------


def test_cotangents_lie_as_their_values():
    assert placed_by(RULES, lambda layer, x: weft.grad(lambda layer: layer(x).sum())(layer), make_layer(), X) == [
        *(ROW, ROW, HIDDEN, ROW),
        # The last argument of the layer has no cotangent.
        *(ROW, HIDDEN),
    ]


def test_a_mapped_axis_whose_name_has_a_rule_is_divided():
    @contract
    def per_row(x: Float[Array, "seq embed"]) -> Float[Array, "seq embed"]:
        return 2 * x

    assert placed_by(RULES, weft.vmap(per_row, axis_name="batch"), X) == [ROW] * 2
    assert placed_by(RULES, weft.vmap(per_row), X) == [P(OPEN, None, "data")] * 2
    assert placed_by(RULES, jax.vmap(per_row, spmd_axis_name="data"), X) == [ROW] * 2
    inner = weft.vmap(weft.jit(per_row), axis_name="batch")
    assert placed_by(RULES, inner, X) == [ROW] * 2
    assert (
        placed_by(RULES, weft.vmap(per_row, axis_name="batch", spmd_axis_name="model"), X)
        == [P("model", None, "data")] * 2
    )
    with (
        weft.axis_rules(MESH, RULES),
        pytest.raises(AxisError, match=r"mapped axis of vmap: \(batch=3\): 3 is no multiple"),
    ):
        weft.jit(weft.vmap(per_row, axis_name="batch"))(X[:3])


def test_inside_of_loops_branches_and_remat():
    def step(carry: Float[Array, "batch"], x: Float[Array, "mlp"]) -> tuple[Float[Array, "batch"], Float[Array, "mlp"]]:
        return carry + 1, x

    xs = jnp.ones((3, 4))
    assert placed_by(RULES, weft.scan(step), jnp.ones(8), xs) == [P("data"), P("model")] * 2

    def branch(x: Float[Array, "batch"]) -> Float[Array, "batch"]:
        return 2 * x

    both = placed_by(RULES, lambda x: weft.cond(x[0] > 0, branch, branch, x), jnp.ones(8))
    assert both == [P("data")] * 4
    assert placed_by(RULES, weft.remat(branch), jnp.ones(8)) == [P("data")] * 2


def test_dims_that_a_layer_of_wefts_gives_its_subclass_name_no_axes():
    class Own(weft.Linear):
        gate: Float[Array, "embed"]

        def __init__(self, *, key: Any):
            super().__init__(4, 8, key=key)
            self.gate = jnp.ones(4)

    key = jax.random.key(0)
    assert placed_by({"in": "data", "embed": "model", ...: None}, lambda: Own(key=key)) == [P("model")]
    with weft.axis_rules(MESH, {"in": "data", "embed": "model"}):
        assert lying(weft.init(Own, key=key)) == {".kernel": P(), ".bias": P(), ".gate": P("model")}


def test_devices_of_a_pmap_are_left_alone():
    with weft.axis_rules(MESH, RULES):
        assert weft.pmap(contract_tokens)(jnp.ones((8, 8, 3, 4))).shape == (8, 8, 3, 4)


def test_manual_axes_of_a_shard_map_are_left_out():
    def inside(x: Float[Array, "batch mlp"]) -> Float[Array, "batch mlp"]:
        return 2 * x

    some = weft.shard_map(inside, mesh=MESH, in_specs=P("data"), out_specs=P("data"), axis_names={"data"})
    assert placed_by(RULES, weft.jit(some), jnp.ones((8, 4))) == [P(None, "model")] * 2
    every = weft.shard_map(inside, mesh=MESH, in_specs=P("data", "model"), out_specs=P("data", "model"))
    with weft.axis_rules(MESH, RULES):
        assert np.array_equal(weft.jit(every)(jnp.ones((8, 4))), 2 * np.ones((8, 4)))


# ---- caches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jit", [weft.jit, jax.jit], ids=["weft", "jax"])
def test_a_trace_serves_the_rules_it_was_made_under(jit: Any):
    traces: list[str] = []

    @jit
    @contract
    def run(x: Tokens) -> Tokens:
        traces.append("")
        return 2 * x

    assert run(X).sharding == X.sharding
    for rules, spec, count in [
        (RULES, P("data"), 2),
        (dict(RULES), P("data"), 2),
        ({"batch": "model"}, P("model"), 3),
        (RULES, P("data"), 3),
    ]:
        with weft.axis_rules(make_mesh(), rules):
            assert run(X).sharding.is_equivalent_to(NamedSharding(MESH, spec), 3)
        assert len(traces) == count
    assert run(X).sharding == X.sharding
    assert len(traces) == 3


def test_of_two_nested_blocks_the_inner_one_holds():
    with weft.axis_rules(MESH, RULES):
        with weft.axis_rules(MESH, {"batch": "model"}):
            assert specs_of(contract_batch, jnp.ones(8)) == [P("model")]
        assert specs_of(contract_batch, jnp.ones(8)) == [P("data")]


@contract
def contract_batch(x: Float[Array, "batch"]) -> None:
    return None


def test_tasks_that_wait_inside_of_blocks_do_not_get_the_traces_of_others():
    specs: list[Any] = []

    async def task(rules: Any, turns: list[asyncio.Event]) -> None:
        with weft.axis_rules(MESH, rules):
            specs.append(specs_of(contract_batch, jnp.ones(8)))
            turns[0].set()
            await turns[1].wait()

    async def both() -> None:
        turns = [asyncio.Event() for _ in range(4)]
        first = asyncio.create_task(task({"batch": "data"}, turns[:2]))
        await turns[0].wait()
        with pytest.raises(AxisError, match="another task of this thread"):
            specs_of(lambda x: contract_batch(x), jnp.ones(8))
        second = asyncio.create_task(task({"batch": "model"}, turns[2:]))
        await turns[2].wait()
        turns[1].set()
        await first
        turns[3].set()
        await second
        specs.append(specs_of(contract_batch, jnp.ones(8)))

    asyncio.run(both())
    assert specs == [[P("data")], [P("model")], []]
    assert specs_of(contract_batch, jnp.ones(8)) == []


def test_a_block_inside_of_a_compiled_function_holds_for_the_rest_of_it():
    @weft.jit
    def run(x: Any) -> None:
        contract_batch(x)
        with weft.axis_rules(MESH, RULES):
            contract_batch(x)

    assert specs_of(run, jnp.ones(8)) == [P("data")]


# ---- explicit meshes -------------------------------------------------------------------------------------------------


def test_an_array_of_an_explicit_mesh_is_resharded_where_its_type_says_otherwise():
    types: list[str] = []

    @contract
    def inner(x: Tokens) -> Tokens:
        types.append(str(jax.typeof(x)))
        return x

    mesh = make_mesh(AxisType.Explicit)
    with weft.axis_rules(mesh, RULES):
        features = jax.device_put(X, NamedSharding(mesh, P(None, None, "data")))
        out = weft.jit(inner)(features)
        assert out.sharding.spec == ROW
        assert weft.jit(inner)(out) is not None
    assert types == ["float32[8@data,3,4]"] * 2
    with weft.axis_rules(mesh, {"batch": "data"}):  # what has no rule gives way, and is kept otherwise
        assert weft.jit(inner)(features).sharding.spec == ROW
        heads = jax.device_put(X, NamedSharding(mesh, P(None, None, "model")))
        assert weft.jit(inner)(heads).sharding.spec == P("data", None, "model")


def test_an_axis_that_is_mapped_on_an_explicit_mesh_keeps_its_axis_of_the_mesh():
    @contract
    def per_row(x: Float[Array, "seq embed"]) -> Float[Array, "seq embed"]:
        return 2 * x

    mesh = make_mesh(AxisType.Explicit)
    with weft.axis_rules(mesh, {"batch": "data", "embed": "data", "seq": "model"}):
        x = jax.device_put(jnp.ones((8, 4, 4)), NamedSharding(mesh, P("data")))
        for mapped in (weft.vmap(per_row), weft.vmap(weft.jit(per_row), axis_name="batch"), jax.vmap(per_row)):
            assert weft.jit(mapped)(x).sharding.spec == P("data", "model", None)


def test_a_mesh_that_is_set_with_other_sizes_is_another_mesh():
    with jax.set_mesh(make_mesh(shape=(2, 4))), weft.axis_rules(MESH, RULES):
        assert weft.jit(contract_tokens)(X).sharding == NamedSharding(MESH, P("data"))


def test_strict_rules_move_nothing_on_an_explicit_mesh():
    mesh = make_mesh(AxisType.Explicit)
    with weft.axis_rules(mesh, RULES, strict=True):
        rows = jax.device_put(X, NamedSharding(mesh, ROW))
        assert weft.jit(contract_tokens)(rows).sharding.spec == ROW
        features = jax.device_put(X, NamedSharding(mesh, P(None, None, "data")))
        with pytest.raises(weft.ContractError) as error:
            weft.jit(lambda x: contract_tokens(x))(features)
    text = str(error.value)
    assert "argument x of contract_tokens" in text
    assert f"{Path(__file__).name}:" in text
    assert "(None, None, 'data')" in text
    assert "('data', None, None)" in text


@contract
def contract_tokens(x: Tokens) -> Tokens:
    return x


def test_a_compiled_function_cannot_set_an_explicit_mesh():
    @weft.jit
    def run(x: Any) -> None:
        with weft.axis_rules(make_mesh(AxisType.Explicit), RULES):
            contract_batch(x)

    with pytest.raises(AxisError, match="around the call of the compiled function"):
        run(jnp.ones(8))


# ---- what takes the rules of the block -------------------------------------------------------------------------------


class Model(weft.Module):
    layer: Layer
    mlp: weft.MLP

    def __init__(self, *, key: Any):
        self.layer, self.mlp = make_layer(), weft.MLP(4, 8, 4, key=key)

    def __call__(self, x: Tokens) -> Tokens:
        return self.mlp(self.layer(x))


PLACED = {
    ".layer.kernel": P("data", "model"),
    ".layer.back": P("model", "data"),
    ".mlp.layers[0].kernel": P("data", "model"),
    ".mlp.layers[0].bias": P("model"),
    ".mlp.layers[2].kernel": P("model", "data"),
    ".mlp.layers[2].bias": P("data"),
}


def lying(tree: Any) -> dict[str, PartitionSpec]:
    return {jax.tree_util.keystr(path): leaf.sharding.spec for path, leaf in jax.tree.leaves_with_path(tree)}


def test_a_model_is_drawn_sharded_restored_and_shown_by_the_rules_of_the_block(tmp_path: Path):
    key = jax.random.key(0)
    eager = Model(key=key)
    with weft.axis_rules(MESH, RULES):
        model = weft.init(Model, key=key)
        assert lying(model) == lying(weft.shard(eager))
        assert lying(model) == PLACED
        assert lying(weft.init(Model, key=key, abstract=True)) == PLACED
        assert {path: s.spec for path, s in leaves_of(weft.named_shardings(eager))} == PLACED
        with weft.Checkpoints(tmp_path / "run") as saved:
            saved.save(0, model)
            for like in (jax.eval_shape(lambda: Model(key=key)), eager, model):
                assert lying(saved.restore(like)) == PLACED
        weft.save_checkpoint(tmp_path / "file", model)
        assert lying(weft.load_checkpoint(tmp_path / "file", jax.eval_shape(lambda: Model(key=key)))) == PLACED
        assert "('data' / 4, 'model' / 2)" in weft.tabulate(eager, sharding=True)
    assert all(map(np.array_equal, jax.tree.leaves(model), jax.tree.leaves(eager)))
    assert "'data'" not in weft.tabulate(eager, sharding=True)


def leaves_of(tree: Any) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree.leaves_with_path(tree)]


def test_training_keeps_parameters_and_moments_where_they_lie():
    def loss(model: Model, x: Tokens) -> Float[Array, ""]:
        return ((model(x) - x) ** 2).mean()

    @weft.jit
    def step(model: Model, opt: weft.Optimizer, x: Tokens) -> Any:
        return opt.minimize(loss, model, x)

    def losses(model: Model, opt: weft.Optimizer) -> list[float]:
        values = []
        for _ in range(3):
            value, model, opt = step(model, opt, X)
            values.append(float(value))
        return [*values, lying(model) if isinstance(model.layer.kernel.sharding, NamedSharding) else None]

    model = Model(key=jax.random.key(0))
    alone = losses(model, weft.Optimizer(model, optax.adam(0.1)))
    with weft.axis_rules(MESH, RULES):
        model, opt = weft.shard((model, weft.Optimizer(model, optax.adam(0.1))))
        together = losses(model, opt)
    assert together.pop() == PLACED
    assert together == pytest.approx(alone[:-1], rel=1e-5)


def test_a_plan_is_made_inside_of_the_block():
    step = weft.jit(lambda model, x: model(x))
    model, x = jax.eval_shape(lambda: Model(key=jax.random.key(0))), jax.ShapeDtypeStruct((8, 4, 4), jnp.float32)
    with weft.axis_rules(MESH, RULES):
        inside = weft.plan(step, model, x, progress=False)
    outside = weft.plan(step, model, x, mesh={"data": 4, "model": 2}, rules=RULES, progress=False)
    assert inside.bytes_per_device == outside.bytes_per_device
    assert (
        inside.bytes_per_device.params
        < weft.plan(step, model, x, mesh={"data": 4}, rules={...: None}, progress=False).bytes_per_device.params
    )


def test_placements_are_listed_with_their_lines():
    run = weft.jit(lambda layer, x: jnp.tile(layer(x), (1, 5, 1)))
    with weft.axis_rules(MESH, {"batch": "data"}):
        run(make_layer(), X)  # a trace from a cache would list nothing
        listed = weft.debug.placements(run, make_layer(), X)
    assert [each.spec for each in listed.placed] == [P("data", OPEN, OPEN)] * len(listed.placed)
    assert listed.placed[0].where.startswith("argument x of Layer.__call__ (")
    assert f"{Path(__file__).name}:" in listed.placed[0].where
    assert listed.unplaced[0].shape == (8, 15, 4)
    assert "jnp.tile" in str(listed)
    with pytest.raises(AxisError, match=r"open a block: with weft\.axis_rules"):
        weft.debug.placements(run, make_layer(), X)


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"batch": "rows"}, r"(?s)rules name axes that the mesh data=4, model=2 does not have.*'batch': 'rows'"),
        ([("batch", "data"), ("batch", "model")], "two rules for 'batch'"),
        ({"batch": ("data", "data")}, r"(?s)different axes of a mesh.*\('batch', \('data', 'data'\)\)"),
        ({3: "data"}, r"(?s)map names.*\(3, 'data'\)"),
        ("batch", r"(?s)map names.*'b'"),
    ],
)
def test_rules_that_cannot_be_are_refused_at_the_block(rules: Any, message: str):
    with pytest.raises(AxisError, match=message), weft.axis_rules(MESH, rules):
        pass


def test_rules_are_for_a_mesh():
    with pytest.raises(AxisError, match="not for a str"), weft.axis_rules("data", RULES):  # pyright: ignore
        pass


def test_an_axis_that_the_mesh_does_not_divide_is_an_error_with_its_line():
    with weft.axis_rules(MESH, RULES), pytest.raises(AxisError) as error:
        weft.jit(make_layer().__call__)(X[:6])
    text = str(error.value)
    assert "argument x of Layer.__call__" in text
    assert f"{Path(__file__).name}:" in text
    assert "(batch=6, seq=3, embed=4): 6 is no multiple of 4, the size of 'data'" in text


def test_a_misspelt_name_is_told():
    with (
        weft.axis_rules(MESH, {"batch": "data", "emebd": "data", ...: None}),
        pytest.raises(FilterError, match="'embed'"),
    ):
        weft.shard(make_layer())
    called = "called 'bacth', but 'batch', 'embed', 'seq'"
    with pytest.warns(UnusedRuleWarning, match=called), weft.axis_rules(MESH, {"bacth": "data"}):
        weft.jit(contract_tokens)(X)
    with pytest.warns(UnusedRuleWarning, match=r"called 'rows', but '\*rows'"):
        spec_of_several = placed_by({"rows": "data"}, contract(several), jnp.ones((8, 3)))
    assert spec_of_several == []
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnusedRuleWarning)
        with weft.axis_rules(MESH, {"batch": "data", "vocab": "model", weft.filters.Maybe("bach"): "model"}):
            weft.jit(contract_tokens)(X)


def several(x: Float[Array, "*rows"]) -> None:
    return None


def test_a_mesh_and_rules_come_together():
    for options in ({}, {"mesh": MESH}, {"rules": RULES}):
        with pytest.raises(AxisError, match=r"neither of them inside of `with weft\.axis_rules"):
            weft.shard(make_layer(), **options)


def test_an_error_inside_leaves_no_rules_behind():
    with pytest.raises(ZeroDivisionError), weft.axis_rules(MESH, RULES):
        raise ZeroDivisionError
    assert specs_of(contract_batch, jnp.ones(8)) == []
