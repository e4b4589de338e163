"""Every exception that weft raises, to name in `except` and `pytest.raises`; loaded on first use.

Five of them are `weft`'s own names: `WeftError`, from which the others derive, and `ContractError`, `AliasError`,
`SuccessorError` and `CheckpointError`. The errors of `weft.nnx` alone are in `weft.nnx.errors`.

>>> import jax.numpy as jnp, weft
>>> try:
...     weft.vmap(lambda x, y: x + y)(jnp.ones(2), jnp.ones(3))
... except weft.errors.AxisError as error:
...     print(error.what)
vmap got arguments with inconsistent sizes on their mapped axes: 2, 3
"""

from typing import TYPE_CHECKING

from weft.core.errors import (
    AxisError,
    BranchError,
    CarryError,
    CheckError,
    DifferentiationError,
    DonatedError,
    FilterError,
    ForeignObjectError,
    FrozenError,
    KeyReuseError,
    MeshError,
    MissingExtraError,
    MissingRuleError,
    NonFiniteError,
    PairError,
    StaticError,
    StructureError,
    SurgeryError,
    TracedArrayError,
    TracedBoolError,
    TracedIntegerError,
    TracedMaskError,
    TracedValueError,
    TraceLevelError,
)
from weft.core.public_names import first_use

if TYPE_CHECKING:
    from weft.core.edge.moved import MissingNameError
    from weft.core.interpreter.retraces import RetraceWarning
    from weft.core.records.constructing import ArgumentError
    from weft.core.records.keys import SeedError, StreamError
    from weft.core.sowing.tags import CaptureError
    from weft.modules.attention.kv_cache import CacheError
    from weft.modules.construct import ConfigError
    from weft.modules.convolutions.windows import PaddingError
    from weft.modules.learning.metrics import MetricError
    from weft.modules.norms.moments import UnboundAxisError
    from weft.modules.sharding.unnamed import ReplicatedWarning
    from weft.typecheck.calls.importing import ImportHookError
    from weft.typecheck.errors import AnnotationError, BudgetError, ModeError, PromotionError

# Where each of them comes from; a test holds the two lists together.
_HOMES = {
    "weft.core.edge.moved": "MissingNameError",
    "weft.core.interpreter.retraces": "RetraceWarning",
    "weft.core.records.constructing": "ArgumentError",
    "weft.core.records.keys": "SeedError StreamError",
    "weft.core.sowing.tags": "CaptureError",
    "weft.modules.attention.kv_cache": "CacheError",
    "weft.modules.construct": "ConfigError",
    "weft.modules.convolutions.windows": "PaddingError",
    "weft.modules.learning.metrics": "MetricError",
    "weft.modules.norms.moments": "UnboundAxisError",
    "weft.modules.sharding.unnamed": "ReplicatedWarning",
    "weft.typecheck.calls.importing": "ImportHookError",
    "weft.typecheck.errors": "AnnotationError BudgetError ModeError PromotionError",
}
if not TYPE_CHECKING:  # a checker would take every misspelt name for one that is there
    __getattr__, _ = first_use(globals(), _HOMES)


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "AnnotationError",
    "ArgumentError",
    "AxisError",
    "BranchError",
    "BudgetError",
    "CacheError",
    "CaptureError",
    "CarryError",
    "CheckError",
    "ConfigError",
    "DifferentiationError",
    "DonatedError",
    "FilterError",
    "ForeignObjectError",
    "FrozenError",
    "ImportHookError",
    "KeyReuseError",
    "MeshError",
    "MetricError",
    "MissingExtraError",
    "MissingNameError",
    "MissingRuleError",
    "ModeError",
    "NonFiniteError",
    "PaddingError",
    "PairError",
    "PromotionError",
    "ReplicatedWarning",
    "RetraceWarning",
    "SeedError",
    "StaticError",
    "StreamError",
    "StructureError",
    "SurgeryError",
    "TraceLevelError",
    "TracedArrayError",
    "TracedBoolError",
    "TracedIntegerError",
    "TracedMaskError",
    "TracedValueError",
    "UnboundAxisError",
]
