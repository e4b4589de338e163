"""Plans of tiny models, held to what is counted by hand."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pytest
import weft
from jax.sharding import NamedSharding, PartitionSpec
from weft.core.errors import AxisError, MeshError
from weft.tests.insight.plan.cases import RULES, SIZES, X, shapes, step

MESH = SIZES


@pytest.fixture(scope="module")
def plan():
    return weft.plan(step, *shapes(), X, mesh=MESH, rules=RULES)


def test_bytes_of_arguments_are_those_counted_by_hand(plan):
    kernels = 2 * 16 * 64 * 4 // 8
    biases = 64 * 4 // 2 + 16 * 4 // 4
    assert plan.bytes_per_device.params == kernels + biases
    # Two moments for each parameter, and two counts of steps or one.
    assert plan.bytes_per_device.optimizer - 2 * plan.bytes_per_device.params in (4, 8)
    assert plan.bytes_per_device.batch == 32 * 16 * 4 // 4


def test_operations_of_a_divided_layer_are_those_counted_by_hand():
    model = weft.init(weft.MLP, 16, 64, 16, abstract=True)
    plan = weft.plan(lambda m, x: m(x), model, X, mesh=MESH, rules={"mlp": "model", ...: None})
    assert plan.flops["total"] == plan.flops["forward"] == 2 * 2 * 8 * 16 * 32
    assert plan.flops["model"] == 2 * 2 * 32 * 16 * 64
    [reduction] = plan.collectives
    assert (reduction.kind, reduction.axes, reduction.count) == ("all-reduce", ("model",), 1)
    assert (reduction.bytes, reduction.asked) == (8 * 16 * 4, True)


def test_loops_multiply_what_is_in_them():
    def scanned(w, x):
        return jax.lax.scan(lambda x, w: (jax.nn.relu(x @ w), None), x, w)[0]

    w = jax.ShapeDtypeStruct((5, 16, 16), jnp.float32)
    plan = weft.plan(scanned, w, X, mesh={"data": 4}, batch=None)
    assert plan.flops["total"] == 5 * 2 * 32 * 16 * 16


def test_activations_are_told_by_path(plan):
    assert plan.kept
    assert any("layers" in one.path for one in plan.kept)
    assert plan.bytes_per_device.activations == sum(one.bytes for one in plan.kept)


def test_a_collective_says_line_and_part(plan):
    assert any("cases.py:" in one.where and "layers[" in one.where for one in plan.collectives)


def test_a_replicated_kernel_is_told_first():
    model, opt = shapes()
    names = {lambda path, kind, value: tuple(path)[-3:] == ("layers", 2, "kernel"): (None, None)}
    plan = weft.plan(step, model, opt, X, mesh=MESH, rules=RULES, names=names)
    assert plan.warnings[0].kind == "replicated"
    assert "layers[2].kernel" in plan.warnings[0].text


def test_a_resharding_in_the_middle_is_told_first():
    def bent(model, x):
        mesh = jax.sharding.get_abstract_mesh()
        hidden = jax.lax.with_sharding_constraint(
            x @ jnp.ones((16, 64)), NamedSharding(mesh, PartitionSpec(None, "data"))
        )
        return hidden.sum() + model(x).sum()

    model, _ = shapes()
    plan = weft.plan(bent, model, X, mesh=MESH, rules=RULES)
    assert plan.warnings[0].kind == "resharding"
    assert "test_plan.py" in plan.warnings[0].text
    assert not plan.collectives[0].asked


def test_an_optimizer_state_that_is_not_divided_is_told_first():
    model, opt = shapes()
    from jax.sharding import AbstractMesh, AxisType

    mesh = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    plan = weft.plan(step, weft.shard(model, mesh, RULES), opt, X, mesh=mesh)
    assert plan.warnings[0].kind == "optimizer"


def test_text_page_and_comparison_show_what_the_plan_says(plan, tmp_path: Path):
    assert "fits" in str(plan)
    assert "all-" in str(plan)
    plan.save(tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert "width=device-width" in page
    assert all(one.kind in page for one in plan.collectives)
    assert "1.00" in plan.compare(plan)
    json.dumps(plan.as_dict())


def test_what_cannot_be_planned_is_told():
    model, opt = shapes()
    with pytest.raises(MeshError, match="a batch of 32 is not divided by 5"):
        weft.plan(step, model, opt, X, mesh={"data": 5})
    with pytest.raises(AxisError, match="cannot lie on this mesh"):
        weft.plan(step, model, opt, X, mesh={"data": 32, "model": 3}, rules=RULES)
    with pytest.raises(MeshError, match="no hardware is called 'h1000'"):
        weft.plan(step, model, opt, X, mesh=MESH, hardware="h1000")


@pytest.mark.slow
def test_the_search_ranks_what_fits():
    found = weft.plan.search(step, *shapes(), X, devices=4, progress=False, most=3)
    assert len(found) == 3
    times = [plan.seconds.serial for _, _, plan in found]
    assert times == sorted(times)


# Shapes of Llama 7B and 70B: width, layers, heads.
@pytest.mark.slow
@pytest.mark.parametrize(("width", "layers", "heads"), [(4096, 32, 32), (8192, 80, 64)], ids=["7B", "70B"])
def test_a_llama_is_planned_for_512_devices_within_memory(width: int, layers: int, heads: int):
    class Llama(weft.Module):  # weft: skip(of one size)
        embed: weft.Embed
        blocks: weft.Stack
        norm: weft.RMSNorm

        def __init__(self, *, key):
            options = {"causal": True, "rope": weft.RoPE(), "norm": weft.RMSNorm, "use_bias": False}
            block = lambda key: weft.TransformerBlock(width, heads, key=key, **options)  # noqa: E731
            self.embed = weft.Embed(32_000, width, key=key)
            self.blocks = weft.Stack(block, layers, remat=True, key=key)
            self.norm = weft.RMSNorm(width)

        def __call__(self, tokens):
            return self.embed.attend(self.norm(self.blocks(self.embed(tokens))))

    def cross_entropy(model, tokens):
        logits = model(tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def train(model, opt, tokens):
        value, model, opt = opt.minimize(cross_entropy, model, tokens)
        return value, model, opt

    model = weft.init(Llama, abstract=True)
    opt = jax.eval_shape(lambda model: weft.Optimizer(model, optax.adamw(1e-4)), model)
    tokens = jax.ShapeDtypeStruct((512, 2049), jnp.int32)
    rules = weft.plan.TABLES["fsdp_tensor"]
    step = weft.jit(train, donate_argnums=(0, 1))
    plan = weft.plan(step, model, opt, tokens, mesh={"data": 64, "model": 8}, rules=rules)
    whole = sum(leaf.size * 4 for leaf in jax.tree.leaves(model))
    assert whole / 512 <= plan.bytes_per_device.params <= 1.2 * whole / 512
    assert plan.flops["recomputed"] > 0.8 * plan.flops["forward"]
    # Left to itself XLA moves activations where parameters are divided over a batch's axis, and that is told.
    assert any(not one.asked for one in plan.collectives)
    used = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    assert used * 1024 < 4e9


@pytest.mark.slow
def test_the_page_is_as_wide_as_a_phone(plan, tmp_path: Path, visit):
    plan.save(tmp_path / "plan.html")
    script = "[document.documentElement.scrollWidth <= window.innerWidth, document.querySelectorAll('tbody tr').length]"
    [[fits, rows]] = visit((tmp_path / "plan.html").as_uri(), script=script, size=(390, 800))
    assert fits
    assert rows == len(plan.collectives)


def test_the_command_prints_a_plan_and_one_line_for_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from weft.insight.plan.command import main

    script = tmp_path / "scripted.py"
    script.write_text(
        "import jax, weft, jax.numpy as jnp\n"
        "def made(mesh):\n"
        "    model = weft.init(weft.MLP, 4, 8, 2, abstract=True)\n"
        "    return (lambda m, x: m(x)), model, jax.ShapeDtypeStruct((8, 4), jnp.float32)\n"
    )
    assert (
        main([f"{script}:made", "--mesh", "data=2,model=2", "--rules", "tensor", "--out", str(tmp_path / "p.html")])
        == 0
    )
    assert "plan for data=2 model=2" in capsys.readouterr().out
    for arguments, message in [
        ([f"{tmp_path}/none.py:made", "--mesh", "data=2"], "there is no file"),
        ([f"{script}:other", "--mesh", "data=2"], "has no function 'other'"),
        ([f"{script}:made", "--mesh", "data"], "a mesh is written"),
        ([f"{script}:made", "--mesh", "data=3"], "is not divided by 3"),
    ]:
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_nnx_objects_lie_as_their_metadata_says():
    from weft import nnx

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            up = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("embed", "mlp"))
            self.up = nnx.Linear(16, 64, use_bias=False, rngs=rngs, kernel_init=up)

        def __call__(self, x):
            return self.up(x)

    @nnx.jit
    def train(model, optimizer, x):
        optimizer.update(model, nnx.grad(lambda model: (model(x) ** 2).mean())(model))

    def made():
        with nnx.use_eager_sharding(False):
            model = Model(nnx.Rngs(0))
            return model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    plan = weft.plan(train, *made(), X, mesh=MESH, rules={"embed": "data", "mlp": "model"})
    assert plan.bytes_per_device.params == 16 * 64 * 4 // 8
    assert plan.bytes_per_device.optimizer - 2 * plan.bytes_per_device.params in (4, 8)
    assert {one.phase for one in plan.collectives} >= {"backward"}
