"""Records, kinds, keys, the transform interpreter, capture."""

from importlib import import_module
from typing import TYPE_CHECKING

from weft.core.caches import clear_caches
from weft.core.contexts import DEBUG_SUCCESSORS
from weft.core.errors import AliasError, SuccessorError, WeftError
from weft.core.first_use import first_use
from weft.core.records.axis_names import Sharded
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
from weft.core.switches import is_on
from weft.core.threads.debugging import drop_successor
from weft.core.threads.handle import peek, thread

if TYPE_CHECKING:
    from weft.core.records.keys import Keys, KeyStream
    from weft.core.records.surgery import at
    from weft.core.sowing.capturing import capture, name_scope, perturb, perturbations, sow

# The module of each name that is imported on first use; a test compares this with the imports above.
_HOMES = {
    "weft.core.records.keys": "Keys KeyStream",
    "weft.core.records.surgery": "at",
    "weft.core.sowing.capturing": "capture name_scope perturb perturbations sow",
}
__getattr__, __dir__ = first_use(globals(), _HOMES)

if is_on(DEBUG_SUCCESSORS):
    import_module("weft.core.threads.lost")  # from the first call on

__all__ = [
    "AliasError",
    "BatchStat",
    "Buffer",
    "Cache",
    "FrozenParam",
    "Intermediate",
    "KeyStream",
    "Keys",
    "Kind",
    "LoRAParam",
    "MetricState",
    "Module",
    "OptState",
    "Param",
    "Perturbation",
    "RngCount",
    "RngKey",
    "RngState",
    "Sharded",
    "SuccessorError",
    "WeftError",
    "at",
    "capture",
    "clear_caches",
    "drop_successor",
    "name_scope",
    "peek",
    "perturb",
    "perturbations",
    "sow",
    "static",
    "thread",
]
