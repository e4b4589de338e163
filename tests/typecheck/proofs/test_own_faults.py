"""Where weft itself fails while arguments are made, the report says so, and blames no program for it."""

from __future__ import annotations

import dataclasses
import enum
import math
import textwrap
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
import weft
from jaxtyping import Array, Float
from weft.typecheck import verify
from weft.typecheck.arguments import builder, records
from weft.typecheck.command.linter import check


@dataclasses.dataclass
class Batch:
    x: Float[Array, "n d"]


def first(b: Batch) -> Float[Array, "n d"]:
    return b.x


# A name of weft's that a fault takes away, or replaces by None, and what Python says in the line that uses it.
FAULTS: dict[str, tuple[Any, str, bool, str]] = {
    "a missing name": (records, "is_abstract", True, "NameError: name"),
    "a missing attribute": (builder.Builder, "shape", True, "AttributeError: 'Builder'"),
    "a wrong type": (builder.Builder, "shape", False, "TypeError: 'NoneType'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_wefts_is_no_failure_of_the_program(fault: str, monkeypatch: pytest.MonkeyPatch):
    assert str(verify(first)) == "first: proved for all n, d"
    owner, name, is_missing, message = FAULTS[fault]
    if is_missing:
        monkeypatch.delattr(owner, name)
    else:
        monkeypatch.setattr(owner, name, None)
    report = verify(first)
    assert not report.failures
    assert str(report).startswith(f"first: undecided: weft failed: {message}")
    assert str(report).endswith("; please report it")
    assert "\n" not in str(report)


def test_the_command_ends_with_exit_code_2_and_judges_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = """
        import dataclasses
        from jaxtyping import Array, Float

        @dataclasses.dataclass
        class Batch:
            x: Float[Array, "n d"]

        def first(b: Batch) -> Float[Array, "n d"]:
            return b.x

        def second(x: Float[Array, "n d"]) -> Float[Array, "n d"]:
            return x
    """
    (tmp_path / "judged_beside_a_fault.py").write_text(textwrap.dedent(text))
    monkeypatch.delattr(records, "is_abstract")
    checked = check([str(tmp_path / "judged_beside_a_fault.py")])
    assert checked.exit_code == 2
    (line,) = checked.lines
    assert line.level == "crash"
    assert line.message.startswith("undecided: weft failed: NameError: name 'is_abstract'")
    assert "proved" in checked.verdicts


class Mode(enum.Enum):
    A = 1


def of_root(x: Float[Array, "n"]) -> float:
    return math.sqrt(-x.shape[0])


def of_quotient(x: Float[Array, "n"]) -> int:
    return x.shape[0] // (x.shape[0] - x.shape[0])


class Missing(weft.Module):
    w: Float[Array, "n"]

    def __init__(self, n: int):
        self.w = jnp.zeros(n)
        self.no_such_field  # noqa: B018 (to read it is what raises)

    def __call__(self) -> Float[Array, "n"]:
        return self.w


class Unhashable(weft.Module):
    w: Float[Array, "n"]
    options: Any = weft.static()

    def __init__(self, n: int):
        self.w, self.options = jnp.zeros(n), {"a": {}}

    def __call__(self) -> Float[Array, "n"]:
        return self.w


@pytest.mark.parametrize("program", [of_root, of_quotient, Missing, Unhashable])
def test_a_programs_fault_that_a_line_of_wefts_raises_is_the_programs(program: Any):
    assert "weft failed" not in str(verify(program))
