"""jaxtyping contracts that hold inside transforms, and for every size.

`import weft` does not load this package; the first record, or the first checked call, does. The prover (`verify`,
`weft check`) is in modules of its own, so that checking calls does not load it.
"""

import importlib as _importlib
from typing import TYPE_CHECKING, Any

from weft.core.public_names import absence as _absence
from weft.typecheck.calls.runtime import check, contract
from weft.typecheck.language.dims import Batched, Dims
from weft.typecheck.modes import Mode, current_mode, mode, set_mode

if TYPE_CHECKING:
    from weft.typecheck.calls.importing import ImportHook, install_import_hook
    from weft.typecheck.proofs.prover import verify
    from weft.typecheck.proofs.report import Finding, Report

__all__ = [
    "Batched",
    "Dims",
    "Finding",
    "ImportHook",
    "Mode",
    "Report",
    "check",
    "contract",
    "current_mode",
    "install_import_hook",
    "mode",
    "set_mode",
    "verify",
]

# Importing these takes time that a program which only checks calls should not spend.
_ON_FIRST_USE = {
    "verify": "proofs.prover",
    "Report": "proofs.report",
    "Finding": "proofs.report",
    "ImportHook": "calls.importing",
    "install_import_hook": "calls.importing",
}


def __getattr__(name: str) -> Any:
    if name in _ON_FIRST_USE:
        return getattr(_importlib.import_module(f"weft.typecheck.{_ON_FIRST_USE[name]}"), name)
    raise AttributeError(_absence("weft.typecheck", name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
