"""A model lies where the names of its axes and the rules say, and everything that is for it lies beside it."""

from __future__ import annotations

from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import weft
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array, Float
from weft import Embed, Linear, Sharded, named_shardings, shard
from weft.errors import AxisError, StaticError
from weft.filters import InstanceOf, PathContains

RULES = {"embed": "data", "mlp": "model", "heads": "model", "vocab": "model", ...: None}
KEY = jax.random.key(0)


class Block(weft.Module):
    inward: Annotated[Float[Array, "embed mlp"], Sharded("embed", "mlp")]
    outward: Annotated[Linear, Sharded("mlp", "embed")]
    shift: Float[Array, "embed"]

    def __init__(self, key: Any):
        self.inward, self.shift = jax.random.normal(key, (4, 8)), jnp.zeros(4)
        self.outward = Linear(8, 4, key=key)

    def __call__(self, x: Float[Array, "*batch embed"]) -> Float[Array, "*batch embed"]:
        return x + self.outward(jax.nn.relu(x @ self.inward)) + self.shift


@pytest.fixture(params=[AxisType.Auto, AxisType.Explicit], ids=["automatic", "explicit"])
def mesh(request: pytest.FixtureRequest) -> Any:
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(request.param,) * 2)


def specs(tree: Any) -> dict[str, PartitionSpec]:
    """Where each array lies; on explicit meshes specs have a None for each axis that is not divided."""
    full_specs = {
        jax.tree_util.keystr(path): tuple(leaf.sharding.spec) for path, leaf in jax.tree.leaves_with_path(tree)
    }
    return {
        path: P(*spec[: max((i for i, axis in enumerate(spec, 1) if axis), default=0)])
        for path, spec in full_specs.items()
    }


P = PartitionSpec
BLOCK = {
    ".inward": P("data", "model"),
    ".outward.kernel": P("model", "data"),
    ".outward.bias": P("data"),
    ".shift": P("data"),  # by its dim alone
}


def test_a_field_says_how_its_axes_are_called(mesh: Any):
    block = Block(KEY)
    placed = shard(block, mesh, RULES)
    assert specs(placed) == BLOCK
    assert all(map(jnp.array_equal, jax.tree.leaves(placed), jax.tree.leaves(block)))


def test_pairs_say_the_same_as_a_mapping(mesh: Any):
    assert specs(named_shardings_of(Block(KEY), mesh, list(RULES.items()))) == BLOCK


def named_shardings_of(tree: Any, mesh: Any, rules: Any) -> Any:
    """The tree with what stands for arrays that lie so."""
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)
    return shard(abstract, mesh, rules)


def test_layers_of_a_stack_and_of_a_mapped_constructor_have_an_axis_in_front(mesh: Any):
    stack = weft.Stack(Block, 4, key=KEY)
    in_front = {f".layers{path}": P(None, *spec) if any(spec) else P() for path, spec in BLOCK.items()}
    assert specs(shard(stack, mesh, RULES)) == in_front
    assert specs(shard(weft.vmap(Block)(jax.random.split(KEY, 4)), mesh, RULES)) == {
        path.removeprefix(".layers"): spec for path, spec in in_front.items()
    }
    rules = {"layers": "model", "embed": "data", ...: None}
    assert specs(shard(stack, mesh, rules))[".layers.inward"] == P("model", "data")
    assert specs(shard(stack, mesh, rules))[".layers.shift"] == P("model", "data")


def test_wefts_layers_are_named_by_convention(mesh: Any):
    model = {
        "embed": Embed(8, 4, key=KEY),
        "block": weft.TransformerBlock(4, 4, key=KEY),
        "head": Linear(4, 8, key=KEY),
    }
    placement = specs(shard(model, mesh, RULES))
    assert placement["['embed'].embedding"] == P("model", "data")
    assert placement["['block'].attention.value.kernel"] == P("data", "model")
    assert placement["['block'].attention.value.bias"] == P("model")
    assert placement["['block'].attention.out.kernel"] == P("model", "data")
    assert placement["['block'].mlp.layers[0].kernel"] == P("data", "model")
    assert placement["['block'].mlp.layers[2].bias"] == P("data")
    assert placement["['block'].mlp_norm.scale"] == placement["['head'].kernel"] == P()


