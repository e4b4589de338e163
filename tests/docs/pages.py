"""Runs what a page of the site shows: its Python blocks in one namespace, in order.

A block of text after a block of Python is what that prints, or the error that it ends in; `...` stands for anything. A
block with a title is a peer's and has that title's own namespace; it runs where the peer is installed.

This file needs no pytest, so that `.ci/pages` can run it in an environment of a reader:

    python tests/docs/pages.py docs/guides/records.md
"""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import os
import re
import sys
import tempfile
import types
import warnings
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(
    [DOCS / "index.md", DOCS / "start.md", DOCS / "recipes.md", *DOCS.glob("guides/*.md"), *DOCS.glob("coming/*.md")]
)
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


@contextlib.contextmanager
def as_main(module: types.ModuleType) -> Iterator[None]:
    """Runs blocks as a reader's program is run: texts that name a class of the page say `__main__`."""
    before = sys.modules["__main__"]
    sys.modules["__main__"] = module
    try:
        yield
    finally:
        sys.modules["__main__"] = before


def output_of(source: str, name: str, line: int, module: types.ModuleType) -> tuple[str, Exception | None]:
    """What a block prints, and the error that it ends in."""
    printed = io.StringIO()
    # The blank lines make a traceback cite the page's own line numbers.
    code = compile("\n" * line + source, name, "exec")
    try:
        with as_main(module), contextlib.redirect_stdout(printed):
            exec(code, vars(module))
    except Exception as error:
        printed.write(f"{type(error).__name__}: {error}\n")
        return printed.getvalue(), error
    return printed.getvalue(), None


def run(page: Path) -> Iterator[str]:
    """Runs the blocks of a page in the current folder; yields a text for each that prints something else than it shows.

    Raises:
        Exception: what a block ends in that shows no error.
    """
    modules: dict[str, types.ModuleType] = {}
    for line, title, source, expected in programs(page.read_text()):
        if importlib.util.find_spec(PEERS[title]) is None:
            continue
        with warnings.catch_warnings():
            if title != "weft":  # what another library's own imports are warned of is not for the page to mend
                warnings.simplefilter("ignore", DeprecationWarning)
            module = modules.setdefault(title, types.ModuleType("__main__"))
            printed, error = output_of(source, str(page), line, module)
        if expected is None and error is not None:
            raise error
        if expected is not None and not doctest.OutputChecker().check_output(expected, printed, SAME):
            yield f"{page.name}:{line + 1} shows\n{expected}\nand gives\n{printed}"


if __name__ == "__main__":
    differences: list[str] = []
    for page in map(Path.resolve, map(Path, sys.argv[1:])):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            differences += run(page)
    sys.exit("\n".join(differences) or 0)
