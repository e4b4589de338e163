"""The API pages: made from the public names, so that no name can be forgotten, and sorted by what a reader looks for.

`PAGES` says on which page a name stands, by the namespace that users import it from and the module that it is written
in. mkdocstrings reads the sources of a package in a folder of its name; the repository is the package and may lie in
any folder, so the sources are copied first, to a folder of this process: two sites may be built at a time.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import inspect
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("core", "transforms", "modules", "typecheck", "nnx", "insight")
ERRORS = "Errors and warnings"
# Section, page, namespace, and the modules below weft that the names are written in; the first row that fits counts.
# Errors have a page of their own, wherever they are written.
PAGES: tuple[tuple[str, str, str, str], ...] = (
    ("Models and state", "Filters", "weft", "core.records.filters core.records.partition"),
    ("Models and state", "Filters", "weft.filters", ""),
    ("Models and state", "Random streams", "weft", "core.records.keys"),
    (
        "Debugging",
        "Finding faults",
        "weft",
        "core.records.draws core.interpreter.retraces core.threads.lost modules.summary",
    ),
    ("Models and state", "Records", "weft", "core.records"),
    ("Models and state", "State in blocks", "weft", "core.threads"),
    ("Models and state", "Captured values", "weft", "core.sowing"),
    ("Models and state", "Making models", "weft", "modules.initialising modules.modes"),
    ("Models and state", "Functions over trees", "weft.tree", ""),
    ("Transforms", "Transforms", "weft", "transforms core.interpreter"),
    ("Layers", "Linear layers", "weft", "modules.dense"),
    ("Layers", "Convolutions and pooling", "weft", "modules.convolutions"),
    ("Layers", "Normalisation", "weft", "modules.norms"),
    ("Layers", "Attention", "weft", "modules.attention"),
    ("Layers", "Recurrence", "weft", "modules.recurrence"),
    ("Layers", "Combinators", "weft", "modules.combinators"),
    ("Training", "Optimizers and precision", "weft", "modules.learning"),
    ("Training", "Metrics", "weft.metrics", ""),
    ("Files", "Files", "weft", "modules.checkpoints"),
    ("Devices", "Devices", "weft", "modules.sharding"),
    ("Debugging", "Planning", "weft", "insight.plan"),
    ("Layers", "Dropout and other layers", "weft", "modules"),
    ("Layers", "Activations", "weft", "outside"),
    ("Layers", "Ops", "weft.ops", ""),
    ("Contracts", "Contracts", "weft.typecheck", ""),
    ("Contracts", "Contracts", "weft", "typecheck"),
    ("Debugging", "Finding faults", "weft.debug", ""),
    ("Debugging", "Finding faults", "weft", "core"),
    ("Debugging", ERRORS, "weft.errors", ""),
    ("NNX", "Objects", "weft.nnx", "nnx.modules nnx.objects"),
    ("NNX", "Variables", "weft.nnx", "nnx.variable"),
    ("NNX", "Graphs and states", "weft.nnx", "nnx.graphs nnx.states nnx.crossing"),
    ("NNX", "Random streams of NNX", "weft.nnx", "nnx.streams"),
    ("NNX", "Transforms of NNX", "weft.nnx", "nnx.transforms"),
    ("NNX", "Layers of NNX", "weft.nnx", "nnx.nn"),
    ("NNX", "Training of NNX", "weft.nnx", "nnx.training"),
    ("NNX", "Functions of JAX, constants and settings", "weft.nnx", ""),
)
SECTIONS = {
    "Models and state": "Records, their leaves by kind and path, state that calls return, random numbers.",
    "Transforms": "JAX's transforms over records.",
    "Layers": "Layers as records, the functions under them, activations.",
    "Training": "Optimizers over optax, precision, metrics.",
    "Files": "Checkpoints, weights of other libraries, exported programs.",
    "Devices": "Models over many devices, by names of axes and rules.",
    "Contracts": "Shapes and dtypes in annotations, checked while tracing and proved for all sizes.",
    "Debugging": "Where a number goes wrong, why something is traced again, what a step will cost, what errors say.",
    "NNX": "`weft.nnx`: the names of `flax.nnx`.",
}
# Public for users, though not in an `__all__`: a star import would hide Python's and typing's names.
BESIDE_ALL = {"weft": ("plan",)}
NAMESPACES = tuple(dict.fromkeys(namespace for _, _, namespace, _ in PAGES))
# What an alias or a constant cannot say of itself.
DESCRIPTIONS = {
    "weft.typecheck.Mode": "The modes of contracts: `'off'`, `'on'` and `'strict'`.",
    "weft.nnx.A": "A type variable of annotations.",
    "weft.nnx.M": "A type variable of annotations: a Module.",
    "weft.nnx.Data": "`Data[X]` annotates an attribute that is data: part of the state, not of the graph definition.",
    "weft.nnx.Static": "`Static[X]` annotates an attribute that is static: part of the graph definition.",
    "weft.nnx.Initializer": "The type of initializers: functions of a key, a shape and a dtype.",
    "weft.nnx.PARTITION_NAME": "The name of the metadata that says along which axis of a mesh a transform stacks.",
}


class Name(NamedTuple):
    """A public name.

    Attributes:
        namespace: the module that users import it from.
        name: what it is called there.
        section: of the API.
        page: in that section.
    """

    namespace: str
    name: str
    section: str
    page: str

    @property
    def full(self) -> str:
        return f"{self.namespace}.{self.name}"

    @property
    def path(self) -> str:
        return f"api/{slug(self.section)}/{slug(self.page)}.md"

    @property
    def thing(self) -> Any:
        return getattr(importlib.import_module(self.namespace), self.name)


def slug(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def public(namespace: str) -> list[str]:
    """The public names of a module, without those of modules; none where this version has no such module."""
    try:
        module = importlib.import_module(namespace)
    except ModuleNotFoundError:  # not all of them are in every version
        return []
    if hasattr(module, "__all__"):
        names = {*module.__all__, *(name for name in BESIDE_ALL.get(namespace, ()) if hasattr(module, name))}
    else:  # a package gathers what its files write; a file's own names are those that it defines
        home = "weft." if hasattr(module, "__path__") else module.__name__
        names = {name for name, thing in vars(module).items() if getattr(thing, "__module__", "").startswith(home)}
    things = {name: getattr(module, name) for name in names if not name.startswith("_")}
    return sorted(name for name, thing in things.items() if not inspect.ismodule(thing))


def is_error(thing: Any) -> bool:
    return inspect.isclass(thing) and issubclass(thing, BaseException)


def place_of(namespace: str, thing: Any) -> tuple[str, str]:
    """The section and the page of a name."""
    home = getattr(thing, "__module__", None) or ""
    below = home.removeprefix("weft.") if home.startswith("weft.") else "outside"
    if is_error(thing) and namespace != "weft.nnx":
        return "Debugging", ERRORS
    for section, page, where, modules in PAGES:
        if where == namespace and any(f"{below}.".startswith(f"{module}.") for module in modules.split() or [below]):
            return section, page
    raise LookupError(f"no page for {namespace}.{getattr(thing, '__name__', thing)}, written in {home}: see PAGES")


@functools.cache
def names() -> tuple[Name, ...]:
    """All public names, with their pages."""
    public_names: list[Name] = []
    for namespace in NAMESPACES:
        module = importlib.import_module(namespace) if (listed := public(namespace)) else None
        public_names += [Name(namespace, name, *place_of(namespace, getattr(module, name))) for name in listed]
    return tuple(public_names)


def source_of(thing: Any) -> str | None:
    """Where mkdocstrings finds the docstring of a class, a function or the one object of a class of weft's."""
    documented = thing if inspect.isclass(thing) or inspect.isfunction(thing) else type(thing)
    is_written_here = (getattr(documented, "__module__", "") or "").startswith("weft.")
    if not is_written_here or (documented is not thing and not callable(thing)):
        return None
    return f"{documented.__module__}.{documented.__qualname__}"


