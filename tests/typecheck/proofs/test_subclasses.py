"""Abstract classes: the concrete ones of the same package stand for them, and it is said which did."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import pytest
from equinox import AbstractVar
from jaxtyping import Array, Float
from weft.typecheck.proofs.prover import verify
from weft.typecheck.proofs.report import Verdict


class Kernel(eqx.Module):
    scale: AbstractVar[Float[Array, ""]]

    @abc.abstractmethod
    def __call__(self, x: Float[Array, "d"], y: Float[Array, "d"]) -> Float[Array, ""]: ...

    def gram(self, x: Float[Array, "n d"]) -> Float[Array, "n n"]:
        return jnp.stack([jnp.stack([self(a, b) for b in x]) for a in x])

    def swapped(self, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return x.T


class Squared(Kernel):
    scale: Float[Array, ""]

    def __call__(self, x: Float[Array, "d"], y: Float[Array, "d"]) -> Float[Array, ""]:
        return jnp.exp(-self.scale * jnp.sum((x - y) ** 2))


class Linear(Kernel):
    scale: Float[Array, ""]

    def __call__(self, x: Float[Array, "d"], y: Float[Array, "d"]) -> Float[Array, ""]:
        return self.scale * (x @ y)


class Sum(Kernel):
    one: Kernel
    scale: Float[Array, ""]

    def __call__(self, x: Float[Array, "d"], y: Float[Array, "d"]) -> Float[Array, ""]:
        return self.one(x, y) + self.scale


class Unfinished(Kernel):
    scale: Float[Array, ""]

    def __call__(self, x: Float[Array, "d"], y: Float[Array, "d"]) -> Float[Array, ""]:
        raise NotImplementedError


class Alone(eqx.Module):
    width: AbstractVar[int]

    def __call__(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x


def compared(kernel: Kernel, x: Float[Array, "d"]) -> Float[Array, ""]:
    return kernel(x, x)


def wrong_for_all(kernel: Kernel, x: Float[Array, "d"]) -> Float[Array, "d"]:
    return kernel(x, x)


def of_nobody(alone: Alone, x: Float[Array, "n"]) -> Float[Array, "n"]:
    return alone(x)


def test_an_argument_of_an_abstract_class_is_of_each_class_of_its_package():
    report = verify(compared)
    assert report.proved, str(report)
    assert report.assumptions == ("kernel is Squared or Linear, not Unfinished",)


def test_what_fails_for_every_class_is_a_failure():
    (failure,) = verify(wrong_for_all).failures
    assert "return: expected" in failure.message
    assert "kernel of class " in str(failure)
    assert "wrong_for_all" in failure.program


def test_the_methods_that_an_abstract_class_brings_itself_are_judged():
    contracts = {one.name: one for one in verify(Kernel).contracts}
    assert contracts["Kernel.__call__"].verdict is Verdict.SKIPPED
    assert "judged in the classes that bring it" in contracts["Kernel.__call__"].reason
    assert contracts["Kernel.gram"].verdict in (Verdict.HOLDS, Verdict.PROVED)
    assert contracts["Kernel.gram"].assumptions == ("self is Squared or Linear, not Unfinished",)
    assert contracts["Kernel.swapped"].verdict is Verdict.FAILS


@pytest.mark.parametrize("thing", [Alone, of_nobody], ids=["class", "argument"])
def test_an_abstract_class_that_nothing_stands_for_is_skipped(thing: Any):
    (contract,) = verify(thing).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert "Alone is abstract" in contract.reason
