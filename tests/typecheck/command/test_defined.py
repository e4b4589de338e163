"""Annotated code of every sort is judged: whatever its class is, and whatever it is in it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from weft.typecheck.command.linter import check

SOURCE = """
import dataclasses, equinox as eqx, weft
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
    def __matmul__(self, x: A) -> B: return x
class Operator(eqx.Module):
    w: A
    def __getitem__(self, x: A) -> B: return x
"""
NAMES = [
    *("Data.method", "Data.computed", "Data.__add__", "Data.static", "Named.method", "Struct.method"),
    *("Static.static", "Static.of_class", "Record.computed", "Record.__matmul__", "Operator.__getitem__"),
]


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
    found = check(["defines.py"])
    assert not found.lines
    assert found.verdicts == ("proved",) * len(NAMES)


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
