"""Abstract classes: the concrete ones of the same package stand for them, and it is said which did."""

import abc
import dataclasses
import re
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import pytest
from equinox import AbstractVar
from jaxtyping import Array, Float
from weft.typecheck.arguments.subclasses import is_abstract
from weft.typecheck.proofs.explaining import MOST_CLASSES
from weft.typecheck.proofs.prover import verify
from weft.typecheck.proofs.report import Verdict
from weft.typecheck.proofs.tracing import run_trial


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


class Engine:
    """Abstract by what it says, though Python would make one."""

    @abc.abstractmethod
    def scalar(self, x: Float[Array, "n"]) -> Float[Array, ""]: ...

    def each(self, x: Float[Array, "m n"]) -> Float[Array, "m"]:
        return jnp.stack([self.scalar(row) for row in x])


class SumEngine(Engine):
    def scalar(self, x: Float[Array, "n"]) -> Float[Array, ""]:
        return jnp.sum(x)


class Shape(eqx.Module):
    side: Float[Array, ""]

    @abc.abstractmethod
    def area(self) -> Float[Array, ""]: ...


class Plain(Shape):
    def area(self) -> Float[Array, ""]:
        return self.side


class Second(Plain):
    pass


class Third(Plain):
    pass


class Fourth(Plain):
    pass


class Stretched(Plain):
    factors: Float[Array, "k"]


def of_the_last(shape: Shape, x: Float[Array, "n"]) -> Float[Array, "n k"]:
    return x[:, None] * shape.factors


def of_none(shape: Shape, x: Float[Array, "n"]) -> Float[Array, "n"]:
    return x * shape.colour


def compared(kernel: Kernel, x: Float[Array, "d"]) -> Float[Array, ""]:
    return kernel(x, x)


def wrong_for_all(kernel: Kernel, x: Float[Array, "d"]) -> Float[Array, "d"]:
    return kernel(x, x)


def of_nobody(alone: Alone, x: Float[Array, "n"]) -> Float[Array, "n"]:
    return alone(x)


def test_an_argument_of_an_abstract_class_is_of_each_class_of_its_package():
    report = verify(compared)
    assert report.verdict is Verdict.HOLDS, str(report)
    (assumption,) = report.assumptions
    assert (
        re.sub(r":\d+", "", assumption) == "kernel is Squared or Linear, not Unfinished (guard at test_subclasses.py)"
    )


def test_what_fails_for_every_class_is_a_failure():
    (failure,) = verify(wrong_for_all).failures
    assert "return: expected" in failure.message
    assert "kernel of class " in str(failure)
    assert "wrong_for_all" in failure.program


@pytest.mark.slow
def test_the_methods_that_an_abstract_class_brings_itself_are_judged():
    contracts = {one.name: one for one in verify(Kernel).contracts}
    assert contracts["Kernel.__call__"].verdict is Verdict.SKIPPED
    assert "judged in the classes that implement it" in contracts["Kernel.__call__"].reason
    assert contracts["Kernel.gram"].verdict in (Verdict.HOLDS, Verdict.PROVED)
    (assumption,) = contracts["Kernel.gram"].assumptions
    assert re.sub(r":\d+", "", assumption) == "self is Squared or Linear, not Unfinished (guard at test_subclasses.py)"
    assert contracts["Kernel.swapped"].verdict is Verdict.FAILS


@pytest.mark.parametrize("thing", [Alone, of_nobody], ids=["class", "argument"])
def test_an_abstract_class_that_nothing_stands_for_is_skipped(thing: Any):
    (contract,) = verify(thing).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert "Alone is abstract" in contract.reason


def test_a_class_that_marks_methods_as_abstract_is_abstract_without_abc():
    contracts = {one.name: one for one in verify(Engine).contracts}
    assert contracts["Engine.each"].verdict in (Verdict.HOLDS, Verdict.PROVED)
    assert contracts["Engine.each"].assumptions == ("self is SumEngine",)


