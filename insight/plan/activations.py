"""Finds the values that a traced step keeps for its backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import JaxprEqn
from weft.core.edge import _jax, equations
from weft.core.edge._jax import ClosedJaxpr
from weft.core.edge.equations import iter_equations
from weft.insight.equations import is_backward, scopes
from weft.insight.plan.tracing import Program


@dataclass(frozen=True)
class Activations:
    """The values that a step keeps for its backward pass.

    Attributes:
        program: a program from the step's arguments to these values. XLA decides how values are divided, so the
            program is compiled, and the shapes of its outputs on one device are the shapes of the activations.
        paths: for each value, the path of the module that computed it.
        unseen: primitives with a derivative inside whose activations are not counted.
    """

    program: Program | None
    paths: list[str]
    unseen: list[str]


def activations_of(program: Program) -> Activations:
    """Finds the values that forward equations compute and backward equations read."""
    unseen: set[str] = set()

    def evaluated(closed: ClosedJaxpr, values: Sequence[Any]) -> Any:
        return _jax.evaluate(closed.jaxpr, closed.consts, values, run)

    def run(equation: JaxprEqn, values: list[Any]) -> Any:
        if is_backward(equation) or not any(map(is_backward, iter_equations([equation]))):
            return _jax.bind_equation(equation, values)
        name, params = equation.primitive.name, equation.params
        if name in ("jit", "pjit"):
            # `jit` inside of the step hides forward and backward equations in one, so it is inlined.
            return evaluated(params["jaxpr"], values)
        # A loop around a derivative (gradients that are accumulated) keeps the activations of one turn at a time.
        if name == "scan":
            unsliced = sum(equations.scan_counts(params))
            # The turn is evaluated for its equations only: its outputs are dropped, and the loop itself follows.
            evaluated(params["jaxpr"], [*values[:unsliced], *(stacked[0] for stacked in values[unsliced:])])
        elif name == "while":
            evaluated(params["body_jaxpr"], values[params["cond_nconsts"] :])
        else:
            unseen.add(name)
        return _jax.bind_equation(equation, values)

    avals = [argument.aval for argument in program.arguments]
    flat = jax.make_jaxpr(lambda *arrays: evaluated(program.closed, arrays))(*avals)
    # An activation crosses from forward to backward: a forward equation computes it, and a backward one reads it.
    # Equations that read no variable give constants, which are no activations.
    made: dict[Any, tuple[JaxprEqn, int]] = {}
    paths: dict[Any, str] = {}
    for equation in flat.jaxpr.eqns:
        read = [var for var in equation.invars if not _jax.is_literal(var)]
        if is_backward(equation):
            paths |= {var: _nearest_path(var, made) for var in read if var in made and var not in paths}
        elif read:
            made.update({var: (equation, i) for i, var in enumerate(equation.outvars)})
    if not paths:
        return Activations(None, [], sorted(unseen))
    outputs = ClosedJaxpr(_jax.replaced(flat.jaxpr, outvars=list(paths)), flat.consts)
    return Activations(
        Program(outputs, program.arguments, (), (None,) * len(paths)), list(paths.values()), sorted(unseen)
    )


def _nearest_path(var: Any, made: dict[Any, tuple[JaxprEqn, int]]) -> str:
    """Returns the path of the module that computed a value or, if no module did, the value's nearest source.

    Functions between modules, such as a relu, belong to no module.
    """
    # A bound for chains of functions without a module; a module further away says nothing about the value.
    for _ in range(8):
        if path := _path_of(*made[var]):
            return path
        sources = [source for source in made[var][0].invars if not _jax.is_literal(source) and source in made]
        if not sources:
            break
        var = sources[0]
    return ""


def _path_of(equation: JaxprEqn, index: int) -> str:
    """Returns the path of the module that computed an output; equations inside of a loop or call are more precise."""
    for jaxpr in map(equations.opened, equations.inner_jaxprs(equation.params)):
        var = jaxpr.outvars[index] if index < len(jaxpr.outvars) else None
        for maker in jaxpr.eqns:
            if var in maker.outvars and (path := _path_of(maker, maker.outvars.index(var))):
                return path
    return "".join(scopes(equation)[1][-1:])
