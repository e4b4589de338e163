"""`nonfinite` finds the first value that is not finite and reaches an output; `expected` marks intended ones.

The call runs at full speed, as another compiled program with one more output: a state for each output. Only if a state
is bad, the same call is run once more, one equation at a time (`interpreting`).
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from weft.core.edge import _jax, _tracers, trees
from weft.core.edge.contexts import EAGER, current_level, insight_context
from weft.core.edge.equations import iter_equations
from weft.core.errors import NonFiniteError
from weft.core.interpreter.interpret import Interpreted, Plan, guards, guards_of_process
from weft.core.interpreter.retraces import Traces
from weft.core.paths import format_path
from weft.core.records.leaves import is_array, iter_leaves
from weft.core.records.module import watch_methods, watching_methods
from weft.core.records.partition import Structure
from weft.insight.calls import Replaced, around_calls, name_module, see_calls
from weft.insight.debug.inside import RULES
from weft.insight.debug.interpreting import Context, Origin, Run, is_inexact, state_of, state_of_sum, states_of
from weft.insight.debug.messages import BatchAxes, error_of, reaching
from weft.insight.equations import is_backward, scopes
from weft.insight.terminal import progress_bar
from weft.modules.op import op_by_op

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

# How many calls may wait for their check. To read the states of a call blocks until the call has finished, so with two
# waiting calls the device always has a next call to run.
WAITING = 2

expected_p = _jax.new_primitive("expected", multiple_results=True)
_jax.define_identity(expected_p, batch=lambda axis, values, dims: (expected_p.bind(*values), dims))


def expected(value: T) -> T:
    """Marks infinities and NaN in a value as intended, so that `nonfinite` lets them reach an output.

    Args:
        value: any tree; its arrays are marked.

    >>> import jax.numpy as jnp, weft
    >>> @weft.jit
    ... def masked(x):
    ...     return weft.debug.expected(jnp.where(x > 0, x, -jnp.inf))
    >>> weft.debug.nonfinite(masked)(jnp.array([1.0, -1.0])).tolist()
    [1.0, -inf]
    """
    # Only the second run's trace has marks, so that the plain program is the same with and without `expected`.
    if not insight_context.value:
        return value
    return jax.tree.map(lambda leaf: expected_p.bind(leaf)[0] if is_array(leaf) else leaf, value)


@overload
def nonfinite(function: F, /, *, keep_donated: bool = ...) -> F: ...
@overload
def nonfinite(*, keep_donated: bool = ...) -> contextlib.AbstractContextManager[None]: ...
def nonfinite(function: Any = None, /, *, keep_donated: bool = False) -> Any:
    """Finds the first value that is not finite and reaches an output of a compiled call.

    Around a function, the outputs of each call are checked before the call returns. A `with` block around a training
    loop checks all calls of functions that `weft.jit` and `nnx.jit` compiled, in this thread or task. To keep dispatch
    asynchronous, up to two calls wait for their check, with their arguments alive, and the block checks the rest at its
    end. `WEFT_DEBUG_NONFINITE=1` in the environment checks each call of the process.

    Args:
        function: a function compiled by `weft.jit` or `nnx.jit`; any other function is compiled by `weft.jit` first.
        keep_donated: whether donated arguments are copied before each call. Without a copy the call cannot be run
            again, and the error names outputs alone.

    Raises (when a compiled function is called, or the block is left):
        NonFiniteError: names the equation, its module, file and line, the iteration of a loop and the example of a map.

    >>> import jax.numpy as jnp, weft
    >>> step = weft.jit(lambda x: x / x.sum())
    >>> with weft.debug.nonfinite():
    ...     y = step(jnp.zeros(2))
    Traceback (most recent call last):
    ...
    weft.core.errors.NonFiniteError: div of 0 by 0 gives nan, first seen in the forward pass
      at: ...: x / x.sum()...
    """
    if function is None:
        return _checking(Session(keep_donated, WAITING))
    from weft.transforms import jit
    from weft.transforms.compilation import JitFunction

    compiled = function if isinstance(function, JitFunction) else jit(function)
    session = Session(keep_donated, 0)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        call = compiled._with_statics(args, kwargs) if compiled._has_statics else (args, kwargs)
        # Not by `_checking`, because to set and reset its context variable and its watcher costs a call 8 us.
        return compiled._interpreted(*call, guard=session.guard)

    return checked


@contextlib.contextmanager
def _checking(session: Session) -> Generator[None]:
    with watching_methods(see_calls, guards, session.guard):
        yield
        session.finish()


class PendingCall(NamedTuple):
    """A call whose outputs are still to be checked: its program, states, arguments and outcome."""

    guarded: Guarded
    states: Any
    arguments: Any
    outcome: Any


@dataclass(eq=False)
class Session:
    """One use of `nonfinite`, with the calls whose outputs are still to be checked."""

    keep_donated: bool
    waiting: int
    calls: deque[PendingCall] = field(default_factory=lambda: deque[Any]())
    # Weakly: what is compiled to be looked at goes with the plan.
    plans: weakref.WeakKeyDictionary[Plan, Plan] = field(default_factory=lambda: weakref.WeakKeyDictionary[Any, Any]())

    def guard(self, interpreted: Interpreted[Any], plan: Plan) -> Plan:
        """Returns the plan that runs in the place of `plan`: the same program with the states of its outputs."""
        # Inside of a trace the outputs are tracers. The outermost compiled call checks for all calls inside of it.
        if interpreted.rule.name != "jit" or current_level() != EAGER:
            return plan
        known = self.plans.get(plan)
        if known is None:
            guarded = _guarded.get(plan)
            if guarded is None:
                guarded = _guarded[plan] = Guarded(interpreted, plan)
            known = self.plans[plan] = replace(plan, lifted=functools.partial(self.run, guarded))
        return known

    def run(self, guarded: Guarded, extra: Any, *groups: Any) -> Any:
        """Runs a call, and checks the calls that have finished or waited long enough."""
        # A donated buffer is deleted by the call, and the second run needs the values.
        copies = jax.tree.map(jnp.copy, groups) if guarded.donates and self.keep_donated else groups
        out, updates, (outcome, states), *more = guarded.lifted(extra, *groups)
        self.calls.append(PendingCall(guarded, states, (extra, *copies), outcome))
        # A call that has finished is checked at once, because that costs no waiting and frees its arguments.
        while self.calls and (len(self.calls) > self.waiting or self.calls[0].states.is_ready()):
            self.look()
        return out, updates, outcome, *more

    def look(self) -> None:
        """Checks the oldest call that waits."""
        guarded, states, arguments, outcome = self.calls.popleft()
        states = np.asarray(states)
        # First by its bytes: to compare arrays costs a small step a hundredth.
        if states.tobytes().strip(b"\0") and (states > guarded.let_pass).any():
            try:
                guarded.explain(states, arguments, outcome)
            except NonFiniteError:
                # Later calls took the bad outputs of this call as arguments: they have nothing new to tell.
                self.calls.clear()
                raise

    def finish(self) -> None:
        """Checks all calls that wait."""
        while self.calls:
            self.look()


def _check(state: Callable[[jax.Array], jax.Array], body: Any, *args: Any) -> Any:
    """Runs a body, and returns its results together with the states of its inexact outputs."""
    out, updates, outcome = body(*args)
    states = [state(leaf) for leaf in jax.tree.leaves((out, updates)) if is_inexact(leaf)]
    return out, updates, (outcome, jnp.stack(states) if states else jnp.zeros(0, jnp.uint8))


class Guarded:
    """The compiled program of a plan with states as one more output, and the states that are known to be intended."""

    def __init__(self, interpreted: Interpreted[Any], plan: Plan):
        self.boundary, self.crossing = interpreted.boundary, plan.crossing
        self.donates = plan.donation is not None
        self._rule = interpreted.rule
        self._lift: Any = replace(interpreted.lift_of(plan.crossing), traces=Traces())
        # The program without states, for the second run.
        self._plain: Any = self._rule.lift(self._lift)
        # For each inexact output the largest state that raises no alarm.
        self.let_pass: Any = 0
        # The sum of finite values may overflow. If the arguments are gone, nothing can tell that from a fault.
        self._check_by(state_of if self.donates else state_of_sum)

    def _check_by(self, state: Callable[[jax.Array], jax.Array]) -> None:
        """Makes the program whose additional output has `state` of each inexact output."""
        check = functools.partial(_check, state)
        bodies: Any = tuple(Replaced(body, check) for body in self._lift.bodies)
        self.is_exact = state is state_of
        self.lifted: Any = self._rule.lift(replace(self._lift, bodies=bodies))

    def explain(self, states: np.ndarray, arguments: Any, outcome: Any) -> None:
        """Runs the call again, one equation at a time, to find where a bad output began.

        Raises:
            NonFiniteError: unless all bad values were marked by `expected`, or sums of finite values overflowed.
        """
        wrong: list[int] = np.flatnonzero(states > self.let_pass).tolist()
        if any(isinstance(x, jax.Array) and x.is_deleted() for x in jax.tree.leaves(arguments)):
            raise NonFiniteError(
                f"an output is not finite: {reaching(self._paths(wrong, arguments, outcome))}",
                fix="the call cannot run again to find where the value began, because its arguments were donated: "
                "weft.debug.nonfinite(..., keep_donated=True) copies them before each call",
            )
        run, values, axes = self._run_again(arguments)
        outputs = [i for i, var in enumerate(run.jaxpr.outvars) if is_inexact(var.aval)]
        if not self.is_exact and not any(states_of([run.outs[outputs[i]] for i in wrong])):
            # Finite values whose sum overflows, such as masks of `jnp.finfo`'s minimum, come again at each call.
            self._check_by(state_of)
            states = np.asarray(self.lifted(*arguments)[2][1])
            wrong = np.flatnonzero(states).tolist()
            if not wrong:
                return
        origins, inputs = list[Origin](), set[int]()
        for i in wrong:
            more, reached = run.origins(run.jaxpr.outvars[outputs[i]])
            origins, inputs = [*origins, *more], {*inputs, *reached}
        paths = self._paths(wrong, arguments, outcome)
        # An argument whose only infinities are -inf is a mask, and a NaN from it is the program's fault. Any other
        # argument that is not finite is itself to blame, unless an equation made a bad value of its own.
        arrays = [np.asarray(values[i]) for i in inputs]
        are_masks = all((np.isfinite(array) | np.isneginf(array)).all() for array in arrays)
        is_blamed = not are_masks and not any(origin.step.generates for origin in origins)
        if origins and not is_blamed:
            transforms = {name for eqn in iter_equations(run.jaxpr.eqns) for name in scopes(eqn)[0]}
            loss = next((path for path, i in zip(paths, wrong, strict=True) if outputs[i] == _loss_of(run.jaxpr)), None)
            reached = reaching(paths, loss, _kinds_of(outcome.value))
            raise error_of(min(origins, key=lambda origin: origin.order), axes, reached, transforms)
        if inputs:
            raise NonFiniteError(
                f"an argument is not finite before the call, and reaches {reaching(paths)}",
                at=[run.names(i) for i in sorted(inputs)],
                fix="find the call that made it, which weft.debug.nonfinite can check as well; if it is intended, let "
                "that call return weft.debug.expected(value)",
            )
        if self._literal(run, [outputs[i] for i in wrong]):
            raise NonFiniteError(
                f"an infinity or NaN that is written into the program reaches an output: {reaching(paths)}",
                fix="if it is intended, return weft.debug.expected(value)",
            )
        # All bad values were intended: the next call with the same states raises no alarm and no second run.
        self.let_pass = np.maximum(self.let_pass, states)

    def _run_again(self, arguments: Any) -> tuple[Run, list[Any], BatchAxes]:
        """Returns the second run, the values that it began with, and the batch axes of its variables."""
        axes: BatchAxes = {}
        with (
            around_calls(name_module, "nonfinite"),
            # An op of weft's has a trace of its own, and inlining gives all its equations the line of the call.
            op_by_op(),
            _tracers.traced_to_explain(lambda var, size, axis: axes.setdefault(var, []).append((size, axis))),
        ):
            # A cached trace would not call the hook above, which learns which axes are batch axes.
            self._plain.clear_cache()
            closed = self._plain.trace(*arguments).jaxpr
        # Jaxprs take arrays only, and arguments may hold Python numbers.
        values = [x if is_array(x) else jnp.asarray(x) for x in jax.tree.leaves(arguments)]
        # The jaxpr takes leaves grouped by lane, not in the order of the arguments' tree.
        order = [i for lane in self.crossing.group(list(range(len(self.crossing.rides)))) for i in lane]
        names = [format_path(self.crossing.structure.path_of(i)) for i in order]
        with progress_bar("looking for what is not finite", len(closed.jaxpr.eqns)) as advance:
            context = Context(rules=RULES, advance=advance)
            return Run(closed, values, context, expected_p, names.__getitem__), values, axes

    def _literal(self, run: Run, outputs: Sequence[int]) -> bool:
        """Whether a bad output came from a constant of the program without passing through `expected`."""
        pending, seen = [run.jaxpr.outvars[i] for i in outputs], set[Any]()
        while pending:
            var = pending.pop()
            if _jax.is_literal(var) or var not in run.steps:
                return True
            step, _ = run.steps[var]
            if step in seen or step.eqn.primitive is expected_p:
                continue
            seen.add(step)
            # A step with jaxprs inside has no causes of its own, so its bad inputs are followed.
            bad = [atom for atom in ([atom for atom, _ in step.causes] or step.eqn.invars) if run.state(atom)]
            if not bad and not any(eqn.primitive is expected_p for eqn in iter_equations([step.eqn])):
                return True
            pending += bad
        return False

    def _paths(self, wrong: Sequence[int], arguments: Any, outcome: Any) -> list[str]:
        """Returns the paths of bad outputs.

        The boundary knows how outputs map to paths only while it rebuilds an output. So it rebuilds an output in which
        the shape of each leaf is the leaf's number.
        """
        with insight_context("nonfinite"):
            out, updates, *_ = self._plain.eval_shape(
                *jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jax.typeof(x).dtype), arguments)
            )
        leaves, definition = trees.flatten((out, updates))
        numbers = [i for i, leaf in enumerate(leaves) if is_inexact(leaf)]
        shaped = [np.broadcast_to(np.float32(0), (i,)) for i in range(len(leaves))]
        groups = definition.unflatten(shaped)
        described = self.boundary.describe_outcome(self.crossing, outcome.value, (*groups[0], *groups[1]))
        names = {
            leaf.shape[0]: format_path(path) for path, leaf in described.leaves if len(getattr(leaf, "shape", ())) == 1
        }
        return [names.get(numbers[i], f"output {numbers[i]}") for i in wrong]


def _loss_of(jaxpr: Any) -> int | None:
    """Returns the position of the loss among the outputs: the scalar that a differentiated equation computes. Returns
    None if there are several, such as metrics."""
    if not any(is_backward(eqn) for eqn in iter_equations(jaxpr.eqns)):
        return None
    forward = {
        var
        for eqn in jaxpr.eqns
        if "jvp" in (names := scopes(eqn)[0]) and "transpose" not in names
        for var in eqn.outvars
        if is_inexact(var.aval) and not var.aval.shape
    }
    scalars = [i for i, var in enumerate(jaxpr.outvars) if not _jax.is_literal(var) and var in forward]
    return scalars[0] if len(scalars) == 1 else None


def _kinds_of(outcome: Any) -> dict[str, str]:
    """Returns the kinds of the records' leaves in an output, by path."""
    structure = getattr(outcome, "structure", None)
    # The outcome of an NNX function has no record structure, so the error shows paths without kinds.
    if not isinstance(structure, Structure):
        return {}
    places = len(structure.paths) - len(structure.statics)
    tree = structure.build([jax.ShapeDtypeStruct((), jnp.float32)] * places)
    return {format_path(leaf.path): leaf.kind.__name__ for leaf in iter_leaves(tree, ("output",)) if leaf.owners}


# Guarded programs by plan. The keys are weak, so a guarded program is freed together with its plan.
_guarded: weakref.WeakKeyDictionary[Plan, Guarded] = weakref.WeakKeyDictionary()


def guard_process() -> None:
    """Checks each call of the process, in every thread: the effect of `WEFT_DEBUG_NONFINITE`."""
    watch_methods(see_calls, 1)
    guards_of_process.append(Session(keep_donated=False, waiting=0).guard)