def test_what_is_put_around_a_layer_or_in_its_place_lies_as_the_layer_does(mesh: Any):
    attention = weft.MultiHeadAttention(4, 4, key=KEY)
    model = {"wrapped": weft.Frozen(attention), "block": Block(KEY)}
    model = weft.lora(weft.quantize(model), 2, key=KEY)
    placement = specs(named_shardings_of(model, mesh, RULES))
    query, outward = "['wrapped'].layer.query", "['block'].outward"
    assert placement[f"{query}.base.kernel"] == P("data", "model")
    assert placement[f"{query}.base.scale"] == placement[f"{query}.base.bias"] == P("model")
    assert (placement[f"{query}.down"], placement[f"{query}.up"]) == (P("data"), P(None, "model"))
    assert placement[f"{outward}.base.kernel"] == P("model", "data")
    assert (placement[f"{outward}.down"], placement[f"{outward}.up"]) == (P("model"), P(None, "data"))


def test_names_from_outside_hold_before_what_is_declared(mesh: Any):
    names = {PathContains("inward"): (None, "vocab"), InstanceOf(Linear): Sharded("layers", ...)}
    copies = weft.vmap(Block)(jax.random.split(KEY, 4))
    placement = specs(shard(copies, mesh, {**RULES, "layers": None, "embed": None, "mlp": "data"}, names=names))
    assert placement == {
        ".inward": P(None, None, "model"),
        ".outward.kernel": P(None, "data"),
        ".outward.bias": P(),
        ".shift": P(),
    }


def test_an_optimizers_state_follows_its_parameters(mesh: Any):
    with jax.set_mesh(mesh):
        block = shard(Block(KEY), mesh, RULES)
        optimizer = shard(weft.Optimizer(block, optax.adam(0.1)), mesh, RULES)
    placement = specs(optimizer)
    for moment in ("mu", "nu"):
        assert placement[f".state[0].{moment}['inward']"] == P("data", "model")
        assert placement[f".state[0].{moment}['outward']['kernel']"] == P("model", "data")
    assert placement[".state[0].count"] == placement[".step"] == P()
    factored = shard(
        weft.Optimizer(Linear(256, 128, key=KEY), optax.adafactor(0.1)), mesh, {weft.filters.Maybe("embed"): "data"}
    )
    assert set(specs(factored).values()) == {P()}  # its rows and columns have no parameter's shape


def test_init_makes_a_model_in_place(mesh: Any):
    made = weft.init(Block, key=KEY, shardings=lambda model: named_shardings(model, mesh, RULES))
    assert specs(made) == BLOCK
    assert made.inward.sharding == NamedSharding(mesh, P("data", "model"))


def test_a_compiled_step_keeps_its_successor_in_place(mesh: Any):
    @weft.jit
    def step(block: Block, optimizer: weft.Optimizer, x: Any) -> Any:
        def loss(block: Block, x: Any) -> Any:
            return (shard(block, mesh, {...: None})(x) ** 2).mean()

        value, block, optimizer = optimizer.minimize(loss, block, x)
        return value, *shard((block, optimizer), mesh, RULES)

    with jax.set_mesh(mesh):
        block = shard(Block(KEY), mesh, RULES)
        optimizer = shard(weft.Optimizer(block, optax.adam(0.1)), mesh, RULES)
        x = jax.device_put(jnp.ones((4, 4)), NamedSharding(mesh, P()))
        before = specs((block, optimizer))
        first, block, optimizer = step(block, optimizer, x)
        second, block, optimizer = step(block, optimizer, x)
    assert specs((block, optimizer)) == before
    assert float(second) < float(first)


def test_one_array_in_two_places_stays_one(mesh: Any):
    w = jnp.ones(4)
    placed = shard({"a": w, "b": w, "n": 3, "key": KEY}, mesh, {"x": "data"}, names={PathContains("a"): ("x",)})
    assert placed["n"] == 3
    assert specs(placed["a"]) == {"": P("data")}
    same = shard({"a": w, "b": w}, mesh, {})
    assert same["a"] is same["b"]


