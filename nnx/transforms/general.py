"""split_inputs and merge_inputs: apply any JAX transform to a function of objects, also one without an NNX version.

`split_inputs`, outside the transform, converts objects to pytrees that JAX takes. `merge_inputs`, inside it, rebuilds
the objects, calls the function, and converts the arguments' final state and the output to pytrees again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, overload

from weft.nnx.crossing.contexts import update_context
from weft.nnx.crossing.extract import clear_non_graph_nodes, from_tree, to_tree
from weft.nnx.errors import MISSING
from weft.nnx.transforms._wrap import decorate

F = TypeVar("F", bound=Callable[..., Any])


@overload
def split_inputs(f: F, *, ctxtag: str = "split_merge_inputs") -> F: ...
@overload
def split_inputs(*, ctxtag: str = "split_merge_inputs") -> Callable[[F], F]: ...
def split_inputs(f: Any = MISSING, *, ctxtag: str = "split_merge_inputs") -> F | Callable[[F], F]:
    """Converts a transformed function, inside which is `merge_inputs`, to a function of objects.

    Args:
        f: the transformed function, which takes pytrees.
        ctxtag: the same as that of `merge_inputs`.

    Returns:
        A function of objects; mutations inside the transform reach the caller's objects.

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
            # The context connects the four steps, so that `from_tree` writes into the objects which `to_tree` took.
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
    """Converts a function of objects to a function of pytrees, for a transform of JAX; see `split_inputs`.

    Args:
        f: a function of objects and arrays.
        ctxtag: the same as that of `split_inputs`.

    Returns:
        A function that returns `(arguments, output)`: the arguments' final state, with None for all but objects.
    """

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def over_trees(*trees: Any) -> Any:
            args = from_tree(trees, ctxtag=ctxtag, is_inner=True)
            out = function(*args)
            # Arguments before the output, so that an argument that is returned is referred to by number.
            return to_tree((clear_non_graph_nodes(args), out), ctxtag=ctxtag)

        return over_trees

    return decorate(f, wrap)
