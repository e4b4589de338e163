"""custom_jvp: a function of records with its own forward-mode derivative. See `custom`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast, overload

import jax
import numpy as np
from weft.core.edge.untyped import jax as untyped_jax
from weft.core.edge.untyped import jnp
from weft.core.frames import open_frame
from weft.core.interpreter.interpret import interpret
from weft.core.interpreter.rules import Lift, Lifted, OutcomeNode
from weft.core.interpreter.values import VALUES
from weft.core.threads.handle import refuse_threaded
from weft.transforms.arguments import as_tuple
from weft.transforms.custom import (
    CustomFunction,
    CustomOptions,
    arguments,
    custom_rule,
    guarded,
    interleave,
    part,
)
from weft.transforms.differentiation import read_output, sparse_arguments
from weft.transforms.transformed import decorate, titled, transform

P = ParamSpec("P")
R = TypeVar("R")


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
            nondiff, primals = part(options.nondiff_argnums, arguments(body, groups))
            _, primal_tangents = part(options.nondiff_argnums, sparse_arguments(body.crossing, tangents[0]))
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
