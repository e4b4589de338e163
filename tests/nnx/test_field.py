"""What the comparison over packages built on flax.nnx takes for the same; `make field-nnx` runs it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "field" / "field.py"
PROGRAMS = sorted([*SCRIPT.parent.glob("programs/*.py"), *SCRIPT.parent.glob("crossed/*.py")])


@pytest.fixture(scope="module")
def field():
    specification = importlib.util.spec_from_file_location("nnx_field", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("ours", "same"),
    [("int8(3, 4) 0.943", True), ("int8(3, 4) 0.9401", True), ("int8(3, 4) 0.8", False), ("int8(3, 5) 0.943", False),
     ("int8(3, 4)", False), ("float8(3, 4) 0.943", False)],
)  # fmt: skip
def test_words_and_whole_numbers_are_the_same_and_others_nearly(field, ours, same):
    assert field.are_alike(ours, "int8(3, 4) 0.943") is same


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_programs_know_nothing_of_weft(program):
    text = program.read_text()
    assert "from flax import nnx" in text
    assert "weft" not in text
