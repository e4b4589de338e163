"""`from weft import nnx`: a drop-in replacement of flax.nnx, over weft's transforms.

Objects (`modules`) have Variables (`variable`) as attributes. `graphs` splits a graph of objects into structure and
state, and merges them again. `transforms` do the same around every call (`crossing`): mutations inside the traced
function become updates, which are written into the caller's objects. The analysis of a graph is remembered as a *plan*,
until its structure changes.
"""

from __future__ import annotations

import sys as _sys
import warnings
from importlib import import_module as _import_module
from typing import Any as _Any

from weft.nnx import nn, proxy_caller, summary, training, transforms
from weft.nnx.config import set_graph_mode, set_graph_updates, use_eager_sharding, using_eager_sharding, var_defaults
from weft.nnx.crossing import extract
from weft.nnx.crossing.contexts import (
    MergeContext,
    SplitContext,
    UpdateContext,
    cached_partial,
    current_update_context,
    merge_context,
    split_context,
    update_context,
)
from weft.nnx.crossing.extract import NodeStates, from_tree, prefix, to_tree
from weft.nnx.graphs.definitions import GraphDef
from weft.nnx.graphs.graph import flatten, unflatten
from weft.nnx.graphs.graphstate import GraphState
from weft.nnx.graphs.walk import find_duplicates, iter_children, iter_graph, iter_module_children, recursive_map
from weft.nnx.interop import compat, deprecations
from weft.nnx.interop.deprecations import pure, vars_as
from weft.nnx.interop.names import IN_ROOMS as _IN_ROOMS
from weft.nnx.interop.names import SUBMODULES as _SUBMODULES
from weft.nnx.interop.names import submodules as _submodules
from weft.nnx.modules import objectrepr as _objectrepr  # noqa: F401  (sets the printing methods of objects)
from weft.nnx.modules.capturing import capture
from weft.nnx.modules.containers import Dict, List, Sequential
from weft.nnx.modules.module import M, Module, iter_modules
from weft.nnx.modules.pytree import Object, Pytree, check_pytree
from weft.nnx.modules.views import view, view_info, with_attributes, with_vars
from weft.nnx.nn import *
from weft.nnx.objects.attributes import Data, Static, data, dataclass, has_data, is_data, register_data_type, static
from weft.nnx.printing import reprlib, visualization
from weft.nnx.printing.visualization import display
from weft.nnx.states import traversals
from weft.nnx.states.filters import All, Any, Everything, Not, Nothing, OfType, PathContains, WithTag
from weft.nnx.states.state_dicts import replace_by_pure_dict, restore_int_paths, to_pure_dict
from weft.nnx.states.states import (
    FlatState,
    State,
    filter_state,
    from_flat_state,
    map_state,
    merge_state,
    split_state,
    to_flat_state,
)
from weft.nnx.streams.rng_transforms import fork_rngs, reseed, restore_rngs, split_rngs, with_rngs
from weft.nnx.streams.rngs import Rngs, RngStream
from weft.nnx.summary import tabulate
from weft.nnx.training import metrics, optimizer
from weft.nnx.training.ema import EMA
from weft.nnx.training.metrics import Metric, MultiMetric
from weft.nnx.training.optimizer import ModelAndOptimizer, OptArray, Optimizer, OptState, OptVariable
from weft.nnx.training.trainstate import TrainState
from weft.nnx.transforms import *
from weft.nnx.transforms.partitioning import (
    abstract_with_sharding,
    as_abstract,
    get_abstract_model,
    get_named_sharding,
    get_partition_spec,
    with_partitioning,
)
from weft.nnx.variable import tracers
from weft.nnx.variable.kinds import (
    BatchStat,
    Cache,
    Intermediate,
    LoRAParam,
    Param,
    Perturbation,
    RngCount,
    RngKey,
    RngState,
    register_variable_name,
    variable_name_from_type,
    variable_type_from_name,
)
from weft.nnx.variable.metadata import VariableMetadata, with_metadata
from weft.nnx.variable.modes import MODES as _MODES
from weft.nnx.variable.sharding import PARTITION_NAME, logical_axis_rules
from weft.nnx.variable.variable import A, Variable

# Imported last: `state` and `graphdef` are also names of modules, which a later import would bind instead.
from weft.nnx.graphs.splitting import (  # isort: skip
    PureState,
    as_pure,
    call,
    clone,
    graphdef,
    map,
    merge,
    split,
    state,
    unpack,
    variables,
)
from weft.nnx.graphs.updating import pop, set_metadata, update  # isort: skip

