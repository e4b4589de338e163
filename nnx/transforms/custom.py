"""nnx.custom_vjp: the rule of `weft.transforms` over graphs, in its two forms.

With graph updates, the backward function is given `(input_updates_g, out_g)`: cotangents of the updated arguments, a
State for each object and None for each array, beside that of the output; it returns States for objects. Without, it is
given the output's cotangent alone and returns objects; what is differentiated may not be mutated then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from weft.core.interpret import interpret
from weft.nnx.missing import MISSING
from weft.nnx.references import References
from weft.nnx.rides import DiffState
from weft.nnx.transforms._wrap import boundary_of, decorate, refuse_bound_method, without_filters
from weft.transforms.custom import CustomOptions
from weft.transforms.custom_vjp import CUSTOM_VJP
from weft.transforms.custom_vjp import CustomVjp as CustomVjpOverValues

_WITH_UPDATES = dataclasses.replace(CUSTOM_VJP, refused={})


class CustomVjp(CustomVjpOverValues[..., Any]):
    """A function over graphs with its own reverse-mode rule. Made by `custom_vjp`."""

    def __init__(self, function: Callable[..., Any], nondiff_argnums: tuple[Any, ...], boundary: References):
        refuse_bound_method(function, "custom_vjp")
        super().__init__(function, tuple(n for n in nondiff_argnums if not isinstance(n, DiffState)))
        self._boundary = boundary
        self._filters = tuple((n.argnum, n.filter) for n in nondiff_argnums if isinstance(n, DiffState))

    def _interpret(self, functions: tuple[Callable[..., Any], ...], options: CustomOptions) -> Callable[..., Any]:
        updates = self._boundary.updates
        options = dataclasses.replace(options, filters=self._filters, with_updates=updates)
        return interpret(_WITH_UPDATES if updates else CUSTOM_VJP, self._boundary)(functions, options)


def custom_vjp(
    fun: Any = MISSING,
    *,
    nondiff_argnums: tuple[int | DiffState, ...] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """A function of objects and arrays with its own reverse-mode derivative, given by `defvjp(fwd, bwd)`.

    Args:
        fun: the function.
        nondiff_argnums: positions of arguments that are not differentiated; a `DiffState` says which Variables of its
            argument are.
        graph: whether objects are graphs (the default) or trees.
        graph_updates: whether structural changes come back; it decides the form of the backward function, see above.

    Source: `jax.custom_vjp`, with the semantics of `flax.nnx.custom_vjp`.
    """
    boundary = boundary_of("custom_vjp", graph, graph_updates)
    without_filters(boundary, nondiff_argnums, "nondiff_argnums", "DiffState")
    return decorate(fun, lambda function: CustomVjp(function, tuple(nondiff_argnums), boundary))
