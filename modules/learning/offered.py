"""Chooses which extra arguments (`value`, `grad`, ...) an optax transformation accepts, also in nested ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import jax
from weft.core.makeup import closed_over

# The extra arguments that `minimize` can pass to a transformation.
OFFERED = frozenset({"value", "grad", "value_fn", "grad_fn"})


def accepted(update: Callable[..., Any], extra: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the extra arguments that a transformation and those inside of it accept, by their signatures."""
    named, refused = _asked(update)
    # `**extra_args` passes all names on, in a line search even to the loss, which knows no `grad_fn`. So `grad_fn` goes
    # only to transformations that name it.
    dropped = refused | ({"grad_fn"} - named)
    return {name: value for name, value in extra.items() if name not in dropped}


def _asked(update: Callable[..., Any]) -> tuple[set[str], set[str]]:
    """Returns the offered arguments that an update names, and those that it or a nested update refuses."""
    import optax

    try:
        parameters = inspect.signature(update).parameters
    except (TypeError, ValueError):  # a built-in function may have none
        return set(OFFERED), set()
    named = OFFERED & parameters.keys()
    # Without `**extra_args`, an argument that is not named would be a TypeError.
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return {*named}, {*(OFFERED - named)}
    plain: Any = inspect.unwrap(update)
    inner = (
        closed_over(plain)
        if isinstance(plain, FunctionType)
        else getattr(getattr(plain, "__self__", plain), "__dict__", {})
    )
    answers = [(set(named), set[str]())]
    for name, value in inner.items():
        # `optax.chain` closes over a tuple of update functions. Other wrappers close over whole transformations; a
        # plain `GradientTransformation` among them is called without extra arguments.
        for inner_update in jax.tree.leaves(value, is_leaf=lambda node: isinstance(node, optax.GradientTransformation)):
            if isinstance(inner_update, optax.GradientTransformationExtraArgs):
                answers.append(_asked(inner_update.update))
            elif name == "update_fns":
                answers.append(_asked(inner_update))
    return set[str]().union(*(names for names, _ in answers)), set[str]().union(*(names for _, names in answers))
