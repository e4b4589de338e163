"""The bridge: Linen modules in NNX models and NNX modules in Linen models.

`ToNNX` wraps a Linen module, `ToLinen` an NNX class. `Module` is written like a Linen module (`compact`, `setup`,
`init`, `apply`) and is an NNX module. This is the one room that needs flax installed; it is loaded on first use.
"""

from __future__ import annotations

from weft.nnx.errors import MissingExtraError

try:
    import flax.linen as _linen  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "nnx.bridge joins NNX with the Linen modules of flax, which is not installed", fix="pip install flax"
    ) from error

from weft.nnx.bridge import interop, module, variables, wrappers
from weft.nnx.bridge.interop import linen_in_bridge_mdl, nnx_in_bridge_mdl
from weft.nnx.bridge.module import AttrPriority, Module, Scope, compact, current_context, current_module
from weft.nnx.bridge.variables import NNXMeta, with_partitioning
from weft.nnx.bridge.wrappers import (
    Functional,
    ToLinen,
    ToNNX,
    functional,
    lazy_init,
    to_linen,
    to_linen_class,
)
from weft.nnx.nn import initializers

__all__ = [
    "AttrPriority",
    "Functional",
    "Module",
    "NNXMeta",
    "Scope",
    "ToLinen",
    "ToNNX",
    "compact",
    "current_context",
    "current_module",
    "functional",
    "initializers",
    "interop",
    "lazy_init",
    "linen_in_bridge_mdl",
    "module",
    "nnx_in_bridge_mdl",
    "to_linen",
    "to_linen_class",
    "variables",
    "with_partitioning",
    "wrappers",
]
