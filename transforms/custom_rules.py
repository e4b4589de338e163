"""custom_vjp and custom_jvp: functions of records with a derivative of their own. See `custom`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast, overload

import jax
import numpy as np
from weft.core.edge import trees
from weft.core.edge.trees import is_tuple
from weft.core.edge.untyped import jax as untyped_jax
from weft.core.edge.untyped import jnp
from weft.core.errors import DifferentiationError, StructureError, SuccessorError
from weft.core.frames import open_frame
from weft.core.interpreter.boundary import Groups
from weft.core.interpreter.interpret import interpret
from weft.core.interpreter.rules import Body, Lift, Lifted, OutcomeNode, titled
from weft.core.interpreter.values import VALUES
from weft.core.records.agree import differences
from weft.core.records.storage import Static
from weft.core.threads.blocks import ThreadedFunction, Transform
from weft.core.threads.handle import refuse_threaded, threaded_function
from weft.transforms.arguments import as_tuple
from weft.transforms.custom import (
    CustomFunction,
    CustomOptions,
    Residuals,
    arguments,
    custom_rule,
    guarded,
    interleave,
    split_by_argnums,
    unread,
)
from weft.transforms.differentiation import read_arguments, read_output, sparse_arguments
from weft.transforms.transformed import decorate, named_like, transform

P = ParamSpec("P")
R = TypeVar("R")

# --- reverse mode -----------------------------------------------------------------------------------------------------


class _Output(NamedTuple):
    """What a function returned: the outcome, and the avals of its lanes."""

    outcome: OutcomeNode
    types: Groups


def _lift_vjp(lift: Lift[CustomOptions]) -> Lifted:
    (primal_body, forward_body), options = lift.bodies, lift.options
    # The function's own outcome by the avals of its leaves; None if its control flow needs their values.
    learned: dict[Any, _Output | None] = {}

    def lifted(extra: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        # The outcomes of the function and of its forward function. JAX runs one or the other, or both, depending on
        # whether the call is differentiated; they must agree, because the result is built from whichever came last.
        seen: list[_Output] = []
        everything = frozenset(range(len(primal_body.crossing.rides)))
        updated = everything if options.updates == "all" else primal_body.learn_updates(groups)
        # Both return the same lanes of updates, which JAX demands of the two functions of a `custom_vjp`.
        updating_primal, updating_forward = (body.departing(updated=updated) for body in (primal_body, forward_body))
        boundary = primal_body.boundary

        def primal(*groups: Any) -> tuple[Groups, Groups]:
            out, updates, outcome = updating_primal(groups)
            _append_agreeing(seen, outcome, (*out, *updates), primal_body, options)
            return out, updates

        def forward(*groups: Any) -> Any:
            # Under symbolic_zeros JAX wraps each primal with a flag that says whether it is perturbed; the backward
            # function and the abstract evaluation need the arrays.
            plain = tuple(tuple(getattr(v, "value", v) for v in group) for group in groups)
            if not seen and (output := _learn(learned, updating_primal, plain)) is not None:
                seen.append(output)
            # `run` and not a call, which may look for lost successors in an inner trace: the residuals do not return
            # from there, and would be tracers of that trace.
            out, updates, outcome = updating_forward.run(groups)
            _append_agreeing(seen, outcome, (*out, *updates), forward_body, options)
            # Set to None, so that tracers in the residuals do not outlive the trace.
            residuals, options.residuals.value = options.residuals.value, None
            # Residuals may be any tree with static leaves, of which JAX saves only the arrays: the structure goes along
            # as a static node.
            structure, leaves = boundary.pack(residuals)
            return (out, updates), (Static(structure), leaves, plain, outcome)

        def backward(saved: Any, cotangents: Any) -> Any:
            ((primals,), updates) = cotangents
            structure, leaves, groups, outcome = saved
            nondiff, differentiated = split_by_argnums(options.nondiff_argnums, arguments(forward_body, groups))
            cotangent = outcome.value.sparse(primals)
            if options.updates in ("all", "taken"):
                # The cotangents of the updates, as trees like the differentiated arguments. Lanes of updates are
                # numbered after those of the output.
                outputs = len(forward_body.departure.lanes)
                values = {i: updates[lane - outputs][place] for i, lane, place in outcome.value.updates}
                sparse = forward_body.crossing.structure.sparse(values)[1]
                cotangent = (split_by_argnums(options.nondiff_argnums, sparse)[1], cotangent)
            with open_frame("custom_vjp backward"):
                gradients = options.rule(*nondiff, structure.value.build(leaves), cotangent)
            cotangents = _cotangents(len(differentiated), gradients)
            # As the arguments of a call, with None for those that are not differentiated.
            args = interleave(options.nondiff_argnums, [None] * len(nondiff), cotangents)
            return read_arguments(forward_body.crossing, ((), args, {}), groups[0], "cotangent"), None

        function = untyped_jax.custom_vjp(titled(primal_body.name, primal))
        function.defvjp(forward, backward, symbolic_zeros=options.symbolic_zeros)
        out, updates = function(*guarded(primal_body, groups, options.name))
        outcome = seen[-1].outcome
        if options.updates == "zero":
            updates = unread(updating_primal, outcome.value, updates)
        return out, updates, outcome

    return lifted


def _learn(learned: dict[Any, _Output | None], body: Body, groups: Groups) -> _Output | None:
    """The outcome of the function, by one abstract evaluation; None if that fails.

    If an eager call is differentiated, JAX runs the forward function and never the function itself, so its outcome must
    be learned to be compared.
    """
    # Cached by avals, because `lifted` serves calls of all shapes, and its output may depend on them.
    leaves, structure = trees.flatten(groups)
    types = (structure, *map(jax.typeof, leaves))
    if types not in learned:
        outcomes: list[_Output] = []

        def run(*groups: Any) -> Groups:
            out, updates, outcome = body(groups)
            groups = (*out, *updates)
            outcomes.append(_Output(outcome, jax.tree.map(jax.typeof, groups)))
            return groups

        # An eager function may branch on the values of arrays, which cannot be traced.
        with suppress(jax.errors.JAXTypeError, jax.errors.JAXIndexError):
            untyped_jax.eval_shape(run, *groups)
        learned[types] = outcomes[0] if outcomes else None
    return learned[types]


def _append_agreeing(
    seen: list[_Output], outcome: OutcomeNode, out: Groups, body: Body, options: CustomOptions
) -> None:
    """Appends an outcome to those `seen`, and refuses it if it differs from the first."""
    seen.append(_Output(outcome, jax.tree.map(jax.typeof, out)))
    if seen[0] == seen[-1]:
        return
    first, latest = (
        body.boundary.describe_outcome(body.crossing, output.outcome.value, output.types)
        for output in (seen[0], seen[-1])
    )
    differing = differences(first, latest)
    if seen[0].outcome != outcome or differing:
        raise StructureError(
            f"the forward function of {options.name} does not return what the function returns",
            at=differing or ["output"],
            fix="return (output, residuals) with the same output",
        )


def _cotangents(expected: int, returned: Any) -> Sequence[Any]:
    """What the user's backward function returned: a cotangent for each differentiated argument."""
    cotangents = tuple(cast("Sequence[Any]", returned)) if isinstance(returned, tuple | list) else None
    if cotangents is None or len(cotangents) != expected:
        raise DifferentiationError(
            f"the backward function of custom_vjp must return a tuple of {expected} cotangents, one for each "
            f"differentiated argument; it returned {type(cast(Any, returned)).__name__}"
            + ("" if cotangents is None else f" of {len(cotangents)}"),
            fix="return one for each, None where it is zero",
        )
    return cotangents


