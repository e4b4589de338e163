"""split_inputs and merge_inputs: lift a JAX transform that has no counterpart here over functions of objects.

Outside of the transform `split_inputs` turns objects into trees that JAX takes; inside of it `merge_inputs` turns them
into objects again, and on the way out the same happens with the arguments' final state and the output.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, overload

from weft.nnx.crossing.contexts import update_context
from weft.nnx.crossing.extract import clear_non_graph_nodes, from_tree, to_tree
from weft.nnx.missing import MISSING
from weft.nnx.transforms._wrap import decorate

F = TypeVar("F", bound=Callable[..., Any])


@overload
def split_inputs(f: F, *, ctxtag: str = "split_merge_inputs") -> F: ...
@overload
def split_inputs(*, ctxtag: str = "split_merge_inputs") -> Callable[[F], F]: ...
def split_inputs(f: Any = MISSING, *, ctxtag: str = "split_merge_inputs") -> F | Callable[[F], F]:
    """A function of objects, made of a transformed function that `merge_inputs` is inside of.

    Args:
        f: the transform's result, a function of trees.
        ctxtag: the same as that of `merge_inputs`.

    Returns:
        A function of objects; what changes in them inside is changed in the caller's.

    Source: the semantics of `flax.nnx.transforms.general.split_inputs`.

    >>> import jax, jax.numpy as jnp
    >>> from weft.nnx.variable.kinds import Param
    >>> @split_inputs
    ... @jax.jit
    ... @merge_inputs
    ... def double(w):
    ...     w[...] *= 2
    >>> w = Param(jnp.array(1.0))
    >>> double(w)
    >>> float(w[...])
    2.0
    """

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def over_objects(*args: Any) -> Any:
            with update_context(ctxtag):
                arguments, out = function(*to_tree(args, ctxtag=ctxtag))
                return from_tree((arguments, out), ctxtag=ctxtag, is_inner=False)[1]

        return over_objects

    return decorate(f, wrap)


@overload
def merge_inputs(f: F, *, ctxtag: str = "split_merge_inputs") -> F: ...
@overload
def merge_inputs(*, ctxtag: str = "split_merge_inputs") -> Callable[[F], F]: ...
def merge_inputs(f: Any = MISSING, *, ctxtag: str = "split_merge_inputs") -> F | Callable[[F], F]:
    """A function of trees, for a transform of JAX, made of a function of objects; see `split_inputs`.

    Args:
        f: a function of objects and arrays.
        ctxtag: the same as that of `split_inputs`.

    Returns:
        A function to `(arguments, output)`: the arguments' final state, with None for what is no object.
    """

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def over_trees(*trees: Any) -> Any:
            args = from_tree(trees, ctxtag=ctxtag, is_inner=True)
            out = function(*args)
            return to_tree((clear_non_graph_nodes(args), out), ctxtag=ctxtag)

        return over_trees

    return decorate(f, wrap)
