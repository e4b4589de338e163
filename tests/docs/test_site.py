"""The built site holds together: no broken link, every public name on a page and found by the search, no other host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest
import weft
from weft import nnx, typecheck

ROOT = Path(__file__).resolve().parents[2]


class Page(HTMLParser):
    """What a page links to, what it loads, its anchors, and how it looks on a small screen."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.metas: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]):
        has = {name: value or "" for name, value in attrs}
        self.anchors |= {has[name] for name in ("id", "name") if name in has}
        if tag == "meta" and "name" in has:
            self.metas[has["name"]] = has.get("content", "")
        if tag == "a" and "href" in has:
            self.links.append(has["href"])
        if tag in ("script", "img") and "src" in has:
            self.loads.append(has["src"])
        if tag == "link" and has.get("rel") in ("stylesheet", "icon"):
            self.loads.append(has["href"])


def broken(pages: dict[Path, Page]) -> list[str]:
    """Links and pictures of the site's own that lead nowhere."""
    found: list[str] = []
    for path, page in pages.items():
        for link in page.links + page.loads:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            # A link to the page's own beginning has no anchor behind it.
            if not target.exists() or (
                parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors
            ):
                found.append(f"{path.name}: {link}")
    return found


@pytest.mark.slow
def test_the_site_builds_strictly_and_holds_together(tmp_path: Path):
    pytest.importorskip("mkdocs")
    site = tmp_path / "site"
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

    # The page of errors has links from the root of a server that is not there.
    files = [file for file in site.rglob("*.html") if file.name != "404.html"]
    pages = {file.resolve(): Page(file.read_text()) for file in files}
    assert broken(pages) == []

    elsewhere = {load for page in pages.values() for load in page.loads if urlsplit(load).netloc}
    assert elsewhere == set()
    assert all(page.metas.get("viewport", "").startswith("width=device-width") for page in pages.values())

    anchors = {anchor for page in pages.values() for anchor in page.anchors}
    public = {f"{module.__name__}.{name}" for module in (weft, nnx, typecheck) for name in names_of(module)}
    public |= {f"weft.{name}" for name in ("tree.ema", "metrics.Average", "ops.linear")}
    assert public - anchors == set()

    index = json.loads((site / "search" / "search_index.json").read_text())
    titles = " ".join(entry["title"] for entry in index["docs"])
    for name in ("Linear", "thread", "vmap", "verify", "Reading errors", "Coming from equinox"):
        assert name in titles
    assert any("a successor is lost" in entry["text"] for entry in index["docs"])


def names_of(module: ModuleType) -> list[str]:
    """The public names, without those of modules."""
    return [name for name in module.__all__ if not isinstance(getattr(module, name), ModuleType)]
