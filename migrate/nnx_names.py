"""What `weft.nnx` has of flax.nnx, and where: asked of the package itself, by name."""

from __future__ import annotations

import functools
import importlib
import types
from typing import Any

# By name: this package knows of no layer above it.
_NNX = "weft.nnx"
_INSTALLER = "weft.nnx.interop.installing"

# What stays flax's, and takes objects of weft.nnx as it takes flax's: it looks at pytrees, or at nothing of NNX.
NEUTRAL = (
    "linen",
    "struct",
    "core",
    "traverse_util",
    "jax_utils",
    "metrics",
    "typing",
    "ids",
    "io",
    "version",
    "__version__",
    "training.train_state",
    "training.common_utils",
    "training.dynamic_scale",
    "training.early_stopping",
    "training.lr_schedule",
    "training.prefetch_iterator",
)
# Of these, what flax.nnx reads too: weft.nnx has its own.
SHARED = ("logical_axis_rules", "set_logical_axis_rules", "get_logical_axis_rules")


def is_neutral(name: str) -> bool:
    """Whether a part of flax means the same beside weft.nnx; `name` is dotted, with `flax.` in front."""
    below = name.removeprefix("flax").removeprefix(".")
    if below.rpartition(".")[2] in SHARED:
        return False
    return any(below == one or below.startswith(f"{one}.") for one in NEUTRAL)


def has(name: str) -> bool:
    """Whether `flax.nnx.a.b` is there as `weft.nnx.a.b`; of classes and functions, attributes are not looked at."""
    found: Any = importlib.import_module(_NNX)
    for part in name.split(".")[2:]:
        if not isinstance(found, types.ModuleType):
            return True
        if part.startswith("_"):
            return False
        try:
            found = getattr(found, part)
        except (AttributeError, ImportError):  # the bridge imports flax, which may be missing here
            return False
    return True


@functools.cache
def module_for(module: str, name: str | None = None) -> str | None:
    """The module of weft to import in place of one of flax.nnx.

    Args:
        module: `flax.nnx`, or something in it.
        name: what is imported from it, if it is one name.

    Returns:
        Its dotted name, or None where there is none that has the name.
    """
    ours = _NNX + module.removeprefix("flax.nnx")
    twin = importlib.import_module(_INSTALLER).twin_module
    try:
        other = twin(module)
        here = importlib.import_module(ours)
    except ImportError:
        return None
    if name is None:
        return ours
    if name.startswith("_"):
        return None
    if hasattr(here, name) or _is_module(f"{ours}.{name}"):
        return ours
    top = importlib.import_module(_NNX)
    same = hasattr(other, name) and getattr(top, name, None) is getattr(other, name)
    return _NNX if same else None


def _is_module(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True
