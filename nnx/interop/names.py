"""Modules with flax.nnx's module names, whose attributes come from the files of this package.

Programs use `nnx.statelib.State` or `from flax.nnx import graphlib`, but the files here have another layout. A
`NamesModule` looks names up in a list of files, and imports these at the first look-up.
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

# For each module of flax the files that have its names; the first file with a name counts.
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

# Modules of flax.nnx that are single files in a room here; `weft.nnx` has them as attributes.
IN_ROOMS = ("compat", "deprecations", "extract", "reprlib", "tracers", "traversals", "visualization")


class NamesModule(types.ModuleType):
    """A module whose attributes are looked up in several files of a package."""

    def __init__(self, package: str, name: str, files: tuple[str, ...]):
        super().__init__(f"{package}.{name}", f"The names of {', '.join(files)}.")
        self.__dict__["_files"] = tuple(f"{package}.{file}" for file in files)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            # Imported at the first look-up, because some of these files are slow to import or need an extra.
            for file in self.__dict__["_files"]:
                value = vars(importlib.import_module(file)).get(name, _ABSENT)
                if value is not _ABSENT:
                    # Stored, so that Python finds the name itself from now on.
                    self.__dict__[name] = value
                    return value
        return imported(self.__name__, name)

    def __dir__(self) -> list[str]:
        files = map(importlib.import_module, self.__dict__["_files"])
        return sorted({name for file in files for name in vars(file) if not name.startswith("_")})


_ABSENT = object()


def submodules(package: str) -> dict[str, NamesModule]:
    """Makes the `NamesModule`s of a package."""
    return {name: NamesModule(package, name, files) for name, files in SUBMODULES.items()}
