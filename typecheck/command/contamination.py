"""Finds out what a file has changed in its process, so that the next file can be judged in a fresh one.

Nothing is put back: a package that sets `jax_enable_x64` on import stays imported, so its second file would be judged
without the option. Every verdict, stored ones included, is that of a fresh process.
"""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

# Libraries whose functions must stay the same objects, because checked code or weft itself calls them.
_PATCHED = ("jax", "jaxlib", "numpy", "jaxtyping", "equinox", "optax", "flax", "weft", "builtins", "math", "functools")
# Limits of the system that a worker sets for itself.
_OWN_LIMITS = ("RLIMIT_CPU", "RLIMIT_CORE")


def begin() -> Mapping[str, Any]:
    """The state of the process before a file is judged; random generators are set to the same state for every file."""
    random.seed(0)
    np.random.seed(0)
    return _state()


def changed_since(before: Mapping[str, Any]) -> list[str]:
    """The names of the settings and functions that have changed."""
    after = _state()
    names = [name for name in before if name != "functions" and before[name] != after[name]]
    functions, now = before["functions"], after["functions"]
    return names + [".".join(key) for key, function in functions.items() if now.get(key, function) is not function]


def _state() -> dict[str, Any]:
    return {
        "jax.config": dict(jax.config.values),
        "numpy.seterr": np.geterr(),
        # Only filters that turn warnings into errors can change a verdict; libraries add others as they are imported.
        "warnings": [entry for entry in warnings.filters if entry[0] == "error"],
        "recursion limit": sys.getrecursionlimit(),
        "limits": _limits(),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "arguments": list(sys.argv),
        "path": list(sys.path),
        "processes": _has_children(),
        "functions": _functions(),
    }


def _has_children() -> bool:
    """Whether processes are left that this one has started: they would take time from the next file."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (ChildProcessError, AttributeError):  # Windows has no `waitid`
        return False
    return True


def _limits() -> dict[str, Any]:
    try:
        import resource
    except ImportError:  # Windows has none
        return {}
    names = [name for name in vars(resource) if name.startswith("RLIMIT_") and name not in _OWN_LIMITS]
    return {name: resource.getrlimit(getattr(resource, name)) for name in names}


def _functions() -> dict[tuple[str, str], Any]:
    """The public callables of the libraries, by module and name."""
    return {
        # Private modules change with each import of a library, and programs do not call them.
        (module, name): value
        for module, members in [*sys.modules.items()]
        if module.partition(".")[0] in _PATCHED and "._" not in module
        for name, value in [*(getattr(members, "__dict__", None) or {}).items()]
        if not name.startswith("_") and callable(value)
    }
