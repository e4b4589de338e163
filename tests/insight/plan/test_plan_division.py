"""Steps that divide their batch badly are told what is wrong and what to do; their right twins are told nothing."""

from __future__ import annotations

from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax
import pytest
import weft
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int
from weft import nnx
from weft.core.records.axis_names import Sharded
from weft.insight.plan.collectives import seconds_of
from weft.modules.sharding.unnamed import ReplicatedWarning

from .cases import ADAM, CASES, NNX_RULES, SIZES, Layers, X, mean_square, nnx_objects, nnx_step, shapes

pytestmark = pytest.mark.usefixtures("compiling_here")
WHOLE = {...: None}
DEVICES = {"data": 8}
LOSSES = ("micro-batch", "activations", "compute")
FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"


def on(mesh: dict[str, int]) -> AbstractMesh:
    return AbstractMesh(tuple(mesh.values()), tuple(mesh), axis_types=(AxisType.Auto,) * len(mesh))


def planned(
    step: Any, model: Any, *batch: Any, mesh: Any = DEVICES, rules: Any = WHOLE, tx: Any = ADAM, **options: Any
):
    opt = jax.eval_shape(lambda model: weft.Optimizer(model, tx), model)
    compiled = weft.jit(step, donate_argnums=(0, 1))
    return weft.plan(compiled, model, opt, *batch, mesh=mesh, rules=rules, **options)


def kinds(plan: Any) -> list[str]:
    return [warning.kind for warning in plan.warnings]


def text_of(plan: Any, kind: str) -> str:
    [warning] = [warning for warning in plan.warnings if warning.kind == kind]
    return warning.text


def minimized(model: Any, opt: Any, x: Any) -> Any:
    return opt.minimize(mean_square, model, x)[1:]


class Convolutional(weft.Module):
    conv: weft.Conv
    head: weft.Linear

    def __init__(self, *, key: Any):
        self.conv = weft.Conv(3, 8, (3, 3), key=key)
        self.head = weft.Linear(8, 4, key=key)

    def __call__(self, x: Any) -> Any:
        return self.head(jax.nn.relu(self.conv(x)).mean((-3, -2)))


def test_plain_data_parallelism_that_fits_warns_of_nothing():
    plan = planned(minimized, shapes()[0], X)
    assert plan.warnings == []
    small = weft.plan.Hardware("small", plan.bytes_per_device.peak - 1, 1e9, 1e9, 1e9, 1e9, 8, 1e9)
    assert kinds(planned(minimized, shapes()[0], X, hardware=small)) == ["replicated", "memory"]


def test_the_operations_of_convolutions_count_as_asked_for():
    image = jax.ShapeDtypeStruct((16, 8, 8, 3), jnp.float32)
    plan = planned(minimized, weft.init(Convolutional, abstract=True), image)
    assert plan.warnings == []
    assert plan.flops["model"] == pytest.approx(8 * plan.flops["total"], rel=0.1)


def test_a_convolution_in_groups_which_the_cpu_computes_as_one_is_no_reason_to_warn():
    def grouped(key: Any) -> Any:
        return weft.Conv(8, 8, (3, 3), feature_group_count=8, key=key)

    model = jax.eval_shape(grouped, jax.random.key(0))
    plan = planned(minimized, model, jax.ShapeDtypeStruct((16, 8, 8, 8), jnp.float32))
    assert 8 * plan.flops["total"] > 2 * plan.flops["model"]
    assert "compute" not in kinds(plan)


def test_an_axis_that_divides_nothing_is_told_with_what_it_repeats():
    plan = planned(minimized, shapes()[0], X, mesh=SIZES)
    text = text_of(plan, "compute")
    assert "2.00 times what the step asks for" in text
    assert "cases.py:" in text
    assert "(layers[" in text
    assert "no argument is divided over model; divide the batch, with batch=('data', 'model')" in text
    assert planned(minimized, shapes()[0], X, mesh=SIZES, batch=("data", "model")).warnings == []


def language_model(key: Any) -> Any:
    """A transformer's block of which attention is a large part: XLA cannot divide it over features."""

    def block(key: Any) -> Any:
        return weft.TransformerBlock(32, 4, key=key, causal=True, use_bias=False, norm=weft.RMSNorm)

    return weft.Sequential([weft.Embed(64, 32, key=key), weft.Stack(block, 2, key=key)])