@pytest.mark.parametrize(
    ("rules", "fragments"),
    [
        ({"embed": "data"}, ["inward: (embed=4, mlp=8): no rule for 'mlp'", "add a rule for 'mlp'", "`...: None`"]),
        ({"embed": "dat", ...: None}, ["axes that the mesh data=2, model=4 does not have", "'embed': 'dat'"]),
        ({"embed": ("data", "model"), "mlp": None}, ["outward.bias: (embed=4): 4 is no multiple of 8", "a multiple"]),
    ],
    ids=["no rule", "no axis", "not divided"],
)
def test_what_cannot_lie_so_is_named(rules: Any, fragments: list[str]):
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    with pytest.raises(AxisError) as error:
        shard(Block(KEY), mesh, rules)
    assert [fragment for fragment in fragments if fragment not in str(error.value)] == []


def test_an_axis_of_the_mesh_divides_an_array_once_in_the_order_of_the_table(mesh: Any):
    first = {"embed": "model", "mlp": ("data", "model")}
    assert specs(shard(Block(KEY), mesh, first))[".inward"] == P("model", "data")
    assert specs(shard(Block(KEY), mesh, dict(reversed(first.items()))))[".inward"] == P(None, ("data", "model"))


def test_more_names_than_axes_are_an_error():
    class Narrow(weft.Module):
        w: Annotated[Float[Array, "in"], Sharded("embed", "mlp")]

    with pytest.raises(AxisError, match=r"w: \('embed', 'mlp'\) for the shape \(2,\): more names than axes"):
        shard(Narrow(jnp.ones(2)), jax.make_mesh((1,), ("data",)), {...: None})


class Inherits(weft.Module):
    kernel: Float[Array, "i o"]
    bias: Float[Array, "o"]


class Declares(weft.Module):
    kernel: Annotated[Float[Array, "i o"], Sharded("embed", "mlp")]
    bias: Annotated[Float[Array, "o"], Sharded("mlp")]


class Layer(weft.Module):
    linear: Annotated[Inherits, Sharded("embed", "mlp")]


class Stacked(weft.Module):
    of_inherited: Annotated[Layer, Sharded("layers", ...)]
    of_declared: Annotated[Declares, Sharded("layers", ...)]


def test_axes_that_a_map_adds_come_before_those_of_a_stack(mesh: Any):
    kernel, bias = jnp.zeros((3, 2, 6, 8)), jnp.zeros((3, 2, 8))
    model = Stacked(Layer(Inherits(kernel, bias)), Declares(kernel, bias))
    placement = specs(shard(model, mesh, {"mlp": "model", "layers": "data", ...: None}))
    for path in (".of_inherited.linear", ".of_declared"):
        assert placement[f"{path}.kernel"] == P(None, "data", None, "model")
        assert placement[f"{path}.bias"] == P(None, "data", "model")


class AnyNumber(weft.Module):
    w: Float[Array, "n"] | Float[Array, "..."]


class HasAnyNumber(weft.Module):
    inner: Annotated[AnyNumber, Sharded("embed", "mlp")]


def test_an_annotation_that_allows_any_number_of_axes_says_none(mesh: Any):
    record = HasAnyNumber(AnyNumber(jnp.ones((4, 4))))
    assert specs(named_shardings_of(record, mesh, RULES)) == {".inner.w": P("data", "model")}


def test_a_name_is_a_text_and_a_field_has_one_set_of_names():
    with pytest.raises(StaticError, match="a name or None, not 3"):
        Sharded("embed", 3)  # pyright: ignore

    class Twice(weft.Module):
        w: Annotated[Float[Array, "in"], Sharded("embed"), Sharded("mlp")]

    with pytest.raises(StaticError, match="names its axes once"):
        shard(Twice(jnp.ones(2)), jax.make_mesh((1,), ("data",)), {...: None})


