"""Guards on numbers: what a proof takes to pass, and what stays a matter of the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float
from weft.core.edge import _tracers
from weft.typecheck.proofs.prover import verify
from weft.typecheck.proofs.report import Verdict

Vector = Float[Array, "n"]


def raise_if(wrong: Any, message: str) -> None:
    if wrong:
        raise ValueError(message)


def by_if(x: Vector) -> Vector:
    if jnp.any(x <= 0):
        message = "not positive"
        raise ValueError(message)
    return x


def by_else(x: Vector) -> Vector:
    if jnp.all(x > 0):
        x = x + 1
    else:
        raise ValueError("not positive")
    return x


def by_assert(x: Vector) -> Vector:
    assert jnp.all(x > 0), "not positive"
    return x


def by_chain(x: Vector, low: Float[Array, ""]) -> Vector:
    if not 0 < low < 1 or not jnp.all(x > low):
        raise ValueError("out of range")
    return x


def by_call(x: Vector) -> Vector:
    raise_if(jnp.any(x <= 0), "not positive")
    raise_if(message="not finite", wrong=not jnp.isfinite(x).all())
    return x


@pytest.mark.parametrize("function", [by_if, by_else, by_assert, by_chain, by_call], ids=lambda one: one.__name__)
def test_what_passes_a_guard_on_its_numbers_is_proved(function: Callable[..., Any]):
    (contract,) = verify(function).contracts
    assert contract.verdict is Verdict.HOLDS, contract
    assert all(
        assumption.startswith("the numbers pass the guard at test_passing.py:") for assumption in contract.assumptions
    )


def test_the_guard_is_named():
    (contract,) = verify(by_if).contracts
    line = by_if.__code__.co_firstlineno + 1
    assert contract.assumptions == (f"the numbers pass the guard at test_passing.py:{line}: if jnp.any(x <= 0)",)


def shortened(x: Vector) -> Vector:
    if jnp.any(x <= 0):
        raise ValueError("not positive")
    return x[1:]


def test_what_does_not_hold_behind_a_guard_fails_and_its_program_computes():
    (contract,) = verify(shortened).contracts
    assert contract.verdict is Verdict.FAILS
    assert 'expected Float[Array, "n"], found f32[0]' in str(contract.failures[0])
    *_, call = contract.failures[0].program.splitlines()
    assert call == 'jaxtyped(typechecker=beartype)(shortened)(jnp.ones((1,), "float32"))'


class Knots(eqx.Module):
    x: Float[Array, "m+1"]
    c: Float[Array, "m"]

    def __init__(self, x: Float[Array, "m+1"], c: Float[Array, "m"]):
        raise_if(jnp.any(jnp.diff(x) <= 0), "not increasing")
        self.x, self.c = x, c

    def widths(self) -> Float[Array, "m"]:
        return jnp.diff(self.x)

    @eqx.filter_jit
    def jitted(self, at: Vector) -> Vector:
        return at + self.c.sum()


def test_a_guard_of_a_constructor_is_passed_in_each_method():
    report = verify(Knots)
    assert [contract.verdict for contract in report.contracts] == [Verdict.HOLDS] * 2
    assert all("if wrong" in contract.assumptions[-1] for contract in report.contracts)


def two_ways(x: Vector) -> Vector:
    if jnp.any(x > 0):
        return x
    return -x


def not_one_answer(x: Vector) -> Vector:
    if jnp.any(x < 0) or not jnp.all(x < 9):
        raise ValueError("one has to be false, and one true")
    return x


def mixed(x: Vector) -> Vector:
    if not (jnp.any(x > 0) if x.ndim else True):
        raise ValueError("what is asked is not what decides")
    return x


@jax.jit
def jitted(x: Vector) -> Vector:
    assert jnp.all(x > 0)  # raises whatever it is given
    return x


def mapped(x: Vector) -> Vector:
    def checked(number: Any) -> Any:
        assert number > 0
        return number

    return jax.vmap(checked)(x)


@pytest.mark.parametrize("function", [two_ways, not_one_answer, mixed, jitted, mapped], ids=lambda one: one.__name__)
def test_what_is_no_guard_or_always_raises_needs_the_numbers(function: Callable[..., Any]):
    (contract,) = verify(function).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert "it needs the numbers in an array, not only its shape (TracerBoolConversionError" in contract.reason


def test_numbers_are_asked_for_outside_of_a_proof_as_ever():
    verify(by_if)
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.eval_shape(by_if, jnp.ones(3))
    with _tracers.truth_of_tracers(lambda frame: None), pytest.raises(jax.errors.TracerBoolConversionError):
        jax.eval_shape(lambda x: bool(x.all()), jnp.ones(3))
