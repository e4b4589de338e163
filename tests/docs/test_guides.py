"""What the site's pages show runs: the Python blocks of a page in one namespace, in order.

A block of text after a block of Python is what that prints, or the error that it ends in; `...` stands for anything. A
block with a title is a peer's and has that title's own namespace; it runs where the peer is installed.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import re
import sys
import types
import warnings
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted([DOCS / "index.md", DOCS / "start.md", *DOCS.glob("guides/*.md"), *DOCS.glob("coming/*.md")])
FENCE = re.compile(r'^ *```(python|text)(?: title="([\w. ]+)")?\n(.*?)^ *```$', re.DOTALL | re.MULTILINE)
PEERS = {"equinox": "equinox", "flax": "flax", "PyTorch": "torch", "weft": "weft"}
PEERS |= {name: name for name in ("diffrax", "optimistix", "lineax", "blackjax", "numpyro", "distrax", "grain")}
SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def programs(text: str) -> list[tuple[int, str, str, str | None]]:
    """The blocks of Python: line, title, source, and what is expected of them."""
    blocks: list[tuple[int, str, str, str | None]] = []
    for match in FENCE.finditer(text):
        kind, title, body = match.groups()
        if kind == "python":
            lines = body.splitlines()
            indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
            source = "\n".join(line[indent:] for line in lines) + "\n"
            blocks.append((text.count("\n", 0, match.start(3)), title or "weft", source, None))
        elif blocks and blocks[-1][3] is None:
            blocks[-1] = (*blocks[-1][:3], body)
    return blocks


def space(spaces: dict[str, dict[str, object]], page: str, title: str) -> dict[str, object]:
    """The namespace of a page's blocks with a title: that of a module, where annotations are looked up."""
    if title not in spaces:
        module = types.ModuleType(f"page_{page}_{title}")
        sys.modules[module.__name__] = module
        spaces[title] = vars(module)
    return spaces[title]


def said_by(source: str, name: str, line: int, names: dict[str, object]) -> tuple[str, Exception | None]:
    """What a block prints, and the error that it ends in."""
    said = io.StringIO()
    # The blank lines make a traceback cite the page's own line numbers.
    code = compile("\n" * line + source, name, "exec")
    try:
        with contextlib.redirect_stdout(said):
            exec(code, names)
    except Exception as error:
        said.write(f"{type(error).__name__}: {error}\n")
        return said.getvalue(), error
    return said.getvalue(), None


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_a_page_does_what_the_page_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    spaces: dict[str, dict[str, object]] = {}
    for line, title, source, expected in programs(page.read_text()):
        if importlib.util.find_spec(PEERS[title]) is None:
            continue
        with warnings.catch_warnings():
            if title != "weft":  # what another library's own imports are warned of is not for the page to mend
                warnings.simplefilter("ignore", DeprecationWarning)
            got, error = said_by(source, str(page), line, space(spaces, page.stem, title))
        if expected is None:
            if error is not None:
                raise error
        elif not doctest.OutputChecker().check_output(expected, got, SAME):
            pytest.fail(f"{page.name}:{line + 1} shows\n{expected}\nand gives\n{got}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_fence_of_python_is_read(page: Path):
    text = page.read_text()
    assert len(programs(text)) == text.count("```python") > 0
