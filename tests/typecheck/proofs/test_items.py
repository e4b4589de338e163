"""How many items a tuple or a list has, which no annotation says: another one's number, or a size of an array."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float, Key
from weft.typecheck import verify
from weft.typecheck.proofs.report import Verdict


class Grid(eqx.Module):
    shape: tuple[int, ...]
    spacing: tuple[float, ...]

    def volume(self) -> Float[Array, ""]:
        return jnp.prod(jnp.array(self.shape) * jnp.array(self.spacing))

    def wrapped(self, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        if x.shape[1] != len(self.shape):
            raise ValueError("a point has a coordinate for each axis of the grid")
        return x % jnp.array(self.shape)


def scaled(x: Float[Array, "*batch d"], lengths: tuple[float, ...]) -> Float[Array, "*batch d"]:
    return x / jnp.array(lengths)


def in_units(grid: Grid, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    return x / jnp.array(grid.spacing)


def weighted(xs: list[Float[Array, "n"]], weights: Float[Array, "k"]) -> Float[Array, "n"]:
    return jnp.tensordot(weights, jnp.stack(xs), 1)


def paired(names: list[float], xs: tuple[Float[Array, "n"], ...]) -> list[Float[Array, "n"]]:
    return [name * x for name, x in zip(names, xs, strict=True)]


def sampled(keys: list[Key[Array, ""]], n: int, d: int) -> Float[Array, "n d"]:
    return jnp.stack([jax.random.uniform(keys[axis], (n,)) for axis in range(d)], axis=-1)


@pytest.mark.parametrize(
    ("judged", "condition"),
    [
        (scaled, "d = len(lengths)"),
        (in_units, "d = len(grid.spacing)"),
        (weighted, "k = len(xs)"),
        (sampled, "d = len(keys)"),
        (paired, "len(names) = len(xs)"),
        (Grid.volume, "len(self.shape) = len(self.spacing)"),
        (Grid.wrapped, "d = len(self.shape)"),
    ],
)
def test_what_holds_for_one_number_of_items_says_which(judged, condition):
    (contract,) = verify(judged).contracts if not judged.__qualname__.startswith("Grid.") else _of_grid(judged)
    assert contract.verdict in (Verdict.PROVED, Verdict.HOLDS), contract
    assert contract.assumptions == (condition,)


def _of_grid(method):
    return [one for one in verify(Grid).contracts if one.name == method.__qualname__]


def swapped(x: Float[Array, "n d"], lengths: tuple[float, ...]) -> Float[Array, "d n"]:
    return x / jnp.array(lengths)


def one_short(lengths: tuple[float, ...]) -> Float[Array, "2"]:
    return jnp.array(lengths)


def of_another_axis(x: Float[Array, "n d"], lengths: tuple[float, ...]) -> Float[Array, "n"]:
    return (x / jnp.array(lengths)).sum(0)


@pytest.mark.parametrize("judged", [swapped, of_another_axis])
def test_a_number_of_items_excuses_no_fault(judged):
    (contract,) = verify(judged).contracts
    assert contract.verdict is Verdict.FAILS


def test_no_number_of_items_excuses_a_result_of_another_shape():
    (contract,) = verify(one_short).contracts
    assert contract.verdict is Verdict.FAILS
