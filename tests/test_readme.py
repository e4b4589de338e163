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


def ratios(text: str) -> set[str]:
    """The numbers that end the rows of Markdown tables."""
    return set(re.findall(r"\| +(\d+\.\d\d) +\|$", text, re.MULTILINE))


def test_the_picture_is_there():
    assert [
        name
        for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", README.read_text())
        if not (README.parent / name).is_file()
    ] == []


def newest_results() -> tuple[str, dict[str, str]]:
    """The newest section of the results, and its tables by title."""
    newest = (README.parent / "benchmarks" / "RESULTS.md").read_text().rpartition("\n## ")[2]
    return newest, dict(part.split("\n", 1) for part in newest.split("\n### ")[1:])


def test_the_page_of_benchmarks_has_the_ratios_of_the_newest_results():
    _, tables = newest_results()
    rows = re.findall(
        r"^\| ([\w ]+: .*?)((?: \| \d+\.\d\d)+) \|$", (README.parent / "docs" / "benchmarks.md").read_text(), re.M
    )
    assert len(rows) == 6
    for title, shown in rows:
        assert set(re.findall(r"\d+\.\d\d", shown)) - ratios(tables[title]) == set(), title


def test_the_times_are_those_of_the_newest_results():
    newest, tables = newest_results()
    titles = {
        "| a call, 600 leaves": "Dispatch: 600 leaves in 301 objects, all leaves changed",
        "| the same, one leaf in six": "Dispatch: 600 leaves in 301 objects, one leaf in six changed",
        "| trace and lower": "Tracing: trace and lower of `value_and_grad`, 12-layer transformer",
    }
    text = README.read_text()
    for start, title in titles.items():
        row = next(line for line in text.splitlines() if line.startswith(start))
        shown = set(re.findall(r"\d+\.\d\d", row))
        assert len(shown) >= 4
        assert shown - ratios(tables[title]) == set(), start
    versions = newest.partition("\n\n")[2].partition("\n")[0]
    for peer in re.findall(
        r"(?:weft|JAX|equinox|flax) \d[\d.]*\d", text.partition("## Numbers")[2].partition("Python")[0]
    ):
        assert peer.lower() in versions, f"{peer}: benchmarks/RESULTS.md says {versions}"


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
