"""Estimates the cost of a program by XLA's analysis before optimisation: operations, and bytes read and written.

XLA counts the body of a loop once. The length of a scan is in the jaxpr, so its body is added for each iteration;
nobody knows the length of a `while` loop, whose body stays counted once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr
from weft.core.edge import _jax, _tracers
from weft.core.edge._jax import ClosedJaxpr


@dataclass(frozen=True, slots=True)
class Cost:
    """Floating-point operations, and bytes read and written."""

    flops: int = 0
    bytes: int = 0

    def __add__(self, addend: Cost) -> Cost:
        return Cost(self.flops + addend.flops, self.bytes + addend.bytes)

    def __mul__(self, times: int) -> Cost:
        return Cost(self.flops * times, self.bytes * times)


def abstract(value: Any) -> jax.ShapeDtypeStruct:
    """An array's shape and dtype."""
    return jax.ShapeDtypeStruct(value.shape, value.dtype, weak_type=getattr(value, "weak_type", False))


def forward_cost(program: ClosedJaxpr) -> Cost:
    """The cost of a program."""
    return estimate_program(program) + _further_turns(program.jaxpr)


def backward_cost(program: ClosedJaxpr) -> Cost | None:
    """Returns the cost of a program's backward pass by all inputs, without its forward pass; None if it has none."""
    takes, gives = ([_is_inexact(aval) for aval in avals] for avals in (program.in_avals, program.out_avals))
    if not any(takes) or not any(gives):
        return None

    def pullback(arrays: list[Any]) -> Any:
        def outputs(inexact: list[Any]) -> list[Any]:
            rest = iter(inexact)
            out = _jax.run(program, [next(rest) if is_taken else x for x, is_taken in zip(arrays, takes, strict=True)])
            return [y for y, is_given in zip(out, gives, strict=True) if is_given]

        return jax.vjp(outputs, [x for x, is_taken in zip(arrays, takes, strict=True) if is_taken])[1]

    cotangents = [aval for aval, is_given in zip(program.out_avals, gives, strict=True) if is_given]
    try:
        pull = jax.eval_shape(pullback, list(map(abstract, program.in_avals)))
        derivative = jax.make_jaxpr(lambda pull, given: pull(given))(pull, list(map(abstract, cotangents)))
    except (TypeError, ValueError, NotImplementedError):  # a while loop, a callback: JAX says so in several ways
        return None
    return forward_cost(derivative)


def _is_inexact(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.inexact)


def estimate_program(program: ClosedJaxpr) -> Cost:
    """Returns XLA's estimate for a program, with each loop's body counted once."""
    # Constants may be tracers of the outer trace, which cannot be lowered, so they become arguments.
    avals = [*map(jax.typeof, program.consts), *program.in_avals]

    def run(*arrays: Any) -> list[Any]:
        consts, inputs = arrays[: len(program.consts)], arrays[len(program.consts) :]
        return _jax.run(ClosedJaxpr(program.jaxpr, consts), inputs)

    # Collectives over an axis that an outer transform binds fail in a program of their own, so each axis is bound here,
    # with its size, which equations hold. The cost is that of one index.
    for name, size in _tracers.bound_axes().items():
        run = jax.vmap(run, in_axes=None, axis_name=name, axis_size=size)
    analysis = jax.jit(run).lower(*map(abstract, avals)).cost_analysis() or {}
    return Cost(int(analysis.get("flops", 0)), int(analysis.get("bytes accessed", 0)))


def _further_turns(jaxpr: Jaxpr) -> Cost:
    total = Cost()
    for equation in jaxpr.eqns:
        turns = 1
        if equation.primitive.name == "scan":
            turns = equation.params["length"]
            # XLA's estimate has one iteration already.
            total += estimate_program(equation.params["jaxpr"]) * (turns - 1)
        for inner in _inner(equation):
            total += _further_turns(inner) * turns
    return total


def _inner(equation: Any) -> Iterator[Jaxpr]:
    for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda node: isinstance(node, ClosedJaxpr)):
        if isinstance(value, ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, Jaxpr):
            yield value
