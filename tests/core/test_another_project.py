"""`weft` on PyPI is another project: no text advises to install it, and an import from beside it says so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from weft.core.another_project import metadata_of_another_project

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
FOLDERS = (".ci", ".github", "docs", "examples", "benchmarks", "tests", "core", "transforms", "modules", "typecheck")
FOLDERS += ("migrate", "nnx", "insight")
TEXTS = ("", ".py", ".pyi", ".md", ".toml", ".yml", ".yaml", ".txt")


def texts() -> Iterator[tuple[str, str]]:
    """The files of the project that can advise an installation, but for this one, which holds the pattern."""
    files = [*ROOT.iterdir(), *(file for folder in FOLDERS for file in (ROOT / folder).rglob("*"))]
    for file in files:
        if file.is_file() and file.suffix in TEXTS and file != Path(__file__).resolve() and file.name != ".git":
            yield str(file.relative_to(ROOT)), file.read_text(errors="replace")


def packages(extra: str) -> list[str]:
    """The packages that an extra of pyproject.toml names, with those of the extras in it."""
    names: list[str] = []
    for requirement in EXTRAS[extra]:
        if inner := re.fullmatch(r"weft-jax\[(.*)\]", requirement):
            names += [name for one in inner.group(1).split(",") for name in packages(one)]
        else:
            names.append(re.match(r"[\w-]+", requirement).group(0))  # pyright: ignore[reportOptionalMemberAccess]
    return list(dict.fromkeys(names))


def test_no_text_advises_to_install_what_is_called_weft():
    advice = re.compile(r"\binstall(?: -[\w-]+)* ['\"]?weft(?![\w-])|\bweft\[(?:" + "|".join(EXTRAS) + r")\b")
    assert [(name, advised) for name, text in texts() for advised in advice.findall(text)] == []
    requirements = [*PROJECT["dependencies"], *(requirement for extra in EXTRAS.values() for requirement in extra)]
    assert [requirement for requirement in requirements if re.match(r"weft(?![\w-])", requirement)] == []


def test_a_fix_for_a_missing_extra_names_its_packages():
    advised = [
        (name, extra, named)
        for name, text in texts()
        if name.endswith(".py")
        for extra, named in re.findall(r"pip install 'weft-jax\[(\w+)\]'(?: \(([^)]*)\))?", text)
        if not name.startswith("tests/")
    ]
    assert {extra for _, extra, _ in advised} == {"display", "linen", "lsp", "migrate", "orbax", "train"}
    assert [entry for entry in advised if entry[2] != ", ".join(packages(entry[1]))] == []


def test_the_metadata_of_weft_itself_is_no_other_project(tmp_path: Path):
    for name in ("weft_jax-0.3.0.dist-info", "weft_graph-1.3.0.dist-info", "weft", "weft-notes.txt"):
        (tmp_path / name).mkdir()
    assert metadata_of_another_project(str(tmp_path)) is None
    assert metadata_of_another_project(str(tmp_path / "weft.zip")) is None
    (tmp_path / "weft-0.9.1-py3.13.egg-info").mkdir()
    assert metadata_of_another_project(str(tmp_path)) == "weft-0.9.1-py3.13.egg-info"


def error_of(program: str, folder: Path) -> str:
    """The last line of a program that fails with this folder before the others on its path."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("is_overwritten", [False, True], ids=["its __init__", "the other's __init__"])
def test_an_import_from_a_folder_of_both_projects_says_so(is_overwritten: bool, tmp_path: Path):
    (tmp_path / "weft").mkdir()
    for entry in ROOT.iterdir():
        if entry.name in ("__init__.py", "core", "transforms", "modules", "nnx", "typecheck", "insight"):
            (tmp_path / "weft" / entry.name).symlink_to(entry)
    if is_overwritten:
        (tmp_path / "weft" / "__init__.py").unlink()
        (tmp_path / "weft" / "__init__.py").write_text("")
    (tmp_path / "weft-0.9.1.dist-info").mkdir()
    program = "import weft.nnx" if is_overwritten else "import weft"
    assert error_of(program, tmp_path) == (
        "ImportError: the distributions weft-jax and weft 0.9.1, which is another project, both install a package "
        f"`weft` in {tmp_path}, and one has overwritten files of the other: pip uninstall weft; "
        "pip install --force-reinstall --no-deps weft-jax"
    )


def test_the_command_says_that_another_project_lies_before_weft(tmp_path: Path):
    (tmp_path / "weft").mkdir()
    (tmp_path / "weft" / "__init__.py").touch()
    assert error_of("import weft_launcher; weft_launcher.main()", tmp_path) == (
        f"ImportError: the package `weft` in {tmp_path / 'weft'} is another project's, not weft-jax's, to which "
        "this command belongs: pip uninstall weft; pip install --force-reinstall --no-deps weft-jax"
    )
