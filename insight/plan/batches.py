"""Finds which axes of a step's values grow with its batch, by comparing traces of the step for two batches.

A jaxpr has shapes and no names of axes, and a batch of 8 looks like 8 features. An axis that is twice as long in the
trace for a batch twice as large is the batch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn
from weft.core.edge import _jax, equations
from weft.insight.plan.activations import Activations, activations_of
from weft.insight.plan.arguments import Batch, batch_of
from weft.insight.plan.collectives import lines_of, place_of
from weft.insight.plan.tracing import Program

# Primitives whose outputs hold the examples of their first input, in another shape.
_SLICES = ("slice", "dynamic_slice", "gather")
_MOVES = (*_SLICES, "reshape", "transpose", "squeeze", "broadcast_in_dim", "pad")


@dataclass(frozen=True)
class Growth:
    """What the trace for a larger batch shows.

    Attributes:
        larger: the step, traced for a batch twice as large.
        axes: for each activation, the axes that grow with the batch.
        part: the smallest part of the batch that the step computes at once.
    """

    larger: Program
    axes: list[list[int]]
    part: MicroBatch | None


@dataclass(frozen=True)
class MicroBatch:
    """Examples that a step computes at once: how many, and the equations that take them, from the inside out."""

    size: int
    equations: tuple[JaxprEqn, ...]

    @property
    def where(self) -> str:
        return place_of(lines_of(self.equations), "")


def growth_of(program: Program, activations: Activations, trace: Callable[[int], Program]) -> Growth | None:
    """Traces a step again, for a batch twice as large; returns None if the step has no batch, or holds for one size.

    Args:
        program: the traced step.
        activations: what it keeps for its backward pass.
        trace: traces the step for a batch that is so many times as large.
    """
    batch = batch_of(program.arguments)
    if not batch.size:
        return None
    try:
        larger = trace(2)
        larger_activations = activations_of(larger)
        pairs = list(zip(_shapes(activations), _shapes(larger_activations), strict=True))
        part = smallest_micro_batch(program, larger, batch)
    # The step is the user's, and may fail in any way for a batch that it was not written for.
    except Exception:
        return None
    return Growth(larger, [grown_axes(shape, longer) for shape, longer in pairs], part)


def _shapes(activations: Activations) -> list[tuple[int, ...]]:
    variables: list[Any] = activations.program.closed.jaxpr.outvars if activations.program else []
    return [var.aval.shape for var in variables]


def grown_axes(shape: tuple[int, ...], larger: tuple[int, ...]) -> list[int]:
    """Returns the axes that grow with the batch, of a value's shapes in the two traces."""
    return [axis for axis, (size, longer) in enumerate(zip(shape, larger, strict=False)) if size != longer]


def smallest_micro_batch(program: Program, larger: Program, batch: Batch) -> MicroBatch | None:
    """Returns the smallest part of its batch that a step computes at once: a turn of a loop, or a slice.

    Args:
        program: the traced step.
        larger: the step, traced for a batch twice as large.
        batch: the batch of the first.
    """
    jaxpr = program.closed.jaxpr
    pairs = zip(jaxpr.invars, program.arguments, strict=True)
    examples = {var for var, argument in pairs if argument.role == "batch" and argument.aval.shape}
    parts = [part for part in _parts(jaxpr, larger.closed.jaxpr, examples, batch.size) if part.size < batch.size]
    return min(parts, key=lambda part: part.size, default=None)


def _parts(
    jaxpr: Jaxpr, larger: Jaxpr, examples: set[Any], size: int, around: tuple[JaxprEqn, ...] = ()
) -> Iterator[MicroBatch]:
    """Yields the parts of the batch that equations take; adds the variables that hold examples to `examples`."""
    for equation, larger_equation in zip(jaxpr.eqns, larger.eqns, strict=True):
        read = [not _jax.is_literal(var) and var in examples for var in equation.invars]
        name, params, place = equation.primitive.name, equation.params, (equation, *around)
        # The shapes in a `shard_map` are those on one device, which takes its part of the batch.
        if not any(read) or name == "shard_map":
            continue
        inner = zip(equations.inner_jaxprs(params), equations.inner_jaxprs(larger_equation.params), strict=True)
        bodies = [(equations.opened(body), equations.opened(larger_body)) for body, larger_body in inner]
        # A loop whose turns grow with the batch takes a fixed number of examples at a time.
        if name == "scan" and params["length"] != larger_equation.params["length"]:
            yield MicroBatch(max(1, size // params["length"]), place)
        for body, larger_body in bodies:
            # The inputs of a branch or a loop's body are the last of the equation's.
            inputs = zip(reversed(body.invars), reversed(read), strict=False)
            body_examples = {var for var, is_read in inputs if is_read}
            if name == "scan":
                unsliced = sum(equations.scan_counts(params))
                slices = zip(body.invars[unsliced:], larger_body.invars[unsliced:], strict=True)
                yield from _sizes([pair for pair in slices if pair[0] in body_examples], place)
            yield from _parts(body, larger_body, body_examples, size, place)
            # A loop stacks what it keeps for the backward pass of each turn, which the backward loop takes apart again.
            outputs = zip(body.outvars, equation.outvars, strict=False) if name != "scan" else ()
            examples |= {out for var, out in outputs if not _jax.is_literal(var) and var in body_examples}
        invars: list[Any] = equation.invars
        shapes = {var.aval.shape for var, is_read in zip(invars, read, strict=True) if is_read}
        outs: Any = zip(equation.outvars, larger_equation.outvars, strict=True) if not bodies else ()
        is_moved = name == "concatenate" or (name in _MOVES and read[0])
        moved = [(var, larger_var) for var, larger_var in outs if is_moved or var.aval.shape in shapes]
        examples |= {var for var, _ in moved}
        # A slice of a few features or of all but one token is no part of a batch.
        if name in _SLICES and read[0] and 2 * moved[0][0].aval.size <= invars[0].aval.size:
            yield from _sizes(moved, place)


def _sizes(pairs: Iterable[tuple[Any, Any]], place: tuple[JaxprEqn, ...]) -> Iterator[MicroBatch]:
    for var, larger in pairs:
        shape = var.aval.shape
        yield from (MicroBatch(shape[axis], place) for axis in grown_axes(shape, larger.aval.shape))
