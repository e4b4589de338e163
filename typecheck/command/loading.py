"""Imports units: a file as a part of its package, or as a script under a name that is not `__main__`.

The editor's worker lives longer than a file stays as it is: it imports again what has changed since (`up_to_date`).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from weft.core.caches import cached_by
from weft.typecheck.command.units import WEFT, Unit, installed_roots
from weft.typecheck.language.siblings import Written, below, is_apart, modules_of, written
from weft.typecheck.proofs.writing import LOADED


@contextlib.contextmanager
def importable(unit: Unit) -> Iterator[None]:
    """Lets a unit import the modules beside it, for the length of a `with` block: while it loads and is judged.

    A function may import when it is called. Modules of an earlier unit's folder that are called like one beside this
    unit are forgotten: two tutorials may each have a `utils.py`.
    """
    root = Path(unit.root)
    for name in sorted(_shadowed(root)):
        for known in [one for one in sys.modules if one == name or one.startswith(f"{name}.")]:
            del sys.modules[known]
    sys.path.insert(0, str(root))
    try:
        yield
    finally:
        if str(root) in sys.path:  # other entries that the unit has added stay, so that `contamination` sees them
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
    spec = importlib.util.spec_from_file_location(name, path)
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
        with contextlib.suppress(Exception, SystemExit):  # such a module may need a library that is not installed
            importlib.import_module(name)


def _written(path: Path) -> Written:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return _written_at(path, path.stat().st_mtime_ns)
    return {}


@cached_by("file and its time", most=20000)
def _written_at(path: Path, time: int) -> Written:
    return written(path.read_text(encoding="utf-8"))


# The state of the file of each module that a unit imported, where the file may change while this process lives.
_imported: dict[str, tuple[int, int] | None] = {}


@contextlib.contextmanager
def up_to_date() -> Iterator[None]:
    """Forgets all modules of the user's if the file of one has changed, and notes what is imported meanwhile.

    All of them, for a module that did not change may hold functions of one that did.
    """
    if any(_state(file) != state for file, state in _imported.items()):
        for name, module in [*sys.modules.items()]:
            if getattr(module, "__file__", None) in _imported:
                del sys.modules[name]
        _imported.clear()
        importlib.invalidate_caches()
    try:
        yield
    finally:
        files = {getattr(module, "__file__", None) for module in [*sys.modules.values()]}
        new = {file for file in files if file is not None and file not in _imported and not _lasts(file)}
        _imported.update({file: _state(file) for file in new})


def _state(file: str) -> tuple[int, int] | None:
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
