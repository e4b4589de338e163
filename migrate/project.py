"""The files of a code base, and which of them belong together.

Objects of flax.nnx and of weft.nnx must not meet, so files that one program may load move together or not at all; what
such files both import, and what has nothing to do with the library, ties nothing. Which module a name means depends on
how a program is started, so a name stands for every file that it may mean: too much is tied rather than too little.
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

# A folder with one of these is where a code base starts.
_ROOTS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
NOTEBOOK = ".ipynb"
_SKIPPED = ("__pycache__", "node_modules", "site-packages", "build", "dist")
# The imports of a file that this Python cannot parse: the module and the names that are taken from it, or modules.
_IMPORT = re.compile(rb"^\s*(?:from\s+([\w.]+)\s+)?import\s+(\([^)]*\)|[^\n]*)", re.MULTILINE)


@dataclass(eq=False)
class Source:
    """A file as it was read.

    Attributes:
        path: where it is.
        data: its code; of a notebook, that of its cells.
        asked: whether it is to be migrated, or only looked at.
        original: what stands in the file.
        notebook: if it is one.
        broken: why a notebook cannot be read.
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
        """The file with other code.

        Raises:
            ValueError: if the code does not fit the cells of a notebook.
        """
        return code if self.notebook is None else self.notebook.written(code)

    def place(self, line: int) -> str:
        """Where a line of the code stands, behind the file's name."""
        return f":{line}" if self.notebook is None else f", {self.notebook.place(line)}"

    @cached_property
    def module(self) -> cst.Module:
        """Its syntax, which gives the same bytes again.

        Raises:
            ValueError: if it cannot be read so.
        """
        if self.broken:
            raise ValueError(self.broken)
        try:
            module = cst.parse_module(self.data)
        except cst.ParserSyntaxError as error:
            raise ValueError(f"line {error.raw_line}: it cannot be parsed: {error.message}") from None
        except (UnicodeDecodeError, LookupError, SyntaxError) as error:
            raise ValueError(f"it cannot be decoded: {error}") from None
        if module.bytes != self.data:
            raise ValueError("it would not be written as it was read")
        return module

    @cached_property
    def imports(self) -> list[str]:
        """What it imports, dotted; relative names begin with dots, and `from a import b` gives `a.b`."""
        try:
            # JSON, which is all there is of a broken notebook, is Python without imports.
            tree = ast.parse("(" if self.broken else self.data)
        except (SyntaxError, ValueError):
            text = self.data.replace(b"\\n", b"\n").replace(b'"', b"\n")
            found = [
                (origin.decode(), re.findall(r"[\w.]+", names.decode(errors="replace")))
                for origin, names in _IMPORT.findall(text)
            ]
            return [_within(origin, name) for origin, names in found for name in names]
        names: list[str] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                origin = "." * node.level + (node.module or "")
                names += [_within(origin, alias.name) for alias in node.names]
        return names

    def mentions(self, library: str) -> bool:
        """Whether its text has the name of a library at all."""
        return library.encode() in self.data


@dataclass(eq=False)
class Project:
    """The files that were named, and those around them that they may be tied to."""

    root: Path
    sources: list[Source] = field(default_factory=list[Source])

    @classmethod
    def read(cls, names: Sequence[str], exclude: Sequence[str] = ()) -> Project:
        """Reads what lies below some paths, and around them.

        Raises:
            FileNotFoundError: if one of them is not there, or holds no Python file and no notebook.
        """
        asked: dict[Path, None] = {}
        for name in names:
            found = list(_python_files(Path(name)))
            if not found:
                raise FileNotFoundError(f"{name}: there is no Python file")
            asked |= dict.fromkeys(one.resolve() for one in found)
        root = _root_of([Path(name).resolve() for name in names])
        kept = {path for path in asked if not any(fnmatch(_below(path, root), one) for one in exclude)}
        around = dict.fromkeys(one.resolve() for one in _python_files(root))
        return cls(root, [Source.read(path, path in kept) for path in sorted({*asked, *around})])

    def place(self, path: Path, line: int) -> str:
        """Where a line of a file's code stands, behind the file's name."""
        return next(source for source in self.sources if source.path == path).place(line)

    @cached_property
    def _by_name(self) -> dict[str, list[Source]]:
        table: dict[str, list[Source]] = {}
        for source in self.sources:
            if source.path.suffix == NOTEBOOK:
                continue  # it is not imported by name
            parts = _below(source.path, self.root).removesuffix(".py").split("/")
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            for start in range(len(parts)):
                table.setdefault(".".join(parts[start:]), []).append(source)
        return table

    def meant(self, name: str, by: Source) -> list[Source]:
        """The files that an imported name may mean, with the packages that they are in."""
        if name.startswith("."):
            dots = len(name) - len(name.lstrip("."))
            folder = by.path.parents[dots - 1] if dots <= len(by.path.parents) else by.path.parent
            within = _below(folder, self.root).strip("./")
            name = ".".join([*([within.replace("/", ".")] if within else []), name.lstrip(".")]).strip(".")
        parts = name.split(".")
        return [one for stop in range(1, len(parts) + 1) for one in self._by_name.get(".".join(parts[:stop]), ())]

    def has_top(self, name: str) -> bool:
        """Whether a module of the code base shadows a library."""
        return name in self._by_name

    @cached_property
    def _loaded(self) -> list[set[Source]]:
        """For each file, what is loaded where a program starts with it."""
        direct = {one: {other for name in one.imports for other in self.meant(name, one)} for one in self.sources}

        def closure(start: Source) -> set[Source]:
            found, ahead = {start}, [start]
            while ahead:
                new = direct[ahead.pop()] - found
                found |= new
                ahead += new
            return found

        return [closure(source) for source in self.sources]

    def groups(self, library: str) -> dict[Source, Source]:
        """For each file that has to do with a library, the one that stands for all it may meet, directly or not."""
        over: dict[Source, Source] = {source: source for source in self.sources}

        def top(source: Source) -> Source:
            while over[source] is not source:
                over[source] = over[over[source]]
                source = over[source]
            return source

        for loaded in self._loaded:
            first, *others = [one for one in loaded if one.mentions(library)] or [None]
            for other in others:
                if first is not None and other is not None:
                    over[top(other)] = top(first)
        return {source: top(source) for source in self.sources}


def _within(origin: str, name: str) -> str:
    """`name` of a module; of no module, or of a package that only dots name, nothing stands between."""
    return f"{origin}{name}" if origin.endswith(".") or not origin else f"{origin}.{name}"


def _below(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()


def _root_of(paths: Sequence[Path]) -> Path:
    common = Path(os.path.commonpath([path if path.is_dir() else path.parent for path in paths]))
    for folder in (common, *common.parents):
        if any((folder / mark).exists() for mark in _ROOTS):
            return folder
    # A package without such a mark: the folder that it is imported from.
    while (common / "__init__.py").exists():
        common = common.parent
    return common


def _python_files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(
            one
            for one in folders
            if not one.startswith(".") and one not in _SKIPPED and not (Path(folder, one) / "pyvenv.cfg").exists()
        )
        yield from (Path(folder, one) for one in sorted(files) if one.endswith((".py", NOTEBOOK)))
