"""Modules with flax.nnx's module names, whose attributes come from the files of this package.

Programs use `nnx.statelib.State` or `from flax.nnx import graphlib`, but the files here have another layout. A
`NamesModule` looks names up in a list of files, and imports these at the first look-up.

Other names are those that flax's modules import, or use in annotations. Code that patches or copies a module of flax
may use `nnx.nn.linear.MappingProxyType` or `nnx.graphlib.tp`. Such a name has the same meaning in all of flax's
modules, so one table serves them all. A module here looks up only names that it lacks itself.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

# Modules, by the names under which flax's modules import them.
_MODULES = """
_tp=typing bdg_module=weft.nnx.bridge.module bridge_variables=weft.nnx.bridge.variables builtins=builtins
bv=weft.nnx.bridge.variables checkify_lib=jax.experimental.checkify core=flax.core core_spmd=flax.core.spmd
dataclasses=dataclasses dtypes=weft.nnx.nn.dtypes errors=flax.errors extract=weft.nnx.crossing.extract
ft=flax.typing functools=functools general=weft.nnx.transforms.general initializers=weft.nnx.nn.initializers
inspect=inspect io=io it=itertools itertools=itertools jax=jax jnp=jax.numpy jtu=jax.tree_util lax=jax.lax math=math
meta=flax.core.meta nn_module=flax.linen.module nnx=weft.nnx np=numpy operator=operator opt_einsum=opt_einsum
optax=optax os=os random=jax.random renderers=treescope.renderers rendering_parts=treescope.rendering_parts
reprlib=weft.nnx.printing.reprlib rich=rich struct=flax.struct threading=threading tp=typing
tpe=typing_extensions tracers=weft.nnx.variable.tracers traversals=weft.nnx.states.traversals treescope=treescope
typing=typing visualization=weft.nnx.printing.visualization warnings=warnings weakref=weakref
wrappers=weft.nnx.bridge.wrappers yaml=yaml
"""
# Other names that they import, by the module they come from; `theirs=ours` if the name here differs.
_FROM = {
    "abc": "abstractmethod",
    "collections": "defaultdict deque namedtuple",
    "collections.abc": "Mapping MutableMapping Sequence",
    "copy": "deepcopy",
    "flax.core": "FrozenDict",
    "flax.typing": "Key Missing PromoteDtypeFn PytreeDeque SizeBytes is_key_like",
    "functools": "partial wraps",
    "jax": "Array Ref",
    "jax.nn": "sigmoid tanh",
    "jax.sharding": "AbstractMesh Mesh PartitionSpec",
    "jax.tree_util": "PyTreeDef",
    "types": "MappingProxyType",
    "typing": "TypeVar overload",
    "weft.nnx": "Linear Module Pytree State filterlib graphlib nnx_eval_shape=eval_shape nnx_jit=jit nnx_module=module "
    "pytreelib rnglib split_state spmd statelib variablelib variableslib=variablelib",
    "weft.nnx.config": "flax_config=config",
    "weft.nnx.graphs.nodes": "GRAPH_REGISTRY=GRAPH_TYPES PYTREE_NODE_IMPL=GENERIC PYTREE_REGISTRY=CONTAINER_TYPES "
    "get_node_impl_for_type=impl_of_type",
    "weft.nnx.graphs.splitting": "_merge_to_flat_state=sorted_leaves_of",
    "weft.nnx.interop.deprecations": "deprecated",
    "weft.nnx.modules.module": "first_from",
    "weft.nnx.objects.attributes": "DataAnnotation=DATA_ANNOTATION StaticAnnotation=STATIC_ANNOTATION",
    "weft.nnx.proxy_caller": "ApplyCaller CallableProxy DelayedAccessor",
    "weft.nnx.states.states": "_split_state=split_flat",
    "weft.nnx.transforms.compilation": "SimpleCompiled=Stage SimpleLowered=Stage SimpleTraced=Stage",
    "weft.nnx.transforms.names": "_get_cached_wrapper",
    "weft.nnx.transforms.transforms": "resolve_kwargs",
    "weft.core.paths": "PathParts=Path",
}
_ORIGINS = {theirs: ours for theirs, _, ours in (entry.partition("=") for entry in _MODULES.split())}
for _module, _names in _FROM.items():
    for _theirs, _, _ours in (entry.partition("=") for entry in _names.split()):
        _ORIGINS[_theirs] = f"{_module}:{_ours or _theirs}"

# Names that only annotations use.
_ANNOTATIONS: dict[str, Any] = {
    "AxisName": Hashable,
    "Counts": list[int],
    "ExtractValueFn": Callable[[Any], Any],
    "IsLeafCallable": Callable[[tuple[Any, ...], Mapping[Any, Any]], bool],
    "Leaves": list[Any],
    "LogicalNames": tuple[str | None, ...],
    "Names": Sequence[int],
    "SetValueFn": Callable[[Any, Any], Any],
    "Sharding": tuple[Any, ...],
    "StateMapping": Mapping[Any, Any],
}
_ALIASES: dict[str, Any] = {
    "AttrType AxesValue AxisFn CollectionFilter FilterLiteral GraphFlatState KeepFn Leaf LeafType NodeDefType": Any,
    "NodeStats OutShardingType Prefix Specs SplitPattern ellipsis": Any,
    "Axis AxisIndex Index Size": int,
    "CreateValueHook GetValueHook SetValueHook": Callable[[Any, Any], Any],
    "AddAxisHook RemoveAxisHook": Callable[[Any, int, str | None], None],
}
for _names, _alias in _ALIASES.items():
    _ANNOTATIONS.update(dict.fromkeys(_names.split(), _alias))
_TYPE_VARIABLES = {"A AuxData B C F G HB K KeyT M MA N Node R S StrInt TS V W": TypeVar, "Fargs P": ParamSpec}
for _names, _variable in _TYPE_VARIABLES.items():
    _ANNOTATIONS.update({name: _variable(name) for name in _names.split()})


def imported(module: str, name: str) -> Any:
    """Returns the value of a name that flax's modules import, or use in annotations.

    Args:
        module: the module in which the name was looked up, for the error.
        name: the name.

    Raises:
        AttributeError: if there is no such name, or its package is not installed.

    >>> imported("flax.nnx.nn.linear", "MappingProxyType")
    <class 'mappingproxy'>
    """
    if name in _ANNOTATIONS:
        return _ANNOTATIONS[name]
    path, _, attribute = _ORIGINS.get(name, "").partition(":")
    error: ImportError | None = None
    if path:
        try:
            origin = importlib.import_module(path)
            return getattr(origin, attribute) if attribute else origin
        except ImportError as caught:
            error = caught
    raise AttributeError(f"module {module!r} has no attribute {name!r}") from error


def offer_imports(module: types.ModuleType) -> types.ModuleType:
    """Makes the names that flax's module imports attributes of a module without a `__getattr__` of its own."""
    module.__dict__.setdefault("__getattr__", lambda name: imported(module.__name__, name))
    return module


_GRAPH = tuple(f"graphs.{file}" for file in ("definitions", "nodes", "splitting", "updating", "walk", "trees"))
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
