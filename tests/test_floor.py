"""What exists for the oldest Python and JAX alone is marked and listed, so that leaving them is one commit."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("core", "transforms", "modules", "nnx", "typecheck", "insight", "migrate")


def test_the_page_lists_the_files_that_are_marked():
    marked = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if re.search("# floor: ", path.read_text())
    }
    page = (ROOT / "docs" / "decisions" / "project.md").read_text()
    table = page.partition("| file | for Python 3.11")[2].partition("\n\n")[0]
    assert set(re.findall(r"`((?:\w+/)+\w+\.py)`", table)) == marked
