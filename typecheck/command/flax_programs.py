"""Lets programs that say `from flax import nnx` be checked over `weft.nnx`, which proofs understand.

While a file is checked, the first import of `flax` or `flax.nnx` installs `weft.nnx` in its place
(`weft.nnx.install`), so a program without flax loads nothing. If the real flax.nnx was imported before, it stays, and
its Modules are refused (`objects.refuse_foreign`).
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec

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
