"""From a traced step and what XLA made of it to a plan: collectives, operations, bytes, times and what to mend."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from weft.insight.plan.activations import matrix_flops, path_in
from weft.insight.plan.arguments import Argument
from weft.insight.plan.hardware import Hardware
from weft.insight.plan.hlo import Instruction, Module, bytes_of, sizes_of
from weft.insight.plan.report import Bytes, Collective, Kept, Plan, PlanWarning, Seconds
from weft.insight.plan.simulated import Compiled
from weft.insight.plan.text import show
from weft.insight.plan.tracing import Program

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
_SUMS = ("all-reduce", "reduce-scatter")
# A share of the parameters' bytes (or of what collectives move) from which on something is told.
SHARE = 0.01
_WEFT = Path(__file__).parents[2]
_ROOMS = tuple(str(_WEFT / room) for room in ("core", "transforms", "modules", "nnx", "typecheck", "insight"))


def analysed(
    program: Program, step: Compiled, kept: Compiled | None, paths: list[str], mesh: Mapping[str, int], device: Hardware
) -> Plan:
    """A plan of a step, from what XLA compiled of it and of the program that returns what it keeps."""
    module = Module(step.text)
    sizes = dict(mesh)
    total, half = matrix_flops(program.closed.jaxpr)
    collectives = _collectives(module, program.arguments, sizes, device)
    flops = {**_flops(module), "model": total}
    activations = _kept(kept, paths)
    bytes_per_device = _bytes(program, step, module, sum(one.bytes for one in activations))
    share = half / total if total else 0
    traffic = step.memory["argument"] + step.memory["output"] + _product_bytes(module) * (1 - share / 2)
    peak = 1 / (share / device.flops + (1 - share) / device.flops32)
    seconds = Seconds(flops["total"] / peak, traffic / device.bandwidth, sum(one.seconds for one in collectives))
    warnings = _warnings(program.arguments, collectives, bytes_per_device, device, sizes)
    notes = [
        "peak and temporaries are those of XLA's CPU backend: a GPU or TPU fuses more, and needs less",
        "gradients, activations and seconds are estimates; seconds are a bound by the datasheet: " + device.source,
    ]
    if half:
        notes.append("the CPU sums bfloat16 in float32: its temporaries and collectives have up to twice the bytes")
    if module.unknown_loops:
        notes.append(f"{module.unknown_loops} loops have no trip count that XLA knows, and count once")
    order = sorted(collectives, key=lambda one: (one.asked, -one.seconds))
    intensity = flops["total"] / max(traffic, 1)
    return Plan(sizes, device, bytes_per_device, activations, order, flops, seconds, warnings, notes, intensity)


# ---- bytes -----------------------------------------------------------------------------------------------------------


def _bytes(program: Program, step: Compiled, module: Module, activations: int) -> Bytes:
    roles: dict[str, int] = dict.fromkeys(("params", "optimizer", "state", "batch"), 0)
    for one in program.arguments:
        roles[one.role] += one.local
    has_backward = "transpose(" in step.text
    memory = step.memory
    peak = memory["argument"] + memory["output"] - memory["alias"] + memory["temp"]
    gradients = roles["params"] if has_backward else 0
    # XLA's own count has the table of a tuple's addresses, too.
    outputs = bytes_of(module.root(module.entry).type)
    return Bytes(
        **roles,
        outputs=outputs,
        gradients=gradients,
        activations=activations,
        temporaries=memory["temp"],
        peak=peak,
    )


def _kept(kept: Compiled | None, paths: list[str]) -> list[Kept]:
    if kept is None:
        return []
    sums: dict[str, int] = {}
    for path, (dtype, shape) in zip(paths, Module(kept.text).output_shapes, strict=True):
        name = path or "outside of the model"
        sums[name] = sums.get(name, 0) + bytes_of(f"{dtype}[{','.join(map(str, shape))}]")
    return sorted((Kept(*one) for one in sums.items()), key=lambda one: -one.bytes)


def _product_bytes(module: Module) -> int:
    def moved(one: Instruction) -> int:
        return bytes_of(one.type) + sum(bytes_of(module.operand(one, i).type) for i in range(len(one.operands)))

    return sum(moved(one) * times for one, times in module.instructions() if one.opcode == "dot")


# ---- operations ------------------------------------------------------------------------------------------------------


def _phase(op_name: str, has_derivative: bool = True) -> str:
    if "rematted_computation" in op_name:
        return "recomputed"
    if "transpose(" in op_name:
        return "backward"
    return "forward" if "jvp(" in op_name or not has_derivative else "update"


def _flops(module: Module) -> dict[str, int]:
    """Operations of matrix products and convolutions on one device."""
    has_derivative = "jvp(" in module.text
    counts: dict[str, int] = dict.fromkeys(("forward", "backward", "recomputed", "update"), 0)
    for one, times in module.instructions():
        if one.opcode == "dot":
            left = sizes_of(module.operand(one, 0).type)[0][1]
            contracted = math.prod(left[i] for i in one.dims("lhs_contracting_dims"))
        elif one.opcode == "convolution":
            kernel = sizes_of(module.operand(one, 1).type)[0][1]
            labels = re.search(r"dim_labels=\w+_(\w+)->", one.rest)
            contracted = math.prod(kernel) // kernel[labels[1].index("o")] if labels else math.prod(kernel)
        else:
            continue
        counts[_phase(one.op_name, has_derivative)] += 2 * math.prod(sizes_of(one.type)[0][1]) * contracted * times
    return {**counts, "total": sum(counts.values())}


# ---- collectives -----------------------------------------------------------------------------------------------------


def groups_of(rest: str, count: int) -> list[list[int]]:
    """The groups of devices that a collective goes over.

    >>> groups_of("replica_groups=[2,4]<=[4,2]T(1,0), x", 8)
    [[0, 2, 4, 6], [1, 3, 5, 7]]
    """
    if found := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", rest):
        names = re.findall(r"'([^']+)'=(\d+)", found[1])
        over = set(re.findall(r"'([^']+)'", found[2]))
        ids = np.arange(count).reshape([int(size) for _, size in names])
        order = sorted(range(len(names)), key=lambda i: names[i][0] in over)
        size = math.prod(int(size) for name, size in names if name in over)
        return ids.transpose(order).reshape(-1, size).tolist()
    if found := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest):
        shape, iota = ([int(one) for one in found[i].split(",")] for i in (1, 2))
        ids = np.arange(math.prod(iota)).reshape(iota)
        ids = ids.transpose([int(one) for one in found[3].split(",")]) if found[3] else ids
        return ids.reshape(shape).tolist()
    listed = re.search(r"(?:replica_groups|source_target_pairs)=\{((?:\{[\d,]*\},?)*)\}", rest)
    groups = [
        [int(one) for one in group.split(",") if one]
        for group in re.findall(r"\{([\d,]*)\}", listed[1] if listed else "")
    ]
    return [group for group in groups if group] or [list(range(count))]


def axes_over(groups: list[list[int]], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The axes of a mesh along which the devices of a group differ."""
    places = [np.unravel_index(group, list(mesh.values())) for group in groups]
    return tuple(name for i, name in enumerate(mesh) if any(len(set(map(int, place[i]))) > 1 for place in places))


