"""Traces a step over shapes: its program, and what each argument is, where it lies and what it is for.

Methods of models run in a named scope with the part's path, so that whatever XLA makes of them still says whose it is.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from weft.core.contexts import tabulate_context
from weft.core.edge import _jax, equations
from weft.core.edge._jax import ClosedJaxpr
from weft.core.paths import format_path
from weft.core.records.keys import Keys
from weft.core.records.kinds import Param
from weft.core.records.leaves import NUMBERS, iter_leaves
from weft.core.records.module import watch_methods
from weft.core.sowing.tags import take_arrays
from weft.insight.plan.arguments import Argument, fits, on_mesh
from weft.insight.plan.objects import has_objects, objects_taken_apart
from weft.insight.plan.simulated import Lowered
from weft.modules.learning.optimizer import Optimizer
from weft.modules.sharding.placing import shard
from weft.modules.summary.calls import Running, _place_of

MARK = "weft:"
_running: ContextVar[list[Running] | None] = ContextVar("weft_plan_running", default=None)
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Program:
    """A traced step: a jaxpr of its arguments, with what its compiled function was told."""

    closed: ClosedJaxpr
    arguments: list[Argument]
    donated: tuple[int, ...]
    out_shardings: tuple[Any, ...]

    def lowered(self, closed: ClosedJaxpr | None = None) -> Lowered:
        """As StableHLO; with another jaxpr of the same arguments in place of its own."""
        program, own = closed or self.closed, closed is None
        outs = self.out_shardings if own else (None,) * len(program.jaxpr.outvars)
        places = tuple(one.sharding for one in self.arguments)
        donated = self.donated if own else ()
        step = jax.jit(
            lambda *arrays: _jax.run(program, arrays),
            in_shardings=places,
            out_shardings=list(outs),
            donate_argnums=donated,
            keep_unused=True,
        )
        traced = step.trace(*(one.aval for one in self.arguments))
        module: Any = traced.lower(lowering_platforms=("cpu",)).compiler_ir("stablehlo")
        written = io.BytesIO()
        module.operation.write_bytecode(written)
        return Lowered(written.getvalue(), [one is None for one in outs])


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
        step: compiled or not; what it was told of donation and of its outputs' places holds.
        args: records, NNX objects, any trees; arrays may be shapes.
        mesh: without devices, or with them.
        rules: for `weft.shard`; without them what the arrays' own shardings say.
        batch: the axes of the mesh that divide the first axis of arrays that are no model's.
        naming: `names` and `unnamed` of `weft.shard`.
    """
    with jax.sharding.use_abstract_mesh(mesh if isinstance(mesh, AbstractMesh) else mesh.abstract_mesh):
        if has_objects(args):
            arguments, run = objects_taken_apart(step, args, mesh, rules, batch)
        else:
            arguments, run = _records_taken_apart(step, args, mesh, rules, batch, naming)
        with tabulate_context(next(_numbers)):
            closed = jax.make_jaxpr(run)(*(one.aval for one in arguments))
    return _peeled(closed, arguments)


def _records_taken_apart(
    step: Callable[..., Any], args: tuple[Any, ...], mesh: Any, rules: Any, batch: Any, naming: dict[str, Any]
) -> tuple[list[Argument], Callable[..., Any]]:
    placed = []
    for arg in args:
        shapes = jax.tree.map(_shape_on(mesh), arg)
        is_model = any(leaf.owners for leaf in iter_leaves(shapes))
        placed.append(shard(shapes, mesh, rules, **naming) if is_model and rules is not None else shapes)
    found = [leaf for leaf in iter_leaves(tuple(placed)) if leaf.dynamic]
    leaves, tree = jax.tree.flatten(tuple(placed))
    if len(found) != len(leaves):
        found = [None] * len(leaves)
    arguments = []
    for leaf, value in zip(found, leaves, strict=True):
        role = "batch" if leaf is None else _role(leaf, args)
        path = format_path(leaf.path[1:], f"args[{leaf.path[0]}]") if leaf is not None else "argument"
        arguments.append(Argument(path, role, on_mesh(value, mesh, batch if role == "batch" else None)))

    def run(*arrays: Any) -> Any:
        given = jax.tree.unflatten(tree, arrays)
        with scopes(list(given)):
            return take_arrays(step(*given))[0]

    return arguments, run


