"""What optax's transformations are offered beside the gradient, and what of it they take, alone or inside of others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import jax
from weft.core.makeup import closed_over

# What `minimize` gives to transformations that take it.
OFFERED = frozenset({"value", "grad", "value_fn", "grad_fn"})


def accepted(update: Callable[..., Any], extra: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of the extra arguments that a transformation takes, by its signature and those of what is inside of it."""
    named, refused = _asked(update)
    # What takes any name hands them on, and optax's line searches refuse a `grad_fn`, which the loss does not take.
    dropped = refused | ({"grad_fn"} - named)
    return {name: value for name, value in extra.items() if name not in dropped}


def _asked(update: Callable[..., Any]) -> tuple[set[str], set[str]]:
    """Which of the offered arguments a transformation's update names, and which it, or one inside of it, refuses."""
    import optax

    try:
        parameters = inspect.signature(update).parameters
    except (TypeError, ValueError):  # a built-in function may have none
        return set(OFFERED), set()
    named = OFFERED & parameters.keys()
    if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return {*named}, {*(OFFERED - named)}
    plain: Any = inspect.unwrap(update)
    inner = (
        closed_over(plain)
        if isinstance(plain, FunctionType)
        else getattr(getattr(plain, "__self__", plain), "__dict__", {})
    )
    found = [(set(named), set[str]())]
    for name, value in inner.items():
        # A chain keeps the functions alone. What is given without its extra arguments (`tx`) takes none.
        for one in jax.tree.leaves(value, is_leaf=lambda node: isinstance(node, optax.GradientTransformation)):
            if isinstance(one, optax.GradientTransformationExtraArgs):
                found.append(_asked(one.update))
            elif name == "update_fns":
                found.append(_asked(one))
    return set[str]().union(*(one for one, _ in found)), set[str]().union(*(one for _, one in found))
