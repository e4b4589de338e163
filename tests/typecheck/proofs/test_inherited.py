"""Methods that a class inherits, for the classes of arguments that its own methods take."""

import abc
import functools
import typing

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree
from weft.typecheck import verify
from weft.typecheck.proofs.report import Verdict


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


class Bijector(eqx.Module):
    @abc.abstractmethod
    def inverse_and_slope(self, y: PyTree) -> tuple[PyTree, Array]: ...

    def inverse(self, y: PyTree) -> PyTree:
        return self.inverse_and_slope(y)[0]


class Joining(Bijector):
    """Of arrays, where the bijectors of its package may take any trees."""

    def inverse_and_slope(self, y: tuple[Array, ...]) -> tuple[PyTree, Array]:
        return sum(y), y[0]


class WronglyJoining(Bijector):
    def inverse_and_slope(self, y: Float[Array, "n"]) -> tuple[PyTree, Float[Array, "n"]]:
        return y, y[0]


def test_what_the_base_class_takes_any_tree_for_the_subclass_takes_as_it_says():
    inverse = {contract.name: contract for contract in verify(Joining).contracts}["Joining.inverse"]
    assert inverse.verdict in (Verdict.PROVED, Verdict.HOLDS), inverse
    report = {contract.name: contract for contract in verify(WronglyJoining).contracts}["WronglyJoining.inverse"]
    assert report.verdict is Verdict.FAILS, report


class Distribution(eqx.Module):
    @abc.abstractmethod
    def density(self, value: PyTree[Array]) -> PyTree[Array]: ...

    def likelihood(self, value: PyTree[Array]) -> PyTree[Array]:
        return self.density(value)


class Uniform(Distribution):
    def density(self, value: Array) -> Array:
        return jnp.ones_like(value)


def test_a_tree_of_arrays_of_any_shape_is_any_tree():
    likelihood = {one.name: one for one in verify(Uniform).contracts}["Uniform.likelihood"]
    assert likelihood.verdict is Verdict.PROVED, likelihood


class Sized(typing.Protocol):
    width: int


class Reading(eqx.Module):
    def read(self, source: Sized, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return self.scaled(source, x)

    def scaled(self, source: Sized, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x


class ReadingOtherwise(Reading):
    def scaled(self, source: Kernel, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x * source.scale


def test_a_protocol_is_not_asked_for_its_subclasses():
    contracts = {one.name: one for one in verify(ReadingOtherwise).contracts}
    assert contracts["ReadingOtherwise.scaled"].verdict is Verdict.PROVED


class Game:
    """As environments are: what every one of them does calls what each has of its own, compiled."""

    def advance(self, kernel: Kernel, x: Float[Array, "n d"]) -> Float[Array, "n"]:
        return self.advance_own(kernel, x)

    def advance_own(self, kernel: Kernel, x: Float[Array, "n d"]) -> Float[Array, "n"]:
        raise NotImplementedError


class GraphGame(Game):
    @functools.partial(jax.jit, static_argnums=0)
    def advance_own(self, kernel: Graph, x: Float[Array, "n d"]) -> Float[Array, "n"]:
        return kernel.laplacian.sum() * x.sum(1)


def test_what_the_subclass_takes_is_read_under_jit():
    advance = {one.name: one for one in verify(GraphGame).contracts}["GraphGame.advance"]
    assert advance.verdict in (Verdict.PROVED, Verdict.HOLDS), advance


State = typing.TypeVar("State")


class System(eqx.Module, typing.Generic[State]):
    """Of any state and controls: which ones a system has, it says itself."""

    def __call__(self, state: State, controls: PyTree[Array]) -> State:
        return self.field(state, controls)

    @abc.abstractmethod
    def field(self, state: State, controls: PyTree[Array]) -> State: ...


class Linear(System[Array]):
    matrix: Float[Array, "n n"]

    def field(self, state: Float[Array, "n"], controls: Float[Array, "n"]) -> Float[Array, "n"]:
        return self.matrix @ (state + controls)


def test_what_the_base_class_leaves_open_is_not_wrong_of_a_system_that_says_it():
    (contract,) = (judged for judged in verify(System).contracts if judged.name == "System.__call__")
    assert contract.verdict is not Verdict.FAILS, contract
    assert {judged.verdict for judged in verify(Linear).contracts} <= {Verdict.PROVED, Verdict.HOLDS}


class PlainState(eqx.Module):
    step: Float[Array, ""]


class CoinState(PlainState):
    pass


class CoinGame:
    """As `GraphGame`, but what it takes is said inside of its constructor."""

    def __init__(self):
        def advance(state: CoinState) -> Float[Array, ""]:
            return state.step + 1

        self.inner = advance


class AnyGame:
    def advance(self, state: PlainState) -> Float[Array, ""]:
        return self.inner(state)


class OneGame(CoinGame, AnyGame):
    pass


def test_what_inside_of_a_class_takes_a_subclass_is_no_fault_of_what_it_inherits():
    advance = {one.name: one for one in verify(OneGame).contracts}["OneGame.advance"]
    assert advance.verdict is Verdict.SKIPPED, advance
    assert advance.reason.startswith("this class takes less than its base class (argument state: expected Coin")


class Noted(eqx.Module):
    note: str


def shown(note: Float[Array, "n"]) -> Float[Array, "n"]:
    return note


def shown_with(state: PyTree[Array], x: Float[Array, "n"]) -> Float[Array, "n"]:
    return shown(Noted("of no tree")) + x


def test_what_is_no_tree_is_wrong_whatever_trees_are_open():
    assert verify(shown_with).contracts[0].verdict is Verdict.FAILS
