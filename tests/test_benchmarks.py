"""The benchmarks run; how fast is theirs to say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def test_annotations_place_what_constraints_by_hand_place():
    command = [sys.executable, str(BENCHMARKS / "placed.py"), "--quick"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in run.stdout.splitlines() if "GPT" in line]
    for kind in ("automatic", "explicit"):
        annotated, by_hand = (
            next(row[4:] for row in rows if row[1] == kind and row[3] == how) for how in ("annotations", "by hand")
        )
        assert annotated == by_hand
        assert float(annotated[-1]) < 1e-5


@pytest.mark.parametrize(
    ("script", "row"),
    [
        ("dispatch.py", "| weft.jit, record in and successor out"),
        ("eager.py", "| weft.nnx.cond "),
        ("tracing.py", "| weft "),
        ("decode.py", "| weft records "),
        ("contracts.py", "| contracts on "),
        ("checking.py", "| unchanged "),
        ("memory.py", "| donated "),
        ("checkpoints.py", "| weft "),
        ("imports.py", "| import weft "),
    ],
)
def test_a_benchmark_prints_its_table(script: str, row: str):
    command = [sys.executable, str(BENCHMARKS / script), "--quick"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert row in run.stdout
