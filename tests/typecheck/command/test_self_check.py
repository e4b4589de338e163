"""weft's own `modules/` and `examples/` pass `weft check`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from weft.typecheck.command.linter import check
from weft.typecheck.proofs.report import Verdict

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]

# What annotations cannot say, by room and name: each says why in its own line. Nothing else may go unchecked.
SKIPPED = {
    "modules/attention": {
        "ALiBi.__call__",
        "MultiHeadAttention.with_cache",
        "alibi",
        "check_room",
        "rewind",
        "sinusoidal",
        "step_of",
    },
    "modules/checkpoints": {
        "content_of",
        "import_weights",
        "load_checkpoint",
        "load_orbax",
        "needs_x64",
        "restored",
        "target_of",
        "write",
    },
    "modules/combinators": {"MoE"},
    "modules/convolutions": {"PixelShuffle.__call__", "biased", "kernel_mask", "one_batch_axis", "pixel_shuffle"},
    "modules/dense": {"Einsum", "LinearGeneral", "MLP", "einsum", "linear_general", "lora", "quantize"},
    "modules/learning": {
        "Accuracy",
        "Average",
        "LossScale.unscaled",
        "MultiMetric",
        "Optimizer",
        "Welford",
        "allclose",
        "arrays_at",
        "chosen",
        "ema",
        "equal",
        "index",
        "norm",
    },
    "modules/norms": {"SpectralNorm", "batch_norm", "norm", "normalize", "weight_norm"},
    "modules/ops": set(),
    "modules/recurrence": {"Bidirectional", "RNN", "flip_sequences", "last_step"},
    "modules/sharding": {"conventional_names", "names_of_adapter"},
    "modules/summary": {"tabulate"},
    "modules": {"Flatten", "check_key", "draw", "einsum"},
    "examples": {"Block", "GPT", "batches", "bits", "draw", "gpt2", "llama", "load_and_compare", "make_state", "train"},
}


# What nobody can make arguments for, and what is abstract: judged where it is used, and in the classes that bring it.
NOT_CHECKED = {
    "modules/convolutions": {"Pool.__call__"},
    "modules/combinators": {"Ensemble", "Shared"},  # made of any layer
    "modules/norms": {"WeightNorm"},
    "modules/attention": {"turn"},
    "modules/checkpoints": {
        "by_name",
        "cast",  # of NumPy's arrays, which are numbers
        "entries_in",
        "held",
        "in_host_memory",
        "loaded",
        "read_arrays",
        "read_manifest",
    },
    "modules/sharding": {"divided", "tell_whole"},
    "modules": {"batched_alike"},
    "modules/learning": {"Layout.parameter_of", "Metric.all_reduce", "Metric.of_batch", "Metric.of_both"},
    "modules/summary": {"backward_cost", "estimate_program", "forward_cost", "record_calls"},
    "examples": {"State", "place", "sources", "train_step"},
}


# Over weft, and so in a process of its own: here the real flax may have been imported.
UNMODIFIED = "nnx_unmodified.py"


def test_a_program_of_flax_nnx_passes_as_it_is():
    command = [sys.executable, "-m", "weft.typecheck", "check", "--no-cache", f"examples/{UNMODIFIED}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 fail" in done.stdout
    assert "not checked" not in done.stdout


def test_every_room_is_checked():
    rooms = {f"modules/{path.parent.name}" for path in (ROOT / "modules").glob("*/__init__.py")}
    assert rooms | {"modules", "examples"} == SKIPPED.keys()


@pytest.mark.parametrize("room", SKIPPED)
def test_weft_passes_its_own_check(room: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    paths = Path(room).glob("*.py") if room == "modules" else Path(room).rglob("*.py")
    files = [str(path) for path in sorted(paths) if path.name != UNMODIFIED]
    checked = check(files)
    assert {line.name for line in checked.lines if line.level == "skipped"} == SKIPPED[room]
    assert {line.name for line in checked.lines if line.level == "unbuilt"} == NOT_CHECKED.get(room, set())
    assert [str(line) for line in checked.lines if line.level not in ("skipped", "unbuilt")] == []
    assert checked.exit_code == 0
    without_shapes = {"modules/ops", "modules/sharding", "modules/summary"}
    decided = sum(checked.verdicts.count(one.value) for one in (Verdict.PROVED, Verdict.HOLDS))
    assert (decided >= 2) is (room not in without_shapes)
