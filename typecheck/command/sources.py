"""Which files a unit depends on, read off their imports, and a digest of them.

Files are followed by what they import, wherever the import stands. A file that imports by a name which it computes may
import anything of its package, so there all files of the package count; of a package that is installed, the versions of
everything that is installed do, unless it is the unit's own. What of the unit's package writes subclasses of what is
found counts, too (see `siblings`).
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..language.siblings import Written, below, is_apart, modules_of, written
from .units import Unit, installed_roots

# What a file that imports by a computed name has in its text.
_DYNAMIC = (b"import_module", b"__import__", b"importlib")


class Sources:
    """Files as they are now, with what is remembered of them from earlier runs.

    Args:
        memory: of each path: time of its last change, size, digest, imports (None: not read yet), whether there are
            computed ones, and the classes that it writes (None: not read yet).
    """

    def __init__(self, memory: dict[str, list[Any]]):
        self.memory = memory
        self.is_new = False
        self._seen: dict[str, str] = {}
        self._tops: dict[tuple[str, str], tuple[str, ...]] = {}
        self._exists: dict[str, bool] = {}
        self._follows: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
        self._installed = tuple(os.path.join(one, "") for one in installed_roots())

    def digest(self, unit: Unit) -> str:
        """Of a unit and of everything that it imports, with their paths."""
        told = hashlib.sha256()
        for path in sorted(self.closure(unit)):
            told.update(f"{path}\0{self.read(path)}\0".encode())
        return told.hexdigest()

    def of_files(self, paths: Iterable[str]) -> str:
        """Of files, in their order; one that is not there counts as that."""
        told = hashlib.sha256()
        for path in paths:
            told.update(f"{path}\0{self.read(path)}\0".encode())
        return told.hexdigest()

    def read(self, path: str) -> str:
        """The digest of a file; nothing of one that is not there."""
        if path not in self._seen:
            self._seen[path] = self._read(path)
        return self._seen[path]

    def _read(self, path: str) -> str:
        try:
            stat = os.stat(path)
            known = self.memory.get(path)
            if known is None or known[:2] != [stat.st_mtime_ns, stat.st_size]:
                digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
                self.is_new = True
                known = self.memory[path] = [stat.st_mtime_ns, stat.st_size, digest, None, False, None]
        except OSError:
            return ""
        return known[2]

    def _imports(self, path: str) -> tuple[list[list[Any]], bool]:
        """What a file imports, as level and name, and whether it computes names."""
        if not self.read(path):
            return [], False
        entry = self.memory[path]
        if entry[3] is None:
            try:
                entry[3:5] = _imports(Path(path).read_bytes())
            except OSError:
                return [], False
            self.is_new = True
        imports: list[list[Any]] | None = entry[3]
        return imports or [], bool(entry[4])

    def _written(self, path: str) -> Written:
        """The classes that a file writes."""
        if not self.read(path):
            return {}
        entry = self.memory[path]
        if entry[5] is None:
            try:
                entry[5] = written(Path(path).read_text(encoding="utf-8", errors="replace"))
            except OSError:
                return {}
            self.is_new = True
        return entry[5]

    def closure(self, unit: Unit) -> set[str]:
        """The paths of all files that a unit depends on, its own first of all."""
        own = unit.module.partition(".")[0]
        start = str(Path(unit.file).resolve())
        # A package's `__init__.py` runs before any of its modules.
        ahead = [(start, unit.module), *self._files(unit.root, unit.module, own)]
        found: dict[str, str] = {}
        while ahead:
            path, module = ahead.pop()
            if path not in found:
                found[path] = module
                ahead += self._followed(path, module, unit.root, own)
            ahead = ahead or self._below(found, start, unit.module)
        return {*found}

    def _below(self, found: Mapping[str, str], path: str, module: str) -> list[tuple[str, str]]:
        """The files of a unit's package that write subclasses of what those that are found write."""
        is_package = os.path.basename(path) == "__init__.py"
        if "." not in module and not is_package:
            return []
        files = {name: one for one, name in self._package(path, module, is_package) if not is_apart(name)}
        known = {name: self._written(one) for name, one in files.items() if one in found}
        others = {name: self._written(one) for name, one in files.items() if one not in found}
        return [(files[name], name) for name in below(known, others)]

    def _followed(self, path: str, module: str, root: str, own: str) -> list[tuple[str, str]]:
        key = path, root, own
        if key not in self._follows:
            imports, computes = self._imports(path)
            is_package = os.path.basename(path) == "__init__.py"
            ahead: dict[tuple[str, str], None] = {}
            for level, name in imports:
                whole = _absolute(level, name, module, is_package)
                ahead.update(dict.fromkeys(self._files(root, whole, own)))
            if computes and ("." in module or is_package):
                ahead.update(dict.fromkeys(self._package(path, module, is_package)))
            self._follows[key] = list(ahead)
        return self._follows[key]

    def _files(self, root: str, name: str, own: str) -> Iterator[tuple[str, str]]:
        """The files that an import of a dotted name runs: packages on the way, and the module, as far as there are."""
        top, *rest = name.split(".")
        if not top or (top in sys.stdlib_module_names and top != own):
            return
        places = self._top(root, top, own)
        module = top
        for place in places:
            if place.endswith(".py"):
                yield place, module
        folders = [one if not one.endswith(".py") else os.path.dirname(one) for one in places]
        folders = [one for one, place in zip(folders, places, strict=True) if not place.endswith(f"{top}.py")]
        for part in rest:
            module = f"{module}.{part}"
            below: list[str] = []
            for folder in folders:
                inner = os.path.join(folder, part)
                if self._is_file(os.path.join(inner, "__init__.py")):
                    yield os.path.join(inner, "__init__.py"), module
                    below.append(inner)
                elif self._is_file(f"{inner}.py"):
                    yield f"{inner}.py", module
                elif os.path.isdir(inner):
                    below.append(inner)
            folders = below

    def _is_file(self, path: str) -> bool:
        if path not in self._exists:
            self._exists[path] = os.path.isfile(path)
        return self._exists[path]

    def _top(self, root: str, top: str, own: str) -> tuple[str, ...]:
        """Where a top-level name leads: a package's `__init__.py`, a module, folders; nothing if it is installed."""
        if (root, top) not in self._tops:
            self._tops[root, top] = tuple(
                one for one in self._located(root, top) if top == own or not one.startswith(self._installed)
            )
        return self._tops[root, top]

    def _located(self, root: str, top: str) -> Iterator[str]:
        for one in (os.path.join(root, top, "__init__.py"), os.path.join(root, f"{top}.py")):
            if os.path.isfile(one):
                yield one
                return
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError, AttributeError):
            spec = None
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            yield os.path.realpath(spec.origin)
        elif spec is not None:
            yield from map(os.path.realpath, spec.submodule_search_locations or ())
        elif os.path.isdir(os.path.join(root, top)):
            yield os.path.join(root, top)

    def _package(self, path: str, module: str, is_package: bool) -> Iterator[tuple[str, str]]:
        """All files of the top-level package that a file is in."""
        depth = module.count(".") + is_package
        top = Path(path).parents[max(depth - 1, 0)]
        yield from ((one, inner) for inner, one in modules_of(str(top), module.partition(".")[0]))


def _absolute(level: int, name: str, module: str, is_package: bool) -> str:
    if not level:
        return name
    parts = module.split(".") if is_package else module.split(".")[:-1]
    base = parts[: len(parts) - level + 1]
    return ".".join([*base, *([name] if name else [])])


def _imports(source: bytes) -> tuple[list[list[Any]], bool]:
    """What a source imports, as level and name, and whether it imports by computed names too."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [], True
    found: dict[tuple[int, str], None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update({(0, alias.name): None for alias in node.names})
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            # What is imported may be a module itself.
            names = [f"{base}.{alias.name}" if base else alias.name for alias in node.names]
            found.update({(node.level, name): None for name in (base, *names)})
    return [list(one) for one in found], any(one in source for one in _DYNAMIC)