CUSTOM_VJP = custom_rule("custom_vjp", _lift_vjp)


class CustomVjp(CustomFunction[P, R]):
    """A function with its own reverse-mode rule. Made by `custom_vjp`."""

    def defvjp(
        self, forward: Callable[..., Any], backward: Callable[..., Any], *, symbolic_zeros: bool = False
    ) -> None:
        """Defines the derivative.

        Args:
            forward: takes the function's arguments; returns `(output, residuals)`, any pytrees of records.
            backward: takes the arguments that are not differentiated, the residuals, and the output's cotangent;
                returns a tuple with a cotangent for each differentiated argument: a tree of the argument's structure
                (values at leaves that are not differentiated are ignored), or None for zero.
            symbolic_zeros: whether the leaves that `forward` gets are `CustomVJPPrimal`s and zero cotangents are
                `SymbolicZero`s, as in `jax.custom_vjp`.
        """
        self.definitions = (("defvjp", (forward, backward), {"symbolic_zeros": symbolic_zeros}),)
        residuals = Residuals()
        options = CustomOptions("custom_vjp", self.nondiff_argnums, backward, symbolic_zeros, residuals)

        def keeping(forward: Callable[..., Any]) -> Callable[..., Any]:
            def keeping_residuals(*args: Any, **kwargs: Any) -> Any:
                result = forward(*args, **kwargs)
                if not is_tuple(result) or len(result) != 2:
                    raise DifferentiationError(
                        "the forward function of custom_vjp must return (output, residuals), not a "
                        f"{type(result).__name__}",
                        fix="return a tuple of two",
                    )
                residuals.value = result[1]
                return result[0]

            return named_like(forward, keeping_residuals)

        # JAX runs only the forward function if the call is differentiated, so that it has to return the successor too.
        part = threaded_function(forward)
        if part is None and isinstance(self.function, ThreadedFunction):
            raise SuccessorError(
                "the forward function of a threaded part would lose its successor where it is differentiated",
                at=self.function.describe(),
                fix="give a method of the part as the forward function: it returns (output, residuals, successor)",
            )
        wrapped = keeping(forward) if part is None else part.through(Transform(keeping, (residuals,)))
        self._run = self._interpret((self.function, wrapped), options)

    def _interpret(self, functions: tuple[Callable[..., Any], ...], options: CustomOptions) -> Callable[..., Any]:
        return interpret(CUSTOM_VJP, VALUES)(functions, options)


