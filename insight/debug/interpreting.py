"""The second run: a program is run once more, one equation at a time, and what is not finite is followed to its origin.

Words used here:

- a value is *bad* if it is not finite; its *state* is 0 (finite), 1 (infinite) or 2 (NaN, perhaps infinite elsewhere).
- a `Run` is one jaxpr that was run with values. It remembers a `Step` for each equation that gave something bad, and
  nothing of the others.
- an *origin* is a step that gave something bad out of finite values, or NaN out of infinities that are meant.
- a step's *causes* are the inputs that its bad output came from. A mask of `-inf` that was selected away is none.

Jaxprs inside of an equation are run likewise, and never compiled as a whole. A loop runs compiled first; where it gave
something bad, its body is compiled alone, run turn by turn, and interpreted in the turns that matter (`loops`). What is
inside of a `shard_map` runs one equation at a time on all devices (`Sharded`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, Var
from weft.core.edge import _jax
from weft.core.edge.equations import inner_jaxprs, opened
from weft.core.edge.names import ELEMENTWISE, UNARY
from weft.insight.debug.places import RECOMPUTED, place_of, scopes

FINITE, INFINITE, NAN = 0, 1, 2
# Where a value of the run is read, while an equation's place in the program orders them.
Order = tuple[int, ...]


@dataclass(frozen=True)
class Context:
    """What is around a run: its step, transforms, modules and frames of loops by name, and how functions are called."""

    transforms: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()
    order: Order = ()
    call: Callable[..., Any] = lambda function, values, literal: function(*values)
    # How equations that hold jaxprs are run, by primitive.
    rules: Mapping[str, Callable[[Run, Step, Sequence[Any]], Sequence[Any]]] = field(default_factory=dict[str, Any])
    outer: Step | None = None
    # Called with the primitive of each equation of the whole program before it runs.
    advance: Callable[[str], None] = lambda line: None

    def inside(self, step: Step, *frames: str, call: Any = None) -> Context:
        """What is around a jaxpr of a step's equation."""
        transforms, modules, branches = scopes(step.eqn)
        mapped = [] if "vmap" not in transforms else ["vmap"]
        return Context(
            (*self.transforms, *transforms),
            (*self.modules, *modules),
            (*self.frames, *mapped, *branches, *frames),
            (*self.order, step.index),
            self.call if call is None else call,
            self.rules,
            step,
        )


