"""Annotated code of every sort is judged: whatever its class is, and whatever it is in it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from weft.typecheck.command import linter
from weft.typecheck.command.front import main
from weft.typecheck.command.linter import check

SOURCE = """
import dataclasses, equinox as eqx, functools, weft
from typing import NamedTuple
from flax import struct
from jaxtyping import Array, Float
A = Float[Array, "n"]
B = Float[Array, "n n"]

@dataclasses.dataclass
class Data:
    w: A
    def method(self, x: A) -> B: return x
    @property
    def computed(self) -> B: return self.w
    @functools.cached_property
    def cached(self) -> B: return self.w
    def __add__(self, x: A) -> B: return x
    @staticmethod
    def static(x: A) -> B: return x
class Named(NamedTuple):
    w: A
    def method(self, x: A) -> B: return x
@struct.dataclass
class Struct:
    w: A
    def method(self, x: A) -> B: return x
class Static:
    @staticmethod
    def static(x: A) -> B: return x
    @classmethod
    def of_class(cls, x: A) -> B: return x
class Record(weft.Module):
    w: A
    @property
    def computed(self) -> B: return self.w
    @functools.cached_property
    def cached(self) -> B: return self.w
    def __matmul__(self, x: A) -> B: return x
    class Inner(eqx.Module):
        w: A
        class Innermost:
            @staticmethod
            def static(x: A) -> B: return x
class Operator(eqx.Module):
    w: A
    def __getitem__(self, x: A) -> B: return x
"""
NAMES = [
    *("Data.method", "Data.computed", "Data.cached", "Data.__add__", "Data.static", "Named.method", "Struct.method"),
    *(
        "Static.static",
        "Static.of_class",
        "Record.computed",
        "Record.cached",
        "Record.__matmul__",
        "Operator.__getitem__",
    ),
    "Record.Inner.Innermost.static",
]

PRIVATE = """
import equinox as eqx, jax
from jaxtyping import Array, Float
A = Float[Array, "n"]

def _private(x: A) -> A: return x
def _unannotated(x): return x
def _options(rate: float) -> float: return rate
@jax.jit
def _public(x: A) -> A: return x
public = _public
class _Private(eqx.Module):
    w: A
    def method(self, x: A) -> A: return x
    def _method(self, x: A) -> A: return x
class Public(eqx.Module):
    w: A
    def __init__(self, w: A): self.w = w
    def method(self, x: A) -> A: return self._method(x)
    def _method(self, x: A) -> A: return x
    def _unannotated(self, x): return x
    @property
    def _computed(self) -> A: return self.w
    @staticmethod
    def _static(x: A) -> A: return x
    def __enter__(self) -> A: return self.w
    class _Inner:
        def method(self, x: A) -> A: return x
"""
COUNTED = ["_private", "_Private", "Public._method", "Public._computed", "Public._static", "Public.__enter__"]


def verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> dict[str, str]:
    (tmp_path / "defines.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    return {line.name: line.level for line in check(["defines.py"]).lines}


def test_methods_operators_and_properties_of_every_class_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert verdicts(tmp_path, monkeypatch, SOURCE) == dict.fromkeys(NAMES, "error")


def test_what_keeps_its_contract_is_proved_in_each_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    right = SOURCE.replace('B = Float[Array, "n n"]', 'B = Float[Array, "n"]')
    (tmp_path / "defines.py").write_text(right)
    monkeypatch.chdir(tmp_path)
    outcome = check(["defines.py"])
    assert not outcome.lines
    assert outcome.verdicts == ("proved",) * len(NAMES)


def test_what_is_not_public_is_counted_with_the_reason(tmp_path: Path, monkeypatch, capsys):
    (tmp_path / "hides.py").write_text(PRIVATE)
    monkeypatch.chdir(tmp_path)
    outcome = check(["hides.py"])
    assert [line.name for line in outcome.lines] == [*COUNTED[:2], "Public._Inner", *COUNTED[2:]]
    assert {line.message for line in outcome.lines} == {f"not checked: {linter.PRIVATE}"}
    assert outcome.verdicts == ("proved",) * 2
    assert outcome.exit_code == 0
    assert main(["check", "hides.py"], judge=linter.judge_here) == 0
    assert capsys.readouterr().out == (
        f"2 contracts: 2 proved, 0 hold, 0 fail; 7 not checked: 7 {linter.PRIVATE} (-v lists them)\n"
    )


def test_a_private_contract_is_checked_where_judged_code_calls_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    broken = PRIVATE.replace("def _method(self, x: A) -> A: return x", "def _method(self, x: A) -> A: return x[None]")
    failing = {name for name, level in verdicts(tmp_path, monkeypatch, broken).items() if level == "error"}
    assert failing == {"Public.method"}


def test_a_dataclass_without_arrays_has_no_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    options = """
        import dataclasses

        @dataclasses.dataclass
        class Options:
            rate: float
            def scaled(self, by: "Options") -> "Options":
                raise ValueError
    """
    (tmp_path / "defines.py").write_text(textwrap.dedent(options))
    monkeypatch.chdir(tmp_path)
    assert not check(["defines.py"]).targets
