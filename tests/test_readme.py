"""Each Python block of the README is a whole program, and runs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks() -> list[tuple[int, str]]:
    """The blocks, each with the line that it starts on."""
    text = README.read_text()
    return [(text.count("\n", 0, match.start(1)) + 1, match.group(1)) for match in BLOCK.finditer(text)]


@pytest.mark.parametrize(("line", "source"), [pytest.param(*block, id=f"line{block[0]}") for block in blocks()])
def test_a_block_of_the_readme_runs(line: int, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = tmp_path / "readme.py"
    # The blank lines make a traceback cite the README's own line numbers.
    program.write_text("\n" * (line - 1) + source)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(program), run_name="__main__")


def test_every_fence_of_the_readme_is_read():
    assert len(blocks()) == README.read_text().count("```python") > 0
