"""weft threads state through JAX's transforms.

Models are immutable records (`weft.Module`); every transform (`weft.jit`, `weft.grad`, `weft.scan`, ...) takes records
and gives their successors back. `weft.nnx`, `weft.typecheck`, `weft.debug` and `weft.plan` load on first use.
"""

import importlib as _importlib
import importlib.abc as _abc
import importlib.machinery as _machinery
import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING

from weft import core, modules, transforms
from weft.core.contexts import DEBUG_NONFINITE as _DEBUG_NONFINITE
from weft.core.hooks import defer_contracts as _defer_contracts
from weft.core.switches import is_on as _is_on

if _TYPE_CHECKING:
    from weft import nnx as nnx
    from weft import typecheck as typecheck
    from weft.core import *
    from weft.core import Any as Any
    from weft.insight import debug as debug
    from weft.insight.plan import plan as plan
    from weft.modules import *
    from weft.transforms import *
    from weft.transforms import map as map

# The core knows of no checker; this package, above both, says where it is.
_defer_contracts("weft.typecheck.calls.runtime")

# Modules that are API under a shorter name.
_SHORT_NAMES = {
    "weft.debug": "weft.insight.debug",
    "weft.metrics": "weft.modules.learning.metrics",
    "weft.ops": "weft.modules.ops",
    "weft.tree": "weft.modules.learning.tree",
}


class _ShortNames(_abc.Loader):
    """Finds the modules of short names: `import weft.tree` works like `from weft import tree`."""

    def find_spec(self, name, path=None, target=None):
        return _machinery.ModuleSpec(name, self) if name in _SHORT_NAMES else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        # What stands in `sys.modules` after this is what was imported.
        _sys.modules[module.__name__] = _importlib.import_module(_SHORT_NAMES[module.__name__])


_sys.meta_path.append(_ShortNames())

__version__ = "0.2.0"

_ON_FIRST_USE = ("debug", "nnx", "typecheck")
# Objects of `weft.insight`, likewise.
_INSIGHT = {"plan": "weft.insight.plan.planning"}

__all__ = ["core", "modules", "transforms"]
__all__ += core.__all__
__all__ += modules.__all__
__all__ += transforms.__all__
# `weft.Any` and `weft.map`, but not by `from weft import *`, which would put them before typing's and Python's own.
__all__.remove("Any")
__all__.remove("map")


if not _TYPE_CHECKING:  # a checker would take every misspelt name for one that is there

    def __getattr__(name: str):
        if name in _ON_FIRST_USE:
            return _importlib.import_module(f"weft.{name}")
        if name in _INSIGHT:
            return getattr(_importlib.import_module(_INSIGHT[name]), name)
        for package in (core, transforms, modules):
            if name in package.__all__:
                found = globals()[name] = getattr(package, name)
                return found
        raise AttributeError(f"module 'weft' has no attribute {name!r}")


if _is_on(_DEBUG_NONFINITE):
    from weft.insight.debug.guarding import guard_process as _guard_process

    _guard_process()


def load_ipython_extension(shell) -> None:
    """`%load_ext weft`, in IPython and Jupyter: contracts, lost successors as errors, tracebacks of cells only."""
    from weft.typecheck.notebook import load

    load(shell)


def unload_ipython_extension(shell) -> None:
    """`%unload_ext weft`: puts back what `%load_ext weft` found."""
    from weft.typecheck.notebook import unload

    unload(shell)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ON_FIRST_USE, *_INSIGHT, "Any", "map"})
