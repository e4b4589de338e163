"""Lints about indexing, updates and tiles: what pairs a dim with itself, lies across, or merges in another order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float, Int
from weft.typecheck.proofs.prover import verify

Logits = Float[Array, "b c"]
Labels = Int[Array, "b"]
Scalar = Float[Array, ""]


def every_label(logits: Logits, labels: Labels) -> Scalar:
    return logits[:, labels].mean()


def along_the_wrong_axis(logits: Logits, labels: Labels) -> Scalar:
    return jnp.take_along_axis(logits, labels[None, :], axis=1)[:, 0].mean()


def loss_of_a_column(values: Float[Array, "b 1"], rewards: Float[Array, "b"], bonus: Float[Array, "b 1"]) -> Scalar:
    return jnp.mean((values - (rewards + bonus)) ** 2)


@pytest.mark.parametrize("function", [every_label, along_the_wrong_axis, loss_of_a_column])
def test_what_pairs_every_example_with_every_example_is_noticed(function: Callable[..., Any]):
    assert [one.rule for one in verify(function).warnings][:1] == ["outer-product"]


def own_label(logits: Logits, labels: Labels) -> Scalar:
    return logits[jnp.arange(labels.shape[0]), labels].mean()


def own_label_by_vmap(logits: Logits, labels: Labels) -> Scalar:
    return jax.vmap(lambda row, label: row[label])(logits, labels).mean()


def all_pairs(logits: Logits, labels: Labels) -> Float[Array, "b b"]:
    return logits[:, labels]


def masked_pairs(logits: Logits, labels: Labels, mask: Float[Array, "b b"]) -> Scalar:
    return (logits[:, labels] * mask).sum()


def permuted(distances: Float[Array, "b b"], order: Labels) -> Scalar:
    return distances[:, order].sum()


@pytest.mark.parametrize("function", [own_label, own_label_by_vmap, all_pairs, masked_pairs, permuted])
def test_pairs_that_are_wanted_are_not(function: Callable[..., Any]):
    assert verify(function).warnings == ()


def enqueue(queue: Float[Array, "c size"], keys: Float[Array, "n c"], at: Int[Array, ""]) -> Float[Array, "c size"]:
    return jax.lax.dynamic_update_slice(queue, keys, (0, at))


def enqueue_columns(
    queue: Float[Array, "c size"], keys: Float[Array, "n c"], at: Int[Array, ""]
) -> Float[Array, "c size"]:
    return jax.lax.dynamic_update_slice(queue, keys.T, (0, at))


def test_an_update_that_lies_across_is_noticed():
    assert [one.rule for one in verify(enqueue).warnings] == ["swapped-axes"]
    assert verify(enqueue_columns).warnings == ()


def tiled(x: Float[Array, "t heads d"], q: Float[Array, "t queries d"]) -> Float[Array, "t queries d"]:
    return jnp.tile(x, (q.shape[1] // x.shape[1], 1, 1)).reshape(q.shape)


class Flat(NamedTuple):
    obs: Float[Array, "t*n"]


def flatten(obs: Float[Array, "t n"]) -> Flat:
    return Flat(obs.T.reshape(-1))


@pytest.mark.parametrize("function", [tiled, flatten])
def test_axes_merged_in_another_order_are_noticed(function: Callable[..., Any]):
    assert "memory-order" in [one.rule for one in verify(function).warnings]