class Divided(weft.Module):
    """A model whose activations are divided as its batch is."""

    inner: Any

    def __call__(self, tokens: Any) -> Any:
        embed, blocks = self.inner.layers
        by_batch = lambda x: jax.lax.with_sharding_constraint(x, PartitionSpec("data"))  # noqa: E731
        body = lambda x, block: (by_batch(block(x)), None)  # noqa: E731
        return jax.lax.scan(body, by_batch(embed(tokens)), blocks.layers)[0]


class Named(weft.Module):
    """A model whose activations are divided where the annotations of one method name their axes."""

    inner: Any

    def embedded(self, tokens: Int[Array, "batch sequence"]) -> Float[Array, "batch sequence embed"]:
        return self.inner.layers[0](tokens)

    def __call__(self, tokens: Any) -> Any:
        x = self.embedded(tokens)
        for layer in self.inner.layers[1:]:
            x = layer(x)
        return x


TOKENS = jax.ShapeDtypeStruct((16, 32), jnp.int32)


@pytest.mark.slow
def test_activations_that_are_divided_over_features_are_told_and_those_over_the_batch_are_not():
    model = jax.eval_shape(language_model, jax.random.key(0))
    plan = planned(minimized, model, TOKENS, rules=weft.plan.TABLES["fsdp"])
    for kind in ("activations", "compute"):
        assert "with weft.axis_rules(mesh, rules):" in text_of(plan, kind)
        assert "{'batch': 'data'}" in text_of(plan, kind)
    assert "each device has the whole batch, although data divides the batch" in text_of(plan, "activations")
    assert "attention" in text_of(plan, "compute")
    for right in (Divided(model), Named(model)):
        assert not {*kinds(planned(minimized, right, TOKENS, rules=weft.plan.TABLES["fsdp"]))} & {*LOSSES}


@pytest.mark.slow
def test_a_fully_sharded_gpt_of_118_million_parameters_repeats_little_where_one_method_is_annotated():
    width, vocabulary = 1024, 8192

    def block(key: Any) -> Any:
        mlp = lambda key: weft.GatedMLP(width, 2752, key=key, use_bias=False)  # noqa: E731
        options = {"causal": True, "norm": weft.RMSNorm, "mlp": mlp, "use_bias": False}
        return weft.TransformerBlock(width, 8, key=key, **options)

    def layers(key: Any) -> Any:
        head = weft.Linear(width, vocabulary, key=key, use_bias=False)
        blocks = weft.Stack(block, 8, key=key, remat=True)
        return weft.Sequential([weft.Embed(vocabulary, width, key=key), blocks, weft.RMSNorm(width), head])

    def step(model: Any, opt: Any, tokens: Any) -> Any:
        def loss(model: Any, tokens: Any) -> Any:
            logits = weft.tree.cast(model, jnp.bfloat16)(tokens).astype(jnp.float32)
            return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()

        return opt.minimize(loss, model, tokens)

    model = Named(jax.eval_shape(layers, jax.random.key(0)))
    tokens = jax.ShapeDtypeStruct((64, 512), jnp.int32)
    # The head has no names, which is another warning's business.
    with pytest.warns(ReplicatedWarning):
        plan = planned(step, model, tokens, rules={"batch": "data", "embed": "data", ...: None})
    assert plan.flops["total"] * 8 / plan.flops["model"] < 1.35
    assert plan.bytes_per_device.peak < 1e9
    assert not {*kinds(plan)} & {*LOSSES}


@pytest.mark.slow
def test_a_gpt_that_gathers_its_parameters_repeats_nothing():
    case = CASES["gpt"]
    plan = weft.plan(case.step(on(SIZES)), *case.planned(), mesh=SIZES, rules=case.rules)
    assert not {*kinds(plan)} & {*LOSSES}


def accumulating(split: Any) -> Any:
    def step(model: Any, opt: Any, x: Any) -> Any:
        def turn(total: Any, x: Any) -> Any:
            return jax.tree.map(jnp.add, total, weft.grad(mean_square)(model, x)), None

        zeros = jax.tree.map(jnp.zeros_like, weft.tree.select(model, weft.Param))
        gradients, _ = jax.lax.scan(turn, zeros, split(x))
        return opt.update(model, gradients)

    return step


