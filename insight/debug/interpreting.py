"""The second run: runs a jaxpr one equation at a time, and follows values that are not finite back to their origin.

Words used here:

- a value is *bad* if it is not finite; its *state* is 0 (finite), 1 (infinite) or 2 (NaN, perhaps infinite elsewhere).
- a `Run` is one jaxpr that was run with values. It remembers a `Step` for each equation with a bad output, and nothing
  of the other equations.
- an *origin* is a step that gave a bad value out of finite values, or NaN out of intended infinities.
- a step's *causes* are the inputs that its bad output came from. A mask of `-inf` that `select` discarded is no cause.

Jaxprs inside of an equation are run in the same way, and never compiled as a whole. A loop runs compiled first; if an
output of it is bad, its body is compiled alone, run iteration by iteration, and interpreted in the iterations that the
bad value came through (`inside.Loop`). The body of a `shard_map` runs one equation at a time on all devices
(`inside._shard_map`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, Var
from weft.core.edge import _jax
from weft.core.edge.names import ELEMENTWISE, UNARY
from weft.insight.debug.places import place_of
from weft.insight.equations import RECOMPUTED, is_backward, scopes

FINITE, INFINITE, NAN = 0, 1, 2
# The place of an equation in the program: its index in each jaxpr around it, outermost first, so that origins in
# different jaxprs can be ordered by which of them ran first.
Order = tuple[int, ...]


@dataclass(frozen=True)
class Context:
    """The surroundings of a run.

    Attributes:
        transforms, modules, frames: the names around its jaxpr, outermost first; frames are loops and branches.
        order: the place of the equation around it.
        call: calls a function of values.
        lift: makes a constant a value that `call` takes: in a `shard_map` these are stacked by device.
        rules: run the equations that have jaxprs inside, by primitive.
        outer: the step around it.
        advance: is called with the primitive of each equation before the equation runs.
    """

    transforms: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()
    order: Order = ()
    call: Callable[[Callable[..., Any], Sequence[Any]], Any] = lambda function, values: function(*values)
    lift: Callable[[Any], Any] = lambda constant: constant
    rules: Mapping[str, Callable[[Run, Step, Sequence[Any]], Sequence[Any]]] = field(default_factory=dict[str, Any])
    outer: Step | None = None
    advance: Callable[[str], None] = lambda primitive: None

    def inside(self, step: Step, *frames: str, **changes: Any) -> Context:
        """Returns the context of a jaxpr inside of a step's equation."""
        transforms, modules, branches = scopes(step.eqn)
        mapped = [] if "vmap" not in transforms else ["vmap"]
        return replace(
            self,
            transforms=(*self.transforms, *transforms),
            modules=(*self.modules, *modules),
            frames=(*self.frames, *mapped, *branches, *frames),
            order=(*self.order, step.index),
            outer=step,
            advance=lambda primitive: None,
            **changes,
        )


@dataclass(eq=False)
class Step:
    """An equation with a bad output.

    Attributes:
        run: the run to which the step belongs.
        states: the states of its outputs.
        causes: the inputs that the bad output came from; in an elementwise equation each with its bad elements.
        mask: the bad elements of its output.
        wrong: the bad elements that no input explains; all bad elements where intended infinities gave a NaN.
        generates: whether any element is bad that no input explains.
        makes_nan: whether it gave a NaN out of infinities.
        values: inputs and output, if the step may be an origin; other steps keep no array alive.
        pointwise: whether each element of the output depends on the same elements of the inputs alone.
        descend: for an equation with jaxprs inside, follows an output to origins and to the equation's inputs.
    """

    eqn: JaxprEqn
    index: int
    run: Run
    states: list[int] = field(default_factory=list[int])
    causes: list[tuple[Any, Any]] = field(default_factory=list[Any])
    mask: Any = None
    wrong: Any = None
    generates: bool = False
    makes_nan: bool = False
    values: tuple[Sequence[Any], Any] = ((), None)
    pointwise: bool = False
    descend: Callable[[int], tuple[list[Origin], list[int]]] | None = None


@dataclass(eq=False)
class Origin:
    """The place where a bad value began: the step, its order in the program, and the element that the error shows."""

    order: Order
    step: Step
    index: tuple[int, ...]


def state_of(value: jax.Array) -> jax.Array:
    """Returns the state of an inexact array, by one reduction that XLA can fuse into the array's computation."""
    codes = jnp.where(jnp.isfinite(value), 0, jnp.where(jnp.isnan(value), NAN, INFINITE))
    return jnp.max(codes.astype(jnp.uint8), initial=FINITE)


def state_of_sum(value: jax.Array) -> jax.Array:
    """Returns the state of an inexact array's sum: a bad element makes it bad, but so do large finite elements.

    XLA has a fast kernel for sums. On a CPU `state_of` takes two passes, and costs a step of 0.5 ms 1.5% more.
    """
    dtype = value.dtype if value.dtype.itemsize >= 4 else jnp.float32
    return state_of(jnp.sum(value, dtype=dtype))


_compiled_state = jax.jit(state_of)


