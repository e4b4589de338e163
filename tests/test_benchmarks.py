"""The benchmarks run; how fast is theirs to say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.mark.parametrize(
    ("script", "row"),
    [
        ("dispatch.py", "| weft.jit, record in and successor out"),
        ("eager.py", "| weft.nnx.cond "),
        ("tracing.py", "| weft "),
        ("decode.py", "| weft records "),
        ("contracts.py", "| contracts on "),
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
