"""Traces a step over shapes to a jaxpr over arrays, with the role of each argument, donation and output shardings."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, Sharding
from weft.core.edge import _jax
from weft.core.edge._jax import ClosedJaxpr
from weft.core.records.keys import Keys
from weft.core.sowing.tags import take_arrays
from weft.insight.calls import around_calls, is_object
from weft.insight.equations import MODULE
from weft.insight.plan.arguments import Argument, enlarged
from weft.insight.plan.records import inputs_of_trees
from weft.insight.plan.simulated import Lowered
from weft.modules.learning.optimizer import Optimizer
from weft.modules.sharding.block import axis_rules

# Numbers that become part of JAX's cache keys. A step that was traced before would come from the cache, without the
# named scopes by which a plan finds modules.
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Program:
    """A traced step.

    Attributes:
        closed: the jaxpr, from arrays to arrays.
        arguments: its inputs, with path, role and sharding.
        donated: the positions of the inputs whose buffers the step may reuse.
        out_shardings: the shardings of its outputs; None where XLA chooses.
    """

    closed: ClosedJaxpr
    arguments: list[Argument]
    donated: tuple[int, ...] = ()
    out_shardings: tuple[Sharding | None, ...] = ()

    def lowered(self) -> Lowered:
        """Lowers the program to StableHLO."""
        avals = [argument.aval for argument in self.arguments]
        step = jax.jit(
            lambda *arrays: _jax.run(self.closed, arrays),
            in_shardings=[aval.sharding for aval in avals],
            out_shardings=list(self.out_shardings),
            donate_argnums=self.donated,
            # Bytes of arguments are counted by their order, so XLA must not drop an argument that the step does not
            # read.
            keep_unused=True,
        )
        # The child process has CPU devices, whatever this process has.
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
    times: int = 1,
    **naming: Any,
) -> Program:
    """Traces a step for arguments that lie on a mesh.

    Args:
        step: a function, compiled or not; the plan keeps the donation and output shardings of a compiled one.
        args: records, NNX objects or any trees; arrays may be shapes.
        mesh: an abstract mesh or a mesh of devices.
        rules: the rules of the block (`weft.axis_rules`) that the step is traced in; without rules the arrays' own
            shardings hold, and those of a block around.
        batch: the axes of the mesh that divide the first axis of a batch.
        times: how many times as large as the arguments' the batch is.
        naming: `names` and `unnamed` of `weft.shard`.
    """
    objects = {number: arg for number, arg in enumerate(args) if is_object(arg)}
    trees = {number: arg for number, arg in enumerate(args) if number not in objects}
    block = contextlib.nullcontext() if rules is None else axis_rules(mesh, rules)
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh), block:
        groups = [(trees, inputs_of_trees(trees, mesh, rules, batch, naming))]
        if objects:
            from weft.insight.plan.objects import inputs_of_objects

            groups.append((objects, inputs_of_objects(objects, mesh, rules)))
        arguments = enlarged([argument for _, inputs in groups for argument in inputs.arguments], times)

        def run(*arrays: Any) -> list[Any]:
            unused, values, changed = iter(arrays), dict[int, Any](), list[Any]()
            for numbered, inputs in groups:
                parts = inputs.rebuilt(list(itertools.islice(unused, len(inputs.arguments))))
                values.update(zip(numbered, parts, strict=True))
            with around_calls(_in_scope, f"plan {next(_numbers)}", values.values()):
                out = step(*(values[number] for number in range(len(args))))
            for numbered, inputs in groups:
                # NNX objects are updated in place: their new values are outputs of the step, although it does not
                # return them.
                changed += inputs.changed([values[number] for number in numbered])
            return [*take_arrays(out)[0], *changed]

        closed = jax.make_jaxpr(run)(*(argument.aval for argument in arguments))
    return _program(closed, arguments)


def _in_scope(path: str, module: Any, method: str, proceed: Callable[[], Any]) -> Any:
    __tracebackhide__ = True
    # Keys and optimizers are no modules of the model. A module that the step created has its type for a path, and the
    # module around it says more about where it is.
    if isinstance(module, Keys | Optimizer) or path in ("", type(module).__qualname__):
        return proceed()
    with jax.named_scope(MODULE + path):
        return proceed()


def _program(closed: ClosedJaxpr, arguments: list[Argument]) -> Program:
    """Makes a program with the donation and output shardings of the compiled functions that the step calls.

    A step need not be one compiled function: it may prepare its batch before it calls one, or call two.
    """
    jaxpr = closed.jaxpr
    numbers: dict[Any, int] = {var: i for i, var in enumerate(jaxpr.invars)}
    donated: set[int] = set()
    shardings: dict[Any, Sharding] = {}
    # Only the outer equations are read: an inner `jit` cannot donate an argument of the step.
    for equation in jaxpr.eqns:
        if equation.primitive.name not in ("jit", "pjit"):
            continue
        inputs = zip(equation.invars, equation.params["donated_invars"], strict=True)
        donated |= {
            numbers[var] for var, is_donated in inputs if is_donated and not _jax.is_literal(var) and var in numbers
        }
        outputs = zip(equation.outvars, equation.params["out_shardings"], strict=True)
        shardings |= {var: sharding for var, sharding in outputs if isinstance(sharding, Sharding)}
    # A compiled function forwards an argument that it returns unchanged, without a copy. As an output of the program it
    # would count twice.
    computed = [var for var in jaxpr.outvars if _jax.is_literal(var) or var not in numbers] or jaxpr.outvars
    outs = tuple(None if _jax.is_literal(var) else shardings.get(var) for var in computed)
    program = ClosedJaxpr(_jax.replaced(jaxpr, outvars=list(computed)), closed.consts)
    return Program(program, arguments, tuple(sorted(donated)), outs)
