"""Programs that say `from flax import nnx`, as `weft check` reads them: over `weft.nnx`, which proofs know.

While a file is checked, the first import of `flax` or `flax.nnx` installs `weft.nnx` in its place
(`weft.nnx.install`), so a program that has nothing to do with flax loads nothing. Where the real flax.nnx was imported
before, it stays, and its Modules are refused (`objects.refuse_foreign`).
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec

# By name: this package knows of no layer above it.
_INSTALLER = "weft.nnx.interop.installing"


class _Awaiting(MetaPathFinder):
    """Waits for the first import of flax, installs, and lets the installed finder answer."""

    def __init__(self) -> None:
        self.has_installed = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in ("flax", "flax.nnx"):
            return None
        sys.meta_path.remove(self)
        installer = importlib.import_module(_INSTALLER)
        if installer.installed():
            return None
        installer.install()
        self.has_installed = True
        return sys.meta_path[0].find_spec(fullname, path, target)


@contextlib.contextmanager
def flax_over_weft() -> Iterator[None]:
    """Lets `flax.nnx` be `weft.nnx` for what is imported meanwhile."""
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
        if awaiting.has_installed:
            importlib.import_module(_INSTALLER).uninstall()
