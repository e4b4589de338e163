"""`from weft import nnx`: a drop-in replacement of flax.nnx, over weft's transforms.

Objects (`modules`) have Variables (`variable`) as attributes. `graphs` splits a graph of objects into structure and
state, and merges them again. `transforms` do the same around every call (`crossing`): mutations inside the traced
function become updates, which are written into the caller's objects. The analysis of a graph is remembered as a *plan*,
until its structure changes.
"""

import sys as _sys
import typing as _typing
import warnings as _warnings
from importlib import import_module as _import_module
from types import ModuleType as _ModuleType
from typing import Any as _Any

from weft.nnx import nn as nn
from weft.nnx import proxy_caller as proxy_caller
from weft.nnx import summary as summary
from weft.nnx import training as training
from weft.nnx import transforms as transforms
from weft.nnx.config import set_graph_mode as set_graph_mode
from weft.nnx.config import set_graph_updates as set_graph_updates
from weft.nnx.config import use_eager_sharding as use_eager_sharding
from weft.nnx.config import using_eager_sharding as using_eager_sharding
from weft.nnx.config import var_defaults as var_defaults
from weft.nnx.crossing import extract as extract
from weft.nnx.crossing.contexts import MergeContext as MergeContext
from weft.nnx.crossing.contexts import SplitContext as SplitContext
from weft.nnx.crossing.contexts import UpdateContext as UpdateContext
from weft.nnx.crossing.contexts import cached_partial as cached_partial
from weft.nnx.crossing.contexts import current_update_context as current_update_context
from weft.nnx.crossing.contexts import merge_context as merge_context
from weft.nnx.crossing.contexts import split_context as split_context
from weft.nnx.crossing.contexts import update_context as update_context
from weft.nnx.crossing.extract import NodeStates as NodeStates
from weft.nnx.crossing.extract import from_tree as from_tree
from weft.nnx.crossing.extract import prefix as prefix
from weft.nnx.crossing.extract import to_tree as to_tree
from weft.nnx.graphs.definitions import GraphDef as GraphDef
from weft.nnx.graphs.definitions import GraphState as GraphState
from weft.nnx.graphs.splitting import PureState as PureState
from weft.nnx.graphs.splitting import as_pure as as_pure
from weft.nnx.graphs.splitting import call as call
from weft.nnx.graphs.splitting import clone as clone
from weft.nnx.graphs.splitting import flatten as flatten
from weft.nnx.graphs.splitting import graphdef as graphdef
from weft.nnx.graphs.splitting import map as map
from weft.nnx.graphs.splitting import merge as merge
from weft.nnx.graphs.splitting import split as split
from weft.nnx.graphs.splitting import state as state
from weft.nnx.graphs.splitting import unflatten as unflatten
from weft.nnx.graphs.splitting import unpack as unpack
from weft.nnx.graphs.splitting import variables as variables
from weft.nnx.graphs.updating import pop as pop
from weft.nnx.graphs.updating import set_metadata as set_metadata
from weft.nnx.graphs.updating import update as update
from weft.nnx.graphs.walk import find_duplicates as find_duplicates
from weft.nnx.graphs.walk import iter_children as iter_children
from weft.nnx.graphs.walk import iter_graph as iter_graph
from weft.nnx.graphs.walk import iter_module_children as iter_module_children
from weft.nnx.graphs.walk import recursive_map as recursive_map
from weft.nnx.interop import compat as compat
from weft.nnx.interop import deprecations as deprecations
from weft.nnx.interop.conversion import convert as convert
from weft.nnx.interop.deprecations import pure as pure
from weft.nnx.interop.deprecations import vars_as as vars_as
from weft.nnx.interop.installing import install as install
from weft.nnx.interop.installing import uninstall as uninstall
from weft.nnx.interop.names import IN_ROOMS as _IN_ROOMS
from weft.nnx.interop.names import SUBMODULES as _SUBMODULES
from weft.nnx.interop.names import submodules as _submodules
from weft.nnx.interop.records import from_record as from_record
from weft.nnx.interop.records import functional as functional
from weft.nnx.interop.records import to_record as to_record
from weft.nnx.modules import objectrepr as _objectrepr  # noqa: F401  (sets the printing methods of objects)
from weft.nnx.modules.capturing import capture as capture
from weft.nnx.modules.containers import Dict as Dict
from weft.nnx.modules.containers import List as List
from weft.nnx.modules.containers import Sequential as Sequential
from weft.nnx.modules.module import M as M
from weft.nnx.modules.module import Module as Module
from weft.nnx.modules.module import iter_modules as iter_modules
from weft.nnx.modules.pytree import Object as Object
from weft.nnx.modules.pytree import Pytree as Pytree
from weft.nnx.modules.pytree import check_pytree as check_pytree
from weft.nnx.modules.views import view as view
from weft.nnx.modules.views import view_info as view_info
from weft.nnx.modules.views import with_attributes as with_attributes
from weft.nnx.modules.views import with_vars as with_vars
from weft.nnx.nn import *
from weft.nnx.objects.attributes import Data as Data
from weft.nnx.objects.attributes import Static as Static
from weft.nnx.objects.attributes import data as data
from weft.nnx.objects.attributes import dataclass as dataclass
from weft.nnx.objects.attributes import has_data as has_data
from weft.nnx.objects.attributes import is_data as is_data
from weft.nnx.objects.attributes import register_data_type as register_data_type
from weft.nnx.objects.attributes import static as static
from weft.nnx.printing import reprlib as reprlib
from weft.nnx.printing import visualization as visualization
from weft.nnx.printing.visualization import display as display
from weft.nnx.states import traversals as traversals
from weft.nnx.states.filters import All as All
from weft.nnx.states.filters import Any as Any
from weft.nnx.states.filters import Everything as Everything
from weft.nnx.states.filters import Not as Not
from weft.nnx.states.filters import Nothing as Nothing
from weft.nnx.states.filters import OfType as OfType
from weft.nnx.states.filters import PathContains as PathContains
from weft.nnx.states.filters import WithTag as WithTag
from weft.nnx.states.state_dicts import replace_by_pure_dict as replace_by_pure_dict
from weft.nnx.states.state_dicts import restore_int_paths as restore_int_paths
from weft.nnx.states.state_dicts import to_pure_dict as to_pure_dict
from weft.nnx.states.states import FlatState as FlatState
from weft.nnx.states.states import State as State
from weft.nnx.states.states import filter_state as filter_state
from weft.nnx.states.states import from_flat_state as from_flat_state
from weft.nnx.states.states import map_state as map_state
from weft.nnx.states.states import merge_state as merge_state
from weft.nnx.states.states import split_state as split_state
from weft.nnx.states.states import to_flat_state as to_flat_state
from weft.nnx.streams.rng_transforms import fork_rngs as fork_rngs
from weft.nnx.streams.rng_transforms import reseed as reseed
from weft.nnx.streams.rng_transforms import restore_rngs as restore_rngs
from weft.nnx.streams.rng_transforms import split_rngs as split_rngs
from weft.nnx.streams.rng_transforms import with_rngs as with_rngs
from weft.nnx.streams.rngs import Rngs as Rngs
from weft.nnx.streams.rngs import RngStream as RngStream
from weft.nnx.summary import tabulate as tabulate
from weft.nnx.training import metrics as metrics
from weft.nnx.training import optimizer as optimizer
from weft.nnx.training.ema import EMA as EMA
from weft.nnx.training.metrics import Metric as Metric
from weft.nnx.training.metrics import MultiMetric as MultiMetric
from weft.nnx.training.optimizer import ModelAndOptimizer as ModelAndOptimizer
from weft.nnx.training.optimizer import OptArray as OptArray
from weft.nnx.training.optimizer import Optimizer as Optimizer
from weft.nnx.training.optimizer import OptState as OptState
from weft.nnx.training.optimizer import OptVariable as OptVariable
from weft.nnx.training.trainstate import TrainState as TrainState
from weft.nnx.transforms import *
from weft.nnx.transforms.partitioning import abstract_with_sharding as abstract_with_sharding
from weft.nnx.transforms.partitioning import as_abstract as as_abstract
from weft.nnx.transforms.partitioning import get_abstract_model as get_abstract_model
from weft.nnx.transforms.partitioning import get_named_sharding as get_named_sharding
from weft.nnx.transforms.partitioning import get_partition_spec as get_partition_spec
from weft.nnx.transforms.partitioning import with_partitioning as with_partitioning
from weft.nnx.variable import tracers as tracers
from weft.nnx.variable.kinds import BatchStat as BatchStat
from weft.nnx.variable.kinds import Cache as Cache
from weft.nnx.variable.kinds import Intermediate as Intermediate
from weft.nnx.variable.kinds import LoRAParam as LoRAParam
from weft.nnx.variable.kinds import Param as Param
from weft.nnx.variable.kinds import Perturbation as Perturbation
from weft.nnx.variable.kinds import RngCount as RngCount
from weft.nnx.variable.kinds import RngKey as RngKey
from weft.nnx.variable.kinds import RngState as RngState
from weft.nnx.variable.kinds import register_variable_name as register_variable_name
from weft.nnx.variable.kinds import variable_name_from_type as variable_name_from_type
from weft.nnx.variable.kinds import variable_type_from_name as variable_type_from_name
from weft.nnx.variable.metadata import VariableMetadata as VariableMetadata
from weft.nnx.variable.metadata import with_metadata as with_metadata
from weft.nnx.variable.modes import MODES as _MODES
from weft.nnx.variable.sharding import PARTITION_NAME as PARTITION_NAME
from weft.nnx.variable.sharding import logical_axis_rules as logical_axis_rules
from weft.nnx.variable.variable import A as A
from weft.nnx.variable.variable import Variable as Variable

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

if not _typing.TYPE_CHECKING:  # checkers read the names off the imports above
    # Without weft's own rooms: of the modules, those that flax.nnx has.
    _of_flax = {*_SUBMODULES, *_IN_ROOMS, "initializers", "metrics", "nn", "optimizer", "proxy_caller"}
    _of_flax |= {"summary", "training", "transforms"}
    __all__ = sorted(
        name
        for name, value in globals().items()
        if name[0] != "_" and (not isinstance(value, _ModuleType) or name in _of_flax)
    )


# These need flax, so they are imported at their first use. `wrappers` is a module of the bridge.
_ON_USE = ("bridge", "wrappers")


def __getattr__(name: str) -> _Any:
    if name in _ON_USE:
        bridge = _import_module(f"{__name__}.bridge")
        return bridge if name == "bridge" else bridge.wrappers
    if name == "VariableState":
        _warnings.warn("'VariableState' is 'Variable' now", DeprecationWarning, stacklevel=2)
        return Variable
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ON_USE})