@overload
def custom_vjp(function: Callable[P, R], /, *, nondiff_argnums: int | Sequence[int] = ()) -> CustomVjp[P, R]: ...
@overload
def custom_vjp(*, nondiff_argnums: int | Sequence[int] = ()) -> Callable[[Callable[P, R]], CustomVjp[P, R]]: ...
@transform("nondiff_argnums")
def custom_vjp(function: Callable[..., Any] | None = None, /, *, nondiff_argnums: int | Sequence[int] = ()) -> Any:
    """A function with a custom reverse-mode derivative, which `defvjp` defines.

    Args:
        function: a function of records and arrays.
        nondiff_argnums: the arguments that are not differentiated.

    Source: `jax.custom_vjp`.

    >>> import jax.numpy as jnp
    >>> @custom_vjp
    ... def clipped(model, x):
    ...     return model["w"] * x
    >>> clipped.defvjp(lambda m, x: (m["w"] * x, (m, x)), lambda saved, g: ({"w": jnp.clip(g * saved[1], -1, 1)}, None))
    >>> float(jax.grad(clipped)({"w": 2.0}, 5.0)["w"])
    1.0
    """
    return decorate(function, lambda f: CustomVjp(f, as_tuple(nondiff_argnums)))


# --- forward mode -----------------------------------------------------------------------------------------------------


