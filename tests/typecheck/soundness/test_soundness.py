"""What is called proved holds for all sizes, also where they meet: see `programs`."""

from __future__ import annotations

from typing import Any

import pytest
from weft.typecheck import verify
from weft.typecheck.proofs.report import Verdict

from . import programs

PAIRS = sorted(name.removesuffix("_wrong") for name in vars(programs) if name.endswith("_wrong"))
# Those whose question nobody hears: it is asked of a hash, of a text, or of a float. Their sizes are only sampled.
UNHEARD = {"set_of_shapes", "root", "logarithm", "set_of_sizes", "cached", "named", "printed", "ranged", "near"}


def pairs() -> list[Any]:
    return [pytest.param(name, id=name) for name in PAIRS]


def of(name: str) -> Any:
    return verify(getattr(programs, name))


def test_each_program_stands_beside_its_right_twin():
    assert len(PAIRS) >= 60
    assert all(hasattr(programs, f"{name}_right") for name in PAIRS)
    assert set(PAIRS) > UNHEARD


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", pairs())
def test_what_is_wrong_at_some_sizes_is_not_called_proved(name: str):
    report = of(f"{name}_wrong")
    if name in UNHEARD:
        (contract,) = report.contracts
        assert report.verdict is Verdict.HOLDS
        assert contract.sampled, "which sizes were only sampled is said"
    else:
        assert report.verdict is Verdict.FAILS, report
        assert report.failures[0].sizes, "sizes that show it are told"


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", pairs())
def test_the_right_twin_is_proved_or_holds(name: str):
    report = of(f"{name}_right")
    assert report.verdict in (Verdict.PROVED, Verdict.HOLDS), report
    assert not report.assumptions


def test_what_is_proved_has_no_conditions():
    for name in ("same_shape", "window", "twice", "late_remainder", "both_one"):
        (contract,) = of(f"{name}_right").contracts
        assert contract.verdict is Verdict.PROVED
        assert "holds when" not in str(contract)
