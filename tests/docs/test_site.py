"""The built site holds together: no broken link, every public name on a page, no other host.

And as a reader has it, in a browser: on a phone, and by the search.
"""

from __future__ import annotations

import functools
import html
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import weft
from weft import nnx, typecheck

ROOT = Path(__file__).resolve().parents[2]
SIZES = {"phone": (390, 844), "laptop": (1280, 900)}
# What a reader types into the search, and a page that must be among the answers.
SEARCHES = {
    "vmap": "api/transforms/transforms.html",
    "lost successor": "guides/errors.html",
    "MultiHeadAttention": "api/layers/attention.html",
}
LOOK = """({
    wide: document.documentElement.scrollWidth - window.innerWidth,
    cut: [...document.querySelectorAll('pre, h1, h2, h3, p, li, header a')]
        .filter(e => e.getClientRects().length && e.scrollWidth > e.clientWidth)
        .map(e => e.innerText.slice(0, 80)),
    letters: parseFloat(getComputedStyle(document.querySelector('article')).fontSize),
    dark: [...document.images].filter(i => !(i.complete && i.naturalWidth > 0)).map(i => i.src),
    pictures: document.images.length,
    words: document.querySelector('article').innerText.split(/\\s+/).length,
})"""
# Of each block that stands in a pair: where it begins, and how many of its lines are wrapped.
PAIRS = """[...document.querySelectorAll('.grid > .highlight')].map(block => {
    const code = block.querySelector('pre > code'), style = getComputedStyle(code);
    const height = code.clientHeight - parseFloat(style.paddingTop) - parseFloat(style.paddingBottom);
    const lines = code.innerText.trimEnd().split('\\n').length;
    return [block.getBoundingClientRect().top, Math.round(height / parseFloat(style.lineHeight)) - lines];
})"""
SEARCH = """(() => {
    const field = document.querySelector('input.md-search__input');
    if (field.value !== WORDS) {
        document.querySelector('#__search').checked = true;
        field.focus();
        field.value = WORDS;
        field.dispatchEvent(new Event('keyup', {bubbles: true}));
        field.dispatchEvent(new Event('input', {bubbles: true}));
    }
    return document.querySelectorAll('.md-search-result__link').length > 0;
})()"""
ANSWERS = "[...document.querySelectorAll('.md-search-result__link')].map(a => a.getAttribute('href'))"


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
    broken_links: list[str] = []
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
                broken_links.append(f"{path.name}: {link}")
    return broken_links


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    pytest.importorskip("mkdocs")
    site = tmp_path_factory.mktemp("built") / "site"
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return site


@pytest.mark.slow
def test_the_site_builds_strictly_and_holds_together(site: Path):
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


def hook() -> ModuleType:
    """The file that makes the API pages."""
    spec = importlib.util.spec_from_file_location("weft_docs_api", ROOT / "docs" / "hooks" / "api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_public_name_has_one_line_in_the_index_of_the_api():
    pytest.importorskip("mkdocs")
    api = hook()
    lines = api.pages()["api/index.md"].splitlines()
    listed = [re.match(r"- \[`([\w.]+)`\]\(\S+\): \S", line) for line in lines if line.startswith("- ")]
    assert [
        line for line, match in zip((li for li in lines if li.startswith("- ")), listed, strict=True) if not match
    ] == []
    modules = {"": weft, "nnx.": nnx, "typecheck.": typecheck, "debug.": weft.debug, "metrics.": weft.metrics}
    public = {f"{prefix}{name}" for prefix, module in modules.items() for name in names_of(module)}
    names = [match.group(1) for match in listed if match]
    assert public - {*names} == set()
    assert len(names) == len({*names})


def names_of(module: ModuleType) -> list[str]:
    """The public names, without those of modules."""
    return [name for name in module.__all__ if not isinstance(getattr(module, name), ModuleType)]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing of each request."""


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    """Where the site is served: the search loads its index, which a browser refuses to do from the disk."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_every_page_is_readable_and_shows_its_pictures(size: str, site: Path, served: str, visit: Callable[..., Any]):
    names = sorted(str(file.relative_to(site)) for file in site.rglob("*.html") if file.name != "404.html")
    measured = visit(*(f"{served}/{name}" for name in names), script=LOOK, size=SIZES[size])
    seen = dict(zip(names, measured, strict=True))
    assert {name: page["wide"] for name, page in seen.items() if page["wide"] > 0} == {}
    assert {name: page["cut"] for name, page in seen.items() if page["cut"]} == {}
    assert {name: page["dark"] for name, page in seen.items() if page["dark"]} == {}
    assert {name: page for name, page in seen.items() if page["letters"] < 14 or page["words"] < 10} == {}
    assert seen["index.html"]["pictures"] == 3
    assert seen["benchmarks.html"]["pictures"] > 0


@pytest.mark.slow
def test_programs_side_by_side_keep_their_lines(served: str, visit: Callable[..., Any]):
    urls = [f"{served}/coming/{name}.html" for name in ("equinox", "pytorch")]
    for page in visit(*urls, script=PAIRS, size=(1400, 900)):
        tops, wrapped = zip(*page, strict=True)
        assert tops[::2] == tops[1::2], "two programs of a pair are not beside each other"
        assert max(wrapped) <= 2


@pytest.mark.slow
def test_the_head_of_a_page_says_the_version_and_links_to_the_repository(site: Path):
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    for name in ("index.html", "api/layers/linear-layers.html"):
        head = (site / name).read_text().partition("<header")[2].partition("</header>")[0]
        assert f"weft {weft.__version__}" in head
        assert f'href="{source}"' in head


@pytest.mark.slow
def test_signatures_are_wrapped(site: Path):
    pytest.importorskip("ruff", reason="the extra `docs` is not installed as it is now: ruff wraps signatures")
    text = (site / "api" / "layers" / "linear-layers.html").read_text()
    shown = re.findall(r'<div class="doc-signature highlight">.*?</div>', text, re.DOTALL)
    lines = [line for one in shown for line in html.unescape(re.sub(r"<[^>]+>", "", one)).splitlines()]
    assert max(map(len, lines)) <= 80 < sum(map(len, lines))


@pytest.mark.slow
def test_a_record_without_fields_has_a_signature(site: Path):
    text = html.unescape(re.sub(r"<[^>]+>", "", (site / "api" / "layers" / "attention.html").read_text()))
    assert re.search(r"^\s*ALiBi\(\)$", text, re.MULTILINE)


@pytest.mark.slow
def test_an_example_on_a_page_begins_with_its_imports(site: Path):
    text = html.unescape(re.sub(r"<[^>]+>", "", (site / "api" / "layers" / "linear-layers.html").read_text()))
    assert ">>> from weft import Linear\n" in text


@pytest.mark.slow
@pytest.mark.parametrize(("words", "wanted"), SEARCHES.items())
def test_the_search_finds_what_a_reader_types(words: str, wanted: str, served: str, visit: Callable[..., Any]):
    (answers,) = visit(f"{served}/index.html", script=ANSWERS, until=SEARCH.replace("WORDS", json.dumps(words)))
    assert any(wanted in answer for answer in answers), answers
