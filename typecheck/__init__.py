"""jaxtyping contracts that hold inside transforms, and for every size.

`import weft` does not load this package; the first record that is made, or the first checked call, does. The prover
(`verify`, `weft check`) is in modules of its own, so that checking calls does not load it.
"""

from weft.typecheck.batched import Batched, Dims
from weft.typecheck.errors import AnnotationError, ContractError, ModeError
from weft.typecheck.modes import Mode, current_mode, mode, set_mode
from weft.typecheck.runtime import check, contract

__all__ = [
    "AnnotationError",
    "Batched",
    "ContractError",
    "Dims",
    "Mode",
    "ModeError",
    "check",
    "contract",
    "current_mode",
    "mode",
    "set_mode",
]
