"""The bridge to Linen: Linen modules in NNX models, and NNX modules in Linen models.

`ToNNX` wraps a Linen module, `ToLinen` an NNX class. Subclasses of `Module` are written like Linen modules (`compact`,
`setup`, `init`, `apply`) and are NNX modules. Only this room needs flax installed; it is imported at its first use.
"""

from __future__ import annotations

from weft.nnx.errors import MissingExtraError

try:
    import flax.linen as _linen  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "nnx.bridge needs flax for its Linen modules, but flax is not installed",
        fix="pip install 'weft-jax[linen]' (flax)",
    ) from error

from weft.nnx.bridge import interop as interop
from weft.nnx.bridge import module as module
from weft.nnx.bridge import variables as variables
from weft.nnx.bridge import wrappers as wrappers
from weft.nnx.bridge.interop import linen_in_bridge_mdl as linen_in_bridge_mdl
from weft.nnx.bridge.interop import nnx_in_bridge_mdl as nnx_in_bridge_mdl
from weft.nnx.bridge.module import AttrPriority as AttrPriority
from weft.nnx.bridge.module import Module as Module
from weft.nnx.bridge.module import Scope as Scope
from weft.nnx.bridge.module import compact as compact
from weft.nnx.bridge.module import current_context as current_context
from weft.nnx.bridge.module import current_module as current_module
from weft.nnx.bridge.variables import NNXMeta as NNXMeta
from weft.nnx.bridge.variables import with_partitioning as with_partitioning
from weft.nnx.bridge.wrappers import Functional as Functional
from weft.nnx.bridge.wrappers import ToLinen as ToLinen
from weft.nnx.bridge.wrappers import ToNNX as ToNNX
from weft.nnx.bridge.wrappers import functional as functional
from weft.nnx.bridge.wrappers import lazy_init as lazy_init
from weft.nnx.bridge.wrappers import to_linen as to_linen
from weft.nnx.bridge.wrappers import to_linen_class as to_linen_class
from weft.nnx.nn import initializers as initializers
