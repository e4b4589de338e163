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

# A folder with one of these is the root of a code base.
_ROOTS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
_NOTEBOOK = ".ipynb"
_SKIPPED = ("__pycache__", "node_modules", "site-packages", "build", "dist")
# Finds imports in a file that Python cannot parse: the module (if any), and the imported names.
_IMPORT = re.compile(rb"^\s*(?:from\s+([\w.]+)\s+)?import\s+(\([^)]*\)|[^\n]*)", re.MULTILINE)


@dataclass(eq=False)
class Source:
    """A file of the code base.

    Attributes:
        path: the file's path.
        data: its code.
        asked: whether the user named it, so that it is migrated and not only read.
    """

    path: Path
    data: bytes
    asked: bool

    @cached_property
    def module(self) -> cst.Module:
        """The syntax tree, from which libcst can write the same bytes.

        Raises:
            ValueError: if the file cannot be parsed, or not be reproduced.
        """
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
            tree = ast.parse(self.data)
        except (SyntaxError, ValueError):
            raw_imports = [
                (origin.decode(), re.findall(r"[\w.]+", names.decode(errors="replace")))
                for origin, names in _IMPORT.findall(self.data)
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
    """The files that the user named, and the other files of the code base, which may be in their groups.

    Attributes:
        root: the folder of the code base.
        sources: the Python files.
        notebooks: the notebooks that the user named.
    """

    root: Path
    sources: list[Source] = field(default_factory=list[Source])
    notebooks: list[Path] = field(default_factory=list[Path])

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
        programs = sorted(path for path in {*asked, *around} if path.suffix != _NOTEBOOK)
        notebooks = sorted(path for path in chosen if path.suffix == _NOTEBOOK)
        return cls(root, [Source(path, path.read_bytes(), path in chosen) for path in programs], notebooks)

    @cached_property
    def _by_name(self) -> dict[str, list[Source]]:
        table: dict[str, list[Source]] = {}
        for source in self.sources:
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
        return [source for stop in range(1, len(parts) + 1) for source in self._by_name.get(".".join(parts[:stop]), ())]

    def has_top(self, name: str) -> bool:
        """Whether the code base has a top-level module of this name."""
        return name in self._by_name

    @cached_property
    def _loaded(self) -> list[set[Source]]:
        """For each file, the set of files that a program loads if that file is its main module."""
        direct = {
            source: {other for name in source.imports for other in self.meant(name, source)} for source in self.sources
        }

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
            concerned = [source for source in loaded if source.mentions(library)]
            for source in concerned[1:]:
                over[top(source)] = top(concerned[0])
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
        yield from (Path(folder, name) for name in sorted(files) if name.endswith((".py", _NOTEBOOK)))
