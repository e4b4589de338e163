"""Looks into optax's transformations, nested ones too: which extra arguments (`value`, `grad`, ...) they accept, and
what `inject_hyperparams` takes for a schedule."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
from weft.core.makeup import Makeup, closed_over, fold, makeup_of

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


def no_schedules(transformation: Any) -> list[str]:
    """Returns the hyperparameters that `optax.inject_hyperparams` takes for schedules, and that give no number.

    It calls whatever is callable with the number of the step: a mask that is a function of the parameters then decides
    nothing, and one that is a record fails in its contract.
    """
    return sorted(set(fold(transformation, _look, _schedules, lambda level: [])))


def _look(value: Any) -> Makeup | list[str]:
    return makeup_of(value) if isinstance(value, FunctionType | tuple | list | dict | functools.partial) else []


def _schedules(value: Any, makeup: Makeup, parts: list[list[str]]) -> list[str]:
    schedules: Mapping[str, Any] = dict(zip(makeup.names, makeup.values, strict=True)).get("sched_hps", {})
    plain = {name: getattr(schedule, "schedule_fn", None) for name, schedule in schedules.items()}
    wrong = [name for name, schedule in plain.items() if schedule is not None and not _gives_a_number(schedule)]
    return [*wrong, *(name for part in parts for name in part)]


def _gives_a_number(schedule: Callable[..., Any]) -> bool:
    try:
        values = jax.tree.leaves(schedule(jnp.zeros((), jnp.int32)))
        return bool(values) and not any(jnp.issubdtype(jnp.result_type(value), jnp.bool_) for value in values)
    except Exception:  # no function of a step number, whatever it raises at one
        return False
