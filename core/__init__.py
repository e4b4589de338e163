"""Records, kinds, filters, split and merge, keys, the transform interpreter, capture."""

from importlib import import_module
from typing import TYPE_CHECKING

from weft.core.caches import clear_caches
from weft.core.contexts import DEBUG_SUCCESSORS
from weft.core.errors import (
    AliasError,
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
    SuccessorError,
    SurgeryError,
    TracedArrayError,
    TracedBoolError,
    TracedIntegerError,
    TracedMaskError,
    TracedValueError,
    TraceLevelError,
    WeftError,
)
from weft.core.first_use import first_use
from weft.core.interpreter.retraces import RetraceWarning, explain_retraces
from weft.core.records.axis_names import Sharded
from weft.core.records.filters import All, Any, Filter, Inside, InstanceOf, Maybe, Not, PathContains, WithTag
from weft.core.records.kinds import (
    BatchStat,
    Buffer,
    Cache,
    FrozenParam,
    Intermediate,
    Kind,
    LoRAParam,
    MetricState,
    OptState,
    Param,
    Perturbation,
    RngCount,
    RngKey,
    RngState,
)
from weft.core.records.module import Module, static
from weft.core.records.partition import Structure, changes, merge, select, split, update
from weft.core.switches import is_on
from weft.core.threads.debugging import drop
from weft.core.threads.handle import peek, thread

if TYPE_CHECKING:
    from weft.core.records.keys import Keys, KeyStream, SeedError, StreamError, debug_keys
    from weft.core.records.surgery import at
    from weft.core.sowing.capturing import CaptureError, capture, perturb, perturbations, scope, sow
    from weft.core.threads.lost import debug_successors

# The module of each name that is imported on first use; a test compares this with the imports above.
_HOMES = {
    "weft.core.records.keys": "Keys KeyStream SeedError StreamError debug_keys",
    "weft.core.records.surgery": "at",
    "weft.core.sowing.capturing": "CaptureError capture perturb perturbations scope sow",
    "weft.core.threads.lost": "debug_successors",
}
__getattr__, __dir__ = first_use(globals(), _HOMES)

if is_on(DEBUG_SUCCESSORS):
    import_module("weft.core.threads.lost")  # from the first call on

__all__ = [
    "AliasError",
    "All",
    "Any",
    "AxisError",
    "BatchStat",
    "BranchError",
    "Buffer",
    "Cache",
    "CaptureError",
    "CarryError",
    "CheckError",
    "DifferentiationError",
    "DonatedError",
    "Filter",
    "FilterError",
    "ForeignObjectError",
    "FrozenError",
    "FrozenParam",
    "Inside",
    "InstanceOf",
    "Intermediate",
    "KeyReuseError",
    "KeyStream",
    "Keys",
    "Kind",
    "LoRAParam",
    "Maybe",
    "MeshError",
    "MetricState",
    "MissingExtraError",
    "MissingRuleError",
    "Module",
    "NonFiniteError",
    "Not",
    "OptState",
    "PairError",
    "Param",
    "PathContains",
    "Perturbation",
    "RetraceWarning",
    "RngCount",
    "RngKey",
    "RngState",
    "SeedError",
    "Sharded",
    "StaticError",
    "StreamError",
    "Structure",
    "StructureError",
    "SuccessorError",
    "SurgeryError",
    "TraceLevelError",
    "TracedArrayError",
    "TracedBoolError",
    "TracedIntegerError",
    "TracedMaskError",
    "TracedValueError",
    "WeftError",
    "WithTag",
    "at",
    "capture",
    "changes",
    "clear_caches",
    "debug_keys",
    "debug_successors",
    "drop",
    "explain_retraces",
    "merge",
    "peek",
    "perturb",
    "perturbations",
    "scope",
    "select",
    "sow",
    "split",
    "static",
    "thread",
    "update",
]
