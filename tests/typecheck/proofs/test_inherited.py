"""Methods that a class inherits, for the classes of arguments that its own methods take."""

import abc
import typing

import equinox as eqx
from jaxtyping import Array, Float
from weft.typecheck import verify


class Kernel(eqx.Module):
    scale: Float[Array, ""]


class Wide(Kernel):
    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "n"]:
        return self.scale * x.sum(1)


class Graph(Kernel):
    laplacian: Float[Array, "v v"]


OnGraphs = typing.TypeVar("OnGraphs", bound=f"{__name__}.Graph")


class Computation(eqx.Module):
    @abc.abstractmethod
    def _across(self, kernel: Kernel, x: Float[Array, "n d"]) -> Float[Array, "n"]: ...

    def across(self, kernel: Kernel, x: Float[Array, "n d"]) -> Float[Array, "n"]:
        return self._across(kernel, x)


class OfGraphs(Computation):
    def _across(self, kernel: OnGraphs, x: Float[Array, "n d"]) -> Float[Array, "n"]:
        return kernel.scale * x.sum(1) + kernel.laplacian.sum()


class WronglyOfGraphs(Computation):
    def _across(self, kernel: OnGraphs, x: Float[Array, "n d"]) -> Float[Array, "n"]:
        return kernel.laplacian.sum() * x


def test_an_inherited_method_is_given_what_the_own_ones_take():
    report = verify(OfGraphs)
    assert report, report
    assert not any("kernel is" in one for contract in report.contracts for one in contract.assumptions)


def test_and_fails_where_it_fails_for_that():
    report = verify(WronglyOfGraphs)
    assert not report
    assert "Graph" in str(report.contracts[0].failures[0].program), report