def strided(x: Any) -> Any:
    """Micro-batches that have examples of each device."""
    return jnp.swapaxes(x.reshape(-1, 4, *x.shape[1:]), 0, 1)


def consecutive(x: Any) -> Any:
    return x.reshape(4, -1, *x.shape[1:])


def test_micro_batches_of_accumulated_gradients_that_are_smaller_than_the_mesh_are_told():
    model, x = shapes()[0], jax.ShapeDtypeStruct((16, 16), jnp.float32)
    text = text_of(planned(accumulating(consecutive), model, x), "micro-batch")
    assert "test_plan_division.py:" in text
    assert "has fewer examples, 4, than data has devices, 8" in text
    assert "divide the batch of 16 into at most 2 micro-batches, or take a batch of at least 32" in text


def test_accumulated_gradients_of_micro_batches_that_the_mesh_divides_are_told_nothing():
    plan = planned(accumulating(strided), shapes()[0], jax.ShapeDtypeStruct((64, 16), jnp.float32))
    assert plan.warnings == []
    assert 8 * plan.flops["total"] == plan.flops["model"]
    # Four micro-batches, of which a device has two examples each, and two products.
    assert plan.flops["forward"] == 4 * 2 * (2 * 2 * 16 * 64)
    assert plan.flops["update"] == 0


def test_micro_batches_that_the_mesh_does_not_divide_are_computed_by_all_devices():
    plan = planned(accumulating(consecutive), shapes()[0], X)
    assert kinds(plan)[-1] == "compute"
    assert "4.00 times what the step asks for" in text_of(plan, "compute")


def test_a_loop_over_examples_takes_one_at_a_time():
    def each(model: Any, opt: Any, x: Any) -> Any:
        return opt.minimize(lambda model, x: (jax.lax.map(model, x) ** 2).mean(), model, x)

    assert "has fewer examples, 1," in text_of(planned(each, shapes()[0], X), "micro-batch")


def test_groups_of_examples_that_are_computed_together_are_no_micro_batches():
    def grouped(model: Any, opt: Any, x: Any) -> Any:
        def loss(model: Any, x: Any) -> Any:
            layers = jax.lax.scan(lambda x, _: (jnp.tanh(model(x)), None), x.reshape(8, -1, 16), length=2)
            return (layers[0] ** 2).mean()

        return opt.minimize(loss, model, x)

    assert planned(grouped, shapes()[0], X).warnings == []


class Pipeline(weft.Module):
    """Stages on the devices of an axis, which pass micro-batches on, from turn to turn of a scan."""

    weight: Annotated[Float[Array, "stage features features"], Sharded("stage", None, None)]

    def __init__(self, *, key: Any):
        self.weight = jax.random.normal(key, (4, 16, 16))

    def __call__(self, x: Any) -> Any:
        def turn(state: Any, x: Any) -> Any:
            state = jnp.roll(state, 1, axis=0).at[0].set(x)
            state = jax.vmap(lambda weight, x: jnp.tanh(x @ weight))(self.weight, state)
            return state, state[-1]

        waiting = jnp.zeros((3, *x.shape[1:]))
        return jax.lax.scan(turn, jnp.zeros((4, *x.shape[1:])), jnp.concatenate([x, waiting]))[1][3:]


PIPELINE = {"data": 2, "stage": 4}


def test_a_pipeline_by_scan_repeats_nothing_and_its_stages_pass_on_what_they_compute():
    over = NamedSharding(on(PIPELINE), PartitionSpec(None, "data"))
    x = jax.ShapeDtypeStruct((6, 8, 16), jnp.float32, sharding=over)
    rules = {"stage": "stage", ...: None}
    plan = planned(minimized, weft.init(Pipeline, abstract=True), x, mesh=PIPELINE, rules=rules)
    assert plan.warnings == []
    # Nine turns for six micro-batches: each of four stages takes half of a micro-batch.
    assert plan.flops["forward"] == 9 * 2 * 4 * 16 * 16
    assert plan.flops["backward"] == 2 * plan.flops["forward"]
    assert 8 * plan.flops["total"] == plan.flops["model"]
    moving = [each for each in plan.collectives if each.kind == "collective-permute"]
    assert {(each.axes, each.count, each.asked) for each in moving} == {(("stage",), 9, True)}
    assert {each.phase for each in moving} == {FORWARD, BACKWARD}
    assert plan.examples == 8


