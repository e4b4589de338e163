"""Strings of which neither an annotation nor a body says what they may be."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, Shaped
from weft.typecheck import verify
from weft.typecheck.proofs.report import Verdict


class Prior(eqx.Module):
    names: tuple[str, ...]
    low: Float[Array, "n"]

    def sampled(self, x: Float[Array, "b n"]) -> Float[Array, "b n"]:
        return x + self.low

    def named(self, x: Float[Array, "n"]) -> dict[str, Float[Array, ""]]:
        return dict(zip(self.names, x, strict=True))

    def ordered(self, z: dict[str, Float[Array, ""]]) -> Float[Array, "n"]:
        return jnp.stack([z[name] for name in self.names]) + self.low


def summed(x: Float[Array, "n"], axis_name: str) -> Float[Array, "n"]:
    return jax.lax.psum(x, axis_name)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("sampled", set()),
        ("named", {"n = len(self.names)", "self.names[0] = 'names_0'"}),
        ("ordered", {"n = len(self.names)", "self.names[0] = 'names_0'"}),
    ],
)
def test_a_name_that_means_nothing_is_made_up_and_keys_what_it_names(method: str, said: set[str]):
    (contract,) = (one for one in verify(Prior).contracts if one.name == f"Prior.{method}")
    assert contract.verdict in (Verdict.PROVED, Verdict.HOLDS)
    assert {*contract.assumptions} >= said


def test_the_name_of_an_axis_is_one():
    (contract,) = verify(summed).contracts
    assert contract.verdict in (Verdict.PROVED, Verdict.HOLDS)
    assert "it runs under an axis named 'axis_name'" in contract.assumptions


def activated(x: Float[Array, "n"], act: str) -> Float[Array, "n"]:
    return getattr(jax.nn, act)(x)


def contracted(x: Float[Array, "n m"], equation: str) -> Float[Array, "n"]:
    return jnp.einsum(equation, x)


def convolved(x: Float[Array, "n"], y: Float[Array, "n"], mode: str) -> Float[Array, "n"]:
    return jnp.convolve(x, y, mode=mode)


def loaded(x: Float[Array, "n m"], path: str) -> Float[Array, "n m"]:
    return x * jnp.load(path)


@pytest.mark.parametrize(
    ("judged", "reason"),
    [
        (activated, "the annotation leaves it open"),
        (contracted, "the annotation leaves it open"),
        (convolved, "the annotation leaves it open"),
        (loaded, "a file that is not here"),
    ],
)
def test_a_text_that_a_program_looks_up_is_not_blamed_on_it(judged, reason: str):
    (contract,) = verify(judged).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert reason in contract.reason


def cast(x: Float[Array, "n"], dtype: str | type | np.dtype) -> Shaped[Array, "n"]:
    return x.astype(dtype)


def titled(x: Float[Array, "n"], title: str | None) -> Float[Array, "n"]:
    return x if title is None else x * float(title)


def test_a_text_is_the_last_thing_to_be_made_up_for_a_union():
    for judged in (cast, titled):
        (contract,) = verify(judged).contracts
        assert contract.verdict in (Verdict.PROVED, Verdict.HOLDS), contract
        assert not any("does not matter" in one for one in contract.assumptions)
