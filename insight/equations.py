"""Reads the scopes in which an equation of a jaxpr was traced."""

from __future__ import annotations

from jax.extend.core import JaxprEqn
from weft.core.edge import _jax
from weft.core.edge._tracers import BRANCH

# How the scope of a module's call begins in the names of a program.
MODULE = "weft:"
# JAX's name for what `remat` computes again in the backward pass: values, and no cotangents.
RECOMPUTED = "rematted_computation"


def scopes(eqn: JaxprEqn) -> tuple[list[str], list[str], list[str]]:
    """Returns the scopes in which an equation was traced, outermost first: transforms, modules, branches."""
    parts = _jax.scopes_of(eqn)
    names = [name for is_transform, name in parts if not is_transform]
    return (
        [name for is_transform, name in parts if is_transform or name == RECOMPUTED],
        [name.removeprefix(MODULE) for name in names if name.startswith(MODULE)],
        [f"cond(branch {name.removeprefix(BRANCH)})" for name in names if name.startswith(BRANCH)],
    )


def is_backward(eqn: JaxprEqn) -> bool:
    """Whether an equation belongs to a backward pass, or recomputes a value there."""
    return "transpose" in scopes(eqn)[0]
