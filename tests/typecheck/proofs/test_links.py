"""What an installed package's integers have to be one with is said, and decides nothing."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float
from weft.typecheck.proofs import trial
from weft.typecheck.proofs.prover import verify
from weft.typecheck.proofs.report import Verdict


def undecided(thing: Any) -> str:
    """Why the one contract of something has no verdict."""
    (contract,) = verify(thing).contracts
    assert contract.verdict is Verdict.UNDECIDED, contract
    return contract.reason


class Memory(eqx.Module):
    width: int
    states: int
    query: eqx.nn.Linear

    def __init__(self, width: int, states: int, key: jax.Array):
        self.width, self.states = width, states
        self.query = eqx.nn.Linear(width, states, key=key)

    def read(self, state: Float[Array, "key value"], x: Float[Array, "features"]) -> Float[Array, "value"]:
        return self.query(x) @ state

    def read_backwards(self, state: Float[Array, "key value"], x: Float[Array, "features"]) -> Float[Array, "key"]:
        return self.query(x) @ state


def contract_of(name: str):
    return next(one for one in verify(Memory).contracts if one.name.endswith(name))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "is_users", lambda file, own=frozenset(): file in own)


@pytest.mark.usefixtures("installed")
def test_what_holds_where_integers_of_its_record_are_sizes_is_undecided():
    contract = contract_of("read")
    assert contract.verdict is Verdict.UNDECIDED, contract
    assert "it holds when features = width and key = states, which no annotation says" in contract.reason


@pytest.mark.usefixtures("installed")
def test_no_integers_excuse_a_wrong_result():
    assert contract_of("read_backwards").verdict is Verdict.FAILS


def test_in_the_users_own_code_it_fails():
    assert contract_of("read").verdict is Verdict.FAILS


def marked(tree: Float[Array, "nodes"], marks: Float[Array, "nodes"]) -> Float[Array, "nodes"]:
    return tree + marks


def fresh(tree: Float[Array, "nodes"], most: int) -> Float[Array, "nodes"]:
    return marked(tree, jnp.zeros(most))


def replaced(tree: Float[Array, "nodes"], most: int) -> Float[Array, "nodes"]:
    return jnp.zeros(most)


@pytest.mark.usefixtures("installed")
def test_an_argument_that_has_to_be_a_size_is_said_where_what_is_called_asks_for_it():
    (contract,) = verify(fresh).contracts
    assert contract.verdict is Verdict.UNDECIDED, contract
    assert "it holds when nodes = most, which no annotation says" in contract.reason
    assert verify(replaced).contracts[0].verdict is Verdict.FAILS


class Normal(eqx.Module):
    mean: Float[Array, "dims"]

    def density(self, x: Array) -> Array:
        return jax.lax.sub(self.mean, x).sum()


class Categorical(eqx.Module):
    logits: Float[Array, "dims choices"]

    def density(self, x: Array) -> Array:
        return jax.lax.mul(self.logits, x).sum()


class Mixed(eqx.Module):
    parts: tuple[Normal | Categorical, ...]


def densities(mixed: Mixed, x: tuple[Float[Array, "numbers"], Float[Array, "choices kinds"]]) -> Float[Array, ""]:
    first, second = mixed.parts
    return first.density(x[0]) + second.density(x[1])


@pytest.mark.usefixtures("installed")
def test_which_kinds_the_items_of_a_record_are_of_another_argument_may_say():
    assert "another argument may decide which member of its union each is" in undecided(densities)


class Timed(eqx.Module):
    layer: eqx.nn.Linear

    def __init__(self, inputs: int, outputs: int, key: jax.Array):
        self.layer = eqx.nn.Linear(inputs, outputs, key=key)

    def velocity(self, x: Float[Array, "places"], t: Float[Array, "times"]) -> Float[Array, "outputs"]:
        return self.layer(jnp.concatenate([x, t]))


@pytest.mark.usefixtures("installed")
def test_an_integer_may_have_to_be_the_sum_of_two_sizes():
    contract = next(one for one in verify(Timed).contracts if one.name.endswith("velocity"))
    assert contract.verdict is Verdict.UNDECIDED, contract
    assert "it holds when places + times = inputs, which no annotation says" in contract.reason


def polynomial(coefficients: Float[Array, "terms"], x: Float[Array, ""], degree: int) -> Float[Array, ""]:
    return coefficients @ x ** jnp.arange(degree + 1)


@pytest.mark.usefixtures("installed")
def test_an_integer_may_have_to_be_one_less_than_a_size():
    assert "it holds when terms = degree + 1, which no annotation says" in undecided(polynomial)


class Cell(eqx.Module):
    width: int
    weight: Array

    def __init__(self, width: int):
        self.width, self.weight = width, jnp.zeros((width, 3 * width))

    def step(self, gates: Float[Array, "gates"], state: Float[Array, "features"]) -> Float[Array, "features"]:
        before = state @ self.weight
        reset, update, new = jnp.split(gates + before, 3)
        return state * jax.nn.sigmoid(update) + reset * jnp.tanh(new)


@pytest.mark.usefixtures("installed")
def test_a_size_may_have_to_be_some_times_an_integer():
    contract = next(one for one in verify(Cell).contracts if one.name.endswith("step"))
    assert contract.verdict is Verdict.UNDECIDED, contract
    assert "features = width" in contract.reason
    assert "3*width = gates" in contract.reason


class Blocks(eqx.Module):
    low: Float[Array, "numbers"]
    within: Float[Array, "knots knots"]
    size: int
    count: int

    def density(self, x: Float[Array, "*batch places"]) -> Float[Array, "*batch"]:
        blocks = (x - self.low).reshape(*x.shape[:-1], self.count, self.size)
        return jnp.einsum("...i,ij,...j->...", blocks, self.within, blocks).sum(-1)

    def scaled(self, x: Float[Array, "knots"]) -> Float[Array, "knots"]:
        return x + self.low


@pytest.mark.usefixtures("installed")
def test_sizes_of_a_record_and_of_what_it_is_given_may_have_unlike_names():
    by_method = {one.name.rpartition(".")[2]: one for one in verify(Blocks).contracts}
    assert by_method["density"].verdict is Verdict.UNDECIDED, by_method["density"]
    assert "numbers = places and knots = size and count*size = places" in by_method["density"].reason


@pytest.mark.usefixtures("installed")
def test_of_names_that_an_annotation_might_have_written_none_are_joined():
    by_method = {one.name.rpartition(".")[2]: one for one in verify(Swapped).contracts}
    assert by_method["forward"].verdict is Verdict.FAILS, by_method["forward"]


class Swapped(eqx.Module):
    weight: Float[Array, "inputs outputs"]

    def forward(self, x: Float[Array, "outputs"]) -> Float[Array, "inputs"]:
        return x @ self.weight


class Rotation(eqx.Module):
    cosines: Float[Array, "*batch time features"]

    def apply(self, x: Float[Array, "time features"]) -> Float[Array, "time features"]:
        return x * self.cosines


@pytest.mark.usefixtures("installed")
def test_a_method_that_takes_no_batch_is_for_a_record_that_is_none():
    assert "it holds when *batch is of 0 axes, which no annotation says" in undecided(Rotation)


class Drift(eqx.Module):
    matrix: Float[Array, "*matrices n n"]
    offset: Float[Array, "*offsets n"]

    def of(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return self.matrix @ x + self.offset


def model(mean: Float[Array, "*means n"], scale: Float[Array, "*scales n"], own: Float[Array, "*own n"]) -> Array:
    return mean * scale + own.sum()


def of_no_batch(mean: Float[Array, "*means n"], scale: Float[Array, "*scales n"]) -> Float[Array, "n"]:
    return mean + scale


@pytest.mark.usefixtures("installed")
def test_batches_of_unlike_names_may_have_to_be_of_one_shape():
    assert "it holds when *matrices and *offsets are of 0 axes, which no annotation says" in undecided(Drift)
    assert "it holds when *means and *scales are of one shape, which no annotation says" in undecided(model)


@pytest.mark.usefixtures("installed")
def test_a_batch_that_a_function_does_not_bear_is_no_matter_of_another():
    assert verify(of_no_batch).contracts[0].verdict is Verdict.FAILS


class Signs(eqx.Module):
    signs: Float[Array, "inputs"]

    def spread(self, x: Float[Array, "channels"]) -> Float[Array, "channels"]:
        return in_blocks(self.signs * x)


def in_blocks(x: Array) -> Array:
    if x.shape[0] % 8:
        raise ValueError("it takes blocks of 8")
    return x.reshape(-1, 8).cumsum(1).reshape(-1)


@pytest.mark.usefixtures("installed")
def test_behind_sizes_that_are_linked_others_may_have_to_divide():
    assert "it holds when inputs = channels and 8 divides channels" in undecided(Signs)


def test_what_is_told_of_a_failure_is_not_what_a_guard_refuses_at_smaller_sizes():
    (contract,) = verify(Signs).contracts
    assert "roadcasting" in contract.failures[0].message


class Additive(eqx.Module):
    parts: list[Float[Array, ""]]
    weights: Float[Array, "orders"]

    def total(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x * (self.weights @ jnp.stack([jnp.ones(()), *self.parts]))


@pytest.mark.usefixtures("installed")
def test_a_size_may_have_to_be_one_more_than_there_are_items():
    assert "it holds when orders = 3, which no annotation says" in undecided(Additive)


def shifted(controls: Float[Array, "time n"], last: Float[Array, "rows n"], by: int) -> Float[Array, "time n"]:
    return jnp.concatenate([controls[by:], last])


@pytest.mark.usefixtures("installed")
def test_what_a_result_is_promised_to_be_is_linked_to_nothing_but_what_it_is_made_of_may_be():
    assert "it holds when rows = by, which no annotation says" in undecided(shifted)


def factor(plus: Float[Array, "n _"], minus: Float[Array, "n _"], before: Float[Array, "n _ p"]) -> Float[Array, "n p"]:
    return jnp.einsum("nl,nlp->np", plus, before) - jnp.einsum("nl,nlp->np", minus, before)


@pytest.mark.usefixtures("installed")
def test_sizes_without_a_name_may_have_to_be_one():
    reason = undecided(factor)
    assert "it holds when plus[1] = before[1] and before[1] = minus[1], which no annotation says" in reason


def differences(states: Float[Array, "time n"], steps: Float[Array, "time_minus_1"]) -> Float[Array, "time_minus_1 n"]:
    return jnp.diff(states, axis=0) / steps[:, None]


def gates(x: Float[Array, "n"], weight: Float[Array, "n nx4"]) -> Float[Array, "nx4"]:
    return x @ weight + jnp.tile(x, 4)


@pytest.mark.usefixtures("installed")
def test_names_that_are_expressions_in_letters_are_said():
    assert "it holds when time_minus_1 + 1 = time, which no annotation says" in undecided(differences)
    assert "it holds when nx4 = 4*n, which no annotation says" in undecided(gates)


@pytest.mark.usefixtures("installed")
def test_dots_that_are_one_of_the_dims_are_said():
    def recurrence(
        x: Float[Array, "batch time n"], state: Float[Array, "... n"] | None = None
    ) -> Float[Array, "batch n"]:
        start = jnp.zeros((x.shape[0], x.shape[2])) if state is None else state
        return jnp.einsum("bn,btn->bn", start, x)

    assert "it holds when batch = state.shape[0], which no annotation says" in undecided(recurrence)


class Posterior(NamedTuple):
    states: Float[Array, "time states"]


class Mixture(NamedTuple):
    weights: Float[Array, "kinds parts"]


class Emissions:
    def __init__(self, states: int):
        self.states = states

    def statistics(self, of: Mixture, posterior: Posterior, x: Float[Array, "time n"]) -> Float[Array, "..."]:
        return jnp.einsum("ts,sp,tn->spn", posterior.states, of.weights, x)


@pytest.mark.usefixtures("installed")
def test_sizes_of_two_records_that_have_to_be_one_are_said():
    assert "it holds when states = kinds, which no annotation says" in undecided(Emissions)


@pytest.mark.usefixtures("installed")
def test_names_of_one_size_and_names_of_products_are_said():
    def attend(
        x: Float[Array, "time num_q_heads"], bias: Float[Array, "time num_heads"]
    ) -> Float[Array, "time num_q_heads"]:
        return x + bias

    def joined(x: Float[Array, "heads size"], gate: Float[Array, "width"]) -> Float[Array, "width"]:
        return x.reshape(-1) * gate

    assert "it holds when num_q_heads = num_heads, which no annotation says" in undecided(attend)
    assert "it holds when heads*size = width, which no annotation says" in undecided(joined)


@pytest.mark.usefixtures("installed")
def test_dims_that_are_swapped_are_a_defect():
    def swapped(x: Float[Array, "rows columns"]) -> Float[Array, "rows columns"]:
        return x.T

    def unlike(x: Float[Array, "rows columns"], y: Float[Array, "rows"]) -> Float[Array, "rows columns"]:
        return x * y

    for function in (swapped, unlike):
        assert verify(function).verdict is Verdict.FAILS


@pytest.mark.usefixtures("installed")
def test_dims_of_one_array_may_be_one_where_an_option_makes_them_that():
    def attend(
        x: Float[Array, "time n"], mask: Float[Array, "time keys"], cache: Float[Array, "keys n"] | None = None
    ) -> Float[Array, "time n"]:
        return mask @ (x if cache is None else cache)

    assert "it holds when time = keys, which no annotation says" in undecided(attend)


class Projected(eqx.Module):
    skip: Float[Array, "d_inner"]
    projection: eqx.nn.Linear
    d_inner: int
    d_model: int

    def __init__(self, d_model: int, d_inner: int, key: jax.Array):
        self.d_model, self.d_inner = d_model, d_inner
        self.skip = jnp.ones(d_inner)
        self.projection = eqx.nn.Linear(d_model, d_inner, key=key)

    def forward(self, x: Float[Array, "d_inner"]) -> Float[Array, "d_inner"]:
        return self.projection(x) + self.skip


@pytest.mark.usefixtures("installed")
def test_two_integers_that_a_constructor_takes_are_two():
    assert verify(Projected).verdict is Verdict.FAILS
