"""`weft migrate` over flax.nnx: what is rewritten, what holds, and that a program computes the same after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

pytest.importorskip("libcst")
from weft.migrate.front import main

Migrate = Callable[[Mapping[str, str]], tuple[dict[str, str], str]]


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
        ("from flax.nnx import *\n", "a.py:1: from flax.nnx import *: the names of a star import are unknown"),
        ("from flax import nnx\nnnx.nonsense()\n", "a.py:2: nnx.nonsense: weft.nnx has no nonsense"),
        ("from flax.nnx.graphlib import _secret\n", "weft.nnx has no graphlib._secret"),
        ("from flax import nnx\nm = 'flax.nnx'\n", "a.py:2: 'flax.nnx': a string has the name of a module of flax.nnx"),
        ("from flax import nnx\nnnx.relu = abs\n", "a.py:2: nnx.relu: the file changes an attribute of flax.nnx"),
        ("from flax import nnx, serialization\n", "flax.serialization: it may read objects of flax.nnx"),
        (
            "import flax\nimport flax.nnx\nn = getattr(flax, 'n' + 'nx')\n",
            "a.py:3: flax: the package `flax`, with its nnx, is used as a value",
        ),
        ("import flax\nfrom flax import nnx\nflax.config.update('a', 1)\n", "it has the switches of flax.nnx"),
        ("from flax import nnx\nnnx.Param(1)._pytree__nodes\n", "it is an internal name of flax.nnx's objects"),
        ("import flax.nnx\nweft = flax.nnx.jit\n", "the file binds the name `weft`"),
        ("import flax.nnx\n__all__ = ['flax']\n", "`__all__` has the name `flax`"),
        (
            "try:\n    import flax.nnx\nexcept ImportError:\n    flax = None\n",
            "the file binds the name `flax` in several ways",
        ),
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
    assert "it is connected by imports to star.py:1, which must stay with flax (from flax.nnx import *)" in report


def test_a_file_beside_those_that_were_named_holds_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "model.py").write_text("from flax import nnx\n")
    (tmp_path / "train.py").write_text("from flax import nnx\nimport model\n")
    assert main([str(tmp_path / "model.py")]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "it is connected by imports to train.py:1, which must stay with flax (the file)" in printed.err


def test_nothing_is_written_unless_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    good = tmp_path / "good.py"
    good.write_text("from flax import nnx\n")
    assert main([str(tmp_path)]) == 0
    assert "-from flax import nnx\n+from weft import nnx\n" in capsys.readouterr().out
    assert good.read_text() == "from flax import nnx\n"
    assert main([str(tmp_path), "--write"]) == 0
    assert good.read_text() == "from weft import nnx\n"


def test_a_file_in_newer_syntax_is_a_finding_that_holds_what_it_imports(migrate: Migrate):
    files = {
        "pyproject.toml": "",
        "pkg/__init__.py": "",
        "pkg/model.py": "from flax import nnx\n",
        "pkg/newer.py": "from flax import nnx\nfrom . import (\n    model,\n)\nx = syntax of 2040\n",
        "other.py": "from flax import nnx\n",
    }
    after, report = migrate(files)
    assert after == {**files, "other.py": "from weft import nnx\n"}
    assert "newer.py:1: the file: line 5: it cannot be parsed" in report
    assert "it is connected by imports to newer.py:1, which must stay with flax (the file)" in report


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


def test_a_notebook_is_listed_and_holds_no_file(migrate: Migrate):
    notebook = '{"cells": [{"cell_type": "code", "source": ["from flax import nnx\\n", "import net"]}]}'
    after, report = migrate({"a.ipynb": notebook, "net.py": "from flax import nnx\n", "b.ipynb": "{}"})
    assert after == {"a.ipynb": notebook, "net.py": "from weft import nnx\n", "b.ipynb": "{}"}
    assert "a.ipynb:1: the file: a notebook is not rewritten\n    do: change its imports by hand" in report
    assert "b.ipynb" not in report
