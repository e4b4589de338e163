"""Parses the HLO text of a compiled program: instructions, how often each runs, and their source lines.

XLA offers all of this as text only: operands, shapes on one device, trip counts of loops and stacks of source
lines. Words are XLA's: a *computation* is a list of instructions, one of them its root.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

_SIZES = {"pred": 1, "bf16": 2, "token": 0, "c64": 8, "c128": 16, "s4": 0.5, "u4": 0.5}
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_LINE = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\([^=]*?\)|\S+) ([\w\-]+)\((.*?)\)(.*)$")
# Instructions that run a computation. A reduction has a `to_apply` as well, which runs on elements: counted as a call,
# the additions in it would appear as instructions of the step.
_CALLS = ("call", "fusion", "while", "conditional", "async-start")
_CALLED = re.compile(r"\b(?:condition|body|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)")


def sizes_of(text: str) -> list[tuple[str, tuple[int, ...]]]:
    """Returns the dtypes and shapes in an HLO type.

    >>> sizes_of("(f32[8,64]{1,0}, s32[])")
    [('f32', (8, 64)), ('s32', ())]
    """
    arrays = re.findall(r"\b([a-z]\w*)\[([\d,]*)\]", text)
    return [(dtype, tuple(map(int, filter(None, dims.split(","))))) for dtype, dims in arrays]


def bytes_of(text: str) -> int:
    """Returns the bytes of an HLO type, summed over the parts of a tuple.

    >>> bytes_of("(bf16[8,64]{1,0}, s32[])")
    1028
    """
    return int(sum(math.prod(shape) * _item_bytes(dtype) for dtype, shape in sizes_of(text)))


def _item_bytes(dtype: str) -> float:
    # `f32`, `s8`, `f8e4m3fn`: the first number in a dtype's name is its bits, but for the names in the table.
    digits = re.search(r"\d+", dtype)
    return _SIZES.get(dtype, int(digits[0]) / 8 if digits else 0)


@dataclass
class Instruction:
    """One instruction of the program: a line of its text.

    Attributes:
        name: its name, unique in its computation.
        type: the type of its result on one device.
        opcode: the operation, such as `dot` or `all-gather`.
        operands: the names of its operands; for a parameter, the parameter's number.
        rest: the text of the attributes that follow the operands.
        is_root: whether its result is the result of the computation.
        computation: the name of the computation that contains it.
    """

    name: str
    type: str
    opcode: str
    operands: list[str]
    rest: str
    is_root: bool
    computation: str

    @cached_property
    def op_name(self) -> str:
        """JAX's name stack: transforms, named scopes and the primitive."""
        written = re.search(r'op_name="([^"]*)"', self.rest)
        return written[1] if written else ""

    def dims(self, name: str) -> list[int]:
        """Returns the numbers of an attribute, which is a number or a list of numbers; empty if it is absent."""
        written = re.search(rf"\b{name}=(\{{[^}}]*\}}|\d+)", self.rest)
        return [int(number) for number in re.findall(r"\d+", written[1])] if written else []

    @cached_property
    def called(self) -> list[str]:
        """The names of the computations that this instruction runs: bodies, conditions, branches."""
        if self.opcode not in _CALLS:
            return []
        branches = re.search(r"branch_computations=\{([^}]*)\}", self.rest)
        return _CALLED.findall(self.rest) + re.findall(r"%([\w.\-]+)", branches[1] if branches else "")


