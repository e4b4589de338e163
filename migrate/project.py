"""The files of a code base, and their groups.

Objects of flax.nnx and weft.nnx must not be mixed, so files that one program may load form a *group*, which moves as a
whole or not at all. Files that do not mention the library join no groups, even if files of two groups import them.
Which file an imported name means depends on how a program is started, so a name counts for every file that it may mean:
a group is rather too large than too small.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path

import libcst as cst

from .notebooks import Notebook

# A folder with one of these is the root of a code base.
_ROOTS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
NOTEBOOK = ".ipynb"
_SKIPPED = ("__pycache__", "node_modules", "site-packages", "build", "dist")
# Finds imports in a file that Python cannot parse: the module (if any), and the imported names.
_IMPORT = re.compile(rb"^\s*(?:from\s+([\w.]+)\s+)?import\s+(\([^)]*\)|[^\n]*)", re.MULTILINE)


@dataclass(eq=False)
class Source:
    """A file of the code base.

    Attributes:
        path: the file's path.
        data: its code; for a notebook, the joined code of its cells.
        asked: whether the user named it, so that it is migrated and not only read.
        original: the content of the file.
        notebook: the notebook, if it is one.
        broken: the reason why a notebook cannot be read.
    """

    path: Path
    data: bytes
    asked: bool
    original: bytes
    notebook: Notebook | None = None
    broken: str = ""

    @classmethod
    def read(cls, path: Path, asked: bool) -> Source:
        """Reads a file."""
        data = path.read_bytes()
        if path.suffix != NOTEBOOK:
            return cls(path, data, asked, data)
        try:
            notebook = Notebook.read(data)
        except ValueError as error:
            return cls(path, data, asked, data, None, str(error))
        return cls(path, notebook.code, asked, data, notebook)

    def written(self, code: bytes) -> bytes:
        """Returns the content of the file with edited code.

        Raises:
            ValueError: if the code does not fit the cells of a notebook.
        """
        return code if self.notebook is None else self.notebook.written(code)

    def place(self, line: int) -> str:
        """Names the place of a line of the code, to be appended to the file's name."""
        return f":{line}" if self.notebook is None else f", {self.notebook.place(line)}"

    @cached_property
    def module(self) -> cst.Module:
        """The syntax tree, from which libcst can write the same bytes.

        Raises:
            ValueError: if the file cannot be parsed, or not be reproduced.
        """
        if self.broken:
            raise ValueError(self.broken)
        try:
            module = cst.parse_module(self.data)
        except cst.ParserSyntaxError as error:
            raise ValueError(f"line {error.raw_line}: it cannot be parsed: {error.message}") from None
        except (UnicodeDecodeError, LookupError, SyntaxError) as error:
            raise ValueError(f"it cannot be decoded: {error}") from None
        # A migration changes only what it rewrites: a file that libcst cannot reproduce would get other changes too.
        if module.bytes != self.data:
            raise ValueError("libcst would not reproduce it byte by byte")
        return module

    @cached_property
    def imports(self) -> list[str]:
        """The dotted names of all imports: `from a import b` is `a.b`, and relative names start with dots."""
        try:
            # A broken notebook has no code but JSON, which Python would parse without finding imports: "(" fails
            # instead.
            tree = ast.parse("(" if self.broken else self.data)
        except (SyntaxError, ValueError):
            # In the JSON of a broken notebook, line ends are `\n` in strings; split there, each line of code is one
            # line.
            text = self.data.replace(b"\\n", b"\n").replace(b'"', b"\n")
            raw_imports = [
                (origin.decode(), re.findall(r"[\w.]+", names.decode(errors="replace")))
                for origin, names in _IMPORT.findall(text)
            ]
            return [_within(origin, name) for origin, names in raw_imports for name in names]
        names: list[str] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                origin = "." * node.level + (node.module or "")
                names += [_within(origin, alias.name) for alias in node.names]
        return names

    def mentions(self, library: str) -> bool:
        """Whether the name of a library occurs in the file's text."""
        return library.encode() in self.data


