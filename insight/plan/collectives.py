"""Finds the collectives of a compiled step: mesh axes, time, source line, and whether a rule asked for each."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from jax.extend.core import JaxprEqn
from weft.core.edge import _jax
from weft.insight.equations import MODULE, RECOMPUTED
from weft.insight.plan.arguments import Argument
from weft.insight.plan.hardware import Hardware
from weft.insight.plan.hlo import Instruction, Module, bytes_of
from weft.insight.plan.report import Collective

_SUMS = ("all-reduce", "reduce-scatter")
# In the order in which a step runs them.
_PHASES = ("forward", "recomputed", "backward", "update")
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
        origin = with_lines(module, instruction)
        phase = phase_of(origin, module)
        # Gathering a divided parameter is what FSDP means, and updates follow the optimizer's sharding. A collective in
        # the middle of forward or backward that does none of this is a resharding that XLA chose.
        is_outside = module.has_derivative and "jvp(" not in origin.op_name and phase != "recomputed"
        is_shift = kind == "collective-permute" and shifts(groups, mesh)
        is_asked = kind in _SUMS or moved is not None or is_outside or is_shift
        seconds = seconds_of(kind, size, groups, device) * times
        axes, where = axes_over(groups, mesh), where_of(module, origin)
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


def phase_of(instruction: Instruction, module: Module) -> str:
    """Returns the phase of an instruction from JAX's name stack and, where that says nothing, from what it reads."""
    name = instruction.op_name
    if RECOMPUTED in name:
        return "recomputed"
    if "transpose(" in name:
        return "backward"
    # A product that does not enter the derivative, such as a teacher's, is forward without being under `jvp`.
    if "jvp(" in name or (instruction.computation, instruction.name) not in module.after_backward:
        return "forward"
    if name:
        return "update"
    # XLA drops the name of a product when it removes an axis of size 1. Its phase lies between those of its neighbours:
    # a gradient that the update reads is backward, and what was recomputed is read by the backward pass alone.
    before = [_PHASES.index(phase_of(each, module)) for each in _nearest_named(instruction, module.sources)]
    after = [_PHASES.index(phase_of(each, module)) for each in _nearest_named(instruction, module.readers)]
    last = len(_PHASES) - 1
    return _PHASES[min(max(before, default=last), *after, last)]


def _nearest_named(
    instruction: Instruction, step: Callable[[Instruction], Iterable[Instruction]]
) -> Iterator[Instruction]:
    ahead, seen = [*step(instruction)], {instruction.name}
    while ahead:
        nearest = ahead.pop(0)
        if nearest.op_name:
            yield nearest
        elif nearest.name not in seen:
            ahead += step(nearest)
        seen.add(nearest.name)


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


def shifts(pairs: list[list[int]], mesh: Mapping[str, int]) -> bool:
    """Whether each device sends to the one that is a fixed number of places further along one axis of the mesh.

    This is what a roll or a slice does along a divided axis, such as the stages of a pipeline.

    >>> shifts([[0, 2], [1, 3], [2, 0], [3, 1]], {"data": 2, "model": 2}), shifts([[1, 2], [2, 1]], {"data": 4})
    (True, False)
    """
    shape = list(mesh.values())
    sources, targets = (np.array(np.unravel_index(ends, shape)) for ends in zip(*pairs, strict=True))
    steps = (targets - sources) % np.array(shape)[:, None]
    return bool((steps == steps[:, :1]).all() and np.count_nonzero(steps[:, 0]) == 1)


def seconds_of(kind: str, size: int, groups: list[list[int]], device: Hardware) -> float:
    """Estimates the time of one run, in which each device sends its share of a ring's traffic.

    >>> from weft.insight.plan.hardware import HARDWARE
    >>> round(1e3 * seconds_of("all-gather", 10**9, [[*range(8)]], HARDWARE["v5e"]), 2)  # 7 / 8 GB over 2 * 50 GB/s
    8.75
    """
    n = len(groups[0])
    # A group that leaves a node goes over the slower network.
    if not all(len({member // device.node for member in group}) == 1 for group in groups):
        rate, is_ring = device.network, False
    else:
        # Devices that all send to their next neighbour use one direction of a ring.
        is_ring = device.directions > 1
        rate = device.link * (1 if kind == "collective-permute" else device.directions)
    share = {"all-reduce": 2 * (n - 1) / n, "collective-permute": 1.0, "collective-broadcast": 1.0}
    # A switch connects any two devices. On a ring the parts of an all-to-all go over a quarter of its links on average.
    ways = {"all-to-all": n / 4} if is_ring else {}
    return size * {**share, **ways}.get(kind, (n - 1) / n) / rate


def where_of(module: Module, origin: Instruction) -> str:
    """Returns the user's source line of an instruction, and the path of the module whose method ran it."""
    return place_of(list(module.lines(origin)), path_in(origin.op_name))


def place_of(lines: list[tuple[str, int]], path: str) -> str:
    """Returns the user's line of a stack, innermost first, and a module's path as one text."""
    # Weft's own files are on every stack, and so are those of optax and JAX: a user can change the first other line.
    users = [place for place in lines if not place[0].startswith(_ROOMS) and "site-packages" not in place[0]]
    file, line = (users or lines or [("", 0)])[0]
    place = f"{Path(file).name}:{line}" if file else "no source line"
    return f"{place} ({path})" if path else place


def lines_of(equations: Iterable[JaxprEqn]) -> list[tuple[str, int]]:
    """Returns the source lines of an equation and of those around it: a loop's body may be traced without the lines
    that led to the loop."""
    return [(file, line) for equation in equations for file, _, line, *_ in _jax.lines_of(equation)]


def with_lines(module: Module, instruction: Instruction) -> Instruction:
    """Returns the nearest instruction with source lines: XLA inserts some instructions without any."""
    # Breadth first, over readers and operands: the nearest neighbour is most likely traced from the same line.
    ahead, seen = [instruction], {instruction.name}
    while ahead:
        nearest = ahead.pop(0)
        if next(module.lines(nearest), None):
            return nearest
        every = (*module.readers(nearest), *module.sources(nearest))
        neighbours = [each for each in every if each.name not in seen]
        if instruction.opcode == "dot":
            # XLA reshapes a product that it has rewritten, and the reshape keeps the product's name.
            neighbours.sort(key=lambda each: not each.op_name.endswith("dot_general"))
        seen |= {neighbour.name for neighbour in neighbours}
        ahead += neighbours
    return instruction
