"""Traces a step over shapes: a program of arrays, with what is known of each argument and what is donated."""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, Sharding
from weft.core.contexts import tabulate_context
from weft.core.edge import _jax
from weft.core.edge._jax import ClosedJaxpr
from weft.core.sowing.tags import take_arrays
from weft.insight.plan.arguments import Argument
from weft.insight.plan.records import inputs_of_trees
from weft.insight.plan.simulated import Lowered

# Part of JAX's cache keys: a step that was traced before is traced again, with scopes.
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Program:
    """A traced step.

    Attributes:
        closed: the jaxpr, from arrays to arrays.
        arguments: what its inputs are.
        donated: the numbers of the inputs whose buffers the step may reuse.
        out_shardings: of its outputs; None where XLA chooses.
    """

    closed: ClosedJaxpr
    arguments: list[Argument]
    donated: tuple[int, ...] = ()
    out_shardings: tuple[Sharding | None, ...] = ()

    def lowered(self) -> Lowered:
        """As StableHLO."""
        avals = [argument.aval for argument in self.arguments]
        step = jax.jit(
            lambda *arrays: _jax.run(self.closed, arrays),
            in_shardings=[aval.sharding for aval in avals],
            out_shardings=list(self.out_shardings),
            donate_argnums=self.donated,
            keep_unused=True,
        )
        module: Any = step.trace(*avals).lower(lowering_platforms=("cpu",)).compiler_ir("stablehlo")
        written = io.BytesIO()
        module.operation.write_bytecode(written)
        return Lowered(written.getvalue(), [sharding is None for sharding in self.out_shardings])


def traced(
    step: Callable[..., Any],
    args: tuple[Any, ...],
    mesh: AbstractMesh | Mesh,
    rules: Any = None,
    batch: Any = None,
    **naming: Any,
) -> Program:
    """Traces a step for arguments that lie on a mesh.

    Args:
        step: compiled or not; its donation and its outputs' shardings hold.
        args: records, NNX objects, any trees; arrays may be shapes.
        mesh: without devices, or with them.
        rules: for `weft.shard`; without them what the arrays' own shardings say.
        batch: the axes of the mesh that divide the first axis of a batch.
        naming: `names` and `unnamed` of `weft.shard`.
    """
    nnx: Any = sys.modules.get("weft.nnx")
    objects = {number: arg for number, arg in enumerate(args) if nnx is not None and isinstance(arg, nnx.Pytree)}
    trees = {number: arg for number, arg in enumerate(args) if number not in objects}
    with jax.sharding.use_abstract_mesh(mesh if isinstance(mesh, AbstractMesh) else mesh.abstract_mesh):
        groups = [(trees, inputs_of_trees(trees, mesh, rules, batch, naming))]
        if objects:
            from weft.insight.plan.objects import inputs_of_objects

            groups.append((objects, inputs_of_objects(objects, mesh, rules)))
        arguments = [argument for _, inputs in groups for argument in inputs.arguments]

        def run(*arrays: Any) -> list[Any]:
            unused, values, changed = iter(arrays), dict[int, Any](), list[Any]()
            with ExitStack() as scopes:
                for numbered, inputs in groups:
                    parts = inputs.rebuilt(list(itertools.islice(unused, len(inputs.arguments))))
                    scopes.enter_context(inputs.scopes(parts))
                    values.update(zip(numbered, parts, strict=True))
                out = step(*(values[number] for number in range(len(args))))
            for numbered, inputs in groups:
                changed += inputs.changed([values[number] for number in numbered])
            return [*take_arrays(out)[0], *changed]

        with tabulate_context(next(_numbers)):
            closed = jax.make_jaxpr(run)(*(argument.aval for argument in arguments))
    return _program(closed, arguments)


def _program(closed: ClosedJaxpr, arguments: list[Argument]) -> Program:
    """A program with the donation and the shardings of outputs that the compiled functions in it ask for.

    A step need not be one compiled function: it may prepare its batch before it calls one, or call two.
    """
    jaxpr = closed.jaxpr
    numbers: dict[Any, int] = {var: i for i, var in enumerate(jaxpr.invars)}
    donated: set[int] = set()
    shardings: dict[Any, Sharding] = {}
    for equation in jaxpr.eqns:
        if equation.primitive.name not in ("jit", "pjit"):
            continue
        inputs = zip(equation.invars, equation.params["donated_invars"], strict=True)
        donated |= {numbers[var] for var, given in inputs if given and not _jax.is_literal(var) and var in numbers}
        outputs = zip(equation.outvars, equation.params["out_shardings"], strict=True)
        shardings |= {var: sharding for var, sharding in outputs if isinstance(sharding, Sharding)}
    # What a step returns unchanged stays where it is: a compiled function does not copy it.
    computed = [var for var in jaxpr.outvars if _jax.is_literal(var) or var not in numbers] or jaxpr.outvars
    outs = tuple(None if _jax.is_literal(var) else shardings.get(var) for var in computed)
    program = ClosedJaxpr(_jax.replaced(jaxpr, outvars=list(computed)), closed.consts)
    return Program(program, arguments, tuple(sorted(donated)), outs)
