"""Whose statement refused arguments: that of the package under proof, or of a library."""

from __future__ import annotations

import inspect
import sys
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest
from weft.typecheck.proofs import frames, guards
from weft.typecheck.proofs.guards import raised_at

REFUSES = "def check(n):\n    if n % 2:\n        raise ValueError(n)\n"


def module(path: Path, text: str) -> ModuleType:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    spec = util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def guard_in(library: Path, package: Path) -> str:
    """The guard that is seen where a function of a package calls one that refuses its argument."""
    caller = module(package / "layer.py", "def call(check):\n    check(3)\n")
    (package / "__init__.py").touch()
    with pytest.raises(ValueError, match="3") as error:
        caller.call(module(library, REFUSES).check)
    return raised_at(error.value, frozenset({str(package / "layer.py")}))[1]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Nothing that lies in a temporary folder is installed; here only the file under proof is the user's.
    monkeypatch.setattr(guards, "is_users", lambda file, own: file in own)
    return tmp_path / "package"


def test_a_refusal_in_another_file_of_the_package_is_a_guard(package: Path):
    assert guard_in(package / "inner" / "checks.py", package) == "guard at checks.py:3: if n % 2"


def test_a_refusal_in_a_library_is_none(package: Path):
    assert guard_in(package.parent / "site" / "checks.py", package) == ""


def test_an_environment_in_the_folder_of_a_package_holds_libraries(package: Path):
    assert guard_in(package / ".venv" / "site-packages" / "checks.py", package) == ""


def test_packages_beside_their_metadata_are_installed_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    # What `pip install --target` leaves in a folder whose name says nothing.
    (tmp_path / "vendored" / "some-1.0.dist-info").mkdir(parents=True)
    targets = (f"{tmp_path}/vendored/",)
    monkeypatch.setattr(sys, "path", [*sys.path, "/other/src", str(tmp_path / "vendored")])
    assert [one for one in inspect.unwrap(frames._targets)() if not one.endswith("site-packages/")] == [*targets]
    monkeypatch.setattr(frames, "_targets", lambda: targets)
    assert [frames.is_installed(f"{tmp_path}/{folder}/some.py") for folder in ("vendored", "src")] == [True, False]
