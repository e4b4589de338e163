"""What a class says of the sizes of methods that it inherits: the axes that its methods take, and what it computes."""

import abc

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft.typecheck.proofs.prover import verify
from weft.typecheck.proofs.report import Verdict


class Model(abc.ABC):
    @abc.abstractmethod
    def step(self, state: Float[Array, "states"]) -> Float[Array, "states"]: ...

    def twice(self, state: Float[Array, "states"]) -> Float[Array, "states"]:
        return self.step(self.step(state))

    def swapped(self, state: Float[Array, "states"]) -> Float[Array, "states 2"]:
        return jnp.stack([self.step(state)] * 2)


class Level(Model):
    """One state, as its own method says."""

    def step(self, state: Float[Array, "1"]) -> Float[Array, "1"]:
        return 2 * state


class Lagged(Model):
    """As many states as it has lags, and one more."""

    def __init__(self, lags: int):
        self.lags = lags

    @property
    def states(self) -> int:
        return self.lags + 1

    def step(self, state: Float[Array, "states"]) -> Float[Array, "states"]:
        return state * jnp.ones(self.states)


def verdicts_of(cls: type) -> dict[str, Verdict]:
    return {one.name.rpartition(".")[2]: one.verdict for one in verify(cls).contracts}


def test_axes_are_those_that_the_subclasss_own_methods_take():
    verdicts = verdicts_of(Level)
    assert verdicts["twice"] in (Verdict.PROVED, Verdict.HOLDS)
    assert verdicts["swapped"] is Verdict.FAILS


def test_a_size_that_a_property_computes_is_the_objects():
    verdicts = verdicts_of(Lagged)
    assert all(verdicts[name] in (Verdict.PROVED, Verdict.HOLDS) for name in ("step", "twice")), verdicts
    assert verdicts["swapped"] is Verdict.FAILS
