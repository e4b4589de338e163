"""The cache of verdicts: what makes an entry stale, and what is not stored; see also `test_workers.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from weft.typecheck.command.cache import Cache, Group, sources_of
from weft.typecheck.command.config import Settings
from weft.typecheck.command.lines import Checked, one_line, undecided
from weft.typecheck.command.units import unit_of, units_of

PACKAGE = {
    "pkg/__init__.py": "",
    "pkg/dims.py": "WIDTH = 3\n",
    "pkg/layers.py": "import jax\nfrom pkg.dims import WIDTH\n",
    "pkg/models.py": "def f():\n    from . import layers\n",
    "pkg/apart.py": "import json\n",
    "pkg/inner/__init__.py": "from ..apart import *\n",
    "pkg/inner/deep.py": "from .. import dims as sizes\n",
    "kinds/__init__.py": "",
    "kinds/base.py": "class Kernel: ...\n",
    "kinds/linear.py": "from .base import Kernel\nclass Linear(Kernel): ...\n",
    "kinds/scaled.py": "from . import linear\nclass Scaled(linear.Linear): ...\n",
    "kinds/other.py": "class Other: ...\n",
    "kinds/tests/test_base.py": "from ..base import Kernel\nclass Dummy(Kernel): ...\n",
    "lazy/__init__.py": "import importlib\n",
    "lazy/one.py": "",
    "lazy/two.py": "",
    "script.py": "import helper, pkg.layers\n",
    "helper.py": "",
}
USUAL = Settings()
RESULT = [Checked((), ("proved",))]


def stored(parts: list[Checked]) -> dict[str, Group]:
    return {"": Group("", parts)}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("pkg/apart.py", {name for name in PACKAGE if name.startswith("pkg/")}),
        ("pkg/inner/deep.py", {name for name in PACKAGE if name.startswith("pkg/")}),
        ("script.py", {"script.py", "helper.py"}),
    ],
)
def test_a_file_depends_on_its_package_and_a_script_on_its_folder(project: Path, file: str, wanted: set[str]):
    assert {str(Path(one).relative_to(project)) for one in sources_of(unit_of(Path(file)))} == wanted


@pytest.mark.parametrize(
    ("edited", "anew"),
    [("pkg/apart.py", {"pkg"}), ("kinds/linear.py", {"kinds"}), ("pkg/new.py", {"pkg"}), ("script.py", {""})],
)
def test_an_edit_makes_new_the_verdicts_of_its_package(project: Path, edited: str, anew: set[str]):
    units, _ = units_of(["pkg", "kinds", "script.py"])
    cache = Cache(project, Settings())
    for unit in units:
        cache.store(unit, stored(RESULT), [], set())
    with (project / edited).open("a") as file:
        file.write("\nMORE = 1\n")
    cache = Cache(project, Settings())
    missed = {unit.file for unit in units if not cache.find(unit)[1]}
    assert missed == {unit.file for unit in units if str(Path(unit.file).parent).partition("/")[0].strip(".") in anew}


@pytest.fixture
def again(project: Path) -> Callable[..., list[Checked] | None]:
    """Stores a result, changes something, and looks it up."""
    (unit,), _ = units_of(["helper.py"])

    def ask(change: Callable[[], object], settings: Settings = USUAL, result: list[Checked] = RESULT, reads=()):
        cache = Cache(project, Settings())
        cache.store(unit, stored(result), reads, set())
        change()
        groups, is_whole = Cache(project, settings).find(unit)
        return groups[""].parts if is_whole else None

    return ask


def test_what_did_not_change_is_found(again, project: Path):
    assert again(lambda: None) == RESULT
    assert (project / ".weft" / ".gitignore").read_text() == "*\n"
    assert again((project / "helper.py").touch) == RESULT  # its text is what counts


@pytest.mark.parametrize(
    "settings", [Settings(strict=True), Settings(only="f"), Settings(trials=7), Settings(dims={"helper:f": {"n": 2}})]
)
def test_other_options_are_another_question(again, settings: Settings):
    assert again(lambda: None, settings) is None


def test_the_environment_of_jax_counts(again, monkeypatch: pytest.MonkeyPatch):
    assert again(lambda: monkeypatch.setenv("JAX_ENABLE_X64", "1")) is None


def test_a_file_that_was_read_counts(again, project: Path):
    data = project / "sizes.toml"
    data.write_text("n = 1")
    assert again(lambda: None, reads=[str(data)]) == RESULT
    assert again(lambda: data.write_text("n = 2"), reads=[str(data)]) is None
    assert again(data.unlink, reads=[str(data)]) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"key": 3}', "null", '{"parts": 1}'])
def test_a_damaged_file_is_judged_again(again, project: Path, content: str):
    def damage() -> None:
        for file in (project / ".weft" / "cache").iterdir():  # also the file of the definitions
            file.write_text(content)

    assert again(damage) is None


@pytest.mark.parametrize(
    "part",
    [
        undecided("helper.py", 1, "f", "it took more memory", strict=False),
        one_line("unusable", "helper.py", 1, "import", "ImportError: no", "import"),
        dataclasses.replace(RESULT[0], lasting=False),
    ],
)
def test_what_a_machine_has_ended_is_not_stored(again, part: Checked):
    assert again(lambda: None, result=[part]) is None
