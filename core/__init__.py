"""Records, kinds, filters, split and merge, keys, the transform interpreter, capture."""

from weft.core.errors import (
    AliasError,
    AxisError,
    BranchError,
    CarryError,
    DifferentiationError,
    DonatedError,
    FilterError,
    KeyReuseError,
    StaticError,
    StructureError,
    SuccessorError,
    TraceLevelError,
    WeftError,
)
from weft.core.filters import All, Any, Filter, Not, PathContains, WithTag
from weft.core.kinds import (
    BatchStat,
    Buffer,
    Cache,
    Intermediate,
    Kind,
    LoRAParam,
    OptState,
    Param,
    Perturbation,
    RngCount,
    RngKey,
    RngState,
)
from weft.core.module import Module, static
from weft.core.partition import Structure, changes, merge, select, split, update
