"""What the site's pages show runs, and gives what they show: see `pages.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from .pages import PAGES, programs, run


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_a_page_does_what_the_page_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for difference in run(page):
        pytest.fail(difference)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_fence_of_python_is_read(page: Path):
    text = page.read_text()
    assert len(programs(text)) == text.count("```python") > 0