class Module:
    """A compiled program.

    Attributes:
        computations: their instructions by name.
        entry: the name of the computation that a call of the program runs.
        times: how often each computation runs in a step; loops are multiplied by their trip counts.
        unknown_loops: how many loops have no trip count that XLA knows, and count once.
    """

    def __init__(self, text: str):
        self.text, self.computations, self.entry = text, dict[str, dict[str, Instruction]](), ""
        name = ""
        # XLA writes `/*index=5*/` into the types of long tuples, which the expressions above do not expect.
        for line in re.sub(r"/\*.*?\*/", "", self.text).splitlines():
            if head := _HEAD.match(line):
                name = head[2]
                self.computations[name] = {}
                self.entry = name if head[1] else self.entry
            elif name and (parts := _LINE.match(line)):
                root, own, kind, opcode, inside, rest = parts.groups()
                operands = [inside] if opcode == "parameter" else re.findall(r"%([\w.\-]+)", inside)
                self.computations[name][own] = Instruction(own, kind, opcode, operands, rest, bool(root), name)
        # A computation stands before its callers in the text, so in reverse order each caller is counted before its
        # callees.
        self.times = dict.fromkeys(self.computations, 0)
        self.times[self.entry] = 1
        for computation in reversed(self.computations):
            for instruction in self.computations[computation].values():
                turns = _trip_count(instruction) or 1
                for callee in instruction.called:
                    self.times[callee] += self.times[computation] * turns
        self.unknown_loops = sum(each.opcode == "while" and not _trip_count(each) for each, _ in self.instructions())

    def instructions(self) -> Iterator[tuple[Instruction, int]]:
        """Yields all instructions that run, each with the number of its runs in a step."""
        for name, computation in self.computations.items():
            if self.times[name]:
                yield from ((instruction, self.times[name]) for instruction in computation.values())

    def operands(self, instruction: Instruction) -> list[Instruction]:
        around = self.computations[instruction.computation]
        return [] if instruction.opcode == "parameter" else [around[name] for name in instruction.operands]

    def sources(self, instruction: Instruction) -> list[Instruction]:
        """Returns the operands; for a parameter of a fusion or call, the operand that the caller gives it."""
        caller = self.callers.get(instruction.computation)
        if instruction.opcode == "parameter" and caller and caller.opcode in ("fusion", "call"):
            return [self.operands(caller)[int(instruction.operands[0])]]
        return self.operands(instruction)

    def readers(self, instruction: Instruction) -> list[Instruction]:
        """Returns the instructions that read a result; the root of a fusion or call has its caller for a reader."""
        caller = self.callers.get(instruction.computation)
        if instruction.is_root and caller and caller.opcode in ("fusion", "call"):
            return [caller]
        return self._readers.get((instruction.computation, instruction.name), [])

    @cached_property
    def _readers(self) -> dict[tuple[str, str], list[Instruction]]:
        readers: dict[tuple[str, str], list[Instruction]] = {}
        for name, computation in self.computations.items():
            for instruction in computation.values():
                for operand in instruction.operands:
                    readers.setdefault((name, operand), []).append(instruction)
        return readers

    @cached_property
    def after_backward(self) -> set[tuple[str, str]]:
        """The instructions, by computation and name, that are in a backward pass or read what one gives."""
        inside: set[str] = set()
        # A computation stands before its callers in the text, and an instruction after its operands.
        for name, computation in self.computations.items():
            if any("transpose(" in each.op_name or inside & {*each.called} for each in computation.values()):
                inside.add(name)
        after: set[tuple[str, str]] = set()
        for name in reversed(self.computations):
            for instruction in self.computations[name].values():
                is_entered = instruction.opcode == "parameter" and name in self.callers
                caller = self.callers[name] if is_entered else instruction
                sources = self.sources(instruction) or (self.operands(caller) if is_entered else [])
                is_backward = "transpose(" in instruction.op_name or inside & {*instruction.called}
                if is_backward or any((source.computation, source.name) in after for source in sources):
                    after.add((name, instruction.name))
        return after

    def root(self, computation: str) -> Instruction:
        return next(each for each in self.computations[computation].values() if each.is_root)

    @cached_property
    def callers(self) -> dict[str, Instruction]:
        """For each computation the instruction that calls it; the last one if several do."""
        every = (instruction for computation in self.computations.values() for instruction in computation.values())
        return {callee: instruction for instruction in every for callee in instruction.called}

    @cached_property
    def has_derivative(self) -> bool:
        return "jvp(" in self.text

    @cached_property
    def output(self) -> str:
        """The type of the program's result on one device."""
        return self.root(self.entry).type

    def parameter_of(self, instruction: Instruction) -> int | None:
        """Returns the number of the argument whose values an instruction only moves; None if it computes new values."""
        seen: set[tuple[str, str]] = set()
        # The search may come back to an instruction through the tuple of a loop.
        while (key := (instruction.computation, instruction.name)) not in seen:
            seen.add(key)
            source = self._moved_from(instruction)
            if isinstance(source, int) or source is None:
                return source
            instruction = source
        return None

    def _moved_from(self, moving: Instruction) -> Instruction | int | None:
        if moving.opcode == "parameter":
            index = int(moving.operands[0])
            if moving.computation == self.entry:
                return index
            caller = self.callers.get(moving.computation)
            return self.operands(caller)[index] if caller and caller.opcode in ("fusion", "call") else None
        if moving.opcode in ("fusion", "call"):
            return self.root(moving.called[0])
        if moving.opcode == "get-tuple-element":
            return self._element(self.operands(moving)[0], moving.dims("index")[0])
        return self.operands(moving)[0] if moving.opcode in _MOVES else None

    def _element(self, source: Instruction, index: int) -> Instruction | None:
        """Returns the instruction that made an element of a tuple, before the loop if a loop carries it."""
        if source.opcode == "tuple":
            return self.operands(source)[index]
        loop = self.callers.get(source.computation) if source.opcode == "parameter" else source
        if loop is None or loop.opcode != "while":
            return None
        # Only an element that the body passes through unchanged is still the argument.
        body = re.search(r"\bbody=%?([\w.\-]+)", loop.rest)
        root = self.root(body[1] if body else "")
        carried = self.operands(root)[index] if root.opcode == "tuple" else root
        is_unchanged = carried.opcode == "get-tuple-element" and carried.dims("index") == [index]
        return self._element(self.operands(loop)[0], index) if is_unchanged else None

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
            # The tables of source lines stand before the first computation.
            elif _HEAD.match(line):
                break
        return tables

    def lines(self, instruction: Instruction) -> Iterator[tuple[str, int]]:
        """Yields the source lines of an instruction, innermost first, as far as the text has them."""
        written = re.search(r"stack_frame_id=(\d+)", instruction.rest)
        number, parent = (int(written[1]) if written else 0), -1
        while number and number != parent:
            frame = self._tables["StackFrames"][number]
            place = self._tables["FileLocations"][int(frame["file_location_id"])]
            yield self._tables["FileNames"][int(place["file_name_id"])]["text"], int(place["line"])
            # XLA counts parents from 1, with 1 for none: the frame's number and one more.
            parent, number = number, int(frame["parent_frame_id"]) - 1


def _trip_count(loop: Instruction) -> int:
    known = re.search(r'known_trip_count":\{"n":"(\d+)"', loop.rest)
    return int(known[1]) if known else 0


_MOVES = (
    *("copy", "bitcast", "convert", "transpose", "reshape", "slice", "dynamic-slice", "all-gather", "copy-start"),
    *("copy-done", "all-gather-start", "all-gather-done", "optimization-barrier", "collective-permute", "all-to-all"),
)
