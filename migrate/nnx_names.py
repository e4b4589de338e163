"""Looks up which names of flax.nnx `weft.nnx` has, and in which module."""

from __future__ import annotations

import functools
import importlib
import types
from typing import Any

# Imported by name at run time: this package must not depend on `weft.nnx`.
_NNX = "weft.nnx"
_INSTALLER = "weft.nnx.interop.installing"

# Parts of flax that work with weft.nnx: they treat its objects as pytrees, or do not touch NNX at all.
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
# Functions in these parts that flax.nnx reads too; weft.nnx has its own.
SHARED = ("logical_axis_rules", "set_logical_axis_rules", "get_logical_axis_rules")


def is_neutral(name: str) -> bool:
    """Whether a part of flax works with weft.nnx as with flax.nnx; `name` is dotted and starts with `flax.`."""
    below = name.removeprefix("flax").removeprefix(".")
    if below.rpartition(".")[2] in SHARED:
        return False
    return any(below == part or below.startswith(f"{part}.") for part in NEUTRAL)


def has(name: str) -> bool:
    """Whether `weft.nnx` has a name like `flax.nnx.a.b`; attributes of classes and functions are not checked."""
    value: Any = importlib.import_module(_NNX)
    for part in name.split(".")[2:]:
        # `nnx.Param.from_metadata`: the class exists, and only a run would show what attributes it has.
        if not isinstance(value, types.ModuleType):
            return True
        if part.startswith("_"):
            return False
        try:
            value = getattr(value, part)
        except (AttributeError, ImportError):  # the bridge imports flax, which may be missing here
            return False
    return True


@functools.cache
def module_for(module: str, name: str | None = None) -> str | None:
    """Returns the module of weft to import instead of a module of flax.nnx.

    Args:
        module: `flax.nnx`, or a submodule.
        name: the name that is imported from it; None for the module itself.

    Returns:
        The module's dotted name, or None if no module of weft has the name.
    """
    ours = _NNX + module.removeprefix("flax.nnx")
    twin = importlib.import_module(_INSTALLER).twin_module
    try:
        counterpart = twin(module)
        same_path = importlib.import_module(ours)
    except ImportError:
        return None
    if name is None:
        return ours
    if name.startswith("_"):
        return None
    if hasattr(same_path, name) or _is_module(f"{ours}.{name}"):
        return ours
    top = importlib.import_module(_NNX)
    # The name may live in another module of weft. The top module serves where it gives the same object as the twin of
    # flax's module.
    same = hasattr(counterpart, name) and getattr(top, name, None) is getattr(counterpart, name)
    return _NNX if same else None


def _is_module(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True