from weft.nnx.interop.installing import install, uninstall  # isort: skip
from weft.nnx.interop.conversion import convert  # isort: skip
from weft.nnx.interop.records import from_record, functional, to_record  # isort: skip

from weft.core.hooks import register_object_layer as _register  # isort: skip

# The checker imports this module when an annotation first names one of these classes.
_register((Pytree, Variable), "weft.nnx.interop.contracts")
globals().update(_submodules(__name__))
# Modules of flax.nnx can be imported here under their names: `from weft.nnx.statelib import State`.
_sys.modules.update({f"{__name__}.{_name}": globals()[_name] for _name in (*_SUBMODULES, *_IN_ROOMS)})


def _to_hijax(variable: _Any) -> _Any:
    # JAX's hijax is experimental and slow to import, so it is imported for the first hijax Variable.
    from weft.nnx.variable.hijax import to_hijax

    return to_hijax(variable)


_MODES["hijax"] = _to_hijax

__all__ = [
    "EMA",
    "PARTITION_NAME",
    "A",
    "All",
    "Any",
    "BatchStat",
    "Cache",
    "Data",
    "Dict",
    "Everything",
    "FlatState",
    "GraphDef",
    "GraphState",
    "Intermediate",
    "List",
    "LoRAParam",
    "M",
    "MergeContext",
    "Metric",
    "ModelAndOptimizer",
    "Module",
    "MultiMetric",
    "NodeStates",
    "Not",
    "Nothing",
    "Object",
    "OfType",
    "OptArray",
    "OptState",
    "OptVariable",
    "Optimizer",
    "Param",
    "PathContains",
    "Perturbation",
    "PureState",
    "Pytree",
    "RngCount",
    "RngKey",
    "RngState",
    "RngStream",
    "Rngs",
    "Sequential",
    "SplitContext",
    "State",
    "Static",
    "TrainState",
    "UpdateContext",
    "Variable",
    "VariableMetadata",
    "WithTag",
    "abstract_with_sharding",
    "as_abstract",
    "as_pure",
    "cached_partial",
    "call",
    "capture",
    "check_pytree",
    "clone",
    "compat",
    "convert",
    "current_update_context",
    "data",
    "dataclass",
    "deprecations",
    "display",
    "extract",
    "filter_state",
    "find_duplicates",
    "flatten",
    "fork_rngs",
    "from_flat_state",
    "from_record",
    "from_tree",
    "functional",
    "get_abstract_model",
    "get_named_sharding",
    "get_partition_spec",
    "graphdef",
    "has_data",
    "install",
    "is_data",
    "iter_children",
    "iter_graph",
    "iter_module_children",
    "iter_modules",
    "logical_axis_rules",
    "map",
    "map_state",
    "merge",
    "merge_context",
    "merge_state",
    "metrics",
    "nn",
    "optimizer",
    "pop",
    "prefix",
    "proxy_caller",
    "pure",
    "recursive_map",
    "register_data_type",
    "register_variable_name",
    "replace_by_pure_dict",
    "reprlib",
    "reseed",
    "restore_int_paths",
    "restore_rngs",
    "set_graph_mode",
    "set_graph_updates",
    "set_metadata",
    "split",
    "split_context",
    "split_rngs",
    "split_state",
    "state",
    "static",
    "summary",
    "tabulate",
    "to_flat_state",
    "to_pure_dict",
    "to_record",
    "to_tree",
    "tracers",
    "training",
    "transforms",
    "traversals",
    "unflatten",
    "uninstall",
    "unpack",
    "update",
    "update_context",
    "use_eager_sharding",
    "using_eager_sharding",
    "var_defaults",
    "variable_name_from_type",
    "variable_type_from_name",
    "variables",
    "vars_as",
    "view",
    "view_info",
    "visualization",
    "with_attributes",
    "with_metadata",
    "with_partitioning",
    "with_rngs",
    "with_vars",
]
__all__ += transforms.__all__
__all__ += nn.__all__
__all__ += _SUBMODULES


# These need flax, so they are imported at their first use. `wrappers` is a module of the bridge.
_ON_USE = ("bridge", "wrappers")


def __getattr__(name: str) -> _Any:
    if name in _ON_USE:
        bridge = _import_module(f"{__name__}.bridge")
        return bridge if name == "bridge" else bridge.wrappers
    if name == "VariableState":
        warnings.warn("'VariableState' is 'Variable' now", DeprecationWarning, stacklevel=2)
        return Variable
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ON_USE})