def test_micro_batches_of_a_pipeline_that_are_smaller_than_the_mesh_are_told():
    def split(model: Any, opt: Any, x: Any) -> Any:
        return opt.minimize(mean_square, model, x.reshape(8, -1, 16))

    x, rules = jax.ShapeDtypeStruct((8, 16), jnp.float32), {"stage": "stage", ...: None}
    plan = planned(split, weft.init(Pipeline, abstract=True), x, mesh=PIPELINE, rules=rules)
    assert "has fewer examples, 1, than data has devices, 2" in text_of(plan, "micro-batch")


def mixture(key: Any) -> Any:
    return weft.MoE(lambda key: weft.MLP(16, 32, 16, key=key), 8, 16, key=key)


def test_the_products_of_a_mixture_of_experts_stand_in_their_own_phases():
    model, x = jax.eval_shape(mixture, jax.random.key(0)), jax.ShapeDtypeStruct((64, 16), jnp.float32)
    plan = planned(minimized, model, x, rules={"experts": "data", ...: None})
    assert plan.flops[UPDATE] == 0
    # Nothing is differentiated by the tokens, nor by which of them an expert is sent.
    assert plan.flops[FORWARD] < plan.flops[BACKWARD] < 2 * plan.flops[FORWARD]
    assert not {*kinds(plan)} & {*LOSSES}
    whole = planned(minimized, model, x)
    assert "experts.layers[" in text_of(whole, "compute")
    assert "kernel with a rule" in text_of(whole, "compute")


@pytest.mark.slow
def test_the_products_of_heads_one_on_each_device_stand_in_their_own_phases():
    def attention(key: Any) -> Any:
        return weft.MultiHeadAttention(16, 8, key=key, use_bias=False)

    model, x = jax.eval_shape(attention, jax.random.key(0)), jax.ShapeDtypeStruct((4, 8, 16), jnp.float32)
    rules = weft.plan.TABLES["tensor"]
    plan = planned(minimized, model, x, mesh={"data": 1, "model": 8}, rules=rules)
    # Each product but the three of the input has two in the backward pass.
    of_input = 3 * 2 * 4 * 8 * 16 * 16
    assert plan.flops[UPDATE] == 0
    assert 8 * plan.flops[BACKWARD] == 2 * 8 * plan.flops[FORWARD] - of_input
    assert plan.warnings == []


def test_products_of_an_update_are_told_apart_and_so_is_what_repeats_them():
    plan = planned(minimized, shapes()[0], X, tx=optax.contrib.muon(1e-3))
    assert plan.flops[UPDATE] > plan.flops[FORWARD]
    assert "divide the parameters with a rule, and each device updates its part" in text_of(plan, "compute")


def test_a_teacher_is_forward():
    def distilled(model: Any, opt: Any, teacher: Any, x: Any) -> Any:
        target = teacher(x)
        return opt.minimize(lambda model, x: ((model(x) - target) ** 2).mean(), model, x)

    model = shapes()[0]
    opt = jax.eval_shape(lambda model: weft.Optimizer(model, ADAM), model)
    plan = weft.plan(weft.jit(distilled), model, opt, model, X, mesh=DEVICES, rules=WHOLE)
    assert plan.flops[FORWARD] == 2 * 2 * 2 * 4 * 16 * 64
    assert plan.flops[UPDATE] == 0


def test_operations_that_the_trace_does_not_tell_are_no_reason_to_warn():
    def looped(w: Any, x: Any) -> Any:
        return jax.lax.while_loop(lambda state: state[0] < 5, lambda state: (state[0] + 1, state[1] @ w), (0, x))[1]

    w = jax.ShapeDtypeStruct((16, 16), jnp.float32, sharding=NamedSharding(on(DEVICES), PartitionSpec()))
    assert weft.plan(looped, w, X, mesh=DEVICES).warnings == []


def test_a_step_that_holds_for_one_size_of_batch_is_planned_and_says_what_is_not_examined():
    def fixed(model: Any, opt: Any, x: Any) -> Any:
        return opt.minimize(mean_square, model, x.reshape(32, 16))

    plan = planned(fixed, shapes()[0], X)
    assert plan.warnings == []
    assert any("cannot be traced for a batch twice as large" in note for note in plan.notes)