def home_of(name: Name) -> Name:
    """The name under which a thing is described, where several namespaces have it under the same name."""
    return next(other for other in names() if other.name == name.name and other.thing is name.thing)


def description(name: Name) -> str:
    """One line about a name: the first sentence of its docstring."""
    if name.full in DESCRIPTIONS:
        return DESCRIPTIONS[name.full]
    paragraph = (inspect.getdoc(name.thing) or "").partition("\n\n")[0].replace("\n", " ")
    paragraph = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", paragraph).replace("``", "`")
    sentence = re.match(r".*?[.!](?= [A-Z`]|$)", paragraph)
    # Outside of code, what Markdown reads as a link or a tag is escaped.
    parts = (sentence.group(0) if sentence else paragraph).split("`")
    parts[::2] = [part.replace("<", "&lt;").replace("[", "\\[").replace("*", "\\*") for part in parts[::2]]
    return "`".join(parts)


def pages() -> dict[str, str]:
    """The API's pages by path, with a page of all names."""
    by_path: dict[str, list[Name]] = {}
    for section in SECTIONS:
        for name in names():
            if name.section == section:
                by_path.setdefault(name.path, []).append(name)
    return {"api/index.md": index(by_path), **{path: page_of(on_page) for path, on_page in by_path.items()}}