def test_a_failure_is_one_of_all_classes_and_not_of_the_first_ones():
    (contract,) = verify(of_the_last).contracts
    assert contract.verdict is Verdict.HOLDS
    assert contract.assumptions == ("shape is Stretched, not Plain or Second or Third or Fourth",)


def test_what_no_class_has_that_stands_for_an_abstract_one_is_no_failure_of_shapes():
    (contract,) = verify(of_none).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert contract.reason.startswith("shape: the annotation leaves it open (Attr")


class Mask(eqx.Module):
    @abc.abstractmethod
    def get(self) -> Float[Array, "y x"] | Float[Array, "z y x"]: ...

    def __call__(
        self, image: Float[Array, "*batch y x"] | Float[Array, "*batch z y x"]
    ) -> Float[Array, "*batch y x"] | Float[Array, "*batch z y x"]:
        return image * self.get()


class Sphere(Mask):
    array: Float[Array, "z y x"]

    def get(self) -> Float[Array, "z y x"]:
        return self.array


class Ball(Mask):
    array: Float[Array, "z y x"]

    def get(self) -> Float[Array, "z y x"]:
        return self.array

    def __call__(
        self, image: Float[Array, "*batch y x"] | Float[Array, "*batch z y x"]
    ) -> Float[Array, "*batch y x"] | Float[Array, "*batch z y x"]:
        return image * self.array


def test_a_subclass_need_not_take_every_member_of_a_union_that_its_base_writes():
    contract = next(judged for judged in verify(Sphere).contracts if judged.name.endswith("__call__"))
    assert contract.verdict in (Verdict.PROVED, Verdict.HOLDS)
    assert any("image is a Float[Array" in assumption and "z y x" in assumption for assumption in contract.assumptions)
    own = next(judged for judged in verify(Ball).contracts if judged.name.endswith("__call__"))
    assert own.verdict is Verdict.FAILS


class Map(eqx.Module):
    @abc.abstractmethod
    def volume(self, x: Float[Array, "*n"]) -> Float[Array, "*n"] | Float[Array, ""]: ...


