"""The files and names that the pages of decisions point to are there: an entry about deleted code is out of date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "decisions").glob("*.md"))
SOURCES = [str(file.relative_to(ROOT)) for file in ROOT.rglob("*.py") if file.relative_to(ROOT).parts[0][0] != "."]
NAMED = re.compile(r"`([\w/]+\.py|(?:core|transforms|modules|typecheck|nnx|insight|tests)/[\w/]+)`")


def is_there(name: str) -> bool:
    return (ROOT / name).is_dir() or any(f"/{source}".endswith(f"/{name}") for source in SOURCES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_files_that_a_decision_names_are_there(page: Path):
    missing = [name for name in NAMED.findall(page.read_text()) if not is_there(name)]
    # One entry names a file because it is gone.
    assert missing == (["core/static.py"] if page.stem == "project" else [])


def test_every_page_of_decisions_is_listed_on_the_first():
    index = (ROOT / "docs" / "decisions" / "index.md").read_text()
    assert {page.name for page in PAGES} - {"index.md"} == set(re.findall(r"\]\((\w+\.md)\)", index))
