"""Reads the text of a compiled program: its instructions, how often each runs, and what source line it comes from.

XLA offers no other way to all of it: the text has operands, shapes on one device, known trip counts of loops, and each
instruction's stack of source lines. Words are XLA's: a *computation* is a list of instructions, one of them its root.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

_SIZES = {"pred": 1, "bf16": 2, "token": 0, "c64": 8, "c128": 16, "s4": 0.5, "u4": 0.5}
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_LINE = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_CALLED = re.compile(r"\b(calls|to_apply|body|condition|branch_computations|true_computation|false_computation)=")
# Computations that these apply run once for each element, and are not what `to_apply` of a call is.
_CALLS = ("call", "fusion", "while", "conditional", "async-start", "custom-call")


def sizes_of(text: str) -> list[tuple[str, tuple[int, ...]]]:
    """The dtypes and shapes in a type.

    >>> sizes_of("(f32[8,64]{1,0}, /*index=1*/s32[])")
    [('f32', (8, 64)), ('s32', ())]
    """
    found = re.findall(r"\b([a-z]\w*)\[([\d,]*)\]", text)
    return [(dtype, tuple(map(int, filter(None, dims.split(","))))) for dtype, dims in found]


def bytes_of(text: str) -> int:
    """The bytes of a type, with all parts of a tuple."""
    return int(sum(math.prod(shape) * item_bytes(dtype) for dtype, shape in sizes_of(text)))


def item_bytes(dtype: str) -> float:
    digits = re.search(r"\d+", dtype)
    return _SIZES.get(dtype, int(digits[0]) / 8 if digits else 0)


@dataclass
class Instruction:
    """One line: its name, its type on one device, its operands and the rest of the line."""

    name: str
    type: str
    opcode: str
    operands: list[str]
    rest: str
    is_root: bool
    computation: str = ""

    @cached_property
    def op_name(self) -> str:
        """JAX's name stack: transforms, named scopes and the primitive."""
        found = re.search(r'op_name="([^"]*)"', self.rest)
        return found[1] if found else ""

    def attribute(self, name: str) -> str | None:
        found = re.search(rf"\b{name}=(\{{[^}}]*\}}|[%\w.\-]+)", self.rest)
        return found[1].strip("%") if found else None

    def dims(self, name: str) -> list[int]:
        return [int(one) for one in re.findall(r"\d+", self.attribute(name) or "")]


