"""An annotation that makes no sense costs what uses it, and nothing else of its class."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float
from weft.typecheck.errors import AnnotationError
from weft.typecheck.proofs.explaining import USUAL
from weft.typecheck.proofs.prover import proofs_of
from weft.typecheck.proofs.report import Verdict


class Base(eqx.Module):
    def scaled(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return 2 * x


class Loss(Base):
    scale: float = 1.0

    def scaled(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x * self.scale

    def equation(self, t_x: Float[Array, "1 + dim"]) -> Float[Array, "dim"]:
        return t_x[1:]

    @staticmethod
    def residual(t_x: Float[Array, "1 + dim"]) -> Float[Array, "dim"]:
        return t_x[1:]

    @classmethod
    def flipped(cls, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return -x


class Further(Loss):
    def evaluated(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return self.scaled(x)

    def equation(self, t_x: Float[Array, "1 + dim"]) -> Float[Array, "dim"]:
        return t_x[1:]


def verdicts_of(thing: Any) -> dict[str, Verdict | str]:
    verdicts: dict[str, Verdict | str] = {}
    for proof in proofs_of(thing, {}, {}, USUAL):
        name = proof.target.name.rpartition(".")[2]
        try:
            verdicts[name] = proof.contract().verdict
        except AnnotationError as error:
            verdicts[name] = str(error)
    return verdicts


def unread(place: str) -> str:
    why = "it is neither a name, a number nor an expression (expressions have no spaces in them)"
    return f"{place}, t_x: cannot read the dim '+' in the shape '1 + dim': {why}"


LOSS = {
    "scaled": Verdict.PROVED,
    "equation": unread("Loss.equation"),
    "residual": unread("Loss.residual"),
    "flipped": Verdict.PROVED,
}


@pytest.mark.parametrize("thing", [Loss, Loss(3.0)])
def test_the_other_methods_of_its_class_are_judged(thing: Any):
    assert verdicts_of(thing) == LOSS


def test_so_are_those_of_its_subclasses():
    assert verdicts_of(Further) == {
        "scaled": Verdict.PROVED,
        "equation": unread("Further.equation"),
        "evaluated": Verdict.PROVED,
    }


class Points(eqx.Module):
    points: Float[Array, "1 + dim"]

    def norm(self) -> Float[Array, ""]:
        return jnp.sum(self.points)


def test_all_methods_need_what_a_field_holds():
    with pytest.raises(AnnotationError, match=r"Points.points: cannot read the dim '\+'"):
        proofs_of(Points, {}, {}, USUAL)
