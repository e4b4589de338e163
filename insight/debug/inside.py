"""Runs equations that contain jaxprs (calls, branches, loops, `shard_map`) one inner equation at a time.

`RULES` has a rule for each primitive. A rule runs the equation, and sets `step.descend(output)`, which follows a bad
output: the function returns the origins inside, and the inputs of the equation by which the bad value came in.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from weft.core.edge import _jax, equations
from weft.insight.debug.interpreting import Origin, Run, Step, states_of

# The origins inside of an equation, and the positions of the equation's inputs by which a bad value came in.
Sources = tuple[list[Origin], list[int]]


def _inline(run: Run, step: Step, jaxpr: Any, values: Sequence[Any], first: int, *frames: str) -> list[Any]:
    """Runs a jaxpr in place of its equation: the jaxpr takes the equation's inputs from position `first` on."""
    context = run.context.inside(step, *frames)
    inner = Run(jaxpr, values, context, run.expected, lambda i: run.name_of(step.eqn.invars[first + i]))

    def descend(which: int) -> Sources:
        origins, inputs = inner.origins(inner.jaxpr.outvars[which])
        return origins, [first + i for i in inputs]

    step.descend = descend
    return inner.outs


def _call(run: Run, step: Step, values: Sequence[Any]) -> list[Any]:
    return _inline(run, step, equations.inner_jaxprs(step.eqn.params)[0], values, 0)


def _remat(run: Run, step: Step, values: Sequence[Any]) -> list[Any]:
    return _inline(run, step, step.eqn.params["jaxpr"], values, 0, "remat")


def _cond(run: Run, step: Step, values: Sequence[Any]) -> Sequence[Any]:
    branches, index = step.eqn.params["branches"], np.asarray(values[0])
    indices = np.clip(index, 0, len(branches) - 1)
    if not index.ndim:
        return _inline(run, step, branches[int(indices)], values[1:], 1, f"cond(branch {int(indices)})")
    # Inside of a `shard_map` the index has an axis of devices, and each device takes a branch of its own.
    outs = run.bind(step.eqn, values)

    def descend(which: int) -> Sources:
        bad = ~np.isfinite(np.asarray(outs[which])).reshape(len(indices), -1).all(1)
        branch = int(indices[bad][0])
        # The interpreted branch runs on all devices. Devices that took another branch run it on ones instead of their
        # own operands, for which the branch may divide by zero: it was not written for them.
        operands = [
            jnp.where(jnp.reshape(indices == branch, (-1,) + (1,) * (jnp.ndim(x) - 1)), x, jnp.ones_like(x))
            for x in values[1:]
        ]
        _inline(run, step, branches[branch], operands, 1, f"cond(branch {branch})")
        inline, step.descend = step.descend, descend
        return inline(which) if inline is not None else ([], [])

    step.descend = descend
    return outs


