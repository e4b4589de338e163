"""The findings of a failing trial, in the names of dims, with a program that shows each, and the reason of a doubt."""

from __future__ import annotations

import ast
import dataclasses
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

from weft.typecheck.arguments.builder import Unbuildable
from weft.typecheck.messages.sources import only_return
from weft.typecheck.proofs.budget import Exhausted
from weft.typecheck.proofs.explaining import Explainer
from weft.typecheck.proofs.needs import Needs
from weft.typecheck.proofs.options import is_class, phrases
from weft.typecheck.proofs.programs import program_of
from weft.typecheck.proofs.report import Edit, Finding
from weft.typecheck.proofs.trial import Target, Trial, run_trial
from weft.typecheck.proofs.under_needs import written_under
from weft.typecheck.proofs.violations import OF_INSTANCES, Violation
from weft.typecheck.proofs.watch import AsJaxtyping
from weft.typecheck.proofs.wording import with_components


@dataclass(frozen=True)
class Shown:
    """The findings of a failing trial.

    Attributes:
        findings: the failures, with their programs.
        doubt: why nobody without weft could see the failure; "" if somebody could.
    """

    findings: list[Finding]
    doubt: str = ""


def shown(target: Target, trial: Trial, dims: Mapping[str, Any]) -> Shown:
    """The findings of a failing trial, with their programs, and whether they are in doubt.

    weft binds dims by instances and by integers, which jaxtyping does not. A user of weft has asked for that. The
    author of an installed package has not, so a failure there that only weft sees is in doubt.
    """
    strangers = not target.is_users
    by_weft = False
    if trial.violations:
        # One more trial in this process answers whether jaxtyping would see the violation. Running the program instead
        # took processes without weft, and regular expressions over jaxtyping's messages.
        seen = _seen_by_jaxtyping(target, trial, dims)
        by_weft = seen.ok or (bool(seen.violations) and seen.place != trial.place)
        if strangers and (seen.ok or trial.violations[0].reason in OF_INSTANCES):
            return Shown(
                findings_of(target, trial),
                "it shows only where instances and integers bind dims, as weft lets them and jaxtyping does not",
            )
        # jaxtyping sees another violation of this trial. Its author can see that one, so it is the one to tell.
        if strangers and by_weft:
            trial, by_weft = seen, False
    program = program_of(target, trial, dims, by_weft=by_weft)
    findings = [dataclasses.replace(one, program=program.text) for one in findings_of(target, trial)]
    # A failure that nobody can repeat would be taken for one of weft.
    if strangers and not program.text:
        return Shown(findings, f"no program of a few lines shows it: {program.reason}")
    return Shown(findings)


def _seen_by_jaxtyping(target: Target, trial: Trial, dims: Mapping[str, Any]) -> Trial:
    """The same trial, watched as jaxtyping would: neither instances nor integers bind dims."""
    try:
        return run_trial(target, trial.assignment, dims, AsJaxtyping)
    except Unbuildable:
        return trial


def findings_of(target: Target, trial: Trial) -> list[Finding]:
    """The findings of a failing trial: its first violation, or else its error."""
    sizes = dict(trial.assignment.sizes)
    options = tuple(
        phrases(trial.options, place, option).taken_here
        for place, option in trial.assignment.options.items()
        if option or is_class(place)
    )
    findings = [
        Finding(
            "contract",
            f"{_place_of(one)}: {one.message}",
            one.file,
            one.line,
            sizes,
            options,
            fix=one.fix.text if one.fix is not None else "",
            edit=_edit_of(one),
        )
        # Violations after the first often follow from it, and each would be a finding of its own.
        for one in trial.violations[:1]
    ]
    if trial.error is not None and not findings:
        file, line = trial.error_at if trial.error_at[1] else (target.file, target.line)
        findings.append(Finding("error", with_components(trial.error), file, line, sizes, options))
    return findings


def _edit_of(violation: Violation) -> Edit | None:
    """The change of a function's only `return` that mends its value; None if there are several, or no fix is known."""
    if violation.fix is None or not violation.fix.mend or violation.where != "return":
        return None
    place = only_return(violation.file, violation.line)
    if place is None:
        return None
    line, text = place
    # A fix such as `{x}.T` binds tighter than most operators: `return a + b` becomes `return (a + b).T`.
    operand = ast.parse(text, mode="eval").body
    is_primary = isinstance(operand, ast.Name | ast.Attribute | ast.Subscript | ast.Call)
    mended = violation.fix.mend.format(x=text if is_primary else f"({text})")
    return Edit(violation.file, line, f"return {text}", f"return {mended}")


def _place_of(violation: Violation) -> str:
    inside = f" (in {violation.inside})" if violation.inside else ""
    return f"{violation.function}, {violation.where}{inside}"


def in_names(explainer: Explainer, trial: Trial) -> Trial:
    """The failing trial with its error in the names of dims, if a trace over symbolic sizes raises the same error.

    No text is edited. The trial is traced once more over symbolic sizes with the same numbers, and JAX writes the
    sizes' names where it wrote numbers: `got (dec,) and (enc,)`, not `got (2,) and (1,)`.
    """
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