def page_of(on_page: list[Name]) -> str:
    lines = [f"# {on_page[0].page}", ""]
    for name in sorted(on_page, key=lambda name: (name.namespace, name.name)):
        home, source = home_of(name), source_of(name.thing)
        if home is name and source is not None:
            # mkdocstrings' anchor is where the sources are; this one is how a user writes it.
            lines += [f"<a id='{name.full}'></a>", "", f"::: {source}"]
            if members := public_members(name.thing):
                lines += ["    options:", f"      members: [{', '.join(members)}]"]
            lines += [""]
        else:
            link = "" if home is name else f" See [`{home.full}`](../../{home.path}#{home.full})."
            lines += [f"## `{name.name}` {{ #{name.full} }}", "", description(name) + link, ""]
    return "\n".join(lines)


def public_members(thing: Any) -> list[str]:
    """The documented methods that a class writes itself."""
    cls = thing if inspect.isclass(thing) else type(thing)
    own = [(name, value) for name, value in vars(cls).items() if not name.startswith("_")]
    functions = [name for name, value in own if inspect.isfunction(value) and value.__doc__]
    return functions if inspect.isclass(thing) or not inspect.isfunction(thing) else []


def index(by_path: dict[str, list[Name]]) -> str:
    """Every public name with one line, below the page that describes it."""
    lines = ["# API", "", "Every public name, by what one looks for. A name links to its description.", ""]
    for section, about in SECTIONS.items():
        lines += [f"## {section}", "", about, ""]
        for path, on_page in by_path.items():
            if on_page[0].section == section:
                lines += [f"### [{on_page[0].page}]({path[4:]})", ""]
                lines += sorted(map(line_of, on_page), key=str.lower) + [""]
    return "\n".join(lines)


def line_of(name: Name) -> str:
    short = name.full.removeprefix("weft.") if name.namespace != "weft" else name.name
    return f"- [`{short}`]({name.path[4:]}#{name.full}): {description(name)}"


def nav() -> list[dict[str, Any]]:
    """The API's part of the navigation."""
    entries: list[dict[str, Any]] = [{"All names": "api/index.md"}]
    paths = [path for path in pages() if path != "api/index.md"]
    return entries + [{section: [p for p in paths if p.startswith(f"api/{slug(section)}/")]} for section in SECTIONS]


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
    for entry in config.nav or []:
        if "API" in entry:
            entry["API"] = nav()
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, content in pages().items():
        files.append(File.generated(config, path, content=content))
    return files
