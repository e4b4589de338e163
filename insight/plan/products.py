"""Matrix products and convolutions: the operations that a traced step asks for, and those that devices carry out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn
from weft.core.edge import equations
from weft.insight.equations import RECOMPUTED, scopes
from weft.insight.plan.collectives import lines_of, path_in, phase_of, place_of, where_of, with_lines
from weft.insight.plan.hlo import Instruction, Module, bytes_of, sizes_of


@dataclass(frozen=True)
class TracedProduct:
    """One product of the traced step.

    Attributes:
        equations: its equation, and those around it, such as a loop's, from the inside out.
        path: the path of the module that computed it.
        flops: its operations in a step, over all devices.
        is_repeated: whether remat repeats it.
    """

    equations: tuple[JaxprEqn, ...]
    path: str
    flops: int
    is_repeated: bool

    @property
    def is_counted(self) -> bool:
        """Whether the traced step tells the operations of the compiled one."""
        params = self.equations[0].params
        # The CPU backend computes a convolution in groups as one over all features.
        is_grouped = params.get("feature_group_count", 1) * params.get("batch_group_count", 1) > 1
        return not is_grouped and not any(equation.primitive.name in _UNCOUNTED for equation in self.equations)

    @property
    def is_half(self) -> bool:
        operand: Any = self.equations[0].invars[0].aval
        return operand.dtype.itemsize <= 2

    @cached_property
    def where(self) -> str:
        return place_of(lines_of(self.equations), self.path)


@dataclass(frozen=True)
class Done:
    """One product of the compiled step: its operations in a step, and the bytes of its operands, on one device."""

    instruction: Instruction
    module: Module
    flops: int
    bytes: int

    @cached_property
    def phase(self) -> str:
        return phase_of(self.instruction, self.module)

    @cached_property
    def origin(self) -> Instruction:
        return with_lines(self.module, self.instruction)

    @property
    def path(self) -> str:
        """The path of the module that computed it."""
        return path_in(self.origin.op_name)

    @cached_property
    def where(self) -> str:
        return where_of(self.module, self.origin)


_PRODUCTS = ("dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general")
# A jaxpr does not tell how often a `while` loop turns and a kernel runs, nor how full the groups of a ragged product
# are.
_UNCOUNTED = ("while", "pallas_call", "ragged_dot", "ragged_dot_general")


def asked_products(
    jaxpr: Jaxpr, times: int = 1, path: str = "", around: tuple[JaxprEqn, ...] = (), *, is_repeated: bool = False
) -> Iterator[TracedProduct]:
    """Yields the products of a jaxpr, and those of the jaxprs in it as often as they run."""
    for equation in jaxpr.eqns:
        names, paths, _ = scopes(equation)
        here, repeated = "".join(paths[-1:]) or path, is_repeated or RECOMPUTED in names
        if equation.primitive.name in _PRODUCTS:
            yield TracedProduct((equation, *around), here, times * _flops_of(equation), repeated)
        params, name = equation.params, equation.primitive.name
        turns = params["length"] if name == "scan" else 1
        if name == "shard_map":
            # The shapes inside are those on one device of the axes that the body is written for.
            axes = params.get("newly_manual_axes", params.get("manual_axes", ()))
            turns = math.prod(params["mesh"].shape[axis] for axis in axes)
        for inner in map(equations.opened, equations.inner_jaxprs(params)):
            yield from asked_products(inner, times * turns, here, (equation, *around), is_repeated=repeated)


def _flops_of(equation: JaxprEqn) -> int:
    if equation.primitive.name in _UNCOUNTED:
        return 0
    avals: list[Any] = [var.aval for var in (*equation.invars, *equation.outvars)]
    lhs, rhs, out = (aval.shape for aval in avals)
    numbers = equation.params["dimension_numbers"]
    if equation.primitive.name == "dot_general":
        return 2 * math.prod(out) * math.prod(lhs[i] for i in numbers[0][0])
    return _convolution_flops(out, rhs, numbers.rhs_spec[0])


def _convolution_flops(out: tuple[int, ...], kernel: tuple[int, ...], features: int) -> int:
    """Counts the operations of a convolution: each output element sums over the kernel, but for its output features."""
    return 2 * math.prod(out) * (math.prod(kernel) // kernel[features])


def done_products(module: Module) -> list[Done]:
    """Returns the products of a compiled step."""
    products = []
    for instruction, times in module.instructions():
        if instruction.opcode not in ("dot", "convolution"):
            continue
        types = [instruction.type, *(operand.type for operand in module.operands(instruction))]
        out, lhs, rhs = (sizes_of(each)[0][1] for each in types)
        if instruction.opcode == "dot":
            flops = 2 * math.prod(out) * math.prod(lhs[i] for i in instruction.dims("lhs_contracting_dims"))
        else:
            labels = re.search(r"dim_labels=\w+_(\w+)->", instruction.rest)
            flops = _convolution_flops(out, rhs, labels[1].index("o")) if labels else 2 * math.prod(out)
        products.append(Done(instruction, module, times * flops, times * sum(map(bytes_of, types))))
    return products
