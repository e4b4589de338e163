"""Makes a plan from a traced step and its compiled program."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.insight.plan.activations import Activations
from weft.insight.plan.arguments import Argument, Batch, batch_of
from weft.insight.plan.batches import Growth
from weft.insight.plan.collectives import collectives_of
from weft.insight.plan.division_warnings import KeptValue, compute_warnings, division_warnings
from weft.insight.plan.hardware import Hardware
from weft.insight.plan.hlo import Module, bytes_of, sizes_of
from weft.insight.plan.plan_warnings import memory_warnings, warnings_of
from weft.insight.plan.products import asked_products, done_products
from weft.insight.plan.report import Activation, Bytes, Plan, Seconds
from weft.insight.plan.simulated import Compiled
from weft.insight.plan.tracing import Program


@dataclass(frozen=True)
class Runs:
    """The compiled programs of a plan.

    Attributes:
        step: the step.
        returning: the program that returns the activations.
        larger: the step for a batch twice as large.
    """

    step: Compiled
    returning: Compiled | None = None
    larger: Compiled | None = None


def analysed(
    program: Program,
    activations: Activations,
    growth: Growth | None,
    runs: Runs,
    mesh: Mapping[str, int],
    device: Hardware,
) -> Plan:
    """Makes a plan from a traced step and its compiled programs.

    Args:
        program: the traced step.
        activations: the values that the step keeps for its backward pass.
        growth: what grows with the batch, if that is known.
        runs: the compiled programs.
        mesh: sizes by axis.
        device: the hardware to estimate times for.
    """
    step, arguments = runs.step, program.arguments
    module, batch = Module(step.text), batch_of(arguments)
    values = _kept_values(runs.returning, activations)
    by_path: Counter[str] = Counter()
    for value in values:
        by_path[value.path] += value.bytes
    sizes = _bytes(arguments, step, module, by_path.total())
    collectives = collectives_of(module, arguments, mesh, device)
    asked, done = list(asked_products(program.closed.jaxpr)), done_products(module)
    flops: dict[str, int] = dict.fromkeys(("forward", "backward", "recomputed", "update"), 0)
    for product in done:
        flops[product.phase] += product.flops
    # `model` counts the operations that the mathematics needs, and remat repeats some of them.
    total = sum(product.flops for product in asked if not product.is_repeated)
    half = sum(product.flops for product in asked if not product.is_repeated and product.is_half)
    flops = {**flops, "total": sum(flops.values()), "model": total}
    # The CPU backend widens bfloat16, so the compiled program does not show which products were in half precision: the
    # share is counted on the jaxpr.
    share = half / total if total else 0
    traffic = sizes.arguments + sizes.outputs + sum(product.bytes for product in done) * (1 - share / 2)
    rate = 1 / (share / device.flops + (1 - share) / device.flops32)
    moving = sum(collective.seconds for collective in collectives)
    seconds = Seconds(flops["total"] / rate, traffic / device.bandwidth, moving)
    devices = math.prod(mesh.values())
    # Causes before effects: an undivided kernel causes transfers, and all of them fill memory.
    warnings = warnings_of(arguments, collectives, devices)
    warnings += division_warnings(batch, values, growth, module) if growth else []
    warnings += compute_warnings(arguments, batch, asked, done, mesh)
    warnings += memory_warnings(arguments, sizes, device, devices)
    notes = [
        "peak and temporaries are those of XLA's CPU backend: a GPU or TPU fuses more, and needs less",
        f"gradients, activations and seconds are estimates; seconds are a bound by {device.source}",
    ]
    if half:
        notes.append("the CPU sums bfloat16 in float32: its temporaries and collectives have up to twice the bytes")
    if module.unknown_loops:
        notes.append(f"{module.unknown_loops} loops have no trip count that XLA knows, and count once")
    if sizes.optimizer and not program.donated:
        notes.append("no argument is donated: the parameters before and after the step are in memory together")
    if activations.unseen:
        inside = ", ".join(activations.unseen)
        notes.append(f"activations of a derivative inside of {inside} are in the temporaries only")
    if batch.size and growth is None:
        notes.append("the step cannot be traced for a batch twice as large: how it divides its batch is not examined")
    intensity = flops["total"] / max(traffic, 1)
    largest = _largest_batch(batch, sizes.peak, _peak(runs.larger), device) if runs.larger else None
    return Plan(
        mesh=dict(mesh),
        hardware=device,
        bytes_per_device=sizes,
        activations=[Activation(path, size) for path, size in by_path.most_common()],
        collectives=collectives,
        flops=flops,
        seconds=seconds,
        warnings=warnings,
        notes=notes,
        intensity=intensity,
        examples=batch.size,
        tokens=batch.tokens,
        largest_batch=largest,
    )


def _largest_batch(batch: Batch, peak: int, larger: int, device: Hardware) -> int | None:
    """Returns the largest batch that fits, by a line through the peaks of a batch and of one twice as large."""
    each = (larger - peak) / max(batch.size, 1)
    if each <= 0:
        return None
    size = int((device.memory - peak) // each) + batch.size
    return max(size - size % batch.parts, 0)


def _peak(run: Compiled) -> int:
    memory = run.memory
    return memory["argument"] + memory["output"] - memory["alias"] + memory["temp"]


def _bytes(arguments: list[Argument], step: Compiled, module: Module, activations: int) -> Bytes:
    roles: dict[str, int] = dict.fromkeys(("params", "optimizer", "state", "batch"), 0)
    for argument in arguments:
        roles[argument.role] += argument.local
    return Bytes(
        **roles,
        # XLA's own count of output bytes includes the pointers of the output tuple.
        outputs=bytes_of(module.output),
        gradients=roles["params"] if "transpose(" in step.text else 0,
        activations=activations,
        temporaries=step.memory["temp"],
        peak=_peak(step),
    )


def _kept_values(returning: Compiled | None, activations: Activations) -> list[KeptValue]:
    if returning is None or activations.program is None:
        return []
    outputs = sizes_of(Module(returning.text).output)
    variables: list[Any] = activations.program.closed.jaxpr.outvars
    return [
        KeptValue(
            path or "outside of the model", var.aval.shape, local, bytes_of(f"{dtype}[{','.join(map(str, local))}]")
        )
        for path, var, (dtype, local) in zip(activations.paths, variables, outputs, strict=True)
    ]
