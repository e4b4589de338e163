"""The warnings of a plan: arrays that could be divided, transfers that no rule asked for, too little memory."""

from __future__ import annotations

import itertools

from weft.insight.plan.arguments import Argument
from weft.insight.plan.hardware import Hardware
from weft.insight.plan.report import Bytes, Collective, PlanWarning
from weft.insight.plan.text import show

# A warning needs this share of all parameters' bytes, or of the bytes of all collectives. Small arrays are whole on
# every device in right programs too, and warnings about them would hide the costly ones.
_SHARE = 0.01


def warnings_of(arguments: list[Argument], collectives: list[Collective], devices: int) -> list[PlanWarning]:
    """Returns the warnings, causes before effects: an undivided kernel causes transfers, and these fill memory."""
    warnings: list[PlanWarning] = []
    params = [argument for argument in arguments if argument.role == "params"]
    total = sum(param.size for param in params)
    is_divided = any(param.parts > 1 for param in params)
    # If no parameter is divided, data parallelism is intended.
    large = [param for param in params if param.parts == 1 and len(param.aval.shape) > 1]
    large = [param for param in large if is_divided and devices > 1 and param.size > _SHARE * total]
    for param in large:
        text = f"{param.path} {param.aval.shape} is whole on every device, while the rules divide other parameters"
        warnings.append(PlanWarning("replicated", f"{text}: {show(param.size)}", param.size))
    warnings += _undivided_moments(arguments, params)
    warnings += _reshardings(collectives, [param.owner for param in large])
    return warnings


def memory_warnings(arguments: list[Argument], sizes: Bytes, device: Hardware, devices: int) -> list[PlanWarning]:
    """Warns about a step that does not fit, and about parameters that are whole on every device of it."""
    if sizes.peak <= device.memory:
        return []
    text = f"the step does not fit: {show(sizes.peak)} of {show(device.memory)}"
    warnings = [PlanWarning("memory", text, sizes.peak - int(device.memory))]
    params = [argument for argument in arguments if argument.role == "params"]
    # Data parallelism that fits has whole parameters on purpose.
    if params and devices > 1 and all(param.parts == 1 for param in params):
        total = sum(param.size for param in params)
        text = f"all parameters are whole on each of {devices} devices: {show(total)}"
        text += "; divide them with a rule, as `weft.plan.TABLES` has them"
        warnings.insert(0, PlanWarning("replicated", text, total))
    return warnings


def _undivided_moments(arguments: list[Argument], params: list[Argument]) -> list[PlanWarning]:
    """Warns about arrays of an optimizer that are divided less than their parameter.

    The parameter of a moment is the parameter of the same shape whose path has the longest end in common with the
    moment's path, because an optimizer stores its moments in a tree like the model.
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


def _common_end(first: str, second: str) -> int:
    pairs = zip(reversed(first), reversed(second), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _reshardings(collectives: list[Collective], owners: list[str]) -> list[PlanWarning]:
    """Warns about collectives that no rule asked for, except in modules that have a warning for their kernel."""
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