@dataclass(eq=False)
class Step:
    """An equation that gave something bad.

    Attributes:
        run: the run that it is a step of.
        states: of its outputs.
        causes: the inputs that what is bad came from; in an elementwise equation each with the elements that are bad.
        mask: the elements of its output that are bad.
        wrong: those of them that no input is to blame for; all, where infinities that are meant gave a NaN.
        generates: whether there are any.
        makes_nan: whether it gave a NaN of infinities.
        values: inputs and output, where it may be an origin; of the rest nothing is kept alive.
        pointwise: whether an element of the output is made of the same elements of the inputs.
        descend: of an equation with jaxprs inside, what follows an output to origins and the equation's inputs.
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
    """Where something bad began: the order of its step in the program, the step, and the element that is told."""

    order: Order
    step: Step
    index: tuple[int, ...]


def state_of(value: jax.Array) -> jax.Array:
    """The state of an inexact array, by one reduction that XLA can fuse into what computes it."""
    codes = jnp.where(jnp.isfinite(value), 0, jnp.where(jnp.isnan(value), NAN, INFINITE))
    return jnp.max(codes.astype(jnp.uint8), initial=FINITE)


_compiled_state = jax.jit(state_of)


def is_inexact(value: Any) -> bool:
    """Whether a value can be anything but finite."""
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.inexact)


def states_of(values: Sequence[Any]) -> list[int]:
    """The state of each value."""
    return [_state(value) if is_inexact(value) else FINITE for value in values]


def _state(value: Any) -> int:
    # On the host there is nothing to compile: a program has hundreds of shapes.
    if all(device.platform == "cpu" for device in getattr(value, "devices", set)()):
        array = np.asarray(value)
        return FINITE if np.isfinite(array).all() else NAN if np.isnan(array).any() else INFINITE
    return int(_compiled_state(value))


class Run:
    """A jaxpr that is run one equation at a time."""

    def __init__(
        self, closed: Any, values: Sequence[Any], context: Context, expected: object, names: Callable[[int], str]
    ):
        closed = _jax.close(closed)
        self.jaxpr, self.context, self.expected, self.names = closed.jaxpr, context, expected, names
        self.steps: dict[Var, tuple[Step, int]] = {}
        self.states: dict[Var, int] = {}
        self.inputs = {var: i for i, var in enumerate(self.jaxpr.invars)}
        consts = [self._lifted(const) for const in closed.consts]
        for var, state in zip([*self.jaxpr.constvars, *self.jaxpr.invars], states_of([*consts, *values]), strict=True):
            self.states[var] = state
        self._known: dict[tuple[Step, int], tuple[list[Origin], list[int]]] = {}
        self._index = -1
        self.outs = _jax.evaluate(self.jaxpr, consts, list(values), self._run)

    def _run(self, eqn: JaxprEqn, values: list[Any]) -> Sequence[Any]:
        self._index += 1
        # A literal is a number of Python's with a dtype, which NumPy takes.
        values = [np.asarray(x, cast(Any, x).dtype) if isinstance(x, int | float | complex) else x for x in values]
        if not eqn.outvars:  # a print, which has printed
            return []
        step = Step(eqn, self._index, self)
        self.context.advance(eqn.primitive.name)
        rule = self.context.rules.get(eqn.primitive.name)
        if rule is None:
            outs = self._bound(eqn, values)
        else:  # inside of it a literal is a value as any other
            is_literal = map(_jax.is_literal, eqn.invars)
            values = [self._lifted(x) if literal else x for x, literal in zip(values, is_literal, strict=True)]
            outs = rule(self, step, values)
        step.states = states_of(outs)
        for i, (var, state) in enumerate(zip(eqn.outvars, step.states, strict=True)):
            if state:
                self.steps[var], self.states[var] = (step, i), state
        if rule is None and any(step.states):
            self._look(step, values, outs)
        return outs

    def _lifted(self, value: Any) -> Any:
        return self.context.call(lambda: value, (), ())

    def bind(self, eqn: JaxprEqn, values: Sequence[Any]) -> Sequence[Any]:
        """Runs an equation with jaxprs inside as it is."""
        return self.context.call(lambda *xs: tuple(_jax.bind_equation(eqn, xs)), values, [False] * len(values))

    def _bound(self, eqn: JaxprEqn, values: Sequence[Any]) -> Sequence[Any]:
        literal = tuple(_jax.is_literal(atom) for atom in eqn.invars)
        return self.context.call(lambda *values: tuple(_jax.bind_equation(eqn, values)), values, literal)

    def name_of(self, atom: Any, within: str = "") -> str:
        """What a variable is called: an input by its path, anything else by the expression that gave it.

        Args:
            atom: the variable.
            within: an expression of which it is a part, and whose text says nothing of it.
        """
        if atom in self.inputs:
            return self.names(self.inputs[atom])
        eqn = next((eqn for eqn in self.jaxpr.eqns if atom in eqn.outvars), None)
        if eqn is None:
            return "a constant"
        text, name = place_of(eqn).text, eqn.primitive.name
        if name in ("convert_element_type", "broadcast_in_dim", "copy", "squeeze", "reshape", "mul") and text == within:
            inner = [x for x in eqn.invars if not _jax.is_literal(x)]
            if len(inner) == 1:
                return self.name_of(inner[0], within)
        transforms = (*self.context.transforms, *scopes(eqn)[0])
        if "transpose" in transforms and RECOMPUTED not in transforms:
            return f"the cotangent of {text}"
        return text if text and text != within else f"{name} in it"

    def state(self, atom: Any) -> int:
        """The state of what an equation reads."""
        return states_of([np.asarray(atom.val)])[0] if _jax.is_literal(atom) else self.states.get(atom, FINITE)

    def _look(self, step: Step, values: Sequence[Any], outs: Sequence[Any]) -> None:
        """Finds which inputs what is bad came from, while they are there."""
        eqn, name = step.eqn, step.eqn.primitive.name
        which = next(i for i, state in enumerate(step.states) if state == max(step.states))
        out, bad = outs[which], [self.state(atom) for atom in eqn.invars]
        masks = [~np.asarray(jnp.isfinite(x)) if is_inexact(x) else np.zeros(jnp.shape(x), bool) for x in values]
        mask = step.mask = ~np.asarray(jnp.isfinite(out))
        step.makes_nan = max(step.states) == NAN and NAN not in bad
        is_elementwise = name in ELEMENTWISE | UNARY and all(m.shape in ((), mask.shape) for m in masks)
        step.pointwise = is_elementwise or name in UNARY
        if not any(bad):
            wrong = mask
        elif is_elementwise:
            wrong = mask & ~functools.reduce(np.logical_or, masks)
            step.causes = [
                (atom, m) for atom, m, s in zip(eqn.invars, masks, bad, strict=True) if s and (m & mask).any()
            ]
        else:  # would it give anything bad, were its inputs finite?
            step.causes = [(atom, None) for atom, state in zip(eqn.invars, bad, strict=True) if state]
            wrong = mask & (False if eqn.primitive is self.expected else self._bad_of_finite(eqn, values, which))
        step.generates = bool(wrong.any())
        step.wrong = wrong if step.generates else mask
        if step.generates or step.makes_nan:
            step.values = values, out

    def _bad_of_finite(self, eqn: JaxprEqn, values: Sequence[Any], which: int) -> np.ndarray:
        clean = [jnp.where(jnp.isfinite(x), x, jnp.ones_like(x)) if is_inexact(x) else x for x in values]
        return ~np.asarray(jnp.isfinite(self._bound(eqn, clean)[which]))

    def origins(self, atom: Any, reach: Any = None) -> tuple[list[Origin], list[int]]:
        """Where something bad in a variable began; and which inputs of this jaxpr it came in by.

        Args:
            atom: the variable.
            reach: the elements that matter; all, if not given. Of others an example is told that was selected away.
        """
        if _jax.is_literal(atom):
            return [], []
        if atom not in self.steps:  # an input, or a constant of the program: that was meant
            return [], [self.inputs[atom]] if atom in self.inputs else []
        step, which = self.steps[atom]
        known = self._known.get((step, which))
        if known is None:
            known = self._known[step, which] = self._origins(step, which, reach)
        return known

    def _origins(self, step: Step, which: int, reach: Any) -> tuple[list[Origin], list[int]]:
        if step.eqn.primitive is self.expected:
            return [], []
        if step.descend is not None:
            origins, inputs = step.descend(which)
            causes = [(step.eqn.invars[i], None) for i in inputs]
        else:
            origins, causes = list[Origin](), step.causes
            through, shown = _within(step.mask, reach), _within(step.wrong, reach)
            index = tuple(map(int, np.argwhere(shown)[0])) if shown.any() else (0,) * shown.ndim
            here = Origin((*self.context.order, step.index), step, index)
            if step.generates:
                return [here], []
            if step.pointwise:
                causes = [(atom, through) for atom, mask in causes if mask is None or (mask & through).any()]
        reached: list[int] = []
        for cause, part in causes:
            if self.state(cause):
                more, inputs = self.origins(cause, part)
                origins, reached = [*origins, *more], [*reached, *inputs]
        # NaN of infinities that are meant: a row that is masked as a whole.
        if step.descend is None and step.makes_nan and not origins:
            return [here], reached
        return origins, reached


def _within(mask: np.ndarray, reach: Any) -> np.ndarray:
    if reach is None or np.shape(reach) != mask.shape or not (mask & reach).any():
        return mask
    return mask & reach


def prepares_backward(run: Run, index: int, outs: Sequence[Any] = ()) -> bool:
    """Whether all that reads these outputs of an equation, directly or not, is the backward pass.

    The names of a program do not tell a value from the coefficient of its derivative: JAX traces both under `jvp`. But
    a value ends in an output of the forward pass, even if it is dropped there, and a coefficient does not.

    Args:
        run: of the jaxpr that the equation is in.
        index: of the equation.
        outs: those of its outputs that are meant; all, if not given.
    """
    known = set(outs or run.jaxpr.eqns[index].outvars)
    unread = set(known)
    for eqn in run.jaxpr.eqns[index + 1 :]:
        if read := known.intersection(atom for atom in eqn.invars if not _jax.is_literal(atom)):
            made = set[Any]() if "transpose" in scopes(eqn)[0] else set(eqn.outvars)
            known, unread = known | made, (unread - read) | made
    places = [i for i, atom in enumerate(run.jaxpr.outvars) if not _jax.is_literal(atom) and atom in known]
    if unread - {run.jaxpr.outvars[i] for i in places}:
        return False
    if not places:
        return True
    outer = run.context.outer
    return outer is not None and prepares_backward(outer.run, outer.index, [outer.eqn.outvars[i] for i in places])


def iter_equations(eqns: Iterable[JaxprEqn]) -> Iterator[JaxprEqn]:
    """Equations, and those inside of them at any depth."""
    for eqn in eqns:
        yield eqn
        for inner in inner_jaxprs(eqn.params):
            yield from iter_equations(opened(inner).eqns)
