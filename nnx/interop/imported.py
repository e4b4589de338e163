"""Names that flax's modules import, or use in annotations, for code that reads them from these modules.

Code that patches or copies a module of flax may use `nnx.nn.linear.MappingProxyType` or `nnx.graphlib.tp`. Such a name
has the same meaning in all of flax's modules, so one table serves them all. A module here looks up only names that it
lacks itself.
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
