"""Makes what is not written by hand: the gallery, the benchmarks with their pictures, the head; `api` makes the API."""

from __future__ import annotations

import io
import re
import tomllib
from pathlib import Path

import weft
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    # The head shows the name of the site, with the version that the pages are of, and a link to the repository.
    config.site_name = f"weft {weft.__version__}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config.repo_url, config.repo_name = project["urls"]["Source"], "Source"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, content in programs().items():
        files.append(File.generated(config, path, content=content))
    files.append(File.generated(config, "changelog.md", content=(ROOT / "CHANGELOG.md").read_text()))
    for name, picture in pictures().items():
        files.append(File.generated(config, f"pictures/{name}.svg", content=picture))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if page.file.src_path == "gallery.md":
        # On the site a program has a page of its own.
        return re.sub(r"\(\.\./examples/gallery/(\w+)\.py\)", r"(gallery/\1.md)", markdown)
    if "<!-- speed -->" in markdown:
        title = next(title for title, table in tables().items() if ratios(table))
        return markdown.replace("<!-- speed -->", f"![{title}, as bars](pictures/{slug(title)}.svg)")
    if "<!-- benchmarks -->" in markdown:
        return markdown.replace("<!-- benchmarks -->", benchmarks())
    return markdown


# The gallery.


def programs() -> dict[str, str]:
    """A page for each program: its source."""
    folder = ROOT / "examples" / "gallery"
    return {
        f"gallery/{file.stem}.md": f"# {file.stem}\n\n```python\n{file.read_text()}```\n"
        for file in sorted(folder.glob("*.py"))
    }


# The benchmarks.


def newest() -> str:
    """The last section of the results."""
    return (ROOT / "benchmarks" / "RESULTS.md").read_text().rpartition("\n## ")[2]


def tables() -> dict[str, str]:
    """The newest results: tables by title."""
    parts = newest().split("\n### ")[1:]
    return {title.strip(): table.strip() for title, _, table in (part.partition("\n") for part in parts)}


def slug(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def ratios(table: str) -> list[tuple[str, float]]:
    """The cases of a table with their ratio to the limit."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    if len(rows) < 4 or rows[0][-1] != "ratio to the limit":
        return []
    return [(row[0], float(row[-1])) for row in rows[2:]]


def pictures() -> dict[str, bytes]:
    """A bar chart of each table that has ratios."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    drawn: dict[str, bytes] = {}
    for title, table in tables().items():
        if cases := ratios(table):
            figure, axes = plt.subplots(figsize=(7, 0.35 * len(cases) + 0.8), layout="constrained")
            names, values = zip(*reversed(cases), strict=True)
            colors = ["#3f51b5" if "weft" in name else "#b0b4c8" for name in names]
            axes.bar_label(axes.barh(names, values, color=colors), fmt="%.2f", padding=3)
            axes.axvline(1, color="#555555", linewidth=1)
            axes.set_xlabel("times the limit; less is better")
            axes.spines[["top", "right"]].set_visible(False)
            axes.margins(x=0.12)
            buffer = io.BytesIO()
            figure.savefig(buffer, format="svg", metadata={"Date": None}, facecolor="white")
            plt.close(figure)
            drawn[slug(title)] = buffer.getvalue()
    return drawn


def benchmarks() -> str:
    """The newest results, each table below its picture."""
    intro = newest().partition("\n### ")[0].strip()
    date, _, versions = intro.partition("\n")
    lines = [f"Measured on {date}, with {versions.strip()}.", ""]
    for title, table in tables().items():
        lines += [f"## {title}", ""]
        if ratios(table):
            lines += [f"![{title}, as bars](pictures/{slug(title)}.svg)", ""]
        lines += [table, ""]
    return "\n".join(lines)
