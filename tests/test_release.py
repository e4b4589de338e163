"""What a release is compared with, the public names of the last one, and the targets that are tried before it."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("griffe")
ROOT = Path(__file__).resolve().parents[1]
OLD = """
def scan(step, *, length=None): ...
def split(tree): ...
class tree:
    def size(tree): ...
class MLP:
    def __init__(self, /, width): ...
    def __call__(self, x): ...
"""


@pytest.fixture(scope="module")
def surface() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / ".ci" / "surface.py"))


@pytest.mark.parametrize(
    ("before", "after", "broken"),
    [
        ("length=None", "length=None, reverse=False", {}),
        ("length=None", "reverse=False", {"weft.scan": ["parameter was removed (length)"]}),
        ("length=None", "length=0", {"weft.scan": ["parameter default was changed (length)"]}),
        ("    def size(tree): ...", "    pass", {"weft.tree.size": ["public object was removed"]}),
        (
            "def __call__(self, x)",
            "def __call__(self, x, key)",
            {"weft.MLP.__call__": ["parameter was added as required (key)"]},
        ),
        # `core/public_names.py` has it, so errors and `weft migrate` say where it is, if it is there.
        ("def split(tree): ...\nclass tree:", "class tree:\n    def split(tree): ...", {}),
        ("def split(tree): ...\n", "", {"weft.split": ["public object was removed"]}),
    ],
)
def test_what_breaks_a_program_is_told_by_its_path(
    surface: dict[str, Any], before: str, after: str, broken: dict[str, Any]
):
    assert before in OLD
    assert surface["breaks"](OLD, OLD.replace(before, after)) == broken


@pytest.mark.parametrize(
    ("path", "is_named"),
    [("weft.scan", True), ("weft.tree.size", False), ("weft.MLP.__call__", True), ("weft.tree.scan", True)],
)
def test_the_changelog_names_a_function_or_the_class_of_a_method(surface: dict[str, Any], path: str, is_named: bool):
    assert surface["is_named"](path, {"scan", "MLP", "tree"}) is is_named


def test_the_names_of_this_version_are_written_with_their_parameters(surface: dict[str, Any]):
    lines = surface["stub"]().splitlines()
    assert any(line.startswith("def drop_successor(") for line in lines)
    assert any(line.startswith("    def split(tree, ") for line in lines[lines.index("class tree:") :])
    assert "class nnx:" in lines
    # A stub that griffe cannot read would compare nothing.
    assert surface["breaks"]("\n".join(lines), "\n".join(lines)) == {}
    assert len(surface["breaks"]("\n".join(lines), "")) > 100


def test_the_last_release_is_of_another_version(surface: dict[str, Any]):
    last = surface["last_release"]()
    assert last.stem != surface["weft"].__version__
    assert "class nnx:" in last.read_text()


def test_every_target_of_make_help_is_run_by_a_nightly_job():
    told = re.findall(r"^\t@echo 'make ([a-z-]+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    table = (ROOT / ".ci" / "targets").read_text().partition("<<'TABLE'\n")[2].partition("\nTABLE\n")[0]
    assert sorted(line.split()[0] for line in table.splitlines()) == sorted(told)
    assert len(told) > 20
