"""Importing what is checked: a file as a part of its package, or as a script under a name that is not `__main__`.

A process that lives longer than a file does, as that of an editor, reads texts that are not saved yet in place of files
(`reading_instead`), and imports anew what has changed since.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import linecache
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from weft.core.caches import cached_by
from weft.typecheck.command.units import WEFT, Unit, installed_roots
from weft.typecheck.language.siblings import Written, below, is_apart, modules_of, written
from weft.typecheck.proofs.writing import LOADED


@contextlib.contextmanager
def importable(unit: Unit) -> Iterator[None]:
    """Lets a unit import what lies beside it, for the length of a `with` block: while it loads and while it is judged.

    What an earlier unit imported from another folder under the name of something beside this one is forgotten.
    """
    root = Path(unit.root)
    for name in sorted(_shadowed(root)):
        for known in [one for one in sys.modules if one == name or one.startswith(f"{name}.")]:
            del sys.modules[known]
    sys.path.insert(0, str(root))
    try:
        yield
    finally:
        if str(root) in sys.path:  # what the unit has added stays, for `contamination` to see
            sys.path.remove(str(root))


def _shadowed(root: Path) -> Iterator[str]:
    """Modules of the process that are called like one in a folder, and come from another that is not installed."""
    installed = installed_roots()
    for one in root.iterdir():
        known = sys.modules.get(one.stem if one.suffix == ".py" else one.name)
        file = getattr(known, "__file__", None)
        if file is not None and not Path(file).is_relative_to(root) and not file.startswith(installed):
            yield one.stem if one.suffix == ".py" else one.name


def load(unit: Unit) -> ModuleType:
    """Imports a unit.

    Raises:
        ImportError: for a part of a package that is imported from another place.
    """
    path = Path(unit.file).resolve()
    known = sys.modules.get(unit.module)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    if unit.in_package:
        module = importlib.import_module(unit.module)
        if Path(module.__file__ or "").resolve() == path:
            return module
        raise ImportError(
            f"two versions of one package: {unit.module!r} is imported from {module.__file__}; check each alone"
        )
    if "." not in unit.module and _is_found(unit.module):
        module = importlib.import_module(unit.module)
        if Path(module.__file__ or "").resolve() == path:
            return module
    name = f"{LOADED}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_Loader(name, str(path)))
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {unit.file}")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def import_below(module: str) -> None:
    """Imports the modules of a package that write subclasses of what is imported of it; those that can be."""
    package = module.partition(".")[0]
    folder = next(iter(getattr(sys.modules.get(package), "__path__", ())), None)
    if folder is None:
        return
    files = {name: Path(path) for name, path in modules_of(folder, package) if not is_apart(name)}
    known = {name: _written(path) for name, path in files.items() if name in sys.modules}
    others = {name: _written(path) for name, path in files.items() if name not in sys.modules}
    for name in below(known, others):
        with contextlib.suppress(Exception, SystemExit):  # as one does that asks for what is not installed
            importlib.import_module(name)


def _written(path: Path) -> Written:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return _written_at(path, path.stat().st_mtime_ns)
    return {}


@cached_by("file and its time", most=20000)
def _written_at(path: Path, time: int) -> Written:
    return written(path.read_text(encoding="utf-8"))


# What is read in place of files, and what each module was made from that is no installed one.
_texts: dict[str, str] = {}
_made_from: dict[str, Any] = {}


class _Loader(SourceFileLoader):
    """Reads a text in place of a file, where there is one."""

    def get_data(self, path: str) -> bytes:
        return _texts[path].encode() if path in _texts else super().get_data(path)

    def path_stats(self, path: str) -> Mapping[str, Any]:
        if path in _texts:
            raise OSError("what is not saved has no time, so that its code is not kept")
        return super().path_stats(path)


class _Finder:
    """Finds modules as Python does, and has them loaded by `_Loader`; stands first while texts are read."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin not in _texts or not isinstance(spec.loader, SourceFileLoader):
            return None
        spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


@contextlib.contextmanager
def reading_instead(texts: Mapping[str, str]) -> Iterator[None]:
    """Has texts read in place of files, by their whole paths; forgets what was imported if any of it has changed."""
    _texts.clear()
    _texts.update(texts)
    _forget_changed()
    for (
        path,
        text,
    ) in texts.items():  # sources and markers are read from there; without a time it is not looked at again
        linecache.cache[path] = len(text), None, text.splitlines(keepends=True), path
    sys.meta_path.insert(0, _Finder)
    try:
        yield
    finally:
        sys.meta_path.remove(_Finder)
        for module in [*sys.modules.values()]:
            file = getattr(module, "__file__", None)
            if file is not None and file not in _made_from and not _lasts(file):
                _made_from[file] = _state(file)
        for path in texts:
            linecache.cache.pop(path, None)
        _texts.clear()


def _forget_changed() -> None:
    """Forgets all modules of the user's if the file, or the text, of one of them is not what it was made from."""
    if all(_state(file) == known for file, known in _made_from.items()):
        return
    for name, module in [*sys.modules.items()]:
        if getattr(module, "__file__", None) in _made_from:
            del sys.modules[name]
    for file in _made_from:
        linecache.cache.pop(file, None)
    _made_from.clear()
    importlib.invalidate_caches()


def _state(file: str) -> Any:
    if file in _texts:
        return _texts[file]
    try:
        stat = os.stat(file)
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


@cached_by("file")
def _lasts(file: str) -> bool:
    """Whether a file stays what it is for as long as this process: an installed one, or one of weft's."""
    path = Path(os.path.realpath(file))
    of_weft = path.is_relative_to(WEFT) and path.relative_to(WEFT).parts[0] not in ("tests", "examples")
    return of_weft or file.startswith(installed_roots()) or str(path).startswith(installed_roots())


def _is_found(name: str) -> bool:
    """Whether a module is found elsewhere than in the folder that is importable just now."""
    beside = sys.path.pop(0)
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
    finally:
        sys.path.insert(0, beside)