@dataclass
class Module:
    """A compiled program.

    Attributes:
        computations: their instructions by name.
        entry: the name of the computation that a call runs.
        times: how often each computation runs in a step; loops are multiplied by their trip counts.
        unknown_loops: how many loops have no trip count that XLA knows, and count once.
    """

    text: str
    computations: dict[str, dict[str, Instruction]] = field(default_factory=dict)
    entry: str = ""
    times: dict[str, int] = field(default_factory=dict)
    unknown_loops: int = 0

    def __post_init__(self) -> None:
        name = ""
        for line in self.text.splitlines():
            if head := _HEAD.match(line):
                name = head[2]
                self.computations[name] = {}
                self.entry = name if head[1] else self.entry
            elif name and (parts := _LINE.match(line)):
                instruction = _parsed(parts[2], parts[3], bool(parts[1]), name)
                self.computations[name][instruction.name] = instruction
        # In the text a computation stands before those that call it.
        self.times = dict.fromkeys(self.computations, 0)
        self.times[self.entry] = 1
        for computation in reversed(self.computations):
            for instruction in self.computations[computation].values():
                for callee in called(instruction):
                    self.times[callee] += self.times[computation] * self._turns(instruction)

    def _turns(self, instruction: Instruction) -> int:
        if instruction.opcode != "while":
            return 1
        known = re.search(r'known_trip_count":\{"n":"(\d+)"', instruction.rest)
        self.unknown_loops += known is None
        return int(known[1]) if known else 1

    def instructions(self) -> Iterator[tuple[Instruction, int]]:
        """All that run, with how often in a step."""
        for name, computation in self.computations.items():
            if self.times[name]:
                yield from ((instruction, self.times[name]) for instruction in computation.values())

    def operand(self, instruction: Instruction, index: int) -> Instruction:
        return self.computations[instruction.computation][instruction.operands[index]]

    def root(self, computation: str) -> Instruction:
        return next(one for one in self.computations[computation].values() if one.is_root)

    @cached_property
    def callers(self) -> dict[str, Instruction]:
        """Who calls a computation; the last, if several do."""
        every = (one for computation in self.computations.values() for one in computation.values())
        return {callee: one for one in every for callee in called(one)}

    @cached_property
    def output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Dtypes and shapes of the outputs on one device."""
        return sizes_of(self.root(self.entry).type)

    def parameter_of(self, instruction: Instruction) -> int | None:
        """The argument that an instruction only moves: copied, sliced, gathered, converted; None if it computes."""
        seen: set[str] = set()
        while (key := f"{instruction.computation}/{instruction.name}") not in seen:
            seen.add(key)
            step = self._moved_from(instruction)
            if isinstance(step, int) or step is None:
                return step
            instruction = step
        return None

    def _moved_from(self, one: Instruction) -> Instruction | int | None:
        if one.opcode == "parameter":
            index = int(one.operands[0])
            if one.computation == self.entry:
                return index
            caller = self.callers.get(one.computation)
            return self.operand(caller, index) if caller and caller.opcode in ("fusion", "call") else None
        if one.opcode in ("fusion", "call"):
            return self.root(called(one)[0])
        if one.opcode == "get-tuple-element":
            return self._element(self.operand(one, 0), one.dims("index")[0])
        return self.operand(one, 0) if one.opcode in _MOVES else None

    def _element(self, source: Instruction, index: int) -> Instruction | None:
        if source.opcode == "tuple":
            return self.operand(source, index)
        loop = self.callers.get(source.computation) if source.opcode == "parameter" else source
        if loop is None or loop.opcode != "while":
            return None
        # What the body hands on unchanged is what the loop was started with.
        root = self.root(loop.attribute("body") or "")
        handed_on = self.operand(root, index) if root.opcode == "tuple" else root
        is_same = handed_on.opcode == "get-tuple-element" and handed_on.dims("index") == [index]
        return self._element(self.operand(loop, 0), index) if is_same else None

    @cached_property
    def _tables(self) -> dict[str, dict[int, dict[str, str]]]:
        tables: dict[str, dict[int, dict[str, str]]] = {}
        table: dict[int, dict[str, str]] = {}
        for line in self.text.splitlines():
            if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
                table = tables[line] = {}
            elif row := re.match(r"(\d+) (.*)$", line):
                entries = dict(re.findall(r"(\w+)=(\w+)", row[2]))
                table[int(row[1])] = entries or {"text": row[2].strip('"')}
            elif _HEAD.match(line):
                break
        return tables

    def lines(self, instruction: Instruction) -> Iterator[tuple[str, int]]:
        """The source lines that an instruction comes from, innermost first, as far as the text has them."""
        if direct := re.search(r'source_file="([^"]*)" source_line=(\d+)', instruction.rest):
            yield direct[1], int(direct[2])
        found = re.search(r"stack_frame_id=(\d+)", instruction.rest)
        number, parent = (int(found[1]) if found else 0), -1
        while number and number != parent:
            frame = self._tables["StackFrames"][number]
            place = self._tables["FileLocations"][int(frame["file_location_id"])]
            yield self._tables["FileNames"][int(place["file_name_id"])]["text"], int(place["line"])
            # XLA counts parents from 1, with 1 for none: the frame's number and one more.
            parent, number = number, int(frame["parent_frame_id"]) - 1


_MOVES = (
    *("copy", "bitcast", "convert", "transpose", "reshape", "slice", "dynamic-slice", "all-gather", "copy-start"),
    *("copy-done", "all-gather-start", "all-gather-done", "optimization-barrier", "collective-permute", "all-to-all"),
)


def called(instruction: Instruction) -> list[str]:
    """The computations that an instruction runs, as often as it runs itself or turns."""
    if instruction.opcode not in _CALLS or not _CALLED.search(instruction.rest):
        return []
    names = [instruction.attribute(name) for name in ("condition", "body", "calls", "to_apply")]
    branches = re.findall(r"%([\w.\-]+)", instruction.attribute("branch_computations") or "")
    either = [instruction.attribute(name) for name in ("true_computation", "false_computation")]
    return [name for name in (*names, *branches, *either) if name]


def _parsed(name: str, text: str, is_root: bool, computation: str) -> Instruction:
    at = _closing(text, 0) if text.startswith("(") else text.index(" ")
    kind, rest = text[:at], text[at:].lstrip()
    opcode, _, _ = rest.partition("(")
    end = _closing(rest, len(opcode))
    inside = rest[len(opcode) + 1 : end - 1]
    operands = [inside] if opcode == "parameter" else re.findall(r"%([\w.\-]+)", inside)
    return Instruction(name, kind, opcode, operands, rest[end:], is_root, computation)


def _closing(text: str, start: int) -> int:
    """Where the parenthesis at `start` has been closed."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if not depth:
            return i + 1
    return len(text)
