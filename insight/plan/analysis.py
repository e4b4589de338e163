"""Makes a plan from a traced step and its compiled program."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping

from weft.insight.plan.activations import Activations, matrix_flops
from weft.insight.plan.arguments import Argument
from weft.insight.plan.collectives import collectives_of, phase_of
from weft.insight.plan.hardware import Hardware
from weft.insight.plan.hlo import Module, bytes_of, sizes_of
from weft.insight.plan.plan_warnings import warnings_of
from weft.insight.plan.report import Activation, Bytes, Plan, Seconds
from weft.insight.plan.simulated import Compiled
from weft.insight.plan.tracing import Program


def analysed(
    program: Program,
    activations: Activations,
    step: Compiled,
    returning: Compiled | None,
    mesh: Mapping[str, int],
    device: Hardware,
) -> Plan:
    """Makes a plan from a traced step and its compiled programs.

    Args:
        program: the traced step.
        activations: the values that the step keeps for its backward pass.
        step: the compiled step.
        returning: the compiled program that returns the activations.
        mesh: sizes by axis.
        device: the hardware to estimate times for.
    """
    module = Module(step.text)
    by_path = _activations(returning, activations.paths)
    sizes = _bytes(program.arguments, step, module, sum(activation.bytes for activation in by_path))
    collectives = collectives_of(module, program.arguments, mesh, device)
    total, half = matrix_flops(program.closed.jaxpr)
    flops = {**_flops(module), "model": total}
    # The CPU backend widens bfloat16, so the compiled program does not show which products were in half precision: the
    # share is counted on the jaxpr.
    share = half / total if total else 0
    traffic = sizes.arguments + sizes.outputs + _operand_bytes(module) * (1 - share / 2)
    rate = 1 / (share / device.flops + (1 - share) / device.flops32)
    moving = sum(collective.seconds for collective in collectives)
    seconds = Seconds(flops["total"] / rate, traffic / device.bandwidth, moving)
    warnings = warnings_of(program.arguments, collectives, sizes, device, math.prod(mesh.values()))
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
    intensity = flops["total"] / max(traffic, 1)
    return Plan(dict(mesh), device, sizes, by_path, collectives, flops, seconds, warnings, notes, intensity)


def _bytes(arguments: list[Argument], step: Compiled, module: Module, activations: int) -> Bytes:
    roles: dict[str, int] = dict.fromkeys(("params", "optimizer", "state", "batch"), 0)
    for argument in arguments:
        roles[argument.role] += argument.local
    memory = step.memory
    return Bytes(
        **roles,
        # XLA's own count of output bytes includes the pointers of the output tuple.
        outputs=bytes_of(module.output),
        gradients=roles["params"] if "transpose(" in step.text else 0,
        activations=activations,
        temporaries=memory["temp"],
        peak=memory["argument"] + memory["output"] - memory["alias"] + memory["temp"],
    )


def _activations(returning: Compiled | None, paths: list[str]) -> list[Activation]:
    sums: Counter[str] = Counter()
    if returning is not None:
        for path, (dtype, shape) in zip(paths, sizes_of(Module(returning.text).output), strict=True):
            sums[path or "outside of the model"] += bytes_of(f"{dtype}[{','.join(map(str, shape))}]")
    return [Activation(path, size) for path, size in sums.most_common()]


def _operand_bytes(module: Module) -> int:
    """Returns the bytes of the operands and results of all matrix products."""
    products = [(product, times) for product, times in module.instructions() if product.opcode == "dot"]
    return sum(
        times * (bytes_of(product.type) + sum(bytes_of(operand.type) for operand in module.operands(product)))
        for product, times in products
    )


def _flops(module: Module) -> dict[str, int]:
    """Counts the operations of matrix products and convolutions on one device, by phase."""
    counts: dict[str, int] = dict.fromkeys(("forward", "backward", "recomputed", "update"), 0)
    for instruction, times in module.instructions():
        if instruction.opcode not in ("dot", "convolution"):
            continue
        lhs, rhs = (sizes_of(operand.type)[0][1] for operand in module.operands(instruction))
        contracted = math.prod(lhs[i] for i in instruction.dims("lhs_contracting_dims"))
        if instruction.opcode == "convolution":
            labels = re.search(r"dim_labels=\w+_(\w+)->", instruction.rest)
            # Each output element of a convolution sums over the kernel, but for the axis of output features.
            contracted = math.prod(rhs) // (rhs[labels[1].index("o")] if labels else 1)
        flops = 2 * math.prod(sizes_of(instruction.type)[0][1]) * contracted
        counts[phase_of(instruction.op_name, module)] += flops * times
    return {**counts, "total": sum(counts.values())}