@dataclass(eq=False)
class Loop:
    """A loop with a bad output, run iteration by iteration.

    Attributes:
        run: the run of the jaxpr around the loop.
        step: the step of the loop's equation.
        name: the loop's name for users: `scan` or `while_loop`.
        body: the body's jaxpr, which takes `(*consts, *carry, *slices)`.
        first: the position of the first constant of the body among the equation's inputs; all others follow.
        consts, carry: the values of the body's constants, and of the initial carry.
        slices: returns the slices that an iteration takes.
        goes_on: takes the number of an iteration and the carry before it, and returns whether it runs.
        flags: for each iteration the states of its outputs, once all have run.
    """

    run: Run
    step: Step
    name: str
    body: Any
    first: int
    consts: Sequence[Any]
    carry: Sequence[Any]
    slices: Callable[[int], list[Any]]
    goes_on: Callable[[int, Sequence[Any]], bool]
    flags: list[list[int]] = field(default_factory=list[list[int]])
    runs: dict[int, Run] = field(default_factory=dict[int, Run])

    @functools.cached_property
    def turn(self) -> Callable[..., Sequence[Any]]:
        """One iteration, compiled, and not the loop: each iteration's outputs are needed, and a compiled loop returns
        its last carry alone."""
        call, body = self.run.context.call, self.body

        @jax.jit
        def turn(*values: Any) -> Any:
            return call(lambda *values: tuple(_jax.run(body, values)), values)

        return turn

    def _carry_at(self, last: int | None) -> list[Any]:
        """Returns the carry before iteration `last`; with None, runs all iterations and records their states."""
        carry, i = list(self.carry), 0
        while i != last and self.goes_on(i, carry):
            outs = list(self.turn(*self.consts, *carry, *self.slices(i)))
            carry, i = outs[: len(carry)], i + 1
            if last is None:
                self.flags.append(states_of(outs))
        return carry

    def _run_at(self, i: int) -> Run:
        # Interpreting an iteration costs as much as many compiled ones, so only iterations on the path are, and once
        # each.
        if i not in self.runs:
            values = [*self.consts, *self._carry_at(i), *self.slices(i)]
            context = self.run.context.inside(self.step, f"{self.name}(iteration {i} of {len(self.flags)})")
            context = replace(context, order=(*context.order, i))
            self.runs[i] = Run(self.body, values, context, self.run.expected, self._name_of)
        return self.runs[i]

    def _name_of(self, i: int) -> str:
        name = self.run.name_of(self.step.eqn.invars[self.first + i])
        return f"the carry that began as {name}" if 0 <= i - len(self.consts) < len(self.carry) else name

    def descend(self, which: int) -> Sources:
        """Follows a bad output back through the iterations."""
        if not self.flags:
            self._carry_at(None)
        flags, num_carry = self.flags, len(self.carry)
        if not flags:
            return [], [self.first + len(self.consts) + which]
        # A carry is an output of the last iteration only. A stacked output may be bad from an earlier iteration on, and
        # the first one is the origin.
        start = len(flags) - 1
        if which >= num_carry:
            start = next((i for i, states in enumerate(flags) if states[which]), start)
        origins, reached, seen = list[Origin](), list[int](), set[tuple[int, int]]()
        pending = [(start, which)]
        while pending:
            i, output = pending.pop()
            # Skips the iterations that only passed a bad carry on, down to the first one whose carry is bad.
            while output < num_carry and i and flags[i - 1][output]:
                i -= 1
            # Two carries may feed each other, and would be followed in circles.
            if (i, output) in seen:
                continue
            seen.add((i, output))
            run = self._run_at(i)
            more, inputs = run.origins(run.jaxpr.outvars[output])
            origins += more
            for position in inputs:
                carried = position - len(self.consts)
                if 0 <= carried < num_carry and i:
                    pending.append((i - 1, carried))
                else:
                    reached.append(self.first + position)
        return origins, reached


def _scan(run: Run, step: Step, values: Sequence[Any]) -> Sequence[Any]:
    params, outs = step.eqn.params, run.bind(step.eqn, values)
    num_consts, num_carry = equations.scan_counts(params)
    consts, carry, scanned = values[:num_consts], values[num_consts:][:num_carry], values[num_consts + num_carry :]
    # A reversed scan takes its slices from the end, and errors count iterations in the order in which they run.
    turns = range(params["length"])[:: -1 if params["reverse"] else 1]

    def slices(i: int) -> list[Any]:
        # In a `shard_map` all values are stacked by device, so the scanned axis is the second.
        axis = np.ndim(run.context.lift(0))
        return [jax.lax.dynamic_index_in_dim(x, turns[i], axis, keepdims=False) for x in scanned]

    def goes_on(i: int, carry: Sequence[Any]) -> bool:
        return i < len(turns)

    step.descend = Loop(run, step, "scan", params["jaxpr"], 0, consts, carry, slices, goes_on).descend
    return outs


