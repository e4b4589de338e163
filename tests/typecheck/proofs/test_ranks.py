"""How many axes `*names` and `...` stand for, where those that a function is given have them in common, or have none."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
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
    assert contract.verdict is Verdict.PROVED, contract
    assert contract.assumptions == ("*batch is of 0 axes",)


@pytest.mark.parametrize("judged", [of_batches, of_points])
def test_no_number_of_axes_of_a_record_excuses_a_fault(judged):
    (contract,) = verify(judged).contracts
    assert contract.verdict is Verdict.FAILS, contract
