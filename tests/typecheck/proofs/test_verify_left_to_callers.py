"""What annotations leave to who calls: which member of a union, which integers are a shape."""

from __future__ import annotations

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Bool, Float
from weft.typecheck import verify
from weft.typecheck.proofs.report import Verdict


class Where(NamedTuple):
    x: int
    y: int


class Places(NamedTuple):
    first: int | Where = 0
    second: int | Where = 1


def at_both(grid: Float[Array, "h w"], places: Places) -> Float[Array, "2"]:
    return jnp.stack([grid[places.first.x, places.first.y], grid[places.second.x, places.second.y]])  # pyright: ignore


def test_fields_of_one_union_hold_the_same_member():
    (contract,) = verify(at_both).contracts
    assert contract.verdict in (Verdict.HOLDS, Verdict.PROVED)
    assert {"places.first is a Where", "places.second is a Where"} <= set(contract.assumptions)


class Mode(eqx.Enumeration):
    fast = "fast"
    exact = "exact"


class State(eqx.Module):
    mode: Mode
    x: Float[Array, "n"]


def chosen(state: State) -> Float[Array, "n"]:
    return jnp.where(state.mode == Mode.fast, state.x, -state.x)


def summed(state: State) -> Float[Array, "n"]:
    return jnp.sum(state.x)


def test_a_value_of_an_enumeration_of_equinox_is_one_of_its_items():
    assert verify(chosen).proved
    assert "Mode.fast" in verify(summed).contracts[0].failures[0].program


def parted(x: Float[Array, "n"], shape: tuple[int, int]) -> Float[Array, "h w"]:
    return x[: shape[0] * shape[1] + 1].reshape(shape)


def halved(x: Float[Array, "n d"], parts: int) -> Float[Array, "a b c"]:
    return x.reshape(parts, parts, x.shape[1])


@pytest.mark.parametrize(("function", "verdict"), [(parted, Verdict.SKIPPED), (halved, Verdict.FAILS)])
def test_whose_shape_integers_are_is_not_known_but_of_sizes_of_the_contract(function, verdict):
    assert verify(function).contracts[0].verdict is verdict


def halves(pair: Array, x: Float[Array, "n"]) -> Float[Array, "n"]:
    scale, shift = pair
    return scale * x + shift


def stepped(stepper: eqx.Module, x: Float[Array, "n"]) -> Float[Array, "n"]:
    return jax.vmap(stepper)(x)  # pyright: ignore


def stepped_in_part(stepper: eqx.Module, x: Float[Array, "n"]) -> Float[Array, "n"]:
    return jax.vmap(functools.partial(stepper))(x)  # pyright: ignore


def refused(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return jax.grad(lambda y: jnp.sum(eqx.internal.nondifferentiable(y)))(x)


def test_what_is_taken_apart_holds_for_that_many_items():
    (contract,) = verify(halves).contracts
    assert contract.assumptions == ("pair is of 1 axis", "pair.shape[0] is among the sizes tried: 2")


@pytest.mark.parametrize("function", [stepped, stepped_in_part, refused])
def test_what_annotations_leave_to_the_caller_and_what_a_library_refuses_is_skipped(function):
    assert verify(function).contracts[0].verdict is Verdict.SKIPPED


def spread(dims: int, x: Float[Array, "n"]) -> Float[Array, "n"]:
    return x / np.sqrt(3**dims)


def weighed(order: int, x: Float[Array, "n"]) -> Float[Array, "n"]:
    return x / 2**order


@pytest.mark.parametrize(("function", "name"), [(spread, "dims"), (weighed, "order")])
def test_a_power_is_not_multiplied(function, name):
    (contract,) = verify(function).contracts
    assert contract.verdict in (Verdict.HOLDS, Verdict.PROVED)
    assert name in contract.sampled


class Sizes:
    """A configuration, of which every size has a default."""

    def __init__(self, inputs: int = 10, outputs: int = 10, hidden: int = 4):
        self.inputs, self.outputs, self.hidden = inputs, outputs, hidden


class Network:
    def __init__(self, sizes: Sizes):
        self.inner = jnp.ones((sizes.inputs, sizes.hidden))
        self.outer = jnp.ones((sizes.hidden, sizes.outputs))

    def loss(self, x: Float[Array, "batch inputs"], y: Float[Array, "batch outputs"]) -> Float[Array, "batch"]:
        return ((x @ self.inner @ self.outer - y) ** 2).mean(1)

    def wrong(self, x: Float[Array, "batch inputs"], y: Float[Array, "batch outputs"]) -> Float[Array, "batch"]:
        return ((x @ self.inner @ self.outer - y) ** 2).mean(0)


class Quadrature(eqx.Module):
    points: int = 20

    def integrate(self, x: Float[Array, "n d"]) -> Float[Array, "n"]:
        return (x * jnp.ones(self.points)).sum(1)


def test_a_default_of_what_is_called_is_no_size_of_what_it_is_given():
    assert verify(Quadrature).contracts[0].verdict is Verdict.FAILS


def test_sizes_that_a_configuration_has_by_default_are_what_is_given():
    loss, wrong = (one for one in verify(Network).contracts if one.name in ("Network.loss", "Network.wrong"))
    assert {*loss.assumptions} >= {"inputs = 10", "outputs = 10"}, loss
    assert wrong.verdict is Verdict.FAILS, wrong


class Switched(eqx.Module):
    """A field is what its converter makes of its default."""

    on: Bool[Array, ""] = eqx.field(default=False, converter=jnp.asarray)

    def used(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return jnp.where(self.on, x, 0)


class Scaled(Switched):
    scale: Float[Array, ""] = eqx.field(default=1.0, kw_only=True, converter=lambda given: jnp.asarray(given)[None])

    def scaled(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return self.scale * x


def test_a_default_is_held_to_its_annotation_once_it_is_converted():
    assert verify(Switched)
    report = verify(Scaled)
    assert 'Scaled, field scale: expected Float[Array, ""], found f32[1]' in str(report), report
    assert "field on" not in str(report)
