"""weft's own `modules/` and `examples/` pass `weft check`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
        "inspect_checkpoint",
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
    "examples": {"Block", "GPT", "batches", "bits", "draw", "gpt2", "llama", "load_and_compare", "train"},
}


# What nobody can make arguments for, and what is abstract: judged where it is used, or where it is implemented.
NOT_CHECKED = {
    "modules/convolutions": {"Pool.__call__"},
    "modules/combinators": {"Ensemble", "Shared.value"},  # made of any layer
    "modules/norms": {"WeightNorm"},
    "modules/checkpoints": {
        "by_name",
        "cast",  # of NumPy's arrays, which are numbers
        "entries_in",
        "entry_of",
        "fit",  # of mappings whose names belong together
        "in_host_memory",
        "loaded",
        "offer_in",
        "offer_of",
        "read_arrays",
        "read_manifest",
    },
    "modules/sharding": {"axis_rules_of", "divided", "rules_of_block", "warn_of_replicated"},
    "modules": {"batched_alike", "names_of_axes"},
    "modules/learning": {"Layout.parameter_of", "Metric.all_reduce", "Metric.of_batch", "Metric.of_both"},
    "modules/summary": {"backward_cost", "estimate_program", "forward_cost", "place_of", "record_calls"},
    "examples": {"State", "Windows.__getitem__", "place", "sources", "train_step"},
}


# A program of flax.nnx, which passes as it is: none of its contracts is left out either.
UNMODIFIED = "examples/nnx_unmodified.py"


def test_every_room_is_checked():
    rooms = {f"modules/{path.parent.name}" for path in (ROOT / "modules").glob("*/__init__.py")}
    assert rooms | {"modules", "examples"} == SKIPPED.keys()


def room_of(file: str) -> str:
    top, *rest = file.split("/")
    return f"{top}/{rest[0]}" if top == "modules" and len(rest) > 1 else top


def test_weft_passes_its_own_check():
    """In one run over all rooms, which takes minutes: the step of CI that keeps weft's own contracts."""
    command = [sys.executable, "-m", "weft.typecheck", "check", "--no-cache", "--format", "json", "examples", "modules"]
    told = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout)
    skipped, unchecked = ({room: set[str]() for room in SKIPPED} for _ in range(2))
    failing: list[str] = []
    for finding in told["findings"]:
        if finding["level"] == "skipped":
            skipped[room_of(finding["file"])].add(finding["name"])
        elif finding["level"] != "unbuilt":
            failing.append(f"{finding['file']}:{finding['line']}: {finding['name']}: {finding['message']}")
        elif finding["rule"] != "private":
            unchecked[room_of(finding["file"])].add(finding["name"])
    assert failing == []
    assert skipped == SKIPPED
    assert {room: names for room, names in unchecked.items() if names} == NOT_CHECKED
    assert [finding for finding in told["findings"] if finding["file"] == UNMODIFIED] == []
    assert any(line.startswith(f"{UNMODIFIED}:") for line in told["assumptions"]), "it was not judged"
    assert told["exit_code"] == 0
    proved, holding = map(int, re.findall(r"(\d+) (?:proved|hold)", told["summary"]))
    assert proved + holding >= 150
