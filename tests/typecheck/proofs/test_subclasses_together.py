"""Arguments of one abstract class, which may have to be of the same concrete one."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float
from weft.typecheck.proofs.prover import verify


class Shape(eqx.Module):
    center: eqx.AbstractVar[Any]

    @abc.abstractmethod
    def named(self) -> str: ...

    def distance(self, x: Any) -> Any:
        return jnp.linalg.norm(x - self.center, axis=-1)


class Ball(Shape):
    center: Float[Array, "3"]

    def named(self) -> str:
        return "ball"


class Box(Shape):
    center: Float[Array, "3"]

    def named(self) -> str:
        return "box"


class Cone(Shape):
    center: Float[Array, "3"]

    def named(self) -> str:
        return "cone"


class Cube(Shape):
    center: Float[Array, "3"]

    def named(self) -> str:
        return "cube"


class Cylinder(Shape):
    center: Float[Array, "3"]

    def named(self) -> str:
        return "cylinder"


class Disk(Shape):
    center: Float[Array, "2"]

    def named(self) -> str:
        return "disk"


def union(first: Shape, second: Shape, x: Float[Array, "n 2"]) -> Float[Array, "n"]:
    return jnp.minimum(first.distance(x), second.distance(x))


def swapped(first: Shape, second: Shape, x: Float[Array, "n 2"]) -> Float[Array, "2 n"]:
    return x - first.distance(x)[:, None] - second.distance(x)[:, None]


def test_two_arguments_may_have_to_be_of_one_class():
    (contract,) = verify(union).contracts
    assert contract, str(contract)
    assert any(one.startswith("first is Disk") for one in contract.assumptions), contract.assumptions


def test_what_is_wrong_for_all_classes_fails():
    assert not verify(swapped)
