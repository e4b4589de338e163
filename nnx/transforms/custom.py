"""nnx.custom_vjp: the rule of `weft.transforms` over graphs. The backward function has a form for each mode.

With graph updates, its last argument is `(input_updates_g, out_g)`: the cotangents of the arguments' updates (a State
for each object, None for each array) and the cotangent of the output. It returns a State for each object.

Without graph updates, its last argument is the output's cotangent, and it returns objects like the arguments. If it has
a parameter `updates_g`, that gets the cotangents of the updates, as objects like the arguments with None for Variables
that were not updated. If it has none, a derivative through the new value of a Variable is an error: the cotangent of
that update would be lost.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, Unpack, cast, overload

import jax
from weft.core.interpreter.interpret import interpret
from weft.nnx.config import config
from weft.nnx.crossing.references import References
from weft.nnx.crossing.rides import DiffState
from weft.nnx.errors import MISSING
from weft.nnx.transforms._wrap import boundary_of, checked_prefix, decorate, refuse_bound_method
from weft.nnx.transforms.keywords import CustomVjpKeywords
from weft.nnx.variable.variable import Variable
from weft.transforms.custom import CustomOptions
from weft.transforms.custom_rules import CUSTOM_VJP
from weft.transforms.custom_rules import CustomVjp as CustomVjpOverValues
from weft.transforms.transformed import named_like, transform

P = ParamSpec("P")
R = TypeVar("R")


class CustomVjp(CustomVjpOverValues[P, R]):
    """A function of objects and arrays with a reverse-mode rule of its own, made by `custom_vjp`.

    >>> from weft import nnx
    >>> type(nnx.custom_vjp(lambda w: w[...] ** 2)).__name__
    'CustomVjp'
    """

    def __init__(self, function: Callable[P, R], nondiff_argnums: tuple[Any, ...], boundary: References):
        refuse_bound_method(function, "custom_vjp")
        # The argument of a DiffState is differentiated, with respect to the Variables that its filter matches.
        super().__init__(function, tuple(n for n in nondiff_argnums if not isinstance(n, DiffState)))
        self._boundary = boundary
        self._filters = tuple((n.argnum, n.filter) for n in nondiff_argnums if isinstance(n, DiffState))

    def _interpret(self, functions: tuple[Callable[..., Any], ...], options: CustomOptions) -> Callable[..., Any]:
        # As flax's fault, the cotangents that the backward function does not take are dropped.
        rule, updates = options.rule, "dropped" if config.nnx_flax_faults else "zero"
        if self._boundary.updates:
            updates = "all"
        # Whether the backward function gets cotangents of updates is read from its signature, as in flax. One with
        # `**kwargs` takes `updates_g` without naming it.
        elif any(p.name == "updates_g" or p.kind is p.VAR_KEYWORD for p in inspect.signature(rule).parameters.values()):
            rule, updates = _by_name(rule), "taken"
        options = dataclasses.replace(options, rule=rule, updates=updates, filters=self._filters)
        return interpret(CUSTOM_VJP, self._boundary)(functions, options)


def _by_name(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a backward function, so that `updates_g` has None in place of Variables without an update."""

    def updated(node: Any) -> Any:
        # None as the raw value says that the function has not updated this Variable, so there is no cotangent for an
        # update.
        absent = isinstance(node, Variable) and cast("Variable[Any]", node).get_raw_value() is None
        return None if absent else cast(Any, node)

    def run(*args: Any) -> Any:
        *saved, (updates, cotangent) = args
        updates = jax.tree.map(updated, updates, is_leaf=lambda node: isinstance(node, Variable))
        return backward(*saved, cotangent, updates_g=updates)

    return named_like(backward, run)


@overload
def custom_vjp(fun: Callable[P, R], **options: Unpack[CustomVjpKeywords]) -> CustomVjp[P, R]: ...
@overload
def custom_vjp(**options: Unpack[CustomVjpKeywords]) -> Callable[[Callable[P, R]], CustomVjp[P, R]]: ...
@transform()
def custom_vjp(
    fun: Any = MISSING,
    *,
    nondiff_argnums: tuple[int | DiffState, ...] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> CustomVjp[P, R] | Callable[[Callable[P, R]], CustomVjp[P, R]]:
    """Gives a function of objects and arrays a reverse-mode derivative of its own, set by `defvjp(fwd, bwd)`.

    Args:
        fun: the function.
        nondiff_argnums: positions of arguments that are not differentiated; a `DiffState` chooses Variables of its
            argument that are.
        graph: whether objects are graphs (the default) or trees.
        graph_updates: whether structural changes reach the caller's objects. The backward function has another form
            in each case, see the module's docstring.

    Raises:
        ValueError: for a bound method of an object.

    Source: `jax.custom_vjp`, with the semantics of `flax.nnx.custom_vjp`.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> @nnx.custom_vjp(graph=False)
    ... def square(w):
    ...     return w[...] ** 2
    >>> square.defvjp(lambda w: (square(w), w), lambda w, g: (w.replace(w[...] * 100 * g),))
    >>> nnx.grad(square, graph=False)(nnx.Param(jnp.array(3.0)))[...].item()
    300.0
    """
    boundary = boundary_of("custom_vjp", graph, graph_updates)
    checked_prefix(boundary, nondiff_argnums, "nondiff_argnums", "DiffState")
    return decorate(fun, lambda function: CustomVjp(function, tuple(nondiff_argnums), boundary))
