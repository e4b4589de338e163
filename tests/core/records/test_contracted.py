"""Properties, operators, static and class methods of records are under contract, as public methods are."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest
import weft
from jaxtyping import Array, Float
from weft import ContractError

TWO, WRONG = jnp.ones(2), jnp.ones((2, 3))


class Point(weft.Module):
    w: Float[Array, "n"]

    @functools.cached_property
    def halved(self) -> Float[Array, "n"]:
        return self.w / 2

    @functools.cached_property
    def cubed(self) -> Float[Array, "n n n"]:
        return self.w

    @property
    def doubled(self) -> Float[Array, "n"]:
        return self.w * 2

    @property
    def squared(self) -> Float[Array, "n n"]:
        """What it says it is not."""
        return self.w

    def __add__(self, other: Float[Array, "n"]) -> Float[Array, "n"]:
        return self.w + other

    def __getitem__(self, index: Float[Array, "n"]) -> Float[Array, "n"]:
        return index

    @staticmethod
    def static(x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x

    @classmethod
    def filled(cls, x: Float[Array, "n"]) -> Point:
        return cls(jnp.zeros_like(x))


POINT = Point(TWO)


@pytest.mark.parametrize(
    ("use", "fragment"),
    [
        (lambda: POINT.squared, "return value of Point.squared should be f32[n=2,n=2], and is f32[2]"),
        (lambda: POINT.cubed, "return value of Point.cubed should be f32[n=2,n=2,n=2], and is f32[2]"),
        (lambda: POINT + jnp.ones(3), "argument other of Point.__add__ should be f32[n=2], and is f32[3]"),
        (lambda: POINT[jnp.ones(3)], "argument index of Point.__getitem__ should be f32[n=2]"),
        (lambda: Point.static(WRONG), "argument x of Point.static should be f32[n]"),
        (lambda: POINT.static(WRONG), "argument x of Point.static should be f32[n]"),
        (lambda: Point.filled(WRONG), "argument x of Point.filled should be f32[n]"),
        (lambda: jax.jit(lambda point: point.squared)(POINT), "return value of Point.squared"),
    ],
)
def test_a_broken_contract_is_told(use, fragment):
    with pytest.raises(ContractError) as caught:
        use()
    assert fragment in str(caught.value)


def test_what_keeps_its_contract_gives_what_it_gives_without():
    assert (POINT.doubled == 2).all()
    assert (POINT.halved == 0.5).all()
    assert POINT.halved is POINT.halved
    assert ((POINT + TWO) == 2).all()
    assert (POINT[TWO] == TWO).all()
    assert (Point.static(jnp.ones(3)) == 1).all()
    assert (Point.filled(TWO).w == 0).all()
    assert Point.squared.__doc__ == "What it says it is not."


def test_a_class_method_of_a_subclass_makes_the_subclass():
    class Sub(Point):
        pass

    assert type(Sub.filled(TWO)) is Sub