def is_inexact(value: Any) -> bool:
    """Whether the dtype of a value has infinities and NaN."""
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.inexact)


def states_of(values: Sequence[Any]) -> list[int]:
    """Returns the state of each value; values of other dtypes are finite."""
    return [_state(value) if is_inexact(value) else FINITE for value in values]


def _state(value: Any) -> int:
    # On the host there is nothing to compile: a program has hundreds of shapes.
    if all(device.platform == "cpu" for device in getattr(value, "devices", set)()):
        array = np.asarray(value)
        return FINITE if np.isfinite(array).all() else NAN if np.isnan(array).any() else INFINITE
    return int(_compiled_state(value))


class Run:
    """A jaxpr, run one equation at a time, with a record of the equations whose outputs were bad."""

    def __init__(
        self, closed: Any, values: Sequence[Any], context: Context, expected: object, names: Callable[[int], str]
    ):
        # Branches and bodies may be open jaxprs without constants, or closed ones.
        closed = _jax.close(closed)
        self.jaxpr, self.context, self.expected, self.names = closed.jaxpr, context, expected, names
        self.steps: dict[Var, tuple[Step, int]] = {}
        self.states: dict[Var, int] = {}
        self.inputs = {var: i for i, var in enumerate(self.jaxpr.invars)}
        consts = [self.context.lift(const) for const in closed.consts]
        for var, state in zip([*self.jaxpr.constvars, *self.jaxpr.invars], states_of([*consts, *values]), strict=True):
            self.states[var] = state
        # Without a memo, values that are read twice again and again would be followed exponentially often.
        self._known: dict[tuple[Step, int], tuple[list[Origin], list[int]]] = {}
        self._index = -1
        self.outs = _jax.evaluate(self.jaxpr, consts, list(values), self._run)

    def _run(self, eqn: JaxprEqn, values: list[Any]) -> Sequence[Any]:
        self._index += 1
        for i, atom in enumerate(eqn.invars):
            if _jax.is_literal(atom):
                # A Python number with a dtype of its own, which a plain number would not carry into the equation.
                values[i] = self.context.lift(np.asarray(atom.val, cast(Any, atom).aval.dtype))
        # Equations without outputs are effects such as prints, which happened in the first run already.
        if not eqn.outvars:
            return []
        step = Step(eqn, self._index, self)
        self.context.advance(eqn.primitive.name)
        rule = self.context.rules.get(eqn.primitive.name)
        outs = self.bind(eqn, values) if rule is None else rule(self, step, values)
        step.states = states_of(outs)
        for i, (var, state) in enumerate(zip(eqn.outvars, step.states, strict=True)):
            if state:
                self.steps[var], self.states[var] = (step, i), state
        # Equations with a rule are followed inside of their jaxprs, by `step.descend`.
        if rule is None and any(step.states):
            self._look(step, values, outs)
        return outs

    def bind(self, eqn: JaxprEqn, values: Sequence[Any]) -> Sequence[Any]:
        """Runs an equation as one compiled operation."""
        return self.context.call(lambda *values: tuple(_jax.bind_equation(eqn, values)), values)

    def name_of(self, atom: Any, within: str = "") -> str:
        """Returns a name for a variable: the path of an input, or the source expression that computed the variable.

        Args:
            atom: the variable.
            within: an expression that the variable is a part of, and whose text is no name for the variable.
        """
        if atom in self.inputs:
            return self.names(self.inputs[atom])
        eqn = next((eqn for eqn in self.jaxpr.eqns if atom in eqn.outvars), None)
        if eqn is None:
            return "a constant"
        text, name = place_of(eqn).text, eqn.primitive.name
        # JAX inserts these equations for one expression of the user's; the variable before them has the useful name.
        if name in ("convert_element_type", "broadcast_in_dim", "copy", "squeeze", "reshape", "mul") and text == within:
            inner = [x for x in eqn.invars if not _jax.is_literal(x)]
            if len(inner) == 1:
                return self.name_of(inner[0], within)
        transforms = (*self.context.transforms, *scopes(eqn)[0])
        if "transpose" in transforms and RECOMPUTED not in transforms:
            return f"the cotangent of {text}"
        return text if text and text != within else f"{name} in it"

    def state(self, atom: Any) -> int:
        """Returns the state of a variable or literal that an equation reads."""
        return states_of([np.asarray(atom.val)])[0] if _jax.is_literal(atom) else self.states.get(atom, FINITE)

    def _look(self, step: Step, values: Sequence[Any], outs: Sequence[Any]) -> None:
        """Finds the inputs that caused the bad output of a step, while their arrays are still alive."""
        eqn, name = step.eqn, step.eqn.primitive.name
        # One output is enough to explain a step: the worst, since NaN hides infinities that came before it.
        which = step.states.index(max(step.states))
        out, bad = outs[which], [self.state(atom) for atom in eqn.invars]
        masks = [~np.asarray(jnp.isfinite(x)) if is_inexact(x) else np.zeros(jnp.shape(x), bool) for x in values]
        mask = step.mask = ~np.asarray(jnp.isfinite(out))
        step.makes_nan = max(step.states) == NAN and NAN not in bad
        # Scalars broadcast, also where a `shard_map` has stacked them; any other difference of shapes means that
        # elements do not correspond.
        is_elementwise = name in ELEMENTWISE | UNARY and all(m.shape == mask.shape[: m.ndim] for m in masks)
        masks = [m.reshape(m.shape + (1,) * (mask.ndim - m.ndim)) for m in masks] if is_elementwise else masks
        step.pointwise = is_elementwise or name in UNARY
        if not any(bad):
            wrong = mask
        elif is_elementwise:
            # An element that is bad although all of its inputs' elements are finite is the equation's own.
            wrong = mask & ~functools.reduce(np.logical_or, masks)
            step.causes = [
                (atom, m) for atom, m, s in zip(eqn.invars, masks, bad, strict=True) if s and (m & mask).any()
            ]
        else:
            # In a product or a reduction every input element may reach every output element. So the equation runs again
            # with ones for its bad inputs: the elements that are bad then are its own.
            step.causes = [(atom, None) for atom, state in zip(eqn.invars, bad, strict=True) if state]
            clean = [jnp.where(jnp.isfinite(x), x, jnp.ones_like(x)) if is_inexact(x) else x for x in values]
            is_intended = eqn.primitive is self.expected
            wrong = mask & (False if is_intended else ~np.asarray(jnp.isfinite(self.bind(eqn, clean)[which])))
        step.generates = bool(wrong.any())
        step.wrong = wrong if step.generates else mask
        # Only a possible origin is shown with its values. To keep all of them would hold each intermediate of the
        # program.
        if step.generates or step.makes_nan:
            step.values = values, out

    def origins(self, atom: Any, reach: Any = None) -> tuple[list[Origin], list[int]]:
        """Returns the origins of a bad variable, and the positions of the inputs of this jaxpr by which it came in.

        Args:
            atom: the variable.
            reach: the elements to follow; all by default. Without it, an error could show an element that a later
                `select` discarded.
        """
        if _jax.is_literal(atom):
            return [], []
        # Not the output of a step: an input, or a constant, which was written into the program and so intended.
        if atom not in self.steps:
            return [], [self.inputs[atom]] if atom in self.inputs else []
        step, which = self.steps[atom]
        known = self._known.get((step, which))
        if known is None:
            known = self._known[step, which] = self._origins(step, which, reach)
        return known

    def _origins(self, step: Step, which: int, reach: Any) -> tuple[list[Origin], list[int]]:
        # `expected` ends the search: the user has said that the value is intended.
        if step.eqn.primitive is self.expected:
            return [], []
        here: Origin | None = None
        if step.descend is not None:
            origins, inputs = step.descend(which)
            causes = [(step.eqn.invars[i], None) for i in inputs]
        else:
            origins, causes = list[Origin](), step.causes
            through, shown = _within(step.mask, reach), _within(step.wrong, reach)
            index = tuple(map(int, np.argwhere(shown)[0])) if shown.any() else (0,) * shown.ndim
            here = Origin((*self.context.order, step.index), step, index)
            # The step itself is an origin, so bad inputs of other elements are not followed any further.
            if step.generates:
                return [here], []
            if step.pointwise:
                causes = [(atom, through) for atom, mask in causes if mask is None or (mask & through).any()]
        reached: list[int] = []
        for cause, part in causes:
            if self.state(cause):
                more, inputs = self.origins(cause, part)
                origins, reached = [*origins, *more], [*reached, *inputs]
        # No input is to blame, and NaN came out of intended infinities: softmax of a row that is masked as a whole.
        if here is not None and step.makes_nan and not origins:
            return [here], reached
        return origins, reached


