"""weft's own `modules/` and `examples/` pass `weft check`."""

from __future__ import annotations

from pathlib import Path

import pytest
from weft.typecheck.command.linter import check
from weft.typecheck.proofs.report import Verdict

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]

# What annotations cannot say, by name: each says why in its own line. Nothing else may go unchecked.
SKIPPED = {
    "modules": {
        "linear_general",
        "einsum",
        "LinearGeneral",
        "Einsum",
        "flip_sequences",
        "weight_norm",
        "normalize",
        "norm",
        "batch_norm",
        "Average",
        "Accuracy",
        "Welford",
        "MultiMetric",
        "MLP",
        "MoE",
        "RNN",
        "Bidirectional",
        "Optimizer",
        "SpectralNorm",
        "check_key",
        "check_room",
        "content_of",
        "ema",
        "import_weights",
        "index",
        "last_step",
        "load_checkpoint",
        "lora",
        "quantize",
        "needs_x64",
        "restored",
        "sinusoidal",
        "target_of",
        "MultiHeadAttention.with_cache",
        "write",
    },
    "examples": {"train", "bits", "load_and_compare", "draw", "gpt2", "llama"},
}


@pytest.mark.slow
@pytest.mark.parametrize("folder", SKIPPED)
def test_weft_passes_its_own_check(folder: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    checked = check([folder])
    assert {line.name for line in checked.lines if line.level == "skipped"} == SKIPPED[folder]
    assert [str(line) for line in checked.lines if line.level != "skipped"] == []
    assert checked.exit_code == 0
    assert checked.verdicts.count(Verdict.PROVED) >= {"modules": 30, "examples": 3}[folder]
