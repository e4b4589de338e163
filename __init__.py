"""weft threads state through JAX's transforms.

Models are immutable records (`weft.Module`); every transform (`weft.jit`, `weft.grad`, `weft.scan`, ...) takes records
and gives their successors back. What is neither a layer nor a transform is in a namespace, which loads on first use:

    weft.tree       a model as a tree of arrays: split, merge, select, map, stack, ...
    weft.filters    which leaves: All, Any, Not, Inside, ...
    weft.errors     what weft raises
    weft.debug      what a program does: retraces, lost successors, reused keys, numbers that go wrong
    weft.metrics, weft.ops, weft.nnx, weft.typecheck
"""

import importlib as _importlib
import importlib.abc as _abc
import importlib.machinery as _machinery
import sys as _sys
import typing as _typing

from weft import core, modules, transforms
from weft.core.edge.contexts import DEBUG_NONFINITE as _DEBUG_NONFINITE
from weft.core.edge.contexts import is_on as _is_on
from weft.core.hooks import defer_contracts as _defer_contracts

if _typing.TYPE_CHECKING:  # pyright does not know TYPE_CHECKING under another name
    from weft import errors as errors
    from weft import nnx as nnx
    from weft import typecheck as typecheck
    from weft.core import *
    from weft.core.records import filters as filters
    from weft.insight import debug as debug
    from weft.insight.plan import plan as plan
    from weft.modules import *
    from weft.modules import ops as ops
    from weft.modules.learning import metrics as metrics
    from weft.modules.learning import tree as tree
    from weft.transforms import *
    from weft.typecheck.errors import ContractError as ContractError

# The core knows of no checker; this package, above both, says where it is.
_defer_contracts("weft.typecheck.calls.runtime")

# Modules that are API under a shorter name; `tree.pyi` and the like say so to static checkers.
_SHORT_NAMES = {
    "weft.debug": "weft.insight.debug",
    "weft.filters": "weft.core.records.filters",
    "weft.metrics": "weft.modules.learning.metrics",
    "weft.ops": "weft.modules.ops",
    "weft.tree": "weft.modules.learning.tree",
}


class _ShortNames(_abc.Loader):
    """Finds the modules of short names: `import weft.tree` works like `from weft import tree`.

    Of a name that has moved, `from weft import name` says where it is: Python looks for a module of that name last, and
    would itself say no more than that it cannot import it.
    """

    def find_spec(self, name, path=None, target=None):
        if name in _SHORT_NAMES:
            return _machinery.ModuleSpec(name, self)
        module, _, last = name.rpartition(".")
        if module.partition(".")[0] == "weft":
            from weft.core.public_names import absence, place_of

            if place_of(module, last):
                raise ImportError(absence(module, last), name=name)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        # What stands in `sys.modules` after this is what was imported.
        _sys.modules[module.__name__] = _importlib.import_module(_SHORT_NAMES[module.__name__])


_sys.meta_path.append(_ShortNames())

__version__ = "0.3.0"

_NAMESPACES = ("debug", "errors", "filters", "metrics", "nnx", "ops", "tree", "typecheck")
# What is loaded on first use from elsewhere than core, transforms and modules.
_HOMES = {"ContractError": "weft.typecheck.errors", "plan": "weft.insight.plan.planning"}

if not _typing.TYPE_CHECKING:  # a checker would take every misspelt name for one that is there
    # Not the namespaces: `from weft import *` would put `tree` before `jax.tree`.
    __all__ = ["ContractError", *core.__all__, *modules.__all__, *transforms.__all__]

    def __getattr__(name: str):
        if name in _NAMESPACES:
            return _importlib.import_module(f"weft.{name}")
        if name in _HOMES:
            return getattr(_importlib.import_module(_HOMES[name]), name)
        for package in (core, transforms, modules):
            if name in package.__all__:
                found = globals()[name] = getattr(package, name)
                return found
        from weft.core.public_names import absence

        raise AttributeError(absence("weft", name))

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_NAMESPACES, *_HOMES})


if _is_on(_DEBUG_NONFINITE):
    from weft.insight.debug.guarding import guard_process as _guard_process

    _guard_process()