def test_rates_and_utilisation_are_those_of_their_formulas():
    tokens = jax.ShapeDtypeStruct((16, 8), jnp.int32)
    batch = {"tokens": tokens, "mask": jax.ShapeDtypeStruct((16, 8), jnp.float32)}
    embed = weft.init(
        lambda *, key: weft.Sequential([weft.Embed(32, 16, key=key), weft.MLP(16, 64, 16, key=key)]), abstract=True
    )

    def masked(model: Any, opt: Any, batch: Any) -> Any:
        loss = lambda model, batch: (model(batch["tokens"]) ** 2).mean(-1) @ batch["mask"].T  # noqa: E731
        return opt.minimize(lambda model, batch: loss(model, batch).mean(), model, batch)

    plan = planned(masked, embed, batch)
    assert (plan.examples, plan.tokens) == (16, 128)
    assert plan.tokens_per_second == 128 / plan.seconds.serial == 8 * plan.examples_per_second
    assert plan.mfu == pytest.approx(plan.flops["model"] / (8 * plan.hardware.flops32 * plan.seconds.serial))
    assert f"{plan.tokens_per_second:,.0f} tokens a second" in str(plan)
    assert planned(minimized, shapes()[0], X).tokens == 0


def test_the_largest_batch_fits_and_a_larger_one_does_not():
    model = shapes()[0]
    peaks = {
        n: planned(minimized, model, jax.ShapeDtypeStruct((n, 16), jnp.float32)).bytes_per_device.peak
        for n in (512, 576)
    }
    small = weft.plan.Hardware("small", peaks[512] + 8, 1e9, 1e9, 1e9, 1e9, 8, 1e9)
    plan = planned(minimized, model, jax.ShapeDtypeStruct((256, 16), jnp.float32), hardware=small, largest_batch=True)
    assert plan.largest_batch is not None
    assert plan.largest_batch % 8 == 0
    assert 448 <= plan.largest_batch <= 520
    assert peaks[576] > small.memory
    assert f"the largest batch that fits is {plan.largest_batch}" in str(plan)
    assert planned(minimized, model, X).largest_batch is None


def test_an_nnx_model_is_planned_with_its_optimizer_and_told_nothing():
    plan = weft.plan(nnx_step, *nnx_objects(), X, mesh=SIZES, rules=NNX_RULES)
    assert plan.warnings == []
    assert plan.flops[FORWARD] == 2 * 2 * 8 * 16 * 32
    assert (plan.flops[BACKWARD], plan.flops[UPDATE]) == (plan.flops[FORWARD] * 3 // 2, 0)
    assert plan.examples == 32


def test_an_nnx_model_on_an_axis_that_divides_nothing_is_told():
    with nnx.use_eager_sharding(False):
        model = Layers(nnx.Rngs(0))
        plan = weft.plan(
            nnx_step,
            model,
            nnx.Optimizer(model, ADAM, wrt=nnx.Param),
            X,
            mesh=SIZES,
            rules={"embed": None, "mlp": None},
        )
    assert "(up) run 2 times" in text_of(plan, "compute") or "(down) run 2 times" in text_of(plan, "compute")


@pytest.mark.parametrize(("name", "ways"), [("v5e", 2), ("v6e", 2), ("h100", 1), ("gb200", 1), ("mi300x", 1)])
def test_a_ring_on_a_torus_sends_in_both_directions(name: str, ways: int):
    hardware, group = weft.plan.HARDWARE[name], [[*range(8)]]
    assert seconds_of("all-gather", 8, group, hardware) == pytest.approx(7 / (ways * hardware.link))
    assert seconds_of("all-reduce", 8, group, hardware) == pytest.approx(14 / (ways * hardware.link))
    # One direction is used where each device sends to its next neighbour.
    assert seconds_of("collective-permute", 8, [[0, 1], [1, 0]], hardware) == pytest.approx(8 / hardware.link)
    # Through a switch seven eighths leave a device; on a ring of eight they go over two links on average.
    expected = 7 / hardware.link if ways == 1 else 16 / (2 * hardware.link)
    assert seconds_of("all-to-all", 8, group, hardware) == pytest.approx(expected)


def test_the_table_of_hardware_has_newer_and_smaller_devices():
    assert {"v6e", "gb200", "mi300x", "l4", "a100-40"} <= {*weft.plan.HARDWARE}
