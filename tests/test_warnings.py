"""No warning of JAX, NumPy, flax or another library reaches who uses weft: what they deprecate, weft does not use."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
TINY = {"steps": 3, "every": 2, "batch": 2, "context": 8, "width": 12, "layers": 1, "length": 5, "characters": 20_000}
FIRST_STEPS = {
    "digits.py": ["--epochs", "1"],
    "char_lm.py": [f"--{name}={size}" for name, size in TINY.items()],
}


# The tests' own: they share what is compiled, and JAX writes that in place.
HALF_WRITTEN = "ignore:Error reading persistent compilation cache entry:UserWarning"


def run_with_errors_for_warnings(*arguments: str, folder: Path) -> None:
    command = [sys.executable, "-W", "error", "-W", HALF_WRITTEN, *arguments]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_importing_warns_of_nothing(tmp_path: Path):
    run_with_errors_for_warnings("-c", "import weft, weft.nnx, weft.typecheck", folder=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("example", FIRST_STEPS)
def test_the_first_steps_of_a_demo_warn_of_nothing(example: str, tmp_path: Path):
    run_with_errors_for_warnings(str(EXAMPLES / example), *FIRST_STEPS[example], folder=tmp_path)
