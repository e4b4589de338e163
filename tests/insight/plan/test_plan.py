"""Plans of tiny models, held to what is counted by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import weft
from weft.core.errors import AxisError, MeshError
from weft.insight.plan.command import main

from .cases import NNX_RULES, RULES, SIZES, X, nnx_objects, nnx_step, shapes, step

pytestmark = pytest.mark.usefixtures("compiling_here")
MESH = SIZES


@pytest.fixture(scope="module")
def plan(compiling_here):
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
    assert plan.activations
    assert any("layers" in each.path for each in plan.activations)
    assert plan.bytes_per_device.activations == sum(each.bytes for each in plan.activations)


def test_a_collective_says_line_and_part(plan):
    assert any("cases.py:" in each.where and "layers[" in each.where for each in plan.collectives)


def test_text_page_and_comparison_show_what_the_plan_says(plan, tmp_path: Path):
    assert "fits" in str(plan)
    assert "all-" in str(plan)
    plan.save(tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert "width=device-width" in page
    assert all(each.kind in page for each in plan.collectives)
    assert "1.00" in plan.compare(plan)
    json.dumps(plan.as_dict())


def test_what_cannot_be_planned_is_told():
    model, opt = shapes()
    with pytest.raises(MeshError, match="a batch of 32 is not divisible by the 5 devices"):
        weft.plan(step, model, opt, X, mesh={"data": 5})
    with pytest.raises(AxisError, match="the rules cannot place this tree on the mesh"):
        weft.plan(step, model, opt, X, mesh={"data": 32, "model": 3}, rules=RULES)
    with pytest.raises(MeshError, match="no hardware is called 'h1000'"):
        weft.plan(step, model, opt, X, mesh=MESH, hardware="h1000")


@pytest.mark.slow
def test_the_search_ranks_what_fits():
    ranked = weft.plan.search(step, *shapes(), X, devices=4, progress=False, most=3)
    assert len(ranked) == 3
    times = [plan.seconds.serial for _, _, plan in ranked]
    assert times == sorted(times)


@pytest.mark.slow
def test_the_page_is_as_wide_as_a_phone(plan, tmp_path: Path, visit):
    plan.save(tmp_path / "plan.html")
    script = "[document.documentElement.scrollWidth <= window.innerWidth, document.querySelectorAll('tbody tr').length]"
    [[fits, rows]] = visit((tmp_path / "plan.html").as_uri(), script=script, size=(390, 800))
    assert fits
    assert rows == len(plan.collectives)


SCRIPT = """
import jax, weft, jax.numpy as jnp
MESH = jax.make_mesh((4, 2), ("data", "model"))
def made(mesh):
    model = weft.init(weft.MLP, 4, 8, 2, abstract=True)
    return (lambda m, x: m(x)), model, jax.ShapeDtypeStruct((8, 4), jnp.float32)
def branching(mesh):
    def step(x):
        return x if x.sum() > 0 else -x
    return step, jax.ShapeDtypeStruct((8, 4), jnp.float32)
def nothing():
    return None
def broken():
    return {}["step"]
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "scripted.py"
    # This process has one device, and the mesh of the script is another test's.
    path.write_text(SCRIPT.replace("MESH =", "# MESH ="))
    return path