def _role(leaf: Any, args: tuple[Any, ...]) -> str:
    whole = args[leaf.path[0]]
    if any(issubclass(owner, Optimizer) for owner in leaf.owners) or type(whole).__module__.startswith("optax"):
        return "optimizer"
    if isinstance(whole, tuple) and any(type(part).__module__.startswith("optax") for part in whole):
        return "optimizer"
    inexact = jnp.issubdtype(leaf.value.dtype, jnp.inexact)
    if leaf.owners:
        return "params" if inexact and issubclass(leaf.kind, Param) else "state"
    # A tree of arrays by name is how models without records write their parameters.
    return "params" if isinstance(whole, dict) and inexact and len(leaf.path) > 2 else "batch"


def _shape_on(mesh: Any) -> Callable[[Any], Any]:
    def shape(value: Any) -> Any:
        if not hasattr(value, "shape") or not hasattr(value, "dtype"):
            return jax.ShapeDtypeStruct(np.shape(value), jnp.result_type(value)) if type(value) in NUMBERS else value
        sharding = getattr(value, "sharding", None)
        spec = sharding.spec if isinstance(sharding, NamedSharding) and fits(sharding.spec, mesh) else None
        place = None if spec is None else NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=place)

    return shape


@contextlib.contextmanager
def scopes(models: list[Any]) -> Iterator[None]:
    """Within it, methods of the models' records run in named scopes with their paths."""
    token = _running.set([Running(model, (), "") for model in models])
    watch_methods(_scoped, 1)
    try:
        yield
    finally:
        watch_methods(_scoped, -1)
        _running.reset(token)


def _scoped(record: Any, method: Callable[..., Any], given: Any, proceed: Callable[[], Any]) -> Any:
    __tracebackhide__ = True
    running = _running.get()
    if running is None or isinstance(record, (Keys, Optimizer)):
        return proceed()
    path, _ = _place_of(running, record)
    if not path:
        return proceed()
    running.append(Running(record, path, ""))
    try:
        with jax.named_scope(MARK + format_path(path)):
            return proceed()
    finally:
        running.pop()


def _peeled(closed: ClosedJaxpr, arguments: list[Argument]) -> Program:
    """The program inside of the one compiled function that a step is, with its donation and its outputs' places.

    Outputs that are arguments as they are never leave a compiled function of weft's.
    """
    jaxpr, unknown = closed.jaxpr, (None,) * len(closed.jaxpr.outvars)
    if len(jaxpr.eqns) != 1 or jaxpr.eqns[0].primitive.name not in ("jit", "pjit"):
        inputs = set(jaxpr.invars)
        outs = [one for one in jaxpr.outvars if _jax.is_literal(one) or one not in inputs]
        return (
            Program(_with_outputs(closed, outs), arguments, (), (None,) * len(outs))
            if outs
            else Program(closed, arguments, (), unknown)
        )
    equation: JaxprEqn = jaxpr.eqns[0]
    inner, params = equation.params["jaxpr"], equation.params
    places = {var: i for i, var in enumerate(jaxpr.invars)}
    if closed.consts or any(_jax.is_literal(var) or var not in places for var in equation.invars):
        return Program(closed, arguments, (), unknown)
    order = [places[cast(Any, var)] for var in equation.invars]
    arguments = [arguments[i] for i in order]
    donated = tuple(i for i, is_donated in enumerate(params["donated_invars"]) if is_donated)
    outs = tuple(one if isinstance(one, jax.sharding.Sharding) else None for one in params["out_shardings"])
    return Program(inner, arguments, donated, outs)


def _with_outputs(closed: ClosedJaxpr, outs: list[Any]) -> ClosedJaxpr:
    return (
        _jax.close(_jax.replaced(closed.jaxpr, outvars=outs))
        if not closed.consts
        else ClosedJaxpr(_jax.replaced(closed.jaxpr, outvars=outs), closed.consts)
    )


def inner_of(equation: JaxprEqn) -> list[Any]:
    return [equations.opened(one) for one in equations.inner_jaxprs(equation.params)]
