"""Error messages of failing trials in the names of dims: `got (dec,) and (enc,)` in place of `got (2,) and (1,)`.

No text is edited. The trial is traced once more over symbolic sizes with the same numbers, and JAX writes the sizes'
names where it wrote numbers.
"""

from __future__ import annotations

import dataclasses
import traceback
from types import CodeType

from weft.typecheck.proofs.budget import Exhausted
from weft.typecheck.proofs.explaining import Explainer
from weft.typecheck.proofs.needs import Needs
from weft.typecheck.proofs.trial import Trial
from weft.typecheck.proofs.under_needs import written_under


def in_names(explainer: Explainer, trial: Trial) -> Trial:
    """The failing trial with its error in the names of dims, if a trace over symbolic sizes raises the same error."""
    if trial.violations or trial.error is None or isinstance(trial.error, RecursionError):
        return trial
    written = written_under(Needs(), trial.assignment.sizes, set(explainer.dims))
    try:
        _, traced = explainer.followed(trial, written, written.numbers)
    except Exhausted:
        return trial
    # Over symbolic sizes another line of a library may raise, and say less: `zip() argument 2 is shorter` for an einsum
    # whose labels differ in size.
    if isinstance(traced, Exception) or traced.error is None or _raised_by(traced.error) != _raised_by(trial.error):
        return trial
    return dataclasses.replace(trial, error=traced.error)


def _raised_by(error: Exception) -> tuple[type, CodeType | None]:
    """The class of an error, and the code object that raised it."""
    *_, last = (None, *(frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)))
    return type(error), last
