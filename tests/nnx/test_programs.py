"""Whole programs of flax.nnx, like those of its documentation, run as they are under both libraries, with one result.

Each runs twice in a process of its own: under the installed flax.nnx, and by `python -m weft.nnx`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
NUMBER = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?")


def printed(*command):
    # As the tests run, but for their eight devices.
    flags = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join(flags)}
    result = subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, command)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def check_same(ours, theirs):
    """The same words and whole numbers; other numbers as close as another order of additions leaves them."""
    assert NUMBER.sub("#", ours) == NUMBER.sub("#", theirs)
    for our, their in zip(NUMBER.findall(ours), NUMBER.findall(theirs), strict=True):
        # One of the last digit that was printed may be rounding.
        digit = 10.0 ** -len(our.partition(".")[2].partition("e")[0])
        np.testing.assert_allclose(float(our), float(their), rtol=2e-3, atol=2e-3 + 1.01 * digit * ("e" not in our))


def test_there_are_programs():
    assert len(PROGRAMS) >= 8


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_program_runs_as_it_is(program):
    ours = printed("-m", "weft.nnx", program)
    assert len(ours.splitlines()) >= 5
    check_same(ours, printed(program))


@pytest.mark.parametrize("changed", ["loss 1.30", "loss 1.20 a", "steps 3"])
def test_a_difference_is_seen(changed):
    with pytest.raises(AssertionError):
        check_same(changed, "loss 1.20")