@dataclass(eq=False)
class Project:
    """The files that the user named, and the other files of the code base, which may be in their groups."""

    root: Path
    sources: list[Source] = field(default_factory=list[Source])

    @classmethod
    def read(cls, names: Sequence[str], exclude: Sequence[str] = ()) -> Project:
        """Reads the files below some paths, and all other files of the code base.

        Raises:
            FileNotFoundError: if a path does not exist, or has no Python file or notebook below it.
        """
        asked: dict[Path, None] = {}
        for name in names:
            files = list(_python_files(Path(name)))
            if not files:
                raise FileNotFoundError(f"{name}: there is no Python file")
            # Resolved, so that a file that is named twice, or by a link, is one source.
            asked |= dict.fromkeys(file.resolve() for file in files)
        root = _root_of([Path(name).resolve() for name in names])
        chosen = {path for path in asked if not any(fnmatch(_below(path, root), pattern) for pattern in exclude)}
        around = dict.fromkeys(file.resolve() for file in _python_files(root))
        return cls(root, [Source.read(path, path in chosen) for path in sorted({*asked, *around})])

    def place(self, path: Path, line: int) -> str:
        """Names the place of a line of a file's code, to be appended to the file's name."""
        return next(source for source in self.sources if source.path == path).place(line)

    @cached_property
    def _by_name(self) -> dict[str, list[Source]]:
        table: dict[str, list[Source]] = {}
        for source in self.sources:
            if source.path.suffix == NOTEBOOK:
                continue  # a notebook cannot be imported
            parts = _below(source.path, self.root).removesuffix(".py").split("/")
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            # `src/pkg/a.py` may be imported as `src.pkg.a`, `pkg.a` or `a`, depending on `sys.path`: all are entered.
            for start in range(len(parts)):
                table.setdefault(".".join(parts[start:]), []).append(source)
        return table

    def meant(self, name: str, by: Source) -> list[Source]:
        """Returns the files that an imported name may mean, and the `__init__.py` of their packages."""
        if name.startswith("."):
            dots = len(name) - len(name.lstrip("."))
            folder = by.path.parents[dots - 1] if dots <= len(by.path.parents) else by.path.parent
            within = _below(folder, self.root).strip("./")
            name = ".".join([*([within.replace("/", ".")] if within else []), name.lstrip(".")]).strip(".")
        parts = name.split(".")
        return [one for stop in range(1, len(parts) + 1) for one in self._by_name.get(".".join(parts[:stop]), ())]

    def has_top(self, name: str) -> bool:
        """Whether the code base has a top-level module of this name."""
        return name in self._by_name

    @cached_property
    def _loaded(self) -> list[set[Source]]:
        """For each file, the set of files that a program loads if that file is its main module."""
        direct = {one: {other for name in one.imports for other in self.meant(name, one)} for one in self.sources}

        # Loops instead of recursion: imports may be circular, and long chains would reach Python's recursion limit.
        def closure(start: Source) -> set[Source]:
            reached, pending = {start}, [start]
            while pending:
                new = direct[pending.pop()] - reached
                reached |= new
                pending += new
            return reached

        return [closure(source) for source in self.sources]

    def groups(self, library: str) -> dict[Source, Source]:
        """Computes the groups of a library: for each file a representative, equal for files of one group."""
        over: dict[Source, Source] = {source: source for source in self.sources}

        # A union-find structure: each file points to a representative, directly or over others.
        def top(source: Source) -> Source:
            while over[source] is not source:
                over[source] = over[over[source]]
                source = over[source]
            return source

        for loaded in self._loaded:
            first, *others = [source for source in loaded if source.mentions(library)] or [None]
            for source in others:
                if first is not None and source is not None:
                    over[top(source)] = top(first)
        return {source: top(source) for source in self.sources}


def _within(origin: str, name: str) -> str:
    """Joins a module and a name by a dot, unless the module is empty or ends with a dot (`from . import a`)."""
    return f"{origin}{name}" if origin.endswith(".") or not origin else f"{origin}.{name}"


def _below(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()


def _root_of(paths: Sequence[Path]) -> Path:
    common = Path(os.path.commonpath([path if path.is_dir() else path.parent for path in paths]))
    for folder in (common, *common.parents):
        if any((folder / mark).exists() for mark in _ROOTS):
            return folder
    # Without such a file, the root is the folder above the outermost package.
    while (common / "__init__.py").exists():
        common = common.parent
    return common


def _python_files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for folder, folders, files in os.walk(path):
        # Environments and build folders hold copies of libraries, which would join all groups to one.
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and name not in _SKIPPED and not (Path(folder, name) / "pyvenv.cfg").exists()
        )
        yield from (Path(folder, name) for name in sorted(files) if name.endswith((".py", NOTEBOOK)))
