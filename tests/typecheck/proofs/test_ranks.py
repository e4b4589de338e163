"""How many axes `*names` and `...` stand for, where what a function is given has them in common, or has none."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, Int
from weft.typecheck import verify
from weft.typecheck.proofs.report import Verdict


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mesh:
    """A mesh, or a batch of meshes for who maps over it."""

    origin: Int[Array, "*batch edges"]
    opposite: Int[Array, "*batch edges"]


def lengths(points: Float[Array, "n d"], mesh: Mesh) -> Float[Array, "edges"]:
    return jnp.linalg.norm(points[mesh.origin] - points[mesh.opposite], axis=-1)


def of_batches(points: Float[Array, "n d"], mesh: Mesh) -> Float[Array, "*batch edges"]:
    return jnp.linalg.norm(points[mesh.origin] - points[mesh.opposite], axis=(-1, -2))


def of_points(points: Float[Array, "n d"], mesh: Mesh) -> Float[Array, "edges"]:
    return jnp.linalg.norm(points, axis=-1)


def test_what_takes_one_record_and_no_batch_of_them_says_so():
    (contract,) = verify(lengths).contracts
    assert contract.verdict is Verdict.HOLDS, contract
    assert contract.assumptions == ("*batch is of 0 axes",)


def sides(points: Float[Array, "n d"], mesh: Mesh) -> Float[Array, "2 edges 3"]:
    return jnp.stack([points[mesh.origin], points[mesh.opposite]])


def test_what_is_wrong_for_one_record_is_told_of_one():
    (contract,) = verify(sides).contracts
    (failure,) = contract.failures
    assert 'return: expected Float[Array, "2 edges 3"], found f32[2,' in failure.message
    assert not any(key.startswith("batch") for key in failure.sizes)


@pytest.mark.parametrize("judged", [of_batches, of_points])
def test_no_number_of_axes_of_a_record_excuses_a_fault(judged):
    (contract,) = verify(judged).contracts
    assert contract.verdict is Verdict.FAILS, contract


def error(predicted: Float[Array, "n ... d"], wanted: Float[Array, "n ... d"]) -> Float[Array, ""]:
    return jnp.mean((predicted - wanted) ** 2)


def error_of_each(predicted: Float[Array, "n ... d"], wanted: Float[Array, "n ... d"]) -> Float[Array, "1"]:
    return jnp.mean((predicted - wanted) ** 2)


def weighted(
    predicted: Float[Array, "... d"], wanted: Float[Array, "... d"], by: Float[Array, "... d"]
) -> Float[Array, ""]:
    return jnp.mean((predicted - wanted) ** 2 * by)


def mixed(x: Float[Array, "... n"], y: Float[Array, "... d"]) -> Float[Array, "..."]:
    return jnp.sum(x * y, axis=-1)


def test_the_dots_of_three_arrays_may_have_to_be_of_one_shape():
    (contract,) = verify(weighted).contracts
    assert contract.verdict is Verdict.HOLDS, contract
    words = "the `...` of predicted and the `...` of wanted and the `...` of by are of one shape"
    assert contract.assumptions == (words,)


def test_the_dots_of_two_arrays_may_have_to_be_of_one_shape():
    (contract,) = verify(error).contracts
    assert contract.verdict is Verdict.HOLDS, contract
    assert contract.assumptions == ("the `...` of predicted and the `...` of wanted are of one shape",)
    assert {sum(key.startswith("predicted[1]") for key in sizes) for sizes in contract.tried} == {0, 1, 2}


def test_what_is_wrong_whatever_the_dots_are_is_told_of_dots_of_one_shape():
    (contract,) = verify(error_of_each).contracts
    (failure,) = contract.failures
    assert 'return: expected Float[Array, "1"]' in failure.message


def test_no_dots_excuse_that_dims_are_mixed_up():
    (contract,) = verify(mixed).contracts
    assert contract.verdict is Verdict.FAILS, contract


def convolved(x: Array, kernel: Float[Array, "i o 3"]) -> Array:
    rows, times = x.shape[:2]
    folded = x.reshape(rows * times, *x.shape[2:])
    return jax.lax.conv(folded, kernel.transpose(1, 0, 2), (1,), "SAME")


def test_an_array_without_a_shape_has_as_many_axes_as_jax_asks_for():
    (contract,) = verify(convolved).contracts
    assert contract.verdict in (Verdict.PROVED, Verdict.HOLDS), contract
    assert "x is of 4 axes" in contract.assumptions


def total(nodes: Float[Array, "nodes"]) -> Float[Array, ""]:
    return jnp.sum(nodes)


@jax.jit
@functools.partial(jnp.vectorize, signature="(t,n)->(t)")
def totals(trees: Float[Array, "*batch trees nodes"]) -> Float[Array, "*batch trees"]:
    return jax.vmap(total)(trees)


@functools.partial(jnp.vectorize, signature="(t,n)->(t)")
def totals_of_one(trees: Float[Array, "trees nodes"]) -> Float[Array, "trees"]:
    return jax.vmap(total)(trees)


@functools.partial(jnp.vectorize, signature="(t,n)->(n)")
def totals_of_nodes(trees: Float[Array, "*batch trees nodes"]) -> Float[Array, "*batch trees"]:
    return jax.vmap(total, in_axes=1)(trees)


@pytest.mark.parametrize("judged", [totals, totals_of_one])
def test_what_is_vectorized_takes_as_many_axes_as_its_annotation_says(judged):
    (contract,) = verify(judged).contracts
    assert contract.verdict is Verdict.PROVED, contract
    assert not contract.assumptions


def test_what_is_vectorized_and_returns_other_axes_is_told():
    (contract,) = verify(totals_of_nodes).contracts
    assert contract.verdict is Verdict.FAILS, contract


def deficit(
    stress: Float[Array, "... 4 4"], metric: Float[Array, "... 4 4"], inverse: Float[Array, "... 4 4"]
) -> Float[Array, "..."]:
    s, m, i = (one.reshape(-1, 4, 4) for one in (stress, metric, inverse))
    return jnp.asarray(np.asarray(jax.vmap(jnp.matmul)(jnp.einsum("nij,njk->nik", s, i), m)).min((-1, -2)))


def test_arrays_of_one_shape_may_lead_to_what_no_trace_can_do():
    (contract,) = verify(deficit).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert contract.reason.startswith("it needs the numbers in an array")
