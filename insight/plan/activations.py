"""What a traced step keeps for its backward pass, and the operations of its matrix products, counted on its jaxpr."""

from __future__ import annotations

import math
import re
from typing import Any

import jax
from jax.extend.core import Jaxpr, JaxprEqn
from weft.core.edge import _jax, equations
from weft.core.edge._jax import ClosedJaxpr
from weft.insight.plan.tracing import MARK, Program, inner_of


def path_in(names: str) -> str:
    """The path of the innermost model's part in a name stack; empty if there is none.

    >>> path_in("jit(step)/transpose(jvp(weft:blocks.attn))/dot_general")
    'blocks.attn'
    """
    found = re.findall(rf"{MARK}([^/()]+)", names)
    return found[-1] if found else ""


def is_backward(equation: JaxprEqn) -> bool:
    return "transpose(" in str(equation.source_info.name_stack)


def kept_values(program: Program) -> tuple[ClosedJaxpr, list[str]] | None:
    """The program that returns what a step keeps, and the paths of what keeps it; None where it keeps nothing.

    What forward equations compute and backward ones read is kept.
    """

    def run(equation: JaxprEqn, values: list[Any]) -> Any:
        inner = inner_of(equation)
        if equation.primitive.name in ("jit", "pjit") and any(map(is_backward, inner[0].eqns)):
            body = equation.params["jaxpr"]
            return _jax.evaluate(body.jaxpr, body.consts, values, run)
        return _jax.bind_equation(equation, values)

    closed = program.closed
    shapes = [one.aval for one in program.arguments]
    flat = jax.make_jaxpr(lambda *arrays: _jax.evaluate(closed.jaxpr, closed.consts, arrays, run))(*shapes)
    made: dict[Any, tuple[JaxprEqn, int]] = {}
    kept: dict[Any, str] = {}
    for equation in flat.jaxpr.eqns:
        for var in equation.invars:
            if not _jax.is_literal(var) and var in made and is_backward(equation):
                kept.setdefault(var, _nearest_path(var, made))
        if not is_backward(equation) and any(not _jax.is_literal(var) for var in equation.invars):
            made.update({var: (equation, i) for i, var in enumerate(equation.outvars)})
    if not kept:
        return None
    return ClosedJaxpr(_jax.replaced(flat.jaxpr, outvars=list(kept)), flat.consts), list(kept.values())


def _nearest_path(var: Any, made: dict[Any, tuple[JaxprEqn, int]]) -> str:
    """The path of the part that computed a value, or of the part whose output went into it, as into a relu."""
    for _ in range(8):
        if path := _path_of(*made[var]):
            return path
        before = [one for one in made[var][0].invars if not _jax.is_literal(one) and one in made]
        if not before:
            break
        var = before[0]
    return ""


def _path_of(equation: JaxprEqn, index: int) -> str:
    own = path_in(str(equation.source_info.name_stack))
    for inner in inner_of(equation)[:1]:
        var = inner.outvars[index] if index < len(inner.outvars) else None
        for maker in inner.eqns:
            if any(out is var for out in maker.outvars):
                return _path_of(maker, list(maker.outvars).index(var)) or own
    return own


def matrix_flops(jaxpr: Jaxpr) -> tuple[int, int]:
    """Operations of all matrix products but those that remat repeats, and of those in half precision."""
    total = half = 0
    for equation in jaxpr.eqns:
        if "rematted_computation" in str(equation.source_info.name_stack):
            continue
        if equation.primitive.name == "dot_general":
            (contracting, _), _ = equation.params["dimension_numbers"]
            left: Any = equation.invars[0].aval
            out: Any = equation.outvars[0].aval
            flops = 2 * math.prod(out.shape) * math.prod(left.shape[i] for i in contracting)
            total, half = total + flops, half + flops * (left.dtype.itemsize <= 2)
        turns = equation.params["length"] if equation.primitive.name == "scan" else 1
        for inner in equations.inner_jaxprs(equation.params):
            flops, of_half = matrix_flops(equations.opened(inner))
            total, half = total + turns * flops, half + turns * of_half
    return total, half