def test_the_command_prints_a_plan_and_writes_its_page(script: Path, capsys: pytest.CaptureFixture[str]):
    page = script.with_suffix(".html")
    arguments = ["--mesh", "data=2,model=2", "--rules", "tensor", "--largest-batch", "--out", str(page)]
    assert main([f"{script}:made", *arguments]) == 0
    output = capsys.readouterr().out
    assert "plan for data=2 model=2" in output
    assert "the largest batch that fits is" in output
    assert page.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("none.py:made", "--mesh data=2", "there is no file"),
        ("scripted.py", "--mesh data=2", "SCRIPT:FUNCTION is a file and a function"),
        ("scripted.py:other", "--mesh data=2", "has no function 'other'"),
        ("scripted.py:made", "--mesh data", "a mesh is written data=64,model=8"),
        ("scripted.py:made", "--mesh data=0", "sizes of at least 1"),
        ("scripted.py:made", "--mesh data=3", "a batch of 8 is not divisible by the 3 devices of the axis data (give"),
        ("scripted.py:made", "--mesh data=2 --hardware abacus", "no hardware is called 'abacus'"),
        ("scripted.py:made", "--mesh data=2 --rules diagonal", "no table of rules is called 'diagonal'"),
        ("scripted.py:made", "--mesh data=2 --out none/plan.html", "No such file or directory"),
        ("scripted.py:branching", "--mesh data=2", "scripted.py:9: TracerBoolConversionError"),
        ("scripted.py:nothing", "--mesh data=2", "returns NoneType, and has to return (step, *arguments)"),
        ("scripted.py:broken", "--mesh data=2", "scripted.py:14: KeyError: 'step'"),
        ("scripted.py:made", "", "the following arguments are required: --mesh"),
    ],
)
def test_what_the_command_cannot_plan_it_says_in_one_line(
    script: Path, target: str, options: str, message: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as ended:
        main([str(script.parent / target), *options.split()])
    assert ended.value.code == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.startswith("weft plan: ")
    assert output.err.count("\n") == 1
    assert not output.out


def test_the_commands_help_says_what_a_function_returns(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "(step, *arguments)" in capsys.readouterr().out


@pytest.mark.slow
def test_a_script_that_makes_a_mesh_as_it_loads_finds_its_devices(script: Path):
    script.write_text(SCRIPT)
    program = "import sys; from weft.insight.plan.command import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, f"{script}:made", "--mesh", "data=4,model=2"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "plan for data=4 model=2" in ended.stdout


def test_a_terminal_shows_how_far_a_plan_is_and_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    model = weft.init(weft.MLP, 16, 64, 16, abstract=True)
    plan = lambda: weft.plan(lambda m, x: m(x), model, X, mesh={"data": 2})  # noqa: E731
    plan()
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes any stream for a terminal then
    plan()
    output = capsys.readouterr()
    assert "compiling for 2 devices" in output.err
    assert not output.out


def test_donation_and_places_of_outputs_hold_for_a_step_that_calls_a_compiled_one(plan):
    def prepared(model, opt, x):
        return step(model, opt, x / 255)

    around = weft.plan(prepared, *shapes(), X, mesh=MESH, rules=RULES)
    assert around.bytes_per_device.peak == pytest.approx(plan.bytes_per_device.peak, rel=0.1)
    assert around.notes == plan.notes
    undonated = weft.plan(lambda *args: weft.jit(step.__wrapped__)(*args), *shapes(), X, mesh=MESH, rules=RULES)
    assert undonated.bytes_per_device.peak >= plan.bytes_per_device.peak + plan.bytes_per_device.optimizer
    assert any("no argument is donated" in note for note in undonated.notes)


def test_a_derivative_inside_of_a_loop_keeps_the_activations_of_one_turn():
    def accumulated(w, x):
        def turn(total, x):
            return total + jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).sum())(w), None

        return jax.lax.scan(turn, jnp.zeros_like(w), x)[0]

    def activations(turns):
        w, x = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((16, 64), (turns, 8, 16)))
        return weft.plan(lambda w, x: accumulated(w, x), w, x, mesh={"data": 1}).bytes_per_device.activations

    assert activations(1) == activations(5)
    # The batch of a turn, the output of tanh and what the derivative of tanh needs.
    assert 8 * 16 * 4 + 8 * 64 * 4 <= activations(5) <= 8 * 16 * 4 + 3 * 8 * 64 * 4


def test_a_derivative_that_the_plan_does_not_see_is_said():
    def chosen(w, x):
        return jax.lax.cond(w.sum() > 0, lambda: jax.grad(lambda w: ((x @ w) ** 2).sum())(w), lambda: w)

    plan = weft.plan(chosen, jax.ShapeDtypeStruct((16, 8), jnp.float32), X, mesh={"data": 1}, batch=None)
    assert any("activations of a derivative inside of cond are in the temporaries only" in note for note in plan.notes)


@pytest.mark.parametrize("name", weft.plan.HARDWARE)
def test_hardware_says_the_datasheet_of_its_figures_and_what_is_derived(name: str):
    hardware = weft.plan.HARDWARE[name]
    assert "https://" in hardware.source
    assert "flops32" in hardware.derived


@pytest.fixture(scope="module")
def nnx_plan(compiling_here):
    return weft.plan(nnx_step, *nnx_objects(), X, mesh=MESH, rules=NNX_RULES)


def test_nnx_objects_lie_as_their_metadata_says(nnx_plan):
    assert nnx_plan.bytes_per_device.params == 2 * 16 * 64 * 4 // 8
    assert nnx_plan.bytes_per_device.optimizer - 2 * nnx_plan.bytes_per_device.params in (4, 8)
    assert {collective.phase for collective in nnx_plan.collectives} >= {"forward", "backward"}


def test_collectives_and_activations_of_nnx_modules_have_their_paths(nnx_plan):
    assert {activation.path for activation in nnx_plan.activations} == {"up", "down"}
    assert any(collective.where.endswith("(down)") for collective in nnx_plan.collectives)
