"""What of the site is made and not written: the API pages, the gallery, the benchmarks with their pictures.

The API pages come from the public names: a page for each room, so that no name can be forgotten. mkdocstrings reads the
sources of a package in a folder of its name; the repository is the package and may lie in any folder, so the sources
are copied first, to a folder of this process: two sites may be built at a time.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import inspect
import io
import re
import shutil
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("core", "transforms", "modules", "typecheck", "nnx")
# The namespaces whose `__all__` is public, and the folder of their pages.
NAMESPACES = {"weft": "records", "weft.nnx": "nnx", "weft.typecheck": "typecheck"}
# Modules that are API under a short name: their functions have a page of their own.
SHORT = {"weft.tree": "Functions over arrays", "weft.metrics": "Metrics", "weft.ops": "Pure ops"}
OUTSIDE = "JAX's own"


@functools.cache
def copies() -> Path:
    """The folder of the copied sources, for as long as this process lives."""
    folder = tempfile.mkdtemp(prefix="weft-docs-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


# mkdocstrings takes its search path when its own turn comes: this has to stand there before.
@event_priority(100)
def on_config(config: MkDocsConfig) -> MkDocsConfig:
    target = copies() / "weft"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [str(target.parent)]
    (target / "__init__.py").touch()
    for package in PACKAGES:
        shutil.copytree(ROOT / package, target / package, ignore=shutil.ignore_patterns("__pycache__"))
    # Names are looked up where they are written; what this file computes for its `__all__` cannot be read off it.
    (target / "nnx" / "__init__.py").write_text("")
    pages = api_pages()
    api: list[dict[str, Any]] = [{"Names": "api/index.md"}]
    for namespace in [*NAMESPACES, *SHORT]:
        api.append({namespace: [path for path in pages if path.startswith(f"api/{folder(namespace)}/")]})
    for entry in config.nav or []:
        if "API" in entry:
            entry["API"] = [one for one in api if next(iter(one.values()))]
    config.extra["generated"] = {**pages, "api/index.md": index(pages), **programs()}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, content in config.extra["generated"].items():
        files.append(File.generated(config, path, content=content))
    files.append(File.generated(config, "changelog.md", content=(ROOT / "CHANGELOG.md").read_text()))
    for name, picture in pictures().items():
        files.append(File.generated(config, f"pictures/{name}.svg", content=picture))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if page.file.src_path == "gallery.md":
        # On the site a program has a page of its own.
        return re.sub(r"\(\.\./examples/gallery/(\w+)\.py\)", r"(gallery/\1.md)", markdown)
    if "<!-- benchmarks -->" in markdown:
        return markdown.replace("<!-- benchmarks -->", benchmarks())
    return markdown


# The API.


def folder(namespace: str) -> str:
    return NAMESPACES.get(namespace) or namespace.rpartition(".")[2]


def names_of(module: ModuleType) -> list[str]:
    """The public names, of which modules are no entries of their own."""
    if hasattr(module, "__all__"):
        # `weft.Any` and `weft.map` are public, though not for `from weft import *`.
        names = {*module.__all__, *(("Any", "map") if module.__name__ == "weft" else ())}
        return sorted(name for name in names if not inspect.ismodule(getattr(module, name)))
    # A package gathers what its files hold; a file's own names are those that it defines.
    home = "weft." if hasattr(module, "__path__") else module.__name__
    own = {name for name, thing in vars(module).items() if getattr(thing, "__module__", "").startswith(home)}
    return sorted(name for name in own if not name.startswith("_"))


def room_of(thing: Any) -> str:
    """The room that something is written in: `weft.modules.norms` of what is in `weft.modules.norms.norm`."""
    home = getattr(thing, "__module__", None) or ""
    if not home.startswith("weft."):
        return OUTSIDE
    parts = home.split(".")
    return ".".join(parts[:3] if (ROOT / Path(*parts[1:3])).is_dir() else parts[:2])


def file_of(namespace: str, thing: Any) -> str:
    """The page of a name, without its ending."""
    room = room_of(thing)
    return "jax" if room == OUTSIDE else "-".join(room.split(".")[1:]).removeprefix("nnx-")


def api_pages() -> dict[str, str]:
    """Pages by path: for each namespace a page for each room."""
    pages: dict[str, str] = {}
    for namespace in NAMESPACES:
        module = importlib.import_module(namespace)
        rooms: dict[str, list[str]] = {}
        for name in names_of(module):
            rooms.setdefault(room_of(getattr(module, name)), []).append(name)
        for room, names in sorted(rooms.items(), key=lambda item: (item[0] == OUTSIDE, item[0])):
            file = file_of(namespace, getattr(module, names[0]))
            pages[f"api/{folder(namespace)}/{file}.md"] = page_of(namespace, room, names)
    for namespace, title in SHORT.items():
        module = importlib.import_module(namespace)
        pages[f"api/{folder(namespace)}/index.md"] = page_of(namespace, namespace, names_of(module), title=title)
    return pages


def is_described(thing: Any) -> bool:
    """Whether the sources have a docstring for it: a class or a function of weft's."""
    return room_of(thing) != OUTSIDE and (inspect.isclass(thing) or inspect.isfunction(thing))


