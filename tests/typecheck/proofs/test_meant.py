"""Annotations that nothing satisfies, and that mean something: a function in place of what it makes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from weft.typecheck.proofs.prover import verify
from weft.typecheck.proofs.report import Verdict


def noisy(x: Float[Array, "n d"], key: jax.random.PRNGKey) -> Float[Array, "n d"]:  # pyright: ignore
    subkey, _ = jax.random.split(key)
    return x + jax.random.normal(subkey, x.shape)


def turned(x: Float[Array, "n d"], key: jax.random.key) -> Float[Array, "n d"]:  # pyright: ignore
    return jax.random.normal(key, x.T.shape)


def plus(x: Float[Array, "n d"], y: jnp.array) -> Float[Array, "n d"]:  # pyright: ignore
    return x + jnp.sum(y)


def by_norm(x: Float[Array, "n d"], norm: jnp.linalg.norm) -> Float[Array, "n d"]:  # pyright: ignore
    return x / norm(x)


def test_a_function_that_is_annotated_stands_for_what_it_makes_and_that_is_told():
    for function in (noisy, plus):
        (contract,) = verify(function).contracts
        assert contract.verdict is Verdict.PROVED
        (warning,) = contract.warnings
        assert "is a function and not a type; weft takes it to mean what" in warning.message
    (failure,) = verify(turned).failures
    assert "found f32[2,1]" in failure.message


def test_a_key_without_a_type_has_the_shape_of_jaxs_implementation():
    with jax.default_prng_impl("rbg"):
        assert verify(noisy).verdict is Verdict.PROVED


def test_any_other_function_says_nothing():
    (contract,) = verify(by_norm).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert "weft cannot make a value from the annotation" in contract.reason
