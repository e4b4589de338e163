"""Whole programs of flax.nnx, like those of its documentation, run as they are under both libraries, with one result.

They run in float64 (see `in_float64.py`), so that their numbers are comparable on any processor, however long they
train; and a few in a process, which need not import and compile everything anew.
"""

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "nnx_unmodified.py"
PROGRAMS = [*sorted((Path(__file__).parent / "programs").glob("*.py")), EXAMPLE]
RUNNER = Path(__file__).with_name("in_float64.py")
TOGETHER = 5
NUMBER = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?")


@functools.cache
def results(library, batch):
    """What some programs printed, by path."""
    # As the tests run, but for their eight devices.
    flags = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
    process = subprocess.run(
        [sys.executable, "-W", "ignore", RUNNER, library, *batch],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join(flags)},
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout.splitlines()[-1])


def batch_of(program):
    """The programs that run in one process with another; one that sets JAX up for itself has its own."""
    if sets_up_jax(program):
        return (str(program),)
    others = [one for one in PROGRAMS if not sets_up_jax(one)]
    first = others.index(program) // TOGETHER * TOGETHER
    return tuple(map(str, others[first : first + TOGETHER]))


def sets_up_jax(program):
    return "os.environ" in program.read_text()


def printed(library, program):
    result = results(library, batch_of(program))[str(program)]
    assert not result["error"], result["error"]
    return result["printed"]


def last_digit(number):
    """What one more in the last digit that was printed is worth."""
    mantissa, _, exponent = number.partition("e")
    return 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


def check_same(ours, theirs):
    """The same words and whole numbers; other numbers but for the rounding of float64, and of what is printed."""
    assert NUMBER.sub("#", ours) == NUMBER.sub("#", theirs)
    for our, their in zip(NUMBER.findall(ours), NUMBER.findall(theirs), strict=True):
        digit = min(last_digit(our), last_digit(their))
        # Halfway between two numbers that can be printed, either is right; a number of few digits was not cut off.
        np.testing.assert_allclose(float(our), float(their), rtol=1e-6, atol=1e-9 + 1.01 * digit * (digit <= 1e-3))


def test_there_are_programs():
    assert len(PROGRAMS) >= 8


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_program_runs_as_it_is(program):
    ours = printed("weft", program)
    assert len(ours.splitlines()) >= 5
    check_same(ours, printed("flax", program))


@pytest.mark.parametrize("changed", ["loss 1.3", "loss 1.2002", "loss 1.2 a", "steps 3"])
def test_a_difference_is_seen(changed):
    with pytest.raises(AssertionError):
        check_same(changed, "loss 1.2")


def test_a_difference_of_what_is_printed_is_none():
    check_same("loss 0.063, gradient 1.2345e-09", "loss 0.062, gradient 1.2346e-09")