def _lift_jvp(lift: Lift[CustomOptions]) -> Lifted:
    (body,), options = lift.bodies, lift.options

    def lifted(extra: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        outcomes: list[OutcomeNode] = []

        # The outcome cannot be an output of the function that JAX differentiates, for which it would need a tangent. So
        # it is collected here; JAX runs the function or its rule, and each of them appends its own.
        def primal(*groups: Any) -> Any:
            out, _, outcome = body(groups)
            outcomes.append(outcome)
            return out[0]

        def rule(groups: Any, tangents: Any) -> tuple[Any, Any]:
            nondiff, primals = split_by_argnums(options.nondiff_argnums, arguments(body, groups))
            _, primal_tangents = split_by_argnums(options.nondiff_argnums, sparse_arguments(body.crossing, tangents[0]))
            with open_frame("custom_jvp rule"):
                out, tangent = options.rule(*nondiff, primals, primal_tangents)
            # The rule's primal output crosses as the function's own output does.
            values = body.crossing.ungroup(groups)
            # The call is built again, because the user's rule may have mutated the objects of the first one.
            live, memory = body.boundary.rebuild(body.crossing, values)
            (primals,), _, outcome = body.boundary.leave(body.crossing, values, live, memory, out, body.departure)
            outcomes.append(OutcomeNode(value=outcome))
            leaves = read_output(outcome, tangent, primals, "tangent")
            return primals, tuple(map(_as_tangent, leaves, primals))

        function = untyped_jax.custom_jvp(titled(body.name, primal))
        function.defjvp(rule, symbolic_zeros=options.symbolic_zeros)
        out = function(*guarded(body, groups, options.name))
        return (tuple(out),), (), outcomes[0]

    return lifted


def _as_tangent(tangent: Any, primal: Any) -> Any:
    if jnp.issubdtype(jnp.result_type(primal), jnp.inexact):
        return jnp.zeros_like(primal) if tangent is None else tangent
    return np.zeros(jnp.shape(primal), jax.dtypes.float0)


CUSTOM_JVP = custom_rule("custom_jvp", _lift_jvp)


class CustomJvp(CustomFunction[P, R]):
    """A function with its own forward-mode rule. Made by `custom_jvp`."""

    _definer = "defjvp"

    def defjvp(self, rule: Callable[..., Any], *, symbolic_zeros: bool = False) -> Callable[..., Any]:
        """Defines the derivative.

        Args:
            rule: takes the arguments that are not differentiated, a tuple of primals and a tuple of tangents (of the
                primals' structures, `None` at leaves that have none); returns `(output, tangent)`.
            symbolic_zeros: whether zero tangents are `SymbolicZero`s, as in `jax.custom_jvp`.

        Returns:
            The rule, so that this can be used as a decorator.
        """
        self.definitions = (("defjvp", (rule,), {"symbolic_zeros": symbolic_zeros}),)
        options = CustomOptions("custom_jvp", self.nondiff_argnums, rule, symbolic_zeros)
        self._run = interpret(CUSTOM_JVP, VALUES)((self.function,), options)
        return rule

    def defjvps(self, *rules: Callable[..., Any] | None) -> None:
        """Defines the derivative for each differentiated argument on its own: `rule(tangent, output, *primals)`.

        Args:
            rules: a function for each differentiated argument, or None if the derivative is zero.
        """

        def rule(*args: Any) -> tuple[Any, Any]:
            *nondiff, primals, tangents = args
            arguments = interleave(self.nondiff_argnums, nondiff, primals)
            out: Any = cast(Callable[..., Any], self.function)(*arguments)
            terms = [jvp(t, out, *primals) for jvp, t in zip(rules, tangents, strict=True) if jvp is not None]
            if not terms:
                return out, jax.tree.map(jnp.zeros_like, out)
            return out, jax.tree.map(lambda *parts: sum(parts[1:], parts[0]), *terms)

        self.defjvp(rule)
        self.definitions = (("defjvps", rules, {}),)


@overload
def custom_jvp(function: Callable[P, R], /, *, nondiff_argnums: int | Sequence[int] = ()) -> CustomJvp[P, R]: ...
@overload
def custom_jvp(*, nondiff_argnums: int | Sequence[int] = ()) -> Callable[[Callable[P, R]], CustomJvp[P, R]]: ...
@transform("nondiff_argnums")
def custom_jvp(function: Callable[..., Any] | None = None, /, *, nondiff_argnums: int | Sequence[int] = ()) -> Any:
    """A function with a custom forward-mode derivative, which `defjvp` defines.

    Args:
        function: a function of records and arrays.
        nondiff_argnums: the arguments that are not differentiated.

    Source: `jax.custom_jvp`.

    >>> import jax.numpy as jnp
    >>> @custom_jvp
    ... def f(model, x):
    ...     return model["w"] * x
    >>> @f.defjvp
    ... def rule(primals, tangents):
    ...     (m, x), (_, dx) = primals, tangents
    ...     return f(m, x), 10.0 * dx
    >>> float(jax.grad(f, argnums=1)({"w": 2.0}, 5.0))
    10.0
    """

    def wrap(function: Callable[..., Any]) -> CustomJvp[Any, Any]:
        refuse_threaded((function,), "custom_jvp", "JAX needs a tangent of every output, and a successor has none")
        return CustomJvp(function, as_tuple(nondiff_argnums))

    return decorate(function, wrap)
