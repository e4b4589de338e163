"""`weft migrate` over flax.nnx: what is rewritten, what holds, and that a program computes the same after it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

pytest.importorskip("libcst")
from weft.typecheck.migrate.front import main

PROGRAMS = Path(__file__).parent / "programs"
Migrate = Callable[[Mapping[str, str]], tuple[dict[str, str], str]]


@pytest.fixture
def migrate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Migrate:
    """Writes files, migrates them, and gives them as they are then, with the report; a second run changes nothing."""

    def run(files: Mapping[str, str]) -> tuple[dict[str, str], str]:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        assert main([str(tmp_path), "--write"]) == 0
        report = capsys.readouterr().err
        after = {name: (tmp_path / name).read_text() for name in files}
        assert main([str(tmp_path)]) == 0
        assert capsys.readouterr().out == ""
        return after, report

    return run


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from flax import nnx\n", "from weft import nnx\n"),
        ("from flax import nnx as n  # flax.nnx\n", "from weft import nnx as n  # flax.nnx\n"),
        ("import flax.nnx as nnx\n", "import weft.nnx as nnx\n"),
        ("from flax.nnx import Linear as L, Param\n", "from weft.nnx import Linear as L, Param\n"),
        ("from flax.nnx import bridge, statelib\n", "from weft.nnx import bridge, statelib\n"),
        ("from flax.nnx.statelib import State\n", "from weft.nnx.statelib import State\n"),
        ("from flax import linen as nn, nnx\n", "from flax import linen as nn\nfrom weft import nnx\n"),
        ("import os; from flax import nnx, struct\n", "import os; from flax import struct; from weft import nnx\n"),
        ("import flax.nnx\nflax.nnx.Param(1)\n", "import weft.nnx\nweft.nnx.Param(1)\n"),
        ("import flax, jax\nflax.nnx.jit\n", "import weft.nnx, jax\nweft.nnx.jit\n"),
        (
            "import flax.nnx\n@flax.struct.dataclass\nclass A:\n    x: 'flax.nnx.Module'\n",
            "import flax\nimport weft.nnx\n@flax.struct.dataclass\nclass A:\n    x: 'weft.nnx.Module'\n",
        ),
        (
            "from flax import (\n    # Linen\n    linen,  # one\n    nnx,  # two\n)\n",
            "from flax import (\n    # Linen\n    linen,  # one\n)\n# two\nfrom weft import nnx\n",
        ),
        (
            "def f():\n    if x:\n        from flax import nnx\n        return nnx.Module\n",
            "def f():\n    if x:\n        from weft import nnx\n        return nnx.Module\n",
        ),
    ],
)
def test_an_import_is_rewritten_where_it_stands(migrate: Migrate, before: str, after: str):
    assert migrate({"a.py": before})[0] == {"a.py": after}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("from flax.nnx import *\n", "a.py:1: from flax.nnx import *: what a star brings is not known"),
        ("from flax import nnx\nnnx.nonsense()\n", "a.py:2: nnx.nonsense: weft.nnx has no nonsense"),
        ("from flax.nnx.graphlib import _secret\n", "weft.nnx has no graphlib._secret"),
        ("from flax import nnx\nm = 'flax.nnx'\n", "a.py:2: 'flax.nnx': a module is named in a string"),
        ("from flax import nnx\nnnx.relu = abs\n", "a.py:2: nnx.relu: flax.nnx is changed from outside"),
        ("from flax import nnx, serialization\n", "flax.serialization: it may look at objects of flax.nnx"),
        ("import flax\nfrom flax import nnx\nflax.config.update('a', 1)\n", "it switches flax.nnx"),
        ("from flax import nnx\nnnx.Param(1)._pytree__nodes\n", "it is how flax.nnx keeps its objects"),
        ("import flax.nnx\nweft = flax.nnx.jit\n", "the name `weft` is taken in this file"),
        ("import flax.nnx\n__all__ = ['flax']\n", "`__all__` has the name `flax`"),
        ("try:\n    import flax.nnx\nexcept ImportError:\n    flax = None\n", "`flax` is bound in several ways"),
    ],
)
def test_what_is_in_doubt_holds_the_file(migrate: Migrate, text: str, why: str):
    after, report = migrate({"a.py": text})
    assert after == {"a.py": text}
    assert why in report


def test_files_that_are_tied_by_imports_move_together_or_not_at_all(migrate: Migrate):
    files = {
        "pyproject.toml": "",
        "pkg/__init__.py": "",
        "pkg/star.py": "from flax.nnx import *\n",
        "pkg/model.py": "from flax import nnx\n",
        "pkg/both.py": "from . import model\nfrom .star import Linear\n",
        "other.py": "from flax import nnx\n",
    }
    after, report = migrate(files)
    assert after == {**files, "other.py": "from weft import nnx\n"}
    assert "it is tied by imports to star.py:1, which holds it (from flax.nnx import *)" in report


def test_a_file_beside_those_that_were_named_holds_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "model.py").write_text("from flax import nnx\n")
    (tmp_path / "train.py").write_text("from flax import nnx\nimport model\n")
    assert main([str(tmp_path / "model.py")]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "it is tied by imports to train.py:1, which holds it (the file)" in printed.err


def test_nothing_is_written_unless_asked_and_where_a_file_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text("from flax import nnx\n")
    assert main([str(tmp_path)]) == 0
    assert "-from flax import nnx\n+from weft import nnx\n" in capsys.readouterr().out
    bad.write_text("import flax.nnx as (\n")
    assert main([str(tmp_path), "--write"]) == 2
    assert "bad.py:1: the file: line 1: it cannot be parsed" in capsys.readouterr().err
    assert good.read_text() == "from flax import nnx\n"
    assert main([str(tmp_path), "--write", "--exclude", "bad.py"]) == 0
    assert good.read_text() == "from weft import nnx\n"


def test_modes_newlines_and_encodings_stay(tmp_path: Path):
    file = tmp_path / "a.py"
    file.write_bytes("# -*- coding: latin-1 -*-\r\nfrom flax import nnx, linen\r\ns = 'é'\r\n".encode("latin-1"))
    file.chmod(0o751)
    assert main([str(file), "--write"]) == 0
    lines = "# -*- coding: latin-1 -*-\r\nfrom flax import linen\r\nfrom weft import nnx\r\ns = 'é'\r\n"
    assert file.read_bytes() == lines.encode("latin-1")
    assert file.stat().st_mode & 0o777 == 0o751
    assert [one.name for one in tmp_path.iterdir()] == ["a.py"]


def test_a_path_without_python_files_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([str(tmp_path / "none")]) == 2
    assert "none: there is no Python file" in capsys.readouterr().err


def numbers(text: str) -> list[float]:
    """The numbers that a program printed; each program prints enough of them to tell it from others."""
    return [float(word) for word in re.findall(r"-?\d+(?:\.\d*)?(?:e-?\d+)?", text)]


@pytest.mark.slow
@pytest.mark.parametrize("program", [one.name for one in sorted(PROGRAMS.iterdir()) if one.is_dir()])
def test_a_program_computes_the_same_before_and_after(program: str, tmp_path: Path):
    for source in (PROGRAMS / program).rglob("*.py"):
        copy = tmp_path / source.relative_to(PROGRAMS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(source.read_bytes())
    assert main([str(tmp_path), "--write"]) == 0
    after = {one: one.read_text() for one in tmp_path.rglob("*.py")}
    assert main([str(tmp_path), "--write"]) == 0
    assert {one: one.read_text() for one in tmp_path.rglob("*.py")} == after
    assert ("held" in program) == (not any("weft" in text for text in after.values()))
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "error::UserWarning", str(folder / program / "main.py")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for folder in (PROGRAMS, tmp_path)
    ]
    (before, error1), (now, error2) = [one.communicate() for one in started]
    assert [one.returncode for one in started] == [0, 0], error1 + error2
    assert len(numbers(before)) > 1
    assert numbers(now) == pytest.approx(numbers(before), rel=1e-4, abs=1e-6)
