"""Imports units: a file as part of its package, or as a script under a name other than `__main__`.

The editor's worker outlives the state of a file, so it imports again what has changed (`up_to_date`).

Programs that say `from flax import nnx` are checked over `weft.nnx`, which proofs understand (`flax_over_weft`). While
a file is checked, the first import of `flax` or `flax.nnx` installs `weft.nnx` in its place (`weft.nnx.install`), so a
program without flax loads nothing. If the real flax.nnx was imported before, it stays, and its Modules are refused
(`forms.refuse_foreign`).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from weft.core.caches import cached_by
from weft.typecheck.command.units import Unit, installed_roots, is_of_weft, spec_of, state_of
from weft.typecheck.language.siblings import Written, below, is_test_or_script, modules_of, written
from weft.typecheck.proofs.programs import LOADED


@contextlib.contextmanager
def importable(unit: Unit) -> Iterator[None]:
    """Lets a unit import the modules next to it, inside a `with` block: while it loads and while it is judged.

    A function may import when it is called. Modules of an earlier unit's folder with the name of a module next to this
    unit are removed: two tutorials may each have a `utils.py`.
    """
    root, installed = Path(unit.root), installed_roots()
    for name in sorted({path.stem if path.suffix == ".py" else path.name for path in root.iterdir()}):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None or Path(file).is_relative_to(root) or file.startswith(installed):
            continue
        for known in [known for known in sys.modules if known == name or known.startswith(f"{name}.")]:
            del sys.modules[known]
    # First on the path, as the folder of a script is.
    sys.path.insert(0, str(root))
    # Python knows bytecode by the second and the size of its source: of two saves within a second, the verdict of the
    # first would be kept for the second.
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes
        # Other entries that the unit has added stay, so that `worker.changed_since` sees them.
        if str(root) in sys.path:
            sys.path.remove(str(root))


def load(unit: Unit) -> ModuleType:
    """Imports a unit and returns its module.

    Raises:
        ImportError: if its package is imported from another place.
    """
    path = Path(unit.file).resolve()
    known = sys.modules.get(unit.module)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    if unit.in_package or ("." not in unit.module and _is_elsewhere(unit.module)):
        module = importlib.import_module(unit.module)
        if Path(module.__file__ or "").resolve() == path:
            return module
        if unit.in_package:
            raise ImportError(
                f"{unit.module!r} is imported from {module.__file__} already; check each of the two alone"
            )
    # Not `__main__`: the block under `if __name__ == "__main__"` must not run.
    name = f"{LOADED}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {unit.file}")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def import_below(module: str) -> None:
    """Imports the modules of a package that define subclasses of imported classes, as far as they can be imported."""
    package = module.partition(".")[0]
    folder = next(iter(getattr(sys.modules.get(package), "__path__", ())), None)
    if folder is None:
        return
    files = {name: Path(path) for name, path in modules_of(folder, package) if not is_test_or_script(name)}
    known = {name: _written(path) for name, path in files.items() if name in sys.modules}
    others = {name: _written(path) for name, path in files.items() if name not in sys.modules}
    for name in below(known, others):
        with contextlib.suppress(Exception, SystemExit):  # the module may need a library that is not installed
            importlib.import_module(name)


def _written(path: Path) -> Written:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return _written_at(path, path.stat().st_mtime_ns)
    return {}


@cached_by("file and its time", most=20000)
def _written_at(path: Path, time: int) -> Written:
    return written(path.read_text(encoding="utf-8"))


# The file state of each imported module whose file may change while this process lives.
_imported: dict[str, tuple[int, int] | None] = {}


@contextlib.contextmanager
def up_to_date() -> Iterator[None]:
    """Removes all of the user's modules if the file of one has changed, and notes the modules imported in the block.

    All of them, because an unchanged module may hold functions of a changed one.
    """
    # All files are compared: a module may have been imported by any other.
    if any(state_of(file) != state for file, state in _imported.items()):
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
        _imported.update({file: state_of(file) for file in new})


@cached_by("file")
def _lasts(file: str) -> bool:
    """Whether a file stays the same for the life of this process: a file of an installed package or of weft."""
    path = os.path.realpath(file)
    return is_of_weft(Path(path)) or file.startswith(installed_roots()) or path.startswith(installed_roots())


def _is_elsewhere(name: str) -> bool:
    """Whether a module is found outside of the folder that is first on the path."""
    folder = sys.path.pop(0)
    try:
        return spec_of(name) is not None
    finally:
        sys.path.insert(0, folder)


# By name, because this package must not import the layers above it.
_INSTALLER = "weft.nnx.interop.installing"


class _Awaiting(MetaPathFinder):
    """A finder that installs `weft.nnx` at the first import of flax, and then passes the import on."""

    def __init__(self) -> None:
        self.has_installed = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in ("flax", "flax.nnx"):
            return None
        # Removed first, so that an import of flax by the installer does not come here again.
        sys.meta_path.remove(self)
        installer = importlib.import_module(_INSTALLER)
        # The program may have installed weft.nnx itself; then there is nothing to undo at the end.
        if installer.installed():
            return None
        installer.install()
        self.has_installed = True
        return sys.meta_path[0].find_spec(fullname, path, target)


@contextlib.contextmanager
def flax_over_weft() -> Iterator[None]:
    """Makes `flax.nnx` mean `weft.nnx` for imports inside the `with` block."""
    if "flax.nnx" in sys.modules:
        yield
        return
    awaiting = _Awaiting()
    sys.meta_path.insert(0, awaiting)
    try:
        yield
    finally:
        if awaiting in sys.meta_path:
            sys.meta_path.remove(awaiting)
        # Put back, because the next file may be a program for the real flax.
        if awaiting.has_installed:
            importlib.import_module(_INSTALLER).uninstall()
