"""`verify` of what runs later (generators, coroutines), under a named axis, on parts of records, and in threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import jax
import jax.numpy as jnp
import pytest
import weft
from jax import lax
from jaxtyping import Array, Float
from weft import ContractError
from weft.typecheck.proofs.prover import verify
from weft.typecheck.proofs.report import Verdict


def rows(x: Float[Array, "n d"]) -> Iterator[Float[Array, "d"]]:
    x = x.T  # a generator may use its parameters' names for something else
    for row in range(x.shape[1]):
        yield x[:, row]


def columns(x: Float[Array, "n d"]) -> Iterator[Float[Array, "d"]]:
    for column in range(x.shape[1]):
        yield x[:, column]


async def transposed(x: Float[Array, "n d"]) -> Float[Array, "d n"]:
    return x.T


async def not_transposed(x: Float[Array, "n d"]) -> Float[Array, "d n"]:
    return x


def centred(x: Float[Array, "d"]) -> Float[Array, "d"]:
    return x - lax.pmean(x, "examples")


def gathered(x: Float[Array, "d"]) -> Float[Array, "d"]:
    return lax.all_gather(x, "examples")


@pytest.mark.parametrize(
    ("function", "holds"),
    [(rows, True), (columns, False), (transposed, True), (not_transposed, False), (centred, True), (gathered, False)],
)
def test_what_runs_later_or_under_a_named_axis_is_checked(function, holds):
    report = verify(function)
    assert bool(report) is holds
    assert all(contract.verdict is not Verdict.SKIPPED for contract in report.contracts)


def test_a_named_axis_is_an_assumption():
    assert verify(centred).contracts[0].assumptions == ("it runs under an axis named 'examples'",)


class Scaled(weft.Module):
    scale: Float[Array, "d"]
    steps: Annotated[Float[Array, ""], weft.BatchStat]

    def __init__(self, d: int):
        self.scale, self.steps = jnp.ones(d), jnp.zeros(())

    def __call__(self, x: Float[Array, "b d"]) -> Float[Array, "b d"]:
        return x * self.scale


def loss(model: Scaled, x: Float[Array, "b d"]) -> Float[Array, ""]:
    return model(x).sum()


def descended(model: Scaled, x: Float[Array, "b d"]) -> Scaled:
    return weft.tree.update(
        model, stepped(weft.tree.select(model, weft.Param), weft.grad(loss, wrt=weft.Param)(model, x))
    )


def stepped(params: Scaled, gradient: Scaled) -> Scaled:
    return jax.tree.map(lambda p, g: p - g, params, gradient)


def test_a_part_of_a_record_is_as_good_as_the_whole():
    assert verify(descended)


@pytest.mark.slow
def test_two_threads_may_prove_at_once():
    # Arrays among a module's globals are swapped during a trial, and contracts go on being checked meanwhile.
    things = [descended, columns, around, Scaled] * 2
    with ThreadPoolExecutor(len(things)) as pool:
        together = list(pool.map(lambda thing: str(verify(thing)), things))
    assert together == [str(verify(thing)) for thing in things]
    assert TABLE.shape == (8, 8)


def test_contracts_hold_in_other_threads_meanwhile():
    started, finished = threading.Event(), threading.Event()

    def slow(x: Float[Array, "n"]) -> Float[Array, "n"]:
        started.set()
        finished.wait(60)
        return x

    thread = threading.Thread(target=verify, args=(slow,))
    thread.start()
    try:
        assert started.wait(60)
        with pytest.raises(ContractError, match=r"argument x of around should be f32\[b,n\]"):
            weft.jit(around)(jnp.ones(8))
    finally:
        finished.set()
        thread.join()


TABLE = jnp.eye(8)


def around(x: Float[Array, "b n"]) -> Float[Array, "b n"]:
    return x @ TABLE


class Normed(weft.Module):
    norm: weft.BatchNorm

    def __init__(self, features: int):
        self.norm = weft.BatchNorm(features, axis_name="batch")

    def __call__(self, x: Float[Array, " features"]) -> Float[Array, " features"]:
        return self.norm(x)[0]


def test_a_layer_that_averages_over_a_named_axis_runs_under_it():
    assert verify(Normed).contracts[0].assumptions == ("it runs under an axis named 'batch'",)
