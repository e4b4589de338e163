"""What a failing trial is to a reader: findings, with the program that shows them, and whether that is in doubt."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.typecheck.arguments.builder import Unbuildable
from weft.typecheck.proofs.confirming import confirmed
from weft.typecheck.proofs.options import describe_option, is_class
from weft.typecheck.proofs.programs import program_of
from weft.typecheck.proofs.report import Finding
from weft.typecheck.proofs.trial import Target, Trial, run_trial
from weft.typecheck.proofs.violations import Violation, with_components
from weft.typecheck.proofs.watch import AsJaxtyping
from weft.typecheck.proofs.whose import is_users


@dataclass(frozen=True)
class Shown:
    """A failing trial as it is told.

    Attributes:
        findings: what is wrong.
        doubt: why nobody else could see that, if so.
        is_over: whether that is unknown because a limit was reached.
    """

    findings: list[Finding]
    doubt: str = ""
    is_over: bool = False


def shown(target: Target, trial: Trial, dims: Mapping[str, Any]) -> Shown:
    """What a failing trial is to a reader, with the program that shows it, and why it is doubtful, if it is."""
    told = _told(target, trial, dims)
    if told.doubt and not told.is_over and trial.violations:
        # What is given beside may be what keeps the program from being run.
        spare = _left_out(target, trial, dims)
        other = _told(target, spare, dims) if spare is not None else told
        return told if other.doubt else other
    return told


def _left_out(target: Target, trial: Trial, dims: Mapping[str, Any]) -> Trial | None:
    """The trial that leaves out what may be left out, if the same does not hold in it."""
    usual = trial.assignment.options
    options = {one: 1 for one in trial.options if one.endswith((" given", " present")) and not usual.get(one, 0)}
    if not options:
        return None
    try:
        spare = run_trial(target, dataclasses.replace(trial.assignment, options={**usual, **options}), dims)
    except Unbuildable:
        return None
    return spare if spare.violations and spare.place == trial.place else None


def _told(target: Target, trial: Trial, dims: Mapping[str, Any]) -> Shown:
    program, strangers = program_of(target, trial, dims), not is_users(target.file)
    if program.forms and strangers:
        seen = _seen_by_jaxtyping(target, trial, dims)
        if seen.violations and seen.place != trial.place:
            trial, program = seen, program_of(target, seen, dims)
        elif seen.ok:
            doubt = "only what instances and integers say of dims shows it, which jaxtyping does not bind"
            return Shown(findings_of(target, trial), doubt)
    of_instances = bool(trial.violations) and trial.violations[0].of_instances
    if program.forms and strangers and not of_instances:
        program = confirmed(program, trial.violations[0])
    findings = [dataclasses.replace(one, program=program.text) for one in findings_of(target, trial)]
    if not program.text and strangers:
        return Shown(findings, f"no program of a few lines shows it: {program.why}")
    if of_instances and strangers:
        return Shown(findings, "only the dims of records show it, which jaxtyping does not bind")
    if program.is_over:
        return Shown(findings, f"the program that should show it was ended: {program.why}", is_over=True)
    if program.shows is not False:
        return Shown(findings)
    if trial.violations and not strangers:
        # Seen through the dims of an instance, or of a number called like a dim: what weft adds to jaxtyping. Whoever
        # wrote an installed package has not asked for that.
        return Shown([dataclasses.replace(one, program=f"{program.plain}  # {one.message}") for one in findings])
    return Shown(findings, f"the program that should show it does not: {program.why}")


def _seen_by_jaxtyping(target: Target, trial: Trial, dims: Mapping[str, Any]) -> Trial:
    """The same trial without what weft adds to jaxtyping: whoever wrote an installed package has not asked for that."""
    try:
        return run_trial(target, trial.assignment, dims, AsJaxtyping)
    except Unbuildable:
        return trial


def findings_of(target: Target, trial: Trial) -> list[Finding]:
    """What a failing trial is to a reader."""
    sizes = dict(trial.assignment.sizes)
    options = tuple(
        describe_option(trial, place, option)
        for place, option in trial.assignment.options.items()
        if option or is_class(place)
    )
    findings = [
        Finding("contract", f"{_place_of(one)}: {one.message}", one.file, one.line, sizes, options)
        for one in trial.violations[:1]
    ]
    if trial.error is not None and not findings:
        file, line = trial.error_at if trial.error_at[1] else (target.file, target.line)
        findings.append(Finding("error", with_components(trial.error), file, line, sizes, options))
    return findings


def _place_of(violation: Violation) -> str:
    inside = f" (in {violation.inside})" if violation.inside else ""
    return f"{violation.function}, {violation.where}{inside}"
