"""The public names, and which file each lives in.

`nnx` imports a file when one of its names is first asked for. A name in `SUBMODULES` is a module of names, as flax.nnx
lays its own out: code that says `nnx.statelib.State` or `from flax.nnx import graphlib` finds what it expects.
"""

from __future__ import annotations

import importlib
import types
from typing import Any

# file: names
PUBLIC: dict[str, tuple[str, ...]] = {
    "attributes": (
        "Data", "Static", "check_attribute", "data", "dataclass", "has_data", "is_data", "register_data_type", "static",
    ),
    "capturing": ("capture",),
    "config": (
        "set_graph_mode", "set_graph_updates", "use_eager_sharding", "using_eager_sharding", "var_defaults",
    ),
    "containers": ("Dict", "List", "Sequential"),
    "contexts": (
        "MergeContext", "SplitContext", "UpdateContext", "cached_partial", "current_update_context", "merge_context",
        "split_context", "update_context",
    ),
    "extract": ("NodeStates", "from_tree", "prefix", "to_tree"),
    "filters": ("All", "Any", "Everything", "Not", "Nothing", "OfType", "PathContains", "WithTag"),
    "functional": (
        "PureState", "as_pure", "call", "clone", "graphdef", "map", "merge", "pop", "set_metadata", "split", "state",
        "unpack", "update", "variables", "with_vars",
    ),
    "deprecations": ("pure", "vars_as"),
    "graph": ("flatten", "unflatten"),
    "graphdef": ("GraphDef",),
    "graphstate": ("GraphState",),
    "kinds": (
        "BatchStat", "Cache", "Intermediate", "LoRAParam", "Param", "Perturbation", "RngCount", "RngKey", "RngState",
        "register_variable_name", "variable_name_from_type", "variable_type_from_name",
    ),
    "metadata": ("VariableMetadata", "with_metadata"),
    "module": ("M", "Module", "iter_modules"),
    "pytree": ("Object", "Pytree", "check_pytree"),
    "rng_transforms": ("fork_rngs", "reseed", "restore_rngs", "split_rngs", "with_rngs"),
    "rngs": ("RngStream", "Rngs"),
    "sharding": ("PARTITION_NAME", "logical_axis_rules"),
    "state": (
        "FlatState", "State", "filter_state", "from_flat_state", "map_state", "merge_state", "split_state",
        "to_flat_state",
    ),
    "state_dicts": ("replace_by_pure_dict", "restore_int_paths", "to_pure_dict"),
    "trainstate": ("TrainState",),
    "variable": ("A", "Variable"),
    "views": ("view", "view_info", "with_attributes"),
    "visualization": ("display",),
    "walk": ("find_duplicates", "iter_children", "iter_graph", "iter_module_children", "recursive_map"),
}  # fmt: skip

# module of names: files whose names it has
SUBMODULES: dict[str, tuple[str, ...]] = {
    "deprecations": ("deprecations",),
    "extract": ("extract", "calls"),
    "filterlib": ("filters",),
    "graph": ("graph", "graphdef", "graphstate", "nodes", "functional", "walk", "contexts", "config", "deprecations"),
    "graphlib": ("graph", "graphdef", "graphstate", "nodes", "functional", "walk", "contexts", "config", "deprecations"),
    "helpers": ("containers", "trainstate"),
    "module": ("module", "views", "capturing", "walk"),
    "object": ("pytree", "attributes"),
    "proxy_caller": ("proxy_caller",),
    "pytreelib": ("pytree", "attributes", "objects"),
    "reprlib": ("reprlib",),
    "rnglib": ("rngs", "rng_transforms", "kinds"),
    "statelib": ("state", "state_dicts"),
    "tracers": ("tracers",),
    "traversals": ("traversals",),
    "variablelib": ("variable", "kinds", "metadata", "config", "refs", "hijax"),
    "visualization": ("visualization",),
}

FILE_OF = {name: file for file, names in PUBLIC.items() for name in names}


def load(package: str, name: str) -> Any:
    """A public name of the package, or a module of names.

    Raises:
        AttributeError: if there is none of this name.
    """
    if name in FILE_OF:
        return getattr(importlib.import_module(f"{package}.{FILE_OF[name]}"), name)
    if name in SUBMODULES:
        return submodule(package, name)
    raise AttributeError(f"module {package!r} has no attribute {name!r}")


def submodule(package: str, name: str) -> types.ModuleType:
    """A module with the names of some files."""
    module = types.ModuleType(f"{package}.{name}", f"The names of {', '.join(SUBMODULES[name])}.")
    for file in reversed(SUBMODULES[name]):
        source = vars(importlib.import_module(f"{package}.{file}"))
        vars(module).update((key, value) for key, value in source.items() if not key.startswith("__"))
    return module
