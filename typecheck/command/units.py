"""Finds the files to check: paths, folders and dotted names become *units*, one for each module; and their markers.

Names are looked up without importing anything: the effects of an import happen in a worker.

A comment `# weft: skip(reason)` leaves a function or class out. `# weft: ignore[reason]` accepts a finding: failures
and warnings of its line, or of the `def` or `class` at which it stands, are listed as ignored. An `ignore` without a
finding is a warning, so that markers are removed when their reasons are gone.
"""

from __future__ import annotations

import ast
import importlib.util
import linecache
import os
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path

from ..language.siblings import sources_below
from .lines import Checked, one_line

WEFT = Path(__file__).resolve().parents[2]
# weft's folders that take part in each judgement; its `modules` do only as far as a program calls them.
MACHINERY = ("core", "transforms", "typecheck", "nnx")
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class Unit:
    """One file to check.

    Attributes:
        file: the path, as the user wrote it.
        module: the dotted name for importing it; for a script, the name of its file.
        root: the folder in which this name starts.
    """

    file: str
    module: str
    root: str

    @property
    def in_package(self) -> bool:
        """Whether the file is imported as part of a package (also an `__init__.py`), and not loaded by its path."""
        return Path(self.file).stem != self.module


def unit_of(path: Path) -> Unit:
    """The unit of a file; its name follows from the packages around the file."""
    real = path.resolve()
    if "." in real.stem:  # a file such as `v1.2.py` cannot be part of a package
        return Unit(str(path), real.stem, str(real.parent))
    parts = [] if real.stem == "__init__" else [real.stem]
    folder = real.parent
    while (folder / "__init__.py").exists():
        if folder == WEFT:  # the folder of a checkout may have any name
            return Unit(str(path), ".".join(("weft", *reversed(parts))), str(folder.parent))
        parts.append(folder.name)
        folder = folder.parent
    if parts == [real.stem] and (named := _in_namespace(real)) is not None:
        return Unit(str(path), *named)
    return Unit(str(path), ".".join(reversed(parts)) or real.parent.name, str(folder))


def _in_namespace(file: Path) -> tuple[str, str] | None:
    """The name and root of a file in packages without `__init__.py`; None for a script.

    The file's imports tell the two apart: relative imports, or imports from a folder around the file, need a package.
    """
    here = Path.cwd()
    inside = [folder for folder in file.parents if folder.is_relative_to(here) and folder != here]
    # In a folder called jax, `import jax` means the library.
    folders = [
        folder
        for folder in inside
        if folder.name.isidentifier() and getattr(spec_of(folder.name), "origin", None) is None
    ]
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):  # importing the file reports the error
        return None
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    tops = {name.partition(".")[0] for name in names | {node.module or "" for node in imports if not node.level}}
    named = [folder for folder in folders if folder.name in tops]
    relative = folders[-1:] if any(node.level for node in imports) else []
    for top in (*named[-1:], *relative):
        return ".".join(file.with_suffix("").relative_to(top.parent).parts), str(top.parent)
    return None


def spec_of(name: str) -> ModuleSpec | None:
    """The spec of a module, found without importing it; None if there is no such module."""
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def units_of(names: Iterable[str], exclude: Iterable[str] = (), base: Path | None = None) -> tuple[list[Unit], Checked]:
    """The units to check, and lines about names that cannot be used.

    Args:
        names: files, folders, or modules by dotted name; a package's name stands for all of its modules.
        exclude: patterns of paths below `base`, which leave files and folders out.
        base: the folder that patterns are relative to; by default the current one.

    Returns:
        Each file once, in the order of the names; and a line for each name that leads to no file, and for each package
        that exists twice.
    """
    files: list[Path] = []
    troubles: list[Checked] = []
    for name in names:
        paths = list(_files(name))
        files += paths
        if not paths:
            is_folder = name and Path(name).is_dir()
            why = "there is no Python file in this folder" if is_folder else "no such file, folder or module"
            troubles.append(one_line("unusable", name or repr(name), 0, "weft check", why, "usage"))
    root = (base or Path.cwd()).resolve()
    patterns = [*map(_pattern, exclude)]
    # Two names for one file, such as a folder and a file in it, give one unit: the first name is shown.
    by_path = {path.resolve(): path for path in reversed(files)}

    def is_excluded(path: Path) -> bool:
        below = path.relative_to(root).as_posix() if path.is_relative_to(root) else None
        return below is not None and any(pattern.fullmatch(below) for pattern in patterns)

    resolved = dict.fromkeys(path.resolve() for path in files)
    units, twice = _once(unit_of(by_path[path]) for path in resolved if not is_excluded(path))
    return units, Checked(tuple(line for part in (*troubles, *twice) for line in part.lines))


