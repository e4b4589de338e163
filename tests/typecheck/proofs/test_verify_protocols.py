"""What a proof gives for an argument that is annotated with a `Protocol`."""

from __future__ import annotations

from typing import Any, Protocol

import pytest
from jaxtyping import Array, Float
from weft.typecheck.proofs.prover import verify


class Posterior(Protocol):
    """What several classes bring, none of which need name it."""

    particles: Float[Array, "time n d"]

    @property
    def weights(self) -> Float[Array, "time n"]: ...

    def density(self, x: Float[Array, "d"]) -> Float[Array, ""]: ...


class Energy(Protocol):
    """Something that one can call."""

    scale: Float[Array, ""]

    def __call__(self, x: Float[Array, "d"]) -> Float[Array, ""]: ...


class Untold(Protocol):
    """A method of it returns anything."""

    def sample(self, n: int): ...


def mean(posterior: Posterior) -> Float[Array, "time d"]:
    return (posterior.particles * posterior.weights[..., None]).sum(1) * posterior.density(posterior.particles[0, 0])


def transposed(posterior: Posterior) -> Float[Array, "time d"]:
    return posterior.weights @ posterior.particles


def energy(f: Energy, x: Float[Array, "n d"]) -> Float[Array, "n"]:
    return f.scale * f(x[0]) * x[:, 0]


def of_batch(f: Energy, x: Float[Array, "n d"]) -> Float[Array, "n"]:
    return f(x)


def drawn(model: Untold, x: Float[Array, "n d"]) -> Float[Array, "n"]:
    return model.sample(3) + x[:, 0]


@pytest.mark.parametrize("function", [mean, energy])
def test_an_argument_of_a_protocol_has_what_the_protocol_asks_for(function: Any):
    report = verify(function)
    assert report.proved, str(report)


@pytest.mark.parametrize("function", [transposed, of_batch])
def test_what_a_protocols_members_do_not_fit_is_a_failure(function: Any):
    assert verify(function).verdict.name == "FAILS"


def test_a_protocol_that_leaves_its_methods_open_is_skipped():
    report = verify(drawn)
    assert report.verdict.name == "SKIPPED"
    assert "Untold.sample has no type" in str(report)


def test_a_protocol_itself_has_nothing_to_prove():
    assert verify(Posterior).verdict.name == "SKIPPED"
