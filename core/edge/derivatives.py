"""Functions with custom derivatives, for `capture`.

The context in which a forward rule runs, a function that is differentiated only on demand, and a function with the
derivative of another one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from weft.core.edge._jax import Params
from weft.core.edge.moved import Names
from weft.core.edge.untyped import jax as untyped_jax

T = TypeVar("T")
_lu = Names("jax.extend.linear_util", "`capture` of functions with derivatives of their own", "transformation2")


def without_context(bind_params: Params, context: Callable[[], AbstractContextManager[None]]) -> Params:
    """The bind parameters of a function with a custom derivative, changed so that its forward rule runs in a
    context."""

    def enter(fun: Callable[..., T], *args: object) -> T:
        with context():
            return fun(*args)

    fun, forward, *backward = bind_params["subfuns"]
    return {**bind_params, "subfuns": (fun, _lu.transformation2(enter)(forward), *backward)}


def differentiated_on_demand(
    fun: Callable[[list[jax.Array]], list[jax.Array]],
) -> Callable[[list[jax.Array]], list[jax.Array]]:
    """A function that is differentiated only in the backward pass. Under plain JAX the forward pass would fail for a
    callback or a kernel in it, which has no derivative, even if nobody needs one."""
    call: Any = untyped_jax.custom_vjp(fun)

    def forward(args: list[jax.Array]) -> tuple[list[Any], list[Any]]:
        return fun(args), args

    def backward(args: list[jax.Array], cotangents: list[jax.Array]) -> tuple[list[jax.Array], ...]:
        return untyped_jax.vjp(fun, args)[1](cotangents)

    call.defvjp(forward, backward)
    return call


def graft(
    custom: Callable[..., list[jax.Array]],
    body: Callable[..., list[jax.Array]],
    args: list[jax.Array],
    offsets: list[jax.Array],
) -> list[jax.Array]:
    """The body's value; its derivative in the arguments is that of `custom`, in the offsets that of `body`."""

    @jax.custom_jvp
    def of_offsets(args: list[jax.Array], offsets: list[jax.Array]) -> list[jax.Array]:
        return body([*args, *offsets])

    def of_offsets_jvp(
        primals: tuple[list[jax.Array], list[jax.Array]], tangents: tuple[list[jax.Array], list[jax.Array]]
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        # Without `stop_gradient` of the arguments, so that second derivatives by them are right.
        (args, offsets), (_, offsets_dot) = primals, tangents

        def at_args(offsets: list[jax.Array]) -> list[jax.Array]:
            return body([*args, *offsets])

        return untyped_jax.jvp(at_args, (offsets,), (offsets_dot,))

    of_offsets.defjvp(of_offsets_jvp)
    return list(map(_second_with_both_tangents, custom(*args), of_offsets(args, offsets)))


@jax.custom_jvp
def _second_with_both_tangents(first: jax.Array, second: jax.Array) -> jax.Array:
    """The second value, whose tangent is the sum of both tangents."""
    del first
    return second


@_second_with_both_tangents.defjvp
def _second_with_both_tangents_jvp(
    primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    first, second = tangents
    return primals[1], first if first.dtype == jax.dtypes.float0 else jnp.add(first, second)