def _within(mask: np.ndarray, reach: Any) -> np.ndarray:
    if reach is None or np.shape(reach) != mask.shape or not (mask & reach).any():
        return mask
    return mask & reach


def prepares_backward(run: Run, index: int, outs: Sequence[Any] = ()) -> bool:
    """Whether only the backward pass reads some outputs of an equation, directly or through other equations.

    The names of a program do not tell a value from the coefficient of its derivative: JAX traces both under `jvp`. But
    a value ends in an output of the forward pass, even if it is dropped there, and a coefficient does not.

    Args:
        run: the run of the equation's jaxpr.
        index: the position of the equation in its jaxpr.
        outs: the outputs; by default all outputs of the equation.
    """
    known = set(outs or run.jaxpr.eqns[index].outvars)
    unread = set(known)
    for eqn in run.jaxpr.eqns[index + 1 :]:
        if read := known.intersection(atom for atom in eqn.invars if not _jax.is_literal(atom)):
            made = set[Any]() if is_backward(eqn) else set(eqn.outvars)
            known, unread = known | made, (unread - read) | made
    places = [i for i, atom in enumerate(run.jaxpr.outvars) if not _jax.is_literal(atom) and atom in known]
    if unread - {run.jaxpr.outvars[i] for i in places}:
        return False
    if not places:
        return True
    outer = run.context.outer
    return outer is not None and prepares_backward(outer.run, outer.index, [outer.eqn.outvars[i] for i in places])
