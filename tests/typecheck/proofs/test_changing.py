"""What fails when one thing is changed, and holds when another one is changed with it, is no fault of the program."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree
from weft.typecheck.proofs.prover import verify
from weft.typecheck.proofs.report import Contract, Verdict


def flipped(x: Float[Array, "a b"], there: bool = False, back: bool = False) -> Float[Array, "a b"]:
    y = x.T if there else x
    return (y.T if back else y) + x


def transposed(x: Float[Array, "a b"], there: bool = False, back: bool = False) -> Float[Array, "a b"]:
    y = x.T if there else x
    return y.T if back else y


class Points(eqx.Module):
    values: Float[Array, "*batch n"]
    stacked: bool = False


def of_points(points: Points, weights: Float[Array, "n"]) -> Float[Array, "n"]:
    return (points.values[0].sum(0) if points.stacked else points.values) * weights


def affine(
    x: Float[Array, "n"], scale: Float[Array, "n"] | None = None, shift: Float[Array, "n"] | None = None
) -> Float[Array, "n"]:
    if scale is None and shift is None:
        raise ValueError("there is nothing to do")
    x = x if scale is None else x * scale
    return x if shift is None else x + shift


def contract_of(function: object) -> Contract:
    (contract,) = verify(function).contracts
    return contract


def test_an_option_may_go_with_another_one():
    contract = contract_of(flipped)
    assert contract.verdict is Verdict.HOLDS, contract
    assert set(contract.assumptions) == {"there is not True", "back is not True"}


def test_another_option_excuses_no_result_of_another_shape():
    assert contract_of(transposed).verdict is Verdict.FAILS


def differences(
    x: Float[Array, "n d"] | Float[Array, ""], y: Float[Array, "m d"] | Float[Array, ""]
) -> Float[Array, "n m d"]:
    x, y = jnp.atleast_2d(x), jnp.atleast_2d(y)
    return jnp.zeros((x.shape[0], y.shape[0], x.shape[1]))


def test_which_members_of_two_unions_go_together_is_a_condition():
    assert contract_of(differences).verdict is Verdict.HOLDS


def once(x: Float[Array, "a b"], there: bool = False, negated: bool = False) -> Float[Array, "a b"]:
    y = x.T if there else x
    return -y if negated else y


def test_an_option_that_no_other_one_helps_is_a_fault():
    assert contract_of(once).verdict is Verdict.FAILS


def test_a_field_of_a_record_may_go_with_a_number_of_axes():
    contract = contract_of(of_points)
    assert contract.verdict is Verdict.HOLDS, contract
    assert "points.stacked is not True" in contract.assumptions


def test_what_a_guard_refuses_of_two_is_said_of_both():
    contract = contract_of(affine)
    assert contract.verdict is Verdict.HOLDS, contract
    (said,) = contract.assumptions
    assert said.startswith("not both scale left out and shift left out (guard at test_changing.py:")


def convolved(x: Array, kernel: Float[Array, "i o 3 3 3"]) -> Array:
    rows, times = x.shape[:2]
    folded = x.reshape(rows * times, *x.shape[2:])
    return jax.lax.conv(folded, kernel.transpose(1, 0, 2, 3, 4), (1, 1, 1), "SAME")


def test_more_axes_than_are_usual_are_those_that_jax_asks_for():
    assert "x is of 6 axes" in contract_of(convolved).assumptions


def of_three(x: Float[Array, "n d"], names: list[str], low: list[float], high: list[float]) -> Float[Array, "n d"]:
    for name, least, most in zip(names, low, high, strict=True):
        x = x + (least + most) * len(name)
    return x


def test_all_of_three_collections_may_be_of_one_length():
    contract = contract_of(of_three)
    assert contract.verdict is Verdict.HOLDS, contract
    assert {*contract.assumptions} >= {"len(names) = len(low)", "len(low) = len(high)"}


def of_third_axis(x: Float[Array, "..."]) -> Float[Array, ""]:
    return jnp.sum(x, axis=2)


def test_a_result_of_an_array_without_a_shape_says_nothing_if_no_number_of_axes_makes_it_right():
    assert "x: the annotation gives no shape" in contract_of(of_third_axis).reason


def in_halves(x: Float[Array, "n"], weights: Float[Array, "n"] | None = None) -> Float[Array, ""]:
    if weights is not None and x.shape[0] % 2:
        raise ValueError("weights are of pairs")
    return x.reshape(2, -1).sum() if weights is None else x.reshape(2, -1).sum() + weights.sum()


def test_what_holds_with_the_usual_options_once_another_one_has_shown_what_sizes_need_is_said_of_sizes_alone():
    contract = contract_of(in_halves)
    assert contract.verdict in (Verdict.PROVED, Verdict.HOLDS), contract
    assert contract.assumptions == ("2 divides n",)


def scaled_in_pairs(x: Float[Array, "n"], scale: PyTree[Float[Array, "n"]]) -> Float[Array, "n"]:
    if x.shape[0] % 2:
        raise ValueError("the points are of pairs")
    return x * scale


def test_behind_a_guard_another_kind_of_value_is_tried():
    contract = contract_of(scaled_in_pairs)
    assert contract.verdict in (Verdict.PROVED, Verdict.HOLDS), contract
    assert {*contract.assumptions} == {"2 divides n", "scale is one array"}
