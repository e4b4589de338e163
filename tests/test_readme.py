"""Each Python block of the README is a whole program, and runs; what the rooms' READMEs point to is there."""

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


@pytest.mark.slow
@pytest.mark.parametrize(("line", "source"), [pytest.param(*block, id=f"line{block[0]}") for block in blocks()])
def test_a_block_of_the_readme_runs(line: int, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = tmp_path / "readme.py"
    # The blank lines make a traceback cite the README's own line numbers.
    program.write_text("\n" * (line - 1) + source)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(program), run_name="__main__")


def test_every_fence_of_the_readme_is_read():
    assert len(blocks()) == README.read_text().count("```python") > 0


def test_the_pictures_are_there_and_show_the_numbers_of_the_table():
    text = README.read_text()
    pictures = [README.parent / name for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)]
    assert len(pictures) == 2
    drawn = [picture.read_text() for picture in pictures]
    row = next(line for line in text.splitlines() if line.startswith("| a call, 600 leaves"))
    for number in re.findall(r"\d+\.\d+", row):
        assert any(f">{float(number):.2f}<" in picture for picture in drawn), f"run docs/pictures/draw.py: {number}"


PACKAGES = ("core", "transforms", "modules", "typecheck", "nnx")
ROOMS = sorted(file for package in PACKAGES for file in (README.parent / package).rglob("README.md"))


@pytest.mark.parametrize("readme", ROOMS, ids=lambda readme: readme.parent.name)
def test_the_files_that_a_room_points_to_are_there(readme: Path):
    named = re.findall(r"`([\w./]+/|[\w./]*\w\.py|tests/[\w/]+)`", readme.read_text())
    # A name without a folder is a file of the room, or one beside the file that was named before it.
    places = [README.parent, readme.parent, readme.parent.parent]
    places += [README.parent / name for name in named if not name.endswith(".py")]
    places += [(README.parent / name).parent for name in named if "/" in name]
    assert [name for name in named if not any((place / name).exists() for place in places)] == []
    assert any(name.startswith("tests/") for name in named)


def test_every_room_says_what_it_promises():
    folders = {file.parent for package in PACKAGES for file in (README.parent / package).glob("*/__init__.py")}
    folders -= {README.parent / "typecheck" / name for name in ("pytest_plugin", "launcher")}
    assert {folder.name for folder in folders if not (folder / "README.md").exists()} == set()
