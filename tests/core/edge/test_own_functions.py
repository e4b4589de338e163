"""JAX's own compiled functions are traced in a context that traces share; what is not JAX's own is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from weft.core.edge import _tracers

X = jnp.ones((2, 3))
numbers = jax.make_user_context(default_value=None)


def programs_of(function: Callable[[Any], Any], number: int) -> list[Any]:
    """The programs of the compiled functions in a trace with a number of its own."""
    with numbers(number):
        return [eqn.params["jaxpr"] for eqn in jax.make_jaxpr(function)(X).eqns if "jaxpr" in eqn.params]


def are_shared(function: Callable[[Any], Any]) -> bool:
    with _tracers.own_functions_traced(lambda: numbers(0)):
        (first,), (second,) = programs_of(function, 1), programs_of(function, 2)
    return first is second


def test_a_function_of_jax_is_traced_once():
    assert are_shared(lambda x: jnp.linalg.norm(x, axis=1))


def test_a_function_of_the_users_is_traced_each_time():
    assert not are_shared(jax.jit(lambda x: x + 1))


@pytest.mark.parametrize("transform", [jax.vmap, jax.grad, lambda f: lambda x: jax.jvp(f, (x,), (x,))[1]])
def test_what_a_transform_makes_of_a_function_of_jax_is_made_once(transform: Callable[..., Any]):
    def transformed(x: jax.Array) -> jax.Array:
        return transform(lambda row: jnp.linalg.norm(row) + 1)(x.ravel())

    with _tracers.own_functions_traced(lambda: numbers(0)):
        ones, others = programs_of(transformed, 11), programs_of(transformed, 12)
    assert ones
    assert all(one is other for one, other in zip(ones, others, strict=True))


def test_a_rule_of_the_users_runs_each_time():
    calls: list[Any] = []

    @jax.jit
    def half(x: jax.Array) -> jax.Array:
        calls.append(x)
        return x / 2

    @jax.custom_jvp
    def identity(x: jax.Array) -> jax.Array:
        return jnp.linalg.norm(x)

    identity.defjvp(lambda primals, tangents: (identity(*primals), half(jnp.sum(*tangents))))
    with _tracers.own_functions_traced(lambda: numbers(0)):
        programs_of(jax.grad(jax.jit(identity)), 13)
        before = len(calls)
        programs_of(jax.grad(jax.jit(identity)), 14)
    assert len(calls) == 2 * before > 0


def test_a_function_of_jax_that_is_given_one_of_the_users_is_traced_each_time():
    calls: list[Any] = []

    def one_more(x: jax.Array) -> jax.Array:
        calls.append(x)
        return x + 1

    def applied(x: jax.Array) -> jax.Array:
        return jnp.apply_along_axis(one_more, 0, x)

    with _tracers.own_functions_traced(lambda: numbers(0)):
        programs_of(applied, 5)
        before = len(calls)
        programs_of(applied, 6)
    assert len(calls) == 2 * before > 0


def test_nothing_is_shared_afterwards():
    are_shared(jnp.linalg.norm)
    (first,), (second,) = programs_of(jnp.linalg.norm, 3), programs_of(jnp.linalg.norm, 4)
    assert first is not second
