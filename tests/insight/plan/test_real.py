"""Plans are held to what a real run on eight simulated devices holds, and to its compiled program."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import weft
from jax.sharding import AbstractMesh, AxisType

from .cases import CASES, SIZES, run
from .counting import Counts, counted

pytestmark = pytest.mark.slow
MESH = AbstractMesh(tuple(SIZES.values()), tuple(SIZES), axis_types=(AxisType.Auto,) * len(SIZES))


@pytest.fixture(scope="module", params=CASES)
def both(request: pytest.FixtureRequest) -> tuple[Any, dict[str, Any], Counts]:
    """A plan, the real run of the same step, and what is counted in that run's program."""
    case = CASES[request.param]
    plan = weft.plan(case.step(MESH), *case.planned(), mesh=MESH, rules=case.rules)
    real = run(request.param)
    return plan, real, counted(real["text"])


def test_bytes_of_arguments_are_exactly_those_of_the_arrays_of_the_real_run(both: Any):
    plan, real, _ = both
    assert plan.bytes_per_device.arguments == real["arguments"]


def test_bytes_of_outputs_are_exactly_those_of_the_arrays_of_the_real_run(both: Any):
    plan, real, _ = both
    assert plan.bytes_per_device.outputs == real["outputs"]


def test_operations_are_exactly_those_of_the_compiled_program(both: Any):
    plan, real, counts = both
    assert counts.once == real["flops"]
    assert plan.flops["total"] == counts.contractions


def test_collectives_are_exactly_those_of_the_compiled_program_in_number_and_bytes(both: Any):
    plan, _, counts = both
    planned: Counter[tuple[str, int]] = Counter()
    for collective in plan.collectives:
        planned[collective.kind, collective.bytes] += collective.count
    assert planned == counts.collectives


def test_the_peak_is_within_a_tenth_of_what_xla_reports(both: Any):
    plan, real, _ = both
    memory = real["memory"]
    peak = memory["argument"] + memory["output"] - memory["alias"] + memory["temp"]
    assert plan.bytes_per_device.peak == pytest.approx(peak, rel=0.1)
