"""On a mesh of explicit axes layers compute what they compute on one device, under every sort of table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import weft
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from weft import nnx
from weft.modules.explicit import is_divided, laid_as, laid_like, once, product_sharding, spec_of

KEY = jax.random.key(0)
# Everything is divided that can be: features as a fully sharded model's are, and hidden axes as tensor parallelism has.
PRODUCT = {"embed": "data", "norm": "data", "mlp": "model", "heads": "model", "vocab": "model", ...: None}
WHOLE = {...: None}  # of layers whose axes have no names
EXPERTS = {"experts": "model", "embed": "data", ...: None}
P = PartitionSpec


@pytest.fixture(scope="module")
def mesh() -> Any:
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)


def block(key: Any) -> weft.TransformerBlock[None]:
    return weft.TransformerBlock(8, 4, causal=True, key=key)


def mlp(key: Any) -> weft.MLP:
    return weft.MLP(8, 16, 8, key=key)


LAYERS: dict[str, tuple[Callable[[], Any], Any]] = {
    "MLP": (lambda: mlp(KEY), PRODUCT),
    "norms": (lambda: weft.Sequential(weft.LayerNorm(8), weft.RMSNorm(8), weft.GroupNorm(8, groups=2)), PRODUCT),
    "BatchNorm": (lambda: weft.StatefulSequential(mlp(KEY), weft.BatchNorm(8)), PRODUCT),
    "positions": (lambda: weft.LearnedPositions(6, 8, key=KEY), PRODUCT),
    "stacked blocks": (lambda: weft.Stack(block, 2, key=KEY, remat=True), PRODUCT),
    "groups of heads": (
        lambda: weft.MultiHeadAttention(8, 4, num_kv_heads=4, window=2, rope=weft.RoPE(), key=KEY),
        PRODUCT,
    ),
    "adapters": (lambda: weft.lora(mlp(KEY), 2, key=KEY), PRODUCT),
    "quantised": (lambda: weft.quantize(mlp(KEY)), PRODUCT),
    "members": (lambda: weft.Ensemble(mlp, 3, key=KEY), PRODUCT),
    "experts apart": (lambda: weft.MoE(mlp, 4, 8, key=KEY), EXPERTS),
    "experts divided": (lambda: weft.MoE(mlp, 3, 8, key=KEY), PRODUCT),
    "recurrent": (lambda: weft.RNN(weft.GRUCell(8, 8, key=KEY)), WHOLE),
    "both ways": (
        lambda: weft.Bidirectional(weft.RNN(weft.LSTMCell(8, 8, key=KEY)), weft.RNN(weft.SimpleCell(8, 8, key=KEY))),
        WHOLE,
    ),
}


def loss(model: Any, x: Any) -> Any:
    y, *successor = y if isinstance(y := model(x), tuple) else (y,)
    weft.drop_successor(successor)  # only the value is compared
    return jnp.mean(y**2)


@pytest.mark.parametrize("name", LAYERS)
def test_loss_and_gradients_are_those_of_one_device(name: str, mesh: Any):
    make, rules = LAYERS[name]
    model, x = make(), jax.random.normal(jax.random.key(1), (4, 6, 8))
    step = weft.jit(weft.value_and_grad(loss))
    expected, wanted = step(model, x)
    placed = weft.shard(model, mesh, rules)
    batch = jax.device_put(x, NamedSharding(mesh, P("data")))
    with jax.set_mesh(mesh):
        value, gradient = step(placed, batch)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    if name in ("recurrent", "both ways") and hasattr(jax, "Inline"):
        # Since JAX 0.11 the derivative of a loop does not know the mesh by its operands.
        with pytest.raises(weft.errors.MeshError, match="fix: call it inside"):
            step(placed, batch)
    else:
        np.testing.assert_allclose(step(placed, batch)[0], expected, rtol=1e-5)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6), gradient, wanted)
    # What is divided comes back divided alike.
    places = {jax.tree_util.keystr(path): leaf.sharding for path, leaf in jax.tree.leaves_with_path(placed)}
    for path, leaf in jax.tree.leaves_with_path(gradient):
        assert leaf.sharding.is_equivalent_to(places[jax.tree_util.keystr(path)], leaf.ndim), path


def test_tokens_are_looked_up_in_a_divided_table_and_tied_to_it(mesh: Any):
    def tied(table: weft.Embed, ids: Any) -> Any:
        return jax.nn.log_softmax(table.attend(table(ids))).max(axis=-1)[..., 0].sum()

    table, ids = weft.Embed(16, 8, key=KEY), jax.random.randint(KEY, (4, 6), 0, 16)
    expected, wanted = weft.jit(weft.value_and_grad(tied))(table, ids)
    placed = weft.shard(table, mesh, PRODUCT)
    with jax.set_mesh(mesh):
        divided = jax.device_put(ids, NamedSharding(mesh, P("data")))
        value, gradient = weft.jit(weft.value_and_grad(tied))(placed, divided)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient.embedding, wanted.embedding, rtol=1e-4, atol=1e-6)


def test_a_cache_stays_where_it_lies(mesh: Any):
    attention = weft.MultiHeadAttention(8, 4, causal=True, key=KEY).with_cache(3, batch=(4,))
    x = jax.random.normal(KEY, (4, 2, 8))
    expected, after = weft.jit(lambda attention, x: attention(x))(attention, x)
    batch = jax.device_put(x, NamedSharding(mesh, P("data")))
    for names, place in ((None, P()), ({weft.Cache: ("rows", None, "heads", None)}, P("data", None, "model"))):
        placed = weft.shard(attention, mesh, {**PRODUCT, weft.filters.Maybe("rows"): "data"}, names=names)
        with jax.set_mesh(mesh):
            y, moved = weft.jit(lambda attention, x: attention(x))(placed, batch)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(moved.cache.values, after.cache.values, rtol=1e-4, atol=1e-6)
        assert moved.cache.keys.sharding.is_equivalent_to(NamedSharding(mesh, place), 4)


def test_rows_of_a_cache_are_put_where_they_lie(mesh: Any):
    attention = weft.MultiHeadAttention(8, 4, causal=True, key=KEY).with_cache(5, batch=(4,))
    x, lengths = jax.random.normal(KEY, (4, 2, 8)), jnp.array([1, 2, 0, 2])

    def follow(attention: Any, x: Any, lengths: Any) -> Any:
        _, attention = attention(x)
        return weft.rewind(attention, lengths)(x)

    expected, after = weft.jit(follow)(attention, x, lengths)
    batch = jax.device_put(x, NamedSharding(mesh, P("data")))
    for names in (None, {weft.Cache: ("rows", None, "heads", None)}):
        placed = weft.shard(attention, mesh, {**PRODUCT, weft.filters.Maybe("rows"): "data"}, names=names)
        for rows in (lengths, jax.device_put(lengths, NamedSharding(mesh, P("data")))):
            with jax.set_mesh(mesh):
                y, moved = weft.jit(follow)(placed, batch, rows)
            np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(moved.cache.values, after.cache.values, rtol=1e-4, atol=1e-6)
            assert moved.cache.keys.sharding.is_equivalent_to(placed.cache.keys.sharding, 4)


def test_statistics_stay_where_they_lie(mesh: Any):
    norm = weft.shard(weft.BatchNorm(8), mesh, {"norm": None})
    x = jax.device_put(jnp.ones((4, 8)), NamedSharding(mesh, P("data", "model")))
    with jax.set_mesh(mesh):
        _, after = weft.jit(lambda norm, x: norm(x))(norm, x)
    assert after.mean.sharding.is_fully_replicated


def test_layers_of_nnx_follow_the_same_rule(mesh: Any):
    x = jax.random.normal(KEY, (4, 6, 8))
    recurrent, linear = nnx.RNN(nnx.GRUCell(8, 8, rngs=nnx.Rngs(0))), nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    expected = linear(recurrent(x))
    linear.kernel.set_value(jax.device_put(linear.kernel[...], NamedSharding(mesh, P("model", "data"))))
    linear.bias.set_value(jax.device_put(linear.bias[...], NamedSharding(mesh, P("data"))))
    with jax.set_mesh(mesh):
        y = recurrent(jax.device_put(x, NamedSharding(mesh, P("data"))))
        z = linear(jax.sharding.reshard(y, P("data", None, "model")))
    np.testing.assert_allclose(z, expected, rtol=1e-4, atol=1e-6)
    assert tuple(jax.typeof(z).sharding.spec) == ("data", None, None)


@pytest.mark.parametrize(
    ("call", "error", "fragments"),
    [
        (
            lambda x: weft.scan(lambda c, x: (c.replace(mean=c.mean + x), None))(weft.BatchNorm(4), x.T),
            weft.errors.CarryError,
            ["carry.mean: float32[4] -> float32[4@data]", "jax.sharding.reshard gives a value another sharding"],
        ),
        (
            lambda x: weft.cond(True, lambda y: y + x, lambda y: y, jnp.zeros((4, 4))),
            weft.errors.BranchError,
            ["output: float32[4@data,4] -> float32[4,4]", "jax.sharding.reshard"],
        ),
        (
            lambda x: weft.scan(lambda c, row: (c + row.sum(), None))(0.0, x),
            weft.errors.MeshError,
            ["an axis of which a scan takes slices is divided", "float32[4@data,4]", "have it whole on each device"],
        ),
        (
            lambda x: weft.vmap(lambda a, b: a + b)(jnp.ones((4, 4)), x),
            weft.errors.MeshError,
            ["a mapped axis is divided over the mesh differently", "a: float32[4,4]", "b: float32[4@data,4]"],
        ),
    ],
    ids=["carry", "branches", "slices", "mapped"],
)
def test_what_jax_refuses_is_said_with_paths(call: Any, error: Any, fragments: list[str], mesh: Any):
    with jax.set_mesh(mesh), pytest.raises(error) as raised:
        call(jax.device_put(jnp.ones((4, 4)), NamedSharding(mesh, P("data"))))
    assert [fragment for fragment in fragments if fragment not in str(raised.value)] == []


def test_an_axis_of_the_mesh_stays_where_it_comes_first():
    assert once((None, ("data", "model"), "data", "other")) == (None, ("data", "model"), None, "other")


def test_values_without_a_mesh_are_left_alone():
    small, y = jnp.ones(2), jnp.ones((3, 2))
    assert laid_like(small, y) is small
    assert laid_as(small, small) is small


def test_what_stands_in_an_arrays_place_lies_on_no_mesh():
    # Quantisers put classes of their own where weights were; what they are, only the product in their place knows.
    class Weight:
        shape, ndim = (2, 3), 2

    assert not is_divided(Weight())
    assert spec_of(Weight()) == (None, None)
    assert product_sharding(jnp.ones((4, 2)), Weight(), (((1,), (0,)), ((), ()))) is None


def as_usual(x: Any) -> Any:
    return jnp.mean(x**2)


# Products of moments, rows and columns of them, their sum.
TRANSFORMATIONS = {
    "muon": optax.contrib.muon(1e-2),
    "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=4),
    "adam": optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2)),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_an_optimizer_that_knows_nothing_of_meshes_moves_a_model_on_one(name: str, mesh: Any):
    def train(place: Callable[[Any], Any], x: Any) -> tuple[list[float], Any]:
        state = place((mlp(KEY), weft.Optimizer(mlp(KEY), TRANSFORMATIONS[name])))
        step = weft.jit(lambda state, x: state[1].minimize(lambda model, x: as_usual(model(x)), state[0], x))
        losses: list[float] = []
        for _ in range(3):
            before = jax.tree.map(spec_of, state)
            value, *rest = step(state, x)
            state = tuple(rest)
            assert jax.tree.map(spec_of, state) == before
            losses.append(float(value))
        return losses, state

    x = jax.random.normal(KEY, (8, 8))
    expected, _ = train(lambda state: state, x)
    with jax.set_mesh(mesh):
        sharded_x = jax.device_put(x, NamedSharding(mesh, P("data")))
        actual, state = train(lambda state: weft.shard(state, mesh, PRODUCT), sharded_x)
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    assert state[0].layers[0].kernel.sharding.spec == P("data", "model")


@pytest.mark.parametrize("name", TRANSFORMATIONS)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_an_nnx_optimizer_does_too(name: str, kind: Any):
    def train(named: Callable[..., Any], place: Callable[[Any], Any]) -> tuple[list[float], Any]:
        rngs = nnx.Rngs(0)
        model = nnx.Sequential(
            nnx.Linear(8, 16, kernel_init=named(None, "model"), rngs=rngs),
            nnx.Linear(16, 8, kernel_init=named("model", None), rngs=rngs),
        )
        optimizer = nnx.Optimizer(model, TRANSFORMATIONS[name], wrt=nnx.Param)

        @nnx.jit
        def step(model: Any, optimizer: Any, x: Any) -> Any:
            value, gradient = nnx.value_and_grad(lambda model: as_usual(model(x)))(model)
            optimizer.update(model, gradient)
            return value

        x = place(jax.random.normal(KEY, (8, 8)))
        return [float(step(model, optimizer, x)) for _ in range(3)], model.layers[0].kernel.get_value().sharding

    init = nnx.initializers.lecun_normal()
    expected, _ = train(lambda *names: init, lambda x: x)
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind, kind))
    with jax.set_mesh(mesh):
        actual, where = train(
            lambda *names: nnx.with_metadata(init, out_sharding=names),
            lambda x: jax.device_put(x, NamedSharding(mesh, P("data"))),
        )
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    assert where.spec == P(None, "model")


@pytest.mark.parametrize("transform", [weft.jit, nnx.jit], ids=["records", "objects"])
def test_what_only_its_caller_can_answer_is_told_with_the_place(transform: Any, mesh: Any):
    def loss(logits: Any, labels: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    with jax.set_mesh(mesh):
        logits = jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, P("data", "model")))
        labels = jax.device_put(jnp.ones(8, int), NamedSharding(mesh, P("data")))
        with pytest.raises(weft.errors.MeshError) as caught:
            transform(loss)(logits, labels)
        for fragment in (
            "JAX cannot tell where a result lies on an explicit mesh: Use `.at[...].get(out_sharding=)`",
            "test_explicit.py",
            "in softmax_cross_entropy_with_integer_labels",
            "auto_axes(softmax_cross_entropy_with_integer_labels, out_sharding=...) around the call",
        ):
            assert fragment in str(caught.value)
        with pytest.raises(weft.errors.MeshError, match=r"in <lambda>\n  fix: say it by out_sharding="):
            transform(lambda x: x @ x.T)(logits)