def _collectives(module: Module, arguments: list[Argument], mesh: dict[str, int], device: Hardware) -> list[Collective]:
    has_derivative, found = "jvp(" in module.text, []
    for one, times in module.instructions():
        kind = one.opcode.removesuffix("-start")
        if kind not in KINDS:
            continue
        inputs = [module.operand(one, i) for i in range(len(one.operands))]
        size = max(bytes_of(one.type) if not one.opcode.endswith("start") else 0, sum(bytes_of(x.type) for x in inputs))
        groups = groups_of(one.rest, math.prod(mesh.values()))
        number = module.parameter_of(inputs[0]) if kind not in _SUMS else None
        moved = arguments[number] if number is not None else None
        moves = moved.path if moved is not None and moved.role != "batch" else None
        phase = _phase(one.op_name, has_derivative)
        asked = kind in _SUMS or moves is not None or phase == "update"
        seconds = _seconds(kind, size, groups, device) * times
        phase = "backward" if phase == "recomputed" else phase
        found.append(
            Collective(kind, size, times, axes_over(groups, mesh), _where(module, one), phase, moves, asked, seconds)
        )
    return found


def _seconds(kind: str, size: int, groups: list[list[int]], device: Hardware) -> float:
    n = len(groups[0])
    ring = {"all-reduce": 2 * (n - 1) / n, "collective-permute": 1.0, "collective-broadcast": 1.0}.get(
        kind, (n - 1) / n
    )
    in_node = all(len({one // device.node for one in group}) == 1 for group in groups)
    return size * ring / (device.link if in_node else device.network)


def _where(module: Module, one: Instruction) -> str:
    one = _with_lines(module, one)
    lines = list(module.lines(one)) or [("", 0)]
    own = [(file, line) for file, line in lines if not file.startswith(_ROOMS) and "site-packages" not in file]
    file, line = (own or lines)[0]
    path = path_in(one.op_name)
    place = f"{Path(file).name}:{line}" if file else "no source line"
    return f"{place} ({path})" if path else place


def _with_lines(module: Module, one: Instruction) -> Instruction:
    """An instruction, or the nearest around it that has source lines: XLA gives what it inserts none now and then."""
    around = module.computations[one.computation].values()
    ahead, seen = [one], {one.name}
    while ahead:
        current = ahead.pop(0)
        if next(module.lines(current), None):
            return current
        readers = [reader for reader in around if current.name in reader.operands]
        sources = [module.operand(current, i) for i in range(len(current.operands)) if current.opcode != "parameter"]
        near = [other for other in (*readers, *sources) if other.name not in seen]
        seen |= {other.name for other in near}
        ahead += near
    return one


# ---- what to mend ----------------------------------------------------------------------------------------------------


def _parts(one: Argument) -> int:
    return one.size // max(one.local, 1)


def _warnings(
    arguments: list[Argument], collectives: list[Collective], bytes_: Bytes, device: Hardware, mesh: dict[str, int]
) -> list[PlanWarning]:
    params = [one for one in arguments if one.role == "params"]
    whole = sum(one.size for one in params)
    divides = any(_parts(one) > 1 for one in params)
    large = [one for one in params if _parts(one) == 1 and len(one.aval.shape) > 1 and one.size > SHARE * whole]
    found = []
    if math.prod(mesh.values()) > 1:
        for one in large if divides else ():
            text = f"{one.path} {one.aval.shape} is whole on every device, while rules divide others: {show(one.size)}"
            found.append(PlanWarning("replicated", text, one.size))
        found += _undivided(arguments, params)
    moved = sum(one.bytes * one.count for one in collectives) or 1
    paths = [one.path.rpartition(".")[0].partition(".")[2] for one in large] if divides else []
    reshards = []
    for one in collectives:
        # What a replicated kernel causes is told with it.
        is_told = any(path and path in one.where for path in paths)
        if not one.asked and one.bytes * one.count > SHARE * moved and not is_told:
            axes = ", ".join(one.axes)
            often = f"{show(one.bytes)}, {one.count} times a step"
            text = f"no rule asked for this {one.kind} over {axes} at {one.where}: {often}"
            reshards.append(PlanWarning("resharding", text, one.bytes * one.count))
    found += sorted(reshards, key=lambda one: -one.bytes)
    if params and not divides and math.prod(mesh.values()) > 1:
        text = f"all parameters are whole on each of {math.prod(mesh.values())} devices: {show(whole)}"
        found.append(PlanWarning("replicated", text, whole))
    if bytes_.peak > device.memory:
        text = f"the step does not fit: {show(bytes_.peak)} of {show(device.memory)}"
        found.append(PlanWarning("memory", text, bytes_.peak - int(device.memory)))
    return found


def _undivided(arguments: list[Argument], params: list[Argument]) -> list[PlanWarning]:
    """Moments that lie on more devices than the parameters that they are for."""
    by_tail: dict[Any, Argument] = {(_tail(one.path), one.aval.shape): one for one in params}
    worse = []
    for one in arguments:
        if one.role != "optimizer" or len(one.aval.shape) < 1:
            continue
        twins = [p for (tail, shape), p in by_tail.items() if shape == one.aval.shape and one.path.endswith(tail)]
        if twins and _parts(one) < _parts(max(twins, key=lambda p: len(_tail(p.path)))):
            worse.append(one)
    if not worse:
        return []
    lost = sum(one.local for one in worse)
    first = max(worse, key=lambda one: one.local)
    many = f"{len(worse)} arrays, {show(lost)} a device, such as {first.path}"
    text = f"optimizer state is divided less than its parameters: {many}"
    return [PlanWarning("optimizer", text, lost)]


def _tail(path: str) -> str:
    return path.partition(".")[2] or path
