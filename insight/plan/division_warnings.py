"""The warnings about a step whose devices compute the same: how it divides its batch, and what that costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.insight.plan.arguments import Argument, Batch
from weft.insight.plan.batches import Growth
from weft.insight.plan.hlo import Module, sizes_of
from weft.insight.plan.products import Done, TracedProduct
from weft.insight.plan.report import PlanWarning
from weft.insight.plan.text import show

# Activations that are divided badly need this share of the bytes of all activations for a warning.
_SHARE = 0.01
# Devices may compute this much more than the step asks for without a warning. Right programs repeat small products,
# such as a router's, and round a size up to a multiple of the mesh's; the blocks of a model, repeated on as few as two
# devices, are beyond it.
_REPEATED = 1.25


@dataclass(frozen=True)
class KeptValue:
    """An activation: the module that computed it, its shape, its shape on one device, and its bytes there."""

    path: str
    shape: tuple[int, ...]
    local: tuple[int, ...]
    bytes: int


def division_warnings(batch: Batch, values: Sequence[KeptValue], growth: Growth, module: Module) -> list[PlanWarning]:
    """Warns about micro-batches that are smaller than the mesh, and about activations divided over their features."""
    warnings: list[PlanWarning] = []
    if batch.parts == 1:
        return warnings
    over, part = ", ".join(batch.axes), growth.part
    if part and part.size < batch.parts:
        text = f"a micro-batch at {part.where} has fewer examples, {part.size}, than {over} has devices, {batch.parts}"
        way = f"divide the batch of {batch.size} into at most {batch.size // batch.parts} micro-batches"
        way = f"{way}, or take a batch of at least {batch.size * batch.parts // part.size}"
        warnings.append(PlanWarning("micro-batch", f"{text}, so devices compute the same or wait: {way}", 0))
    divided = [value for value, axes in zip(values, growth.axes, strict=True) if _is_by_features(value, axes)]
    # The program that returns the activations may divide them otherwise than the step, in which nothing returns them.
    shapes = {shape for instruction, _ in module.instructions() for _, shape in sizes_of(instruction.type)}
    divided = [value for value in divided if value.local in shapes]
    size = sum(value.bytes for value in divided)
    if divided and size > _SHARE * sum(value.bytes for value in values):
        largest = max(divided, key=lambda value: value.bytes)
        text = f"{len(divided)} activations, such as {largest.path} {largest.shape}, are divided over their features"
        text = f"{text}, and each device has the whole batch, although {over} divides the batch"
        warnings.append(PlanWarning("activations", f"{text} ({show(size)} a device): {_annotate(batch)}", size))
    return warnings


def _is_by_features(value: KeptValue, axes: Sequence[int]) -> bool:
    """Whether all axes of the batch are whole while the last axis is divided.

    Another axis may be divided on purpose: each device has all examples of some experts of a mixture.
    """
    return bool(axes) and all(value.local[i] == value.shape[i] for i in axes) and value.local[-1] < value.shape[-1]


def compute_warnings(
    arguments: Sequence[Argument],
    batch: Batch,
    asked: Sequence[TracedProduct],
    done: Sequence[Done],
    mesh: Mapping[str, int],
) -> list[PlanWarning]:
    """Warns about devices that together compute more than the step asks for, with what its remat repeats."""
    devices, wanted = math.prod(mesh.values()), sum(product.flops for product in asked)
    total = devices * sum(product.flops for product in done)
    if not wanted or total <= _REPEATED * wanted or not all(product.is_counted for product in asked):
        return []
    places: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    for product in done:
        places[product.where] += devices * product.flops
    for product in asked:
        expected[product.where] += product.flops
    place = max(places, key=lambda place: places[place] - expected[place])
    often = f"{places[place] / expected[place]:.3g} times" if expected[place] else "more often than the step asks"
    text = f"the devices compute {total / wanted:.2f} times what the step asks for, with its remat"
    culprit = next(product for product in done if product.where == place)
    way = _way_out(culprit, arguments, batch, mesh)
    return [PlanWarning("compute", f"{text}; the products at {place} run {often}: {way}", 0)]


def _way_out(culprit: Done, arguments: Sequence[Argument], batch: Batch, mesh: Mapping[str, int]) -> str:
    specs = [getattr(argument.aval.sharding, "spec", ()) for argument in arguments]
    used = {axis for spec in specs for entry in spec for axis in (entry if isinstance(entry, tuple) else (entry,))}
    if idle := [axis for axis, size in mesh.items() if size > 1 and axis not in used]:
        axes = (*batch.axes, *idle)
        return f"no argument is divided over {', '.join(idle)}; divide the batch, with batch={axes!r}, or parameters"
    if culprit.phase == "update":
        return "divide the parameters with a rule, and each device updates its part"
    ways = [_annotate(batch)] if batch.parts > 1 else []
    params = [argument for argument in arguments if argument.role == "params" and argument.parts == 1]
    whole = [param for param in params if culprit.path and param.owner == culprit.path]
    ways += [f"divide {max(whole, key=lambda param: param.size).path} with a rule"] if whole else []
    return ", or ".join(ways) or "divide more of the parameters or of the batch"


def _annotate(batch: Batch) -> str:
    axes = batch.axes[0] if len(batch.axes) == 1 else batch.axes
    return (
        "annotate the shapes of activations, and plan and run the step inside `with weft.axis_rules(mesh, rules):` "
        f"with a rule for the batch's axis, such as {{'batch': {axes!r}}}"
    )