def test_experts_lie_beside_one_another():
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    moe = weft.MoE(lambda key: weft.MLP(4, 8, 4, key=key), 4, 4, key=KEY)
    there = shard(moe, mesh, {"experts": "model", "embed": None, "mlp": "data"})
    assert specs(there) == {
        ".router": P(None, "model"),
        ".experts.layers[0].kernel": P("model", None, "data"),
        ".experts.layers[0].bias": P("model", "data"),
        ".experts.layers[2].kernel": P("model", "data"),
        ".experts.layers[2].bias": P("model"),
    }
    x = jax.random.normal(KEY, (6, 4))
    assert jnp.allclose(weft.jit(there)(x), weft.jit(moe)(x), atol=1e-6)


def test_on_an_explicit_mesh_that_is_not_in_context_layers_leave_a_divided_batch_where_it_is():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    there = NamedSharding(mesh, P("data"))
    ids, x = jax.device_put((jnp.array([[0, 4]] * 8), jnp.ones((8, 2, 4))), there)
    embed, dropout = shard(weft.Embed(5, 4, key=KEY), mesh, {...: None}), weft.Dropout(0.5)
    for call in (lambda f: f, weft.jit):
        rows = call(embed)(ids)
        assert jax.typeof(rows).sharding.spec == P("data", None, None)
        assert np.array_equal(np.asarray(rows)[0], np.asarray(embed.embedding)[[0, 4]])
        for broadcast_dims in ((), (1,)):
            dropped = call(dropout.replace(broadcast_dims=broadcast_dims))(x, key=KEY)
            assert jax.typeof(dropped).sharding.spec == P("data", None, None)
    gradient = weft.jit(weft.grad(lambda embed, ids: embed(ids).sum()))(embed, ids)
    assert gradient.embedding.sum() == 64


def test_a_batch_on_an_explicit_mesh_and_a_model_on_none_is_said_with_the_ways_out():
    mesh = jax.make_mesh((8,), ("data",), (jax.sharding.AxisType.Explicit,))
    x = jax.device_put(jnp.ones((8, 4)), jax.NamedSharding(mesh, jax.P("data")))
    layer = weft.Linear(4, 2, key=jax.random.key(0))
    gradient = weft.jit(weft.grad(lambda layer, x: layer(x).sum()))
    with pytest.raises(
        weft.errors.MeshError, match=r"(?s)x lies on an explicit mesh \(data=8\).*at: layer.kernel.*set_mesh"
    ):
        gradient(layer, x)
    with jax.set_mesh(mesh):
        inside = gradient(layer, x)
    there = gradient(weft.shard(layer, mesh, {...: None}), x)
    assert inside.kernel.tolist() == there.kernel.tolist() == [[8.0, 8.0]] * 4


class Gated(weft.Module):
    """Layers whose axes no convention names."""

    gate: Linear
    down: Linear
    table: Embed

    def __init__(self, key: Any = KEY):
        self.gate, self.down = Linear(64, 160, key=key), Linear(160, 64, key=key)
        self.table = Embed(8, 64, key=key)


@pytest.mark.parametrize(
    ("model", "rules", "fragments"),
    [
        (Gated, {"embed": "data", "emebd": "model", ...: None}, ["'emebd': 'model' (is it 'embed'", "'vocab'"]),
        (Gated, {"embed": "data", "hidden": "model", ...: None}, ["'hidden': 'model'", "Maybe"]),
        (
            lambda: Gated().gate,
            {"embed": "data", ...: None},
            ["every array would be replicated on every device", "unnamed="],
        ),
        (lambda: Gated().gate, {"emebd": None}, ["a rule names a logical axis that no array has", "is it 'embed'?"]),
    ],
)
@pytest.mark.parametrize("place", [shard, named_shardings])
def test_a_rule_that_matches_nothing_is_an_error(mesh: Any, model: Any, rules: Any, fragments: list[str], place: Any):
    with pytest.raises(weft.errors.FilterError) as error:
        place(model(), mesh, rules)
    assert all(fragment in str(error.value) for fragment in fragments)


