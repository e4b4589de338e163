"""Counts what a compiled program does from its text, by rules written here and not by those of `weft.plan`.

Operations are counted as XLA's own analysis counts them: one for each element of an elementwise operation, two for each
product of a contraction, none for what is transcendental, and each loop's body once. That the sum equals XLA's shows
that no instruction was misread; what the plan says is then held to the same reading with loops multiplied.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field

ELEMENTWISE = {
    *("add", "subtract", "multiply", "divide", "remainder", "negate", "abs", "sign", "maximum", "minimum", "clamp"),
    *("floor", "ceil", "round-nearest-even", "convert", "compare", "select", "is-finite", "and", "or", "xor", "not"),
    *("shift-left", "shift-right-logical", "all-reduce"),
}
COLLECTIVES = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"}
COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\([^=]*?\)|\S+) ([\w\-]+)\((.*)$")
ITEM_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "f64": 8}


def arrays(text: str) -> list[tuple[int, int]]:
    """The elements and the bytes of each array in a type."""
    sizes = [(t, math.prod(map(int, filter(None, d.split(","))))) for t, d in re.findall(r"\b(\w+)\[([\d,]*)\]", text)]
    return [(size, size * ITEM_BYTES[dtype]) for dtype, size in sizes]


def elements(text: str) -> int:
    return sum(size for size, _ in arrays(text))


@dataclass
class Counts:
    """Operations with each loop's body once; those of contractions, and collectives, as often as they run."""

    once: int = 0
    contractions: int = 0
    collectives: Counter[tuple[str, int]] = field(default_factory=Counter)

    def add(self, counts: Counts, times: int) -> None:
        self.once += counts.once
        self.contractions += times * counts.contractions
        for key, count in counts.collectives.items():
            self.collectives[key] += times * count


def counted(text: str) -> Counts:
    """The counts of a step."""
    bodies: dict[str, list[tuple[str, str, str, str]]] = {}
    entry = current = ""
    for line in re.sub(r"/\*.*?\*/", "", text).splitlines():
        if head := COMPUTATION.match(line):
            current = head[2]
            bodies[current] = []
            entry = current if head[1] else entry
        elif current and (parts := INSTRUCTION.match(line)):
            bodies[current].append(parts.groups())
    return _of(entry, bodies)


def _of(computation: str, bodies: dict[str, list[tuple[str, str, str, str]]]) -> Counts:
    total, types = Counts(), {name: type_ for name, type_, _, _ in bodies[computation]}
    for _, type_, opcode, rest in bodies[computation]:
        operands = re.findall(r"%([\w.\-]+)", rest.split(")")[0])
        called = dict(re.findall(r"\b(calls|to_apply|body|condition)=%?([\w.\-]+)", rest))
        size = elements(type_)
        if opcode in ELEMENTWISE:
            total.once += size
        elif opcode == "dot":
            shape = [int(n) for n in types[operands[0]].split("[")[1].split("]")[0].split(",") if n]
            over = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", rest)
            assert over is not None
            products = 2 * size * math.prod(shape[int(i)] for i in over[1].split(",") if i)
            total.once += products
            total.contractions += products
        elif opcode == "reduce":
            total.once += elements(types[operands[0]]) - size
        elif opcode == "scatter":
            total.once += elements(types[operands[2]])
        elif opcode in ("fusion", "call"):
            total.add(_of(called.get("calls", "") or called["to_apply"], bodies), 1)
        elif opcode == "while":
            known = re.search(r'known_trip_count":\{"n":"(\d+)"', rest)
            assert known is not None
            for part in ("body", "condition"):
                total.add(_of(called[part], bodies), int(known[1]))
        if opcode in COLLECTIVES:
            sizes = (sum(b for _, b in arrays(t)) for t in (type_, " ".join(types[name] for name in operands)))
            total.collectives[opcode, max(sizes)] += 1
    return total
