"""What is tried to explain a failure, and what is not, as no size or option could change it."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
import weft
from jaxtyping import Array, Float, Shaped
from weft.typecheck.proofs.prover import verify
from weft.typecheck.proofs.report import Contract, Verdict
from weft.typecheck.proofs.tracing import run_trial


def sizes_tried(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Contract, int]:
    """The verdict, and how many trials were given sizes."""
    tried: list[Any] = []

    def noting(target: Any, assignment: Any, dims: Any = None) -> Any:
        tried.append(dict(assignment.sizes))
        return run_trial(target, assignment, dims)

    monkeypatch.setattr("weft.typecheck.proofs.explaining.run_trial", noting)
    (contract,) = verify(function).contracts
    return contract, sum(map(bool, tried))


def summed(x: Float[Array, "n d"], k: int) -> Float[Array, "n d"]:
    return jnp.sum(x, axis=1)


def called(score: Callable[[Float[Array, "n d"]], Float[Array, "n d"]], x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    return jax.vmap(score)(x)


@pytest.mark.parametrize("function", [summed, called])
def test_no_size_is_looked_for_where_a_number_of_axes_is_wrong(function: Any, monkeypatch: pytest.MonkeyPatch):
    contract, tried = sizes_tried(function, monkeypatch)
    assert contract.verdict is Verdict.FAILS
    assert tried <= 4  # those that make the failure smaller


def slope(
    score: Callable[[Shaped[Array, "n d"] | float | int], Float[Array, "n d"]], x: Shaped[Array, "n d"]
) -> Float[Array, "n d"]:
    return jax.grad(lambda one: jnp.sum(jax.vmap(score)(one)))(x)


def test_a_kind_of_numbers_that_is_refused_is_no_way_past_another_failure():
    (contract,) = verify(slope).contracts
    assert contract.verdict is Verdict.FAILS
    assert "score takes" in contract.failures[0].message


@dataclasses.dataclass
class Data:
    x: Float[Array, "n d"] | None = None


jax.tree_util.register_dataclass(Data, ["x"], [])


class Layer(eqx.Module):
    weight: Float[Array, "o i"]
    bias: Float[Array, "o"] | None = None

    def __call__(self, x: Float[Array, "i"]) -> Float[Array, "o"]:
        return self.weight @ x + self.bias


def centred(data: Data) -> Float[Array, "n d"]:
    return data.x - jnp.mean(data.x, 0)


def test_a_record_that_may_be_empty_is_a_condition_of_who_reads_it():
    (contract,) = verify(centred).contracts
    assert contract.verdict in (Verdict.PROVED, Verdict.HOLDS)
    assert "data.x is not None" in contract.assumptions


def test_what_a_class_leaves_out_its_own_methods_have_to_take():
    assert [one.verdict for one in verify(Layer).contracts] == [Verdict.FAILS]


class Part(eqx.Module):
    @abc.abstractmethod
    def value(self, x: Float[Array, "n"]) -> Float[Array, "n o"]: ...


class Level(Part):
    level: Float[Array, ""] | Float[Array, "o"]

    def value(self, x: Float[Array, "n"]) -> Float[Array, "n o"]:
        return x[:, None] * self.level


class Parts(eqx.Module):
    parts: list[Part]
    operator: Callable

    def __call__(self, x: Float[Array, "n"]) -> Float[Array, "n o"]:
        return self.operator(jnp.stack([part.value(x) for part in self.parts]))


def test_options_that_fail_before_an_unknown_callable_are_no_fault():
    (contract,) = verify(Parts).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert "does not say what it returns" in contract.reason


def rotated(x: Float[Array, "n d"], level: bool | None = None) -> Float[Array, "n d"]:
    if level is None:
        level = bool(jnp.all(x[:, 0] == 0))
    return x if level else x[::-1]


def wrongly_rotated(x: Float[Array, "n d"], level: bool | None = None) -> Float[Array, "n d"]:
    if level is None:
        level = bool(jnp.all(x[:, 0] == 0))
    return x.T if level else x


def test_what_asks_for_numbers_by_default_is_judged_where_an_option_says_what_they_would():
    (contract,) = verify(rotated).contracts
    assert contract.verdict is Verdict.HOLDS
    assert contract.assumptions == ("level is not None",)
    assert "f32[2,1]" in str(verify(wrongly_rotated).failures[0])


def counted(x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    return x * int(x.sum())


def compared(x: Float[Array, "n d"], y: Float[Array, "d"]) -> Float[Array, "n d"]:
    return x > y


@pytest.mark.parametrize(("function", "verdict", "most"), [(counted, Verdict.SKIPPED, 3), (compared, Verdict.FAILS, 9)])
def test_no_size_is_looked_for_where_no_size_would_do(
    function: Any, verdict: Verdict, most: int, monkeypatch: pytest.MonkeyPatch
):
    contract, tried = sizes_tried(function, monkeypatch)
    assert contract.verdict is verdict
    assert tried <= most


class First(weft.Module):
    w: Float[Array, "d e"]

    def __call__(self, x: Float[Array, "s d"]) -> Float[Array, "s e"]:
        return x @ self.w


class Second(weft.Module):
    w: Float[Array, "m k"]

    def __call__(self, x: Float[Array, "s m"]) -> Float[Array, "s k"]:
        return x @ self.w


class Transposed(weft.Module):
    first: First
    second: Second
    out: Float[Array, "vocab d"]

    def __call__(self, x: Float[Array, "s d"]) -> Float[Array, "s vocab"]:
        self.second(self.first(x))
        return x @ self.out.T


class Untransposed(Transposed):
    def __call__(self, x: Float[Array, "s d"]) -> Float[Array, "s vocab"]:
        self.second(self.first(x))
        return x @ self.out


def test_a_need_that_a_right_program_has_too_is_kept_and_the_fault_behind_it_is_told():
    (right,) = verify(Transposed).contracts
    assert right.assumptions == ("m = e",)
    (wrong,) = verify(Untransposed).contracts
    assert wrong.assumptions == ("m = e",)
    assert "got (d,) and (vocab,)" in wrong.failures[0].message


def at_least_two(x: Float[Array, "n"]) -> Float[Array, "n"]:
    summed = jnp.concatenate([jnp.zeros(1), jnp.cumsum(x)])
    return summed[: max(2, x.shape[0])]


def test_no_size_excuses_what_a_program_itself_makes_of_it():
    assert verify(at_least_two).verdict is Verdict.FAILS
