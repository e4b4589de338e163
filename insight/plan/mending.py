"""What to look at first in a plan: arrays that could be divided, transfers no rule asked for, too little memory."""

from __future__ import annotations

import itertools

from weft.insight.plan.arguments import Argument
from weft.insight.plan.hardware import Hardware
from weft.insight.plan.report import Bytes, Collective, PlanWarning
from weft.insight.plan.text import show

# The share of all parameters' bytes, or of all that collectives move, below which nothing is told.
_SHARE = 0.01


def warnings_of(
    arguments: list[Argument], collectives: list[Collective], sizes: Bytes, device: Hardware, devices: int
) -> list[PlanWarning]:
    """Warnings, the cause before its effects: a kernel that is whole causes transfers, and these fill memory."""
    warnings: list[PlanWarning] = []
    params = [argument for argument in arguments if argument.role == "params"]
    total = sum(param.size for param in params)
    is_divided = any(param.parts > 1 for param in params)
    large = [param for param in params if param.parts == 1 and len(param.aval.shape) > 1]
    large = [param for param in large if is_divided and devices > 1 and param.size > _SHARE * total]
    for param in large:
        text = f"{param.path} {param.aval.shape} is whole on every device, while rules divide others"
        warnings.append(PlanWarning("replicated", f"{text}: {show(param.size)}", param.size))
    warnings += _undivided_moments(arguments, params)
    warnings += _reshardings(collectives, [_owner(param) for param in large])
    if params and not is_divided and devices > 1:
        text = f"all parameters are whole on each of {devices} devices: {show(total)}"
        warnings.append(PlanWarning("replicated", text, total))
    if sizes.peak > device.memory:
        text = f"the step does not fit: {show(sizes.peak)} of {show(device.memory)}"
        warnings.append(PlanWarning("memory", text, sizes.peak - int(device.memory)))
    return warnings


def _owner(param: Argument) -> str:
    """The path of the module that a parameter belongs to, without the step's argument."""
    return param.path.rpartition(".")[0].partition(".")[2]


def _undivided_moments(arguments: list[Argument], params: list[Argument]) -> list[PlanWarning]:
    """Arrays of an optimizer that are divided less than the parameter that they are for.

    That is the parameter of the same shape whose path has the longest end in common with theirs: an optimizer keeps its
    moments as a tree like the model.
    """
    whole = []
    for moment in arguments:
        same = [param for param in params if moment.role == "optimizer" and param.aval.shape == moment.aval.shape]
        if same and moment.parts < max(same, key=lambda param: _common_end(param.path, moment.path)).parts:
            whole.append(moment)
    if not whole:
        return []
    lost, largest = sum(moment.local for moment in whole), max(whole, key=lambda moment: moment.local)
    text = f"{len(whole)} arrays, {show(lost)} a device, such as {largest.path}"
    return [PlanWarning("optimizer", f"optimizer state is divided less than its parameters: {text}", lost)]


def _common_end(path: str, other: str) -> int:
    pairs = zip(reversed(path), reversed(other), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _reshardings(collectives: list[Collective], owners: list[str]) -> list[PlanWarning]:
    """Collectives that no rule asked for, but those in modules whose kernel is whole, which is told already."""
    moved = sum(collective.bytes * collective.count for collective in collectives)
    warnings = []
    for collective in collectives:
        size = collective.bytes * collective.count
        is_told = any(owner and owner in collective.where for owner in owners)
        if not collective.asked and size > _SHARE * moved and not is_told:
            text = f"no rule asked for this {collective.kind} over {', '.join(collective.axes)} at {collective.where}"
            often = f"{show(collective.bytes)}, {collective.count} times a step"
            warnings.append(PlanWarning("resharding", f"{text}: {often}", size))
    return sorted(warnings, key=lambda warning: -warning.bytes)
