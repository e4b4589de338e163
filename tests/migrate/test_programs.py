"""Whole programs compute the same before and after `weft migrate`, in processes of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("libcst")
from weft.migrate.front import main

PROGRAMS = Path(__file__).parent / "programs"
# The two programs compile the same at the same time, and JAX writes what it keeps on disk in place.
HALF_WRITTEN = "ignore:Error reading persistent compilation cache entry:UserWarning"


def numbers(text: str) -> list[float]:
    """The numbers that a program printed; each program prints enough of them to tell it from others."""
    return [float(word) for word in re.findall(r"-?\d+(?:\.\d*)?(?:e-?\d+)?", text)]


@pytest.mark.slow
@pytest.mark.parametrize("program", [path.name for path in sorted(PROGRAMS.iterdir()) if path.is_dir()])
def test_a_program_computes_the_same_before_and_after(program: str, tmp_path: Path):
    for source in (PROGRAMS / program).rglob("*.py"):
        copy = tmp_path / source.relative_to(PROGRAMS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(source.read_bytes())
    assert main([str(tmp_path), "--write"]) == 0
    after = {path: path.read_text() for path in tmp_path.rglob("*.py")}
    assert main([str(tmp_path), "--write"]) == 0
    assert {path: path.read_text() for path in tmp_path.rglob("*.py")} == after
    assert ("held" in program) == (not any("weft" in text for text in after.values()))
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "error::UserWarning", "-W", HALF_WRITTEN, str(folder / program / "main.py")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for folder in (PROGRAMS, tmp_path)
    ]
    (before, error1), (now, error2) = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0, 0], error1 + error2
    assert len(numbers(before)) > 1
    assert numbers(now) == pytest.approx(numbers(before), rel=1e-4, abs=1e-6)
