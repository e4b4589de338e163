"""An object has one name in files, whatever a process has imported, and one that has moved is found again."""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import weft
from weft.modules.checkpoints.configuration import describe, difference


@pytest.mark.slow
def test_processes_that_have_used_other_names_read_the_files_of_each_other(tmp_path: Path):
    program = str(Path(__file__).with_name("identity.py"))
    for mention, count in ((), 1), (("mention",), 2), ((), 2):
        command = [sys.executable, program, str(tmp_path), *mention]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert (done.returncode, done.stdout.count("values of")) == (0, count), done.stderr


@pytest.mark.parametrize("name", sorted(weft.__all__))
def test_a_public_object_agrees_with_every_name_that_files_have_for_it(name: str):
    value = getattr(weft, name)
    here = describe(value)
    for package in ("weft", "weft.modules", "weft.core", "weft.transforms"):
        if name in importlib.import_module(package).__all__ and value.__qualname__ == name:
            assert difference({"name": f"{package}:{name}"}, here) is None


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a package with files, and imports some of its modules, for one test."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, files: dict[str, str]) -> None:
        for file, text in files.items():
            Path(tmp_path, name, file).parent.mkdir(parents=True, exist_ok=True)
            Path(tmp_path, name, file).write_text(text)

    before = set(sys.modules)
    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


NET = "class Net: pass\n"
OFFERS = {"__init__.py": "from moved.new import Net"}
LAZILY = "def __getattr__(name):\n  from moved.new import Net\n  return {'Net': Net}[name]"
FAILS = "def __getattr__(name):\n  raise ImportError(name)"
# Beside `moved/new.py`, which defines the class: the package's files, the module that a checkpoint names, and whether
# the two agree.
MOVES: dict[str, tuple[dict[str, str], str, bool]] = {
    "a module that is gone, of a class that the package offers": (OFFERS, ".old", True),
    "a module that defines it no more, of a class that the package offers": (
        OFFERS | {"old.py": "x = 1"},
        ".old",
        True,
    ),
    "a private module that is gone": ({}, "._src.old", True),
    "a private module without it": ({"_old.py": "def f(x): return x.Net, Net"}, "._old", True),
    "a private module that defines a class of this name": ({"_old.py": NET}, "._old", False),
    "a module that is gone": ({}, ".old", False),
    "a module that defines a class of this name": (OFFERS | {"old.py": NET}, ".old", False),
    "a module that Python cannot read": (OFFERS | {"old.py": "class Net"}, ".old", False),
    "a package that offers it when it is first used": ({"__init__.py": LAZILY}, "", True),
    "a package whose attribute fails": ({"__init__.py": FAILS}, "", False),
}


@pytest.mark.parametrize("imported", [False, True])
@pytest.mark.parametrize("case", MOVES)
def test_a_class_that_moved_is_found_whether_its_old_module_was_imported_or_not(case: str, imported: bool, package):
    files, old, expected = MOVES[case]
    package("moved", {"__init__.py": "", "new.py": NET, **files})
    here = describe(importlib.import_module("moved.new").Net)
    assert here == {"name": "moved.new:Net"}
    if imported:
        with contextlib.suppress(ImportError, SyntaxError):
            importlib.import_module(f"moved{old}")
    assert (difference({"name": f"moved{old}:Net"}, here) is None) is expected
    assert imported or not old or f"moved{old}" not in sys.modules


def test_an_alias_counts_where_its_module_is_imported(package):
    package("renamed", {"__init__.py": "", "new.py": NET, "old.py": "from renamed.new import Net as Network"})
    here = describe(importlib.import_module("renamed.new").Net)
    assert difference({"name": "renamed.old:Network"}, here) is not None
    importlib.import_module("renamed.old")
    assert difference({"name": "renamed.old:Network"}, here) is None


def test_a_process_that_was_spawned_names_the_program_as_its_parent_does():
    def function() -> None: ...

    function.__module__, function.__qualname__ = "__mp_main__", "function"
    assert describe(function)["name"] == "__main__:function"
