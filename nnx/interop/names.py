"""Modules of names: flax.nnx's own layout, over the files of this package.

Code that says `nnx.statelib.State` or `from flax.nnx import graphlib` finds what it expects: each name here stands for
a module that has the names of some files, and imports them when it is first asked.
"""

from __future__ import annotations

import importlib
import types
from typing import Any

from weft.nnx.interop.imported import imported

_GRAPH = tuple(
    f"graphs.{file}"
    for file in ("graph", "definitions", "graphstate", "nodes", "splitting", "updating", "walk", "trees")
)
_GRAPH += ("objects.objects", "crossing.contexts", "config", "interop.deprecations", "states.states")
_GRAPH += ("variable.variable", "variable.refs", "modules.views", "types")
_PYTREE = ("modules.pytree", "modules.pytree_state", "objects.attributes", "objects.objects")

# module of names: files whose names it has; the first one that has a name wins
SUBMODULES: dict[str, tuple[str, ...]] = {
    "filterlib": ("states.filters", "types"),
    "graph": _GRAPH,
    "graphlib": _GRAPH,
    "helpers": ("modules.containers", "training.trainstate"),
    "module": ("modules.module", "modules.views", "modules.capturing", "graphs.walk", "types"),
    "object": _PYTREE,
    "pytreelib": _PYTREE,
    "rnglib": ("streams.rngs", "streams.rng_transforms", "variable.kinds"),
    "spmd": ("transforms.partitioning", "transforms.metadata", "variable.sharding"),
    "statelib": ("states.states", "states.state_dicts", "types"),
    "variablelib": (*(f"variable.{file}" for file in ("variable", "kinds", "metadata", "refs", "hijax")), "config"),
}

# Modules of flax.nnx that are files of a room here; the package itself has them as attributes.
IN_ROOMS = ("compat", "deprecations", "extract", "reprlib", "tracers", "traversals", "visualization")


class NamesModule(types.ModuleType):
    """A module with the names of some files of a package."""

    def __init__(self, package: str, name: str, files: tuple[str, ...]):
        super().__init__(f"{package}.{name}", f"The names of {', '.join(files)}.")
        self.__dict__["_files"] = tuple(f"{package}.{file}" for file in files)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            for file in self.__dict__["_files"]:
                value = vars(importlib.import_module(file)).get(name, _ABSENT)
                if value is not _ABSENT:
                    self.__dict__[name] = value
                    return value
        return imported(self.__name__, name)

    def __dir__(self) -> list[str]:
        files = map(importlib.import_module, self.__dict__["_files"])
        return sorted({name for file in files for name in vars(file) if not name.startswith("_")})


_ABSENT = object()


def submodules(package: str) -> dict[str, NamesModule]:
    """The modules of names of a package."""
    return {name: NamesModule(package, name, files) for name, files in SUBMODULES.items()}
