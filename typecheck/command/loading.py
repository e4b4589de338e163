"""Importing what is checked: a file as a part of its package, or as a script under a name that is not `__main__`."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from weft.typecheck.command.units import Unit, installed_roots


@contextlib.contextmanager
def importable(unit: Unit) -> Iterator[None]:
    """Lets a unit import what lies beside it, for the length of a `with` block: while it loads and while it is judged.

    What an earlier unit imported from another folder under the name of something beside this one is forgotten.
    """
    root = Path(unit.root)
    for name in sorted(_shadowed(root)):
        for known in [one for one in sys.modules if one == name or one.startswith(f"{name}.")]:
            del sys.modules[known]
    before = list(sys.path)
    sys.path.insert(0, str(root))
    try:
        yield
    finally:
        sys.path[:] = before


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
    if "." in unit.module or path.name == "__init__.py":
        module = importlib.import_module(unit.module)
        if Path(module.__file__ or "").resolve() == path:
            return module
        raise ImportError(
            f"two versions of one package: {unit.module!r} is imported from {module.__file__}; check each alone"
        )
    if _is_found(unit.module):
        module = importlib.import_module(unit.module)
        if Path(module.__file__ or "").resolve() == path:
            return module
    spec = importlib.util.spec_from_file_location(f"weft_check_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {unit.file}")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _is_found(name: str) -> bool:
    """Whether a module is found elsewhere than in the folder that is importable just now."""
    beside = sys.path.pop(0)
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
    finally:
        sys.path.insert(0, beside)