def is_shared(namespace: str, name: str) -> bool:
    """Whether the name stands for the same thing in the records' namespace."""
    weft = importlib.import_module("weft")
    thing = getattr(importlib.import_module(namespace), name)
    return namespace != "weft" and name in {*weft.__all__, "Any", "map"} and getattr(weft, name) is thing


def page_of(namespace: str, room: str, names: list[str], title: str | None = None) -> str:
    module = importlib.import_module(namespace)
    if title is None:
        title = "Other names" if room == OUTSIDE else room.removeprefix("weft.").replace(".", ": ").replace("_", " ")
    # What another namespace has under the same name is described there.
    described = [name for name in names if is_described(getattr(module, name)) and not is_shared(namespace, name)]
    others = [name for name in names if name not in described]
    lines = [f"# {title}", ""]
    if room == OUTSIDE:
        lines += ["Constants, aliases, and functions that are JAX's own and stand here for convenience.", ""]
    for name in others:
        link = f" See [`weft.{name}`](../records/{file_of('weft', getattr(module, name))}.md#weft.{name})."
        text = first_line(getattr(module, name)) + (link if is_shared(namespace, name) else "")
        lines += [f"## `{name}` {{ #{namespace}.{name} }}", "", text, ""]
    for name in described:
        thing = getattr(module, name)
        # mkdocstrings' anchor is where the sources are; this one is how a user writes it.
        lines += [f"<a id='{namespace}.{name}'></a>", "", f"::: {thing.__module__}.{thing.__qualname__}"]
        if members := public_members(thing):
            lines += ["    options:", f"      members: [{', '.join(members)}]"]
        lines += [""]
    return "\n".join(lines)


def public_members(thing: Any) -> list[str]:
    """The documented methods that a class writes itself."""
    if not inspect.isclass(thing):
        return []
    own = [(name, value) for name, value in vars(thing).items() if not name.startswith("_")]
    return [name for name, value in own if inspect.isfunction(value) and value.__doc__]


def first_line(thing: Any) -> str:
    text = inspect.getdoc(thing) or ""
    # What an alias or an instance says of itself is its class's docstring, which would say nothing here.
    if not text or (not callable(thing)) or text == inspect.getdoc(type(thing)):
        return f"`{thing!r}`" if len(repr(thing)) < 60 and " at 0x" not in repr(thing) else "An alias or a constant."
    home = getattr(thing, "__module__", "") or ""
    said = text.splitlines()[0].replace("<", "&lt;").replace("[", "\\[")
    return said + (f" (from `{home.partition('.')[0]}`)" if not home.startswith("weft") else "")


def index(pages: dict[str, str]) -> str:
    """A list of all names, with links."""
    lines = ["# Names", "", "Every public name, by the package and the room that it is in.", ""]
    for namespace in [*NAMESPACES, *SHORT]:
        lines += [f"## {namespace}", ""]
        module = importlib.import_module(namespace)
        if not (module.__doc__ or "").strip():
            continue
        lines += [(module.__doc__ or "").strip().splitlines()[0], ""]
        for path, text in pages.items():
            if path.startswith(f"api/{folder(namespace)}/"):
                pattern = re.escape(namespace) + r"\.(\w+)"
                found = re.findall(rf"(?:id='|\{{ #){pattern}(?:'| \}})", text)
                links = ", ".join(f"[`{name}`]({path[4:]}#{namespace}.{name})" for name in sorted(found))
                lines += [f"**{text.splitlines()[0][2:]}**: {links}", ""]
    return "\n".join(lines)


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
