"""`weft migrate` over notebooks: cells are one program, and everything else in the file stays as it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("libcst")
from weft.migrate.front import main
from weft.migrate.notebooks import Notebook

Migrate = Callable[[Mapping[str, str]], tuple[dict[str, str], str]]

MAGIC = [
    "%matplotlib inline\n!pip install jax \\\n  --quiet\nimport jax",
    "files = !ls\nfor name in files:\n    %timeit name\nname?",
    "%%bash\necho $HOME # no Python\n\n",
    "%%time\nx = (1\n  % 2)\n?x",
    's = """\n%no magic\n"""',
    "await thing()",
    "",
    "x, y = %time f(1)\nz = x == 1",
]


def notebook(*cells: str, as_lines: bool = True, language: str = "python", **style: Any) -> str:
    """A notebook's file, with a text between its cells, and results of its cells."""
    listed: list[dict[str, Any]] = [{"cell_type": "markdown", "metadata": {}, "source": ["# flax.nnx → weft\n"]}]
    for cell in cells:
        outputs = [{"output_type": "stream", "name": "stdout", "text": ["from flax import nnx\n"]}]
        listed.append(
            {
                "cell_type": "code",
                "execution_count": 3,
                "metadata": {"tags": ["é"]},
                "outputs": outputs,
                "source": cell.splitlines(True) if as_lines else cell,
            }
        )
    metadata = {"kernelspec": {"language": language, "name": "any"}, "language_info": {"name": language}}
    content = {"cells": listed, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, **{"indent": 1, "ensure_ascii": False, **style}) + "\n"


def sources(text: str) -> list[str]:
    """The cells of a notebook's file."""
    return ["".join(cell["source"]) for cell in json.loads(text)["cells"][1:]]


def test_cells_are_one_program(migrate: Migrate):
    text = notebook("from flax import nnx\nimport jax", "class M(nnx.Module):\n    pass", "nnx.flax_only if 0 else 1")
    after, report = migrate({"a.ipynb": text})
    assert after == {"a.ipynb": text}
    assert "a.ipynb, cell 4, line 1: nnx.flax_only: weft.nnx has no flax_only" in report


@pytest.mark.parametrize("as_lines", [True, False])
@pytest.mark.parametrize("style", [{}, {"ensure_ascii": True}, {"indent": 2}, {"indent": None}])
def test_only_the_code_that_moves_is_written_anew(migrate: Migrate, as_lines: bool, style: dict[str, Any]):
    cells = [*MAGIC, "from flax import nnx, struct  # é", "print(nnx.Linear)"]
    text = notebook(*cells, as_lines=as_lines, **style)
    after, report = migrate({"a.ipynb": text})
    moved = "from flax import struct  # é\nfrom weft import nnx"
    assert sources(after["a.ipynb"]) == [*MAGIC, moved, "print(nnx.Linear)"]
    assert after["a.ipynb"] == notebook(*MAGIC, moved, "print(nnx.Linear)", as_lines=as_lines, **style)
    assert "a.ipynb, cell 10, line 1: flax.struct: it stays flax's\n1 file changed, 1 place listed" in report


@pytest.mark.parametrize("cells", [MAGIC, [], ["\n\n"], ["a = 1\n"], ["if a:\n    !ls\n\n\nb = 2"]])
def test_a_notebook_that_is_not_edited_is_the_same_to_the_byte(cells: list[str]):
    data = notebook(*cells).encode()
    read = Notebook.read(data)
    assert read.written(read.code) == data


def test_what_only_ipython_reads_holds_what_it_names(migrate: Migrate):
    timed = notebook("import flax.nnx", "%timeit flax.nnx.relu(1)")
    after, report = migrate({"a.ipynb": timed})
    assert after == {"a.ipynb": timed}
    assert "a.ipynb, cell 3, line 1: the line: this line in IPython's syntax names flax" in report


def test_other_languages_are_left_alone(migrate: Migrate):
    text = notebook("using flax", language="julia")
    assert migrate({"a.ipynb": text}) == (
        {"a.ipynb": text},
        "0 files changed, 0 places listed\n",
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"cells": ["flax"', "it is not a notebook: "),
        ('{"worksheets": "flax"}', "it is not a notebook of version 4: it has no cells"),
        (notebook("from flax import nnx\nx = = 1"), "cell 2 cannot be parsed"),
        (notebook("from flax import nnx\nimport b\nclass"), "cell 2 cannot be parsed"),
        (notebook("from flax import nnx", indent=7), "writing it would reformat the whole file"),
    ],
)
def test_a_notebook_that_cannot_be_read_is_said_and_holds_what_it_imports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, why: str
):
    (tmp_path / "a.ipynb").write_text(text)
    (tmp_path / "b.py").write_text("from flax import nnx\n")
    assert main([str(tmp_path), "--write"]) == 0
    assert f"a.ipynb:1: the file: {why}" in capsys.readouterr().err
    assert (tmp_path / "a.ipynb").read_text() == text
    library = "flax" if "import b" in text else "weft"
    assert (tmp_path / "b.py").read_text() == f"from {library} import nnx\n"


def test_a_broken_notebook_that_has_neither_library_is_passed_over(migrate: Migrate):
    text = '{"cells": ['
    assert migrate({"a.ipynb": text})[0] == {"a.ipynb": text}