class Each(Map):
    def volume(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return x


class Whole(Map):
    """Whose result has no axis, which its base allows."""

    weight: Float[Array, "d"]

    def __init__(self, weight: Float[Array, "d"], bias: Float[Array, "d"] | None = None):
        if bias is not None:
            raise ValueError("no bias")
        self.weight = weight

    def volume(self, x: Float[Array, "*n"]) -> Float[Array, ""]:
        return jnp.sum(x)


class Either(Map):
    """Of whose arguments only one may be given."""

    def __init__(self, scale: Float[Array, ""] | None = None, rate: Float[Array, ""] | None = None):
        if scale is not None and rate is not None:
            raise ValueError("only one of scale and rate")

    def volume(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return x


def along_rows(each: Map, x: Float[Array, "b n"]) -> Float[Array, "b"]:
    return jnp.sum(each.volume(x), axis=1)


def test_what_fails_for_one_class_behind_its_guards_is_warned_of():
    (contract,) = verify(along_rows).contracts
    assert contract.verdict in (Verdict.HOLDS, Verdict.PROVED)
    assert contract.assumptions == ("each is Each or Either (each.scale is left out), not Whole",)
    (warning,) = contract.warnings
    assert warning.rule == "one-class"
    assert str(warning).startswith("ValueError: axis 1 is out of bounds for array of dimension 0")
    assert "each of class Whole" in str(warning)
    assert "Whole(jnp.ones((1,)" in warning.program
    assert not verify(along_rows, strict=True)


class Node:
    def __new__(cls, *args: Any, **kwargs: Any):
        if cls is Node:
            raise TypeError("only its subclasses")
        return object.__new__(cls)

    def weight(self) -> int:
        return 1


class Leaf(Node):
    pass


@dataclasses.dataclass(eq=False)
class Named(Node):
    name: int

    def __new__(cls, *args: Any, **kwargs: Any):
        if cls is Named:
            raise TypeError("only its subclasses")
        return super().__new__(cls)


class Twig(Named):
    pass


def weighed(node: Node, x: Float[Array, "n"]) -> Float[Array, "n"]:
    return x * node.weight()


def named(node: Named, x: Float[Array, "n"]) -> Float[Array, "n"]:
    return x * node.weight()


@pytest.mark.parametrize(("function", "stands"), [(weighed, "node is Leaf or Twig"), (named, "node is Twig")])
def test_a_class_whose_constructor_refuses_it_is_abstract(function: Any, stands: str):
    (contract,) = verify(function).contracts
    assert contract.verdict is Verdict.HOLDS
    assert contract.assumptions == (stands,)


def added(kernel: Kernel, x: Float[Array, "n d"], y: Float[Array, "n d"] | None = None) -> Float[Array, "n d"]:
    return kernel.scale * x + y


def test_a_class_that_cannot_be_made_beside_an_option_says_nothing_of_the_rest():
    (contract,) = verify(added).contracts
    assert contract.verdict is Verdict.FAILS  # `y` is left out; of `Sum` no instance can be made
    assert "NoneType" in contract.failures[0].message


class Shape(eqx.Module):
    @abc.abstractmethod
    def area(self) -> Float[Array, ""]: ...


for _name in "ABCDEFGHIJKL":  # a dozen, alike in all that matters
    globals()[_name] = type(_name, (Shape,), {"area": lambda self: jnp.ones(()), "__module__": __name__})


def crossed(shape: Shape, x: Float[Array, "n"], y: Float[Array, "m"]) -> Float[Array, "n"]:
    return shape.area() * x + y


def test_classes_that_fail_alike_are_not_all_tried(monkeypatch: pytest.MonkeyPatch):
    tried = set[int]()

    def noting(target: Any, assignment: Any, dims: Any = None) -> Any:
        tried.add(assignment.options.get("shape class", 0))
        return run_trial(target, assignment, dims)

    monkeypatch.setattr("weft.typecheck.proofs.explaining.run_trial", noting)
    (contract,) = verify(crossed).contracts
    assert contract.verdict is Verdict.FAILS
    assert len(tried) <= MOST_CLASSES + 1


class Law(eqx.Module):
    @abc.abstractmethod
    def density(self, x: Float[Array, "d"]) -> Float[Array, ""]: ...


class Standard(Law):
    def density(self, x: Float[Array, "d"]) -> Float[Array, ""]:
        return -jnp.sum(x**2)


class Scaled(Law):
    scale: Float[Array, "k d"]

    def density(self, x: Float[Array, "d"]) -> Float[Array, ""]:
        if self.scale.shape != (x.shape[0] + 1,):  # what no annotation says, and no size that is tried makes so
            raise ValueError("it has another shape")
        return -jnp.sum((x * self.scale[1:]) ** 2)


def mixed(law: Law, x: Float[Array, "d"]) -> Float[Array, "k"]:
    return eqx.filter_vmap(lambda one: one.density(x))(law)


def test_what_fails_for_a_class_where_a_guard_refuses_another_is_undecided():
    (contract,) = verify(mixed).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert "Standard fails" in contract.reason
    assert "Scaled ends at a guard" in contract.reason


class Wrapper(eqx.Module):
    """As under `from __future__ import annotations`, which equinox does not read."""

    rate: "eqx.AbstractVar[float]"

    def scaled(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return self.rate * x


class Halving(Wrapper):
    rate: float = 0.5


def test_fields_that_texts_mark_are_for_subclasses_to_bring():
    assert is_abstract(Wrapper)
    assert not is_abstract(Halving)
    (contract,) = verify(Wrapper).contracts
    assert contract.assumptions == ("self is Halving",)