def _while(run: Run, step: Step, values: Sequence[Any]) -> Sequence[Any]:
    params, outs = step.eqn.params, run.bind(step.eqn, values)
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
    cond, body, num_consts = params["cond_jaxpr"], params["body_jaxpr"], num_cond + num_body

    def turn(*inputs: Any) -> list[Any]:
        """Runs one iteration of a loop whose condition is batched by `vmap`: finished examples keep their carry."""
        goes_on, old = _jax.run(cond, [*inputs[:num_cond], *inputs[num_consts:]])[0], inputs[num_consts:]
        new = _jax.run(body, inputs[num_cond:])
        picks = [jnp.reshape(goes_on, goes_on.shape + (1,) * (x.ndim - goes_on.ndim)) for x in new]
        return [
            jax.lax.select(jnp.broadcast_to(pick, x.shape), x, y) for pick, x, y in zip(picks, new, old, strict=True)
        ]

    # The batched body also runs for finished examples, whose values may overflow. JAX selects their old carry when it
    # lowers the loop, so the interpreted body has to select, too.
    if is_batched := bool(cond.out_avals[0].shape):
        body = _jax.make_jaxpr(turn)(*(jax.typeof(x) for x in values))
    # The batched body takes the condition's constants, too.
    first = 0 if is_batched else num_cond
    condition, call = jax.jit(lambda *inputs: _jax.run(cond, inputs)[0]), run.context.call

    def goes_on(i: int, carry: Sequence[Any]) -> bool:
        return bool(np.any(call(condition, [*values[:num_cond], *carry])))

    consts, carry = values[first:num_consts], values[num_consts:]
    step.descend = Loop(run, step, "while_loop", body, first, consts, carry, lambda i: [], goes_on).descend
    return outs


def _of_each(x: Any, axes: tuple[str, ...]) -> jax.Array:
    """Returns a device's value with a leading axis, over which `shard_map` stacks; replicated values become varying."""
    return jnp.where(jax.lax.axis_index(axes) >= 0, x, x)[None]


def _shard_map(run: Run, step: Step, values: Sequence[Any]) -> Sequence[Any]:
    """Runs a `shard_map`. To follow a bad output, each equation runs as a `shard_map` over values stacked by device."""
    params, outs = step.eqn.params, run.bind(step.eqn, values)
    mesh, axes = params["mesh"], tuple(params["mesh"].axis_names)
    stacked = PartitionSpec(axes)
    known: list[Run] = []

    def mapped(function: Callable[..., Any], specs: Any) -> Callable[..., Any]:
        return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=stacked))

    def call(function: Callable[..., Any], values: Sequence[Any]) -> Any:
        def local(*values: Any) -> Any:
            return jax.tree.map(lambda x: _of_each(x, axes), function(*(x[0] for x in values)))

        # Collectives and shardings in the equation refer to the abstract mesh of the `shard_map`'s body.
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return mapped(local, (stacked,) * len(values))(*values)

    def lift(constant: Any) -> Any:
        if isinstance(constant, jax.Array):
            return call(lambda: constant, ())
        # JAX would place a broadcast array of its own by the mesh of the body, which is open where this is called.
        return np.broadcast_to(constant, (mesh.size, *np.shape(constant)))

    def descend(which: int) -> Sources:
        # Interpreted only when an output is followed, and once for all outputs.
        if not known:
            lifted = mapped(lambda *xs: [_of_each(x, axes) for x in xs], params["in_specs"])(*values)
            context = run.context.inside(step, "shard_map", call=call, lift=lift)
            known.append(Run(params["jaxpr"], lifted, context, run.expected, lambda i: run.name_of(step.eqn.invars[i])))
        inner = known[0]
        return inner.origins(inner.jaxpr.outvars[which])

    step.descend = descend
    return outs


def _same(run: Run, step: Step, values: Sequence[Any]) -> Sequence[Any]:
    """Passes values through: these casts mark a value as varying over devices, and stacked values all vary."""
    step.descend = lambda which: ([], [which])
    return values


RULES: dict[str, Callable[[Run, Step, Sequence[Any]], Sequence[Any]]] = {
    **dict.fromkeys(("jit", "pjit", "closed_call", "core_call", "call", "custom_jvp_call", "custom_vjp_call"), _call),
    **dict.fromkeys(("checkpoint", "remat", "remat2"), _remat),
    "cond": _cond,
    "scan": _scan,
    "while": _while,
    "shard_map": _shard_map,
    **dict.fromkeys(("pvary", "pcast"), _same),
}
