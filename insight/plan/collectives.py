"""Finds the collectives of a compiled step: mesh axes, time, source line, and whether a rule asked for each."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from weft.insight.equations import MODULE, RECOMPUTED
from weft.insight.plan.arguments import Argument
from weft.insight.plan.hardware import Hardware
from weft.insight.plan.hlo import Instruction, Module, bytes_of
from weft.insight.plan.report import Collective

_SUMS = ("all-reduce", "reduce-scatter")
KINDS = (*_SUMS, "all-gather", "all-to-all", "collective-permute", "collective-broadcast")
_WEFT = Path(__file__).parents[2]
_ROOMS = tuple(str(_WEFT / room) for room in ("core", "transforms", "modules", "nnx", "typecheck", "insight"))


def collectives_of(
    module: Module, arguments: list[Argument], mesh: Mapping[str, int], device: Hardware
) -> list[Collective]:
    """Returns the collectives of a step: first those without a rule that asked for them, then by estimated time."""
    collectives = []
    for instruction, times in module.instructions():
        kind = instruction.opcode.removesuffix("-start")
        if kind not in KINDS:
            continue
        operands = module.operands(instruction)
        # The result type of `all-gather-start` has the operands in it, too, so its bytes would count twice.
        results = 0 if instruction.opcode.endswith("start") else bytes_of(instruction.type)
        size = max(results, sum(bytes_of(operand.type) for operand in operands))
        groups = groups_of(instruction.rest, math.prod(mesh.values()))
        # A sum computes, so it moves no argument: an all-reduce of a gradient is not a move of the parameter.
        number = None if kind in _SUMS else module.parameter_of(operands[0])
        moved = None if number is None or arguments[number].role == "batch" else arguments[number].path
        origin = _with_lines(module, instruction)
        phase = phase_of(origin.op_name, module)
        # Gathering a divided parameter is what FSDP means, and updates follow the optimizer's sharding. A collective in
        # the middle of forward or backward that does none of this is a resharding that XLA chose.
        is_asked = kind in _SUMS or moved is not None or phase == "update"
        seconds = _seconds(kind, size, groups, device) * times
        axes, where = axes_over(groups, mesh), _where(module, origin)
        # What remat recomputes runs in the backward pass.
        phase = "backward" if phase == "recomputed" else phase
        collectives.append(Collective(kind, size, times, axes, where, phase, moved, is_asked, seconds))
    return sorted(collectives, key=lambda collective: (collective.asked, -collective.seconds))


def path_in(names: str) -> str:
    """Returns the path of the innermost module in a name stack; empty if no module is in it.

    >>> path_in("jit(step)/transpose(jvp(weft:blocks.attn))/dot_general")
    'blocks.attn'
    """
    paths = re.findall(rf"{MODULE}([^/()]+)", names)
    return paths[-1] if paths else ""


def phase_of(op_name: str, module: Module) -> str:
    """Returns the phase of an operation, from JAX's name stack: forward, backward, recomputed or update."""
    if RECOMPUTED in op_name:
        return "recomputed"
    if "transpose(" in op_name:
        return "backward"
    return "forward" if "jvp(" in op_name or not module.has_derivative else "update"


def groups_of(attributes: str, count: int) -> list[list[int]]:
    """Returns the groups of devices of a collective, parsed from any of XLA's three notations.

    >>> groups_of("replica_groups=[2,4]<=[4,2]T(1,0), x", 8)
    [[0, 2, 4, 6], [1, 3, 5, 7]]
    """
    if named := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", attributes):
        axes = [(name, int(size)) for name, size in re.findall(r"'([^']+)'=(\d+)", named[1])]
        over = set(re.findall(r"'([^']+)'", named[2]))
        ids = np.arange(count).reshape([size for _, size in axes])
        order = sorted(range(len(axes)), key=lambda i: axes[i][0] in over)
        return ids.transpose(order).reshape(-1, math.prod(size for name, size in axes if name in over)).tolist()
    if iota := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes):
        shape, sizes, order = ([int(n) for n in (part or "").split(",") if n] for part in iota.groups())
        ids = np.arange(math.prod(sizes)).reshape(sizes)
        return (ids.transpose(order) if order else ids).reshape(shape).tolist()
    listed = re.search(r"(?:replica_groups|source_target_pairs)=\{((?:\{[\d,]*\},?)*)\}", attributes)
    written = re.findall(r"\{([\d,]+)\}", listed[1] if listed else "")
    return [[int(device) for device in group.split(",")] for group in written] or [list(range(count))]


def axes_over(groups: list[list[int]], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the mesh axes along which the devices of a group differ.

    >>> axes_over([[0, 2, 4, 6], [1, 3, 5, 7]], {"data": 4, "model": 2})
    ('data',)
    """
    places = [np.unravel_index(group, list(mesh.values())) for group in groups]
    return tuple(name for i, name in enumerate(mesh) if any(np.ptp(place[i]) for place in places))


def _seconds(kind: str, size: int, groups: list[list[int]], device: Hardware) -> float:
    """Estimates the time of one run, in which each device sends its share of a ring's traffic."""
    n = len(groups[0])
    share = {"all-reduce": 2 * (n - 1) / n, "collective-permute": 1.0, "collective-broadcast": 1.0}
    # A group that leaves a node goes over the slower network.
    is_in_node = all(len({member // device.node for member in group}) == 1 for group in groups)
    return size * share.get(kind, (n - 1) / n) / (device.link if is_in_node else device.network)


def _where(module: Module, origin: Instruction) -> str:
    """Returns the user's source line of an instruction, and the path of the module whose method ran it."""
    lines = list(module.lines(origin)) or [("", 0)]
    # Weft's own files are on every stack, and so are those of optax and JAX: a user can change the first other line.
    users = [place for place in lines if not place[0].startswith(_ROOMS) and "site-packages" not in place[0]]
    file, line = (users or lines)[0]
    place = f"{Path(file).name}:{line}" if file else "no source line"
    path = path_in(origin.op_name)
    return f"{place} ({path})" if path else place


def _with_lines(module: Module, instruction: Instruction) -> Instruction:
    """Returns the nearest instruction with source lines: XLA inserts some instructions without any."""
    around = module.computations[instruction.computation].values()
    # Breadth first, over readers and operands: the nearest neighbour is most likely traced from the same line.
    ahead, seen = [instruction], {instruction.name}
    while ahead:
        nearest = ahead.pop(0)
        if next(module.lines(nearest), None):
            return nearest
        readers = [reader for reader in around if nearest.name in reader.operands]
        neighbours = [each for each in (*readers, *module.operands(nearest)) if each.name not in seen]
        seen |= {neighbour.name for neighbour in neighbours}
        ahead += neighbours
    return instruction