def test_a_table_for_several_models_says_what_may_not_be_there(mesh: Any):
    rules = {weft.filters.Maybe("hidden"): "model", weft.filters.Maybe("embed"): "data", ...: None}
    assert set(specs(shard(Gated().gate, mesh, rules)).values()) == {P()}
    assert specs(shard(Gated(), mesh, rules))[".table.embedding"] == P(None, "data")
    with weft.axis_rules(mesh, {**rules, weft.filters.Maybe("embd"): "data"}):
        assert specs(shard(Gated()))[".table.embedding"] == P(None, "data")
    # weft's own names, and that of activations, may stand in any table that divides something.
    rules = {"embed": "data", "heads": "model", "batch": "data", ...: None}
    assert specs(shard(Gated(), mesh, rules))[".gate.bias"] == P()


def test_what_has_no_names_is_divided_along_its_largest_axis_that_the_mesh_divides(mesh: Any):
    placed = shard(Gated(), mesh, {"embed": "data", ...: None}, unnamed="model")
    assert specs(placed) == {
        ".gate.kernel": P(None, "model"),
        ".gate.bias": P("model"),
        ".down.kernel": P("model"),
        ".down.bias": P("model"),
        ".table.embedding": P(None, "data"),
    }
    both = shard(Linear(6, 16, key=KEY), mesh, {}, unnamed=("data", "model"))
    assert specs(both) == {".kernel": P(None, ("data", "model")), ".bias": P(("data", "model"))}
    odd = shard(Linear(3, 5, key=KEY), mesh, {}, unnamed="model")
    assert set(specs(odd).values()) == {P()}


def test_moments_keys_and_stacks_without_names_lie_as_they_should(mesh: Any):
    with jax.set_mesh(mesh):
        layer = shard(Linear(4, 16, key=KEY), mesh, {}, unnamed="model")
        optimizer = shard(weft.Optimizer(layer, optax.adam(0.1)), mesh, {}, unnamed="model")
    assert specs(optimizer)[".state[0].mu['kernel']"] == specs(layer)[".kernel"] == P(None, "model")
    keys = shard((jax.random.split(KEY, 8), jnp.ones(8)), mesh, {}, unnamed="model")
    assert [tuple(one.sharding.spec) for one in keys][1:] == [("model",)]
    assert keys[0].sharding.is_fully_replicated
    stack = shard(weft.Stack(lambda key: Linear(8, 8, key=key), 3, key=KEY), mesh, {"layers": None}, unnamed="model")
    assert specs(stack)[".layers.kernel"] in (P(None, "model"), P(None, None, "model"))


def test_large_arrays_that_stay_whole_are_told(mesh: Any):
    large = weft.at(Gated()).gate.set(Linear(512, 1024, key=KEY))
    with pytest.warns(
        weft.errors.ReplicatedWarning, match=r"(?s)2,097,152 bytes in 1 array.*gate.kernel: \(512, 1024\)"
    ):
        shard(large, mesh, {"embed": "data", ...: None})
    # What the warning advises, one way after the other; warnings are errors here.
    shard(large, mesh, {"embed": "data", ...: None}, unnamed="model")
    shard(large, mesh, {"embed": "data", ...: None}, names={PathContains("gate"): (None, None)})
    shard(large, mesh, {...: None})


def test_a_table_shows_what_lies_where(mesh: Any):
    placed = shard(Gated(), mesh, {"embed": "data", ...: None}, unnamed="model")
    rows = [line.split() for line in weft.tabulate(placed, sharding=True).splitlines()]
    by_path = {row[0]: row for row in rows if row and row[0].startswith("model.")}
    assert by_path["model.gate.kernel"][1] == "float32[64,160]"
    assert by_path["model.gate.kernel"][-4:] == ["41.0", "KB", "10.2", "KB"]
    assert by_path["model.table.embedding"][-4:] == ["2.0", "KB", "1.0", "KB"]
    assert rows[-1][0] == "total"
    assert "every device" in weft.tabulate(shard(Gated(), mesh, {...: None}), sharding=True)


def test_the_table_takes_shapes_and_what_lies_on_no_mesh(mesh: Any):
    shapes = weft.init(Gated, key=KEY, abstract=True)
    placed = shard(shapes, mesh, {"embed": "data", ...: None}, unnamed="model")
    assert "'model'" in weft.tabulate(placed, sharding=True)
    assert "one device" in weft.tabulate(Gated(), sharding=True)
    assert "nowhere" in weft.tabulate(shapes, sharding=True)