def _files(name: str) -> Iterator[Path]:
    """The files that a name on the command line stands for: a path, or a module by its dotted name."""
    if not name:  # an empty path would mean the current folder
        return
    path = Path(name)
    if not path.exists() and _DOTTED.fullmatch(name):
        # The current folder comes first, as for `python -m`; the path of an installed script does not contain it.
        here = Path(*name.split("."))
        path = here if here.is_dir() else here.with_suffix(".py")
    if not path.exists() and _DOTTED.fullmatch(name):
        located = locate(name)
        if located is None:
            return
        path = located.parent if located.stem == "__init__" else located
        path = Path(os.path.relpath(path)) if path.is_relative_to(Path.cwd()) else path
    if path.is_dir():
        yield from sorted(map(Path, sources_below(str(path))))
    elif path.is_file():
        yield path


def locate(name: str) -> Path | None:
    """The file of a module, found without importing the packages around it."""
    top, *rest = name.split(".")
    spec = spec_of(top)
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.origin and Path(spec.origin).suffix == ".py" else None
    for folder in spec.submodule_search_locations or ():
        place = Path(folder, *rest)
        for file in (place / "__init__.py", place.with_suffix(".py")):
            if file.is_file():
                return file
    return None


def _pattern(written: str) -> re.Pattern[str]:
    """A pattern such as `tests/*` or `**/old` for POSIX paths; everything below a match matches as well."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", written.strip("/"))
    told = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(told.get(part, re.escape(part)) for part in parts) + "(/.*)?")


def _once(units: Iterable[Unit]) -> tuple[list[Unit], list[Checked]]:
    """Leaves out the units of a second package of the same name, and returns a line for each such package."""
    roots: dict[str, str] = {}
    importable: list[Unit] = []
    told: dict[tuple[str, str], Checked] = {}
    for unit in units:
        top = unit.module.partition(".")[0]
        first = roots.setdefault(top, unit.root) if unit.in_package else unit.root
        if first == unit.root:
            importable.append(unit)
            continue
        here, elsewhere = (str(shown(Path(root) / top)) for root in (unit.root, first))
        message = f"a process can import one package named {top!r}, and {elsewhere} is another one; check each alone"
        told.setdefault((top, unit.root), one_line("unusable", here, 0, "weft check", message, "usage"))
    return importable, list(told.values())


def is_of_weft(path: Path) -> bool:
    """Whether a file, given by its real path, is part of weft, which a worker imports before it judges a file."""
    return path.is_relative_to(WEFT) and path.relative_to(WEFT).parts[0] not in ("tests", "examples")


def state_of(file: str) -> tuple[int, int] | None:
    """The modification time and size of a file; None if there is no such file."""
    try:
        stat = os.stat(file)
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


def shown(path: Path | str) -> str:
    """A path as printed: relative to the current folder if it is below."""
    path = Path(path)
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def installed_roots() -> tuple[str, ...]:
    """The folders of the standard library and of installed packages."""
    import sysconfig

    paths = sysconfig.get_paths()
    roots = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    # An environment may be reached by more than one path, such as one with system packages.
    roots |= {folder for folder in sys.path if folder.endswith(("site-packages", "dist-packages"))}
    # A link to an environment gives its files two paths.
    return tuple(sorted(roots | set(map(os.path.realpath, roots))))


_SKIP = re.compile(r"#\s*weft:\s*skip\((.*?)\)")
_IGNORE = re.compile(r"#\s*weft:\s*ignore\[(.*?)\]")
_DEFINES = re.compile(r"\s*(@|(async\s+)?def\b|class\b)")
# How many lines the head of a `def` may have; its end is a colon, which a broken file may lack.
_HEAD = 40


def skip_reason(file: str, line: int) -> str | None:
    """The reason in a `skip` on the lines of a `def` or `class`, decorators included; None without a marker."""
    return next((match[1] or "no reason given" for _, match in _matches(_SKIP, file, line)), None)


def ignore_of(file: str, line: int) -> tuple[int, str] | None:
    """The line and reason of the `ignore` that covers the findings of a line; None without a marker."""
    return next(((number, match[1] or "no reason given") for number, match in _matches(_IGNORE, file, line)), None)


def ignores_in(file: str) -> list[int]:
    """The lines of all `ignore` markers in a file; none if the file cannot be read."""
    try:
        with tokenize.open(file) as source:
            if "weft:" not in source.read():  # tokenizing is slow, and most files have no marker
                return []
            source.seek(0)
            tokens = list(tokenize.generate_tokens(source.readline))
    except (OSError, SyntaxError, UnicodeDecodeError, tokenize.TokenError):
        return []
    # By tokens, because a string may contain the text of a marker.
    return [token.start[0] for token in tokens if token.type == tokenize.COMMENT and _IGNORE.search(token.string)]


def _matches(pattern: re.Pattern[str], file: str, line: int) -> Iterator[tuple[int, re.Match[str]]]:
    for number in _head(file, line):
        match = pattern.search(linecache.getline(file, number))
        if match is not None:
            yield number, match


def _head(file: str, line: int) -> Iterator[int]:
    """The lines of the head of the `def` or `class` at a line; only the line itself if there is no definition."""
    yield line
    if not _DEFINES.match(linecache.getline(file, line)):
        return
    for number in range(line, line + _HEAD):
        if number > line:
            yield number
        text = linecache.getline(file, number)
        if not text or text.partition("#")[0].rstrip().endswith(":"):
            return
