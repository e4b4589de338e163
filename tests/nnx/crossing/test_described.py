"""Structures that must agree and do not: every difference is named by its path, in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from weft import nnx
from weft.errors import BranchError, CarryError, StructureError


class Part(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.ones(2))
        self.b = nnx.BatchStat(jnp.ones(2))
        self.tag = 0


class Model(nnx.Module):
    def __init__(self):
        self.parts = nnx.List([Part(), Part()])


def new(m: Any) -> None:
    m.parts[0].w = nnx.Param(jnp.zeros(3))


def reshaped(m: Any) -> None:
    m.parts[0].w.set_value(jnp.zeros(3))


def tagged(m: Any) -> None:
    m.parts[1].tag = 3


def added(m: Any) -> None:
    m.parts[1].more = Part()


def deleted(m: Any) -> None:
    del m.parts[1].b


def swapped(m: Any) -> None:
    m.parts[0], m.parts[1] = m.parts[1], m.parts[0]


def tied(m: Any) -> None:
    m.parts[0].w = m.parts[1].w


def noted(m: Any) -> None:
    m.parts[0].w.set_metadata(note=2)


@pytest.mark.parametrize(
    ("change", "places"),
    [
        (new, ["m.parts[0].w: a new Param of float32[3] -> the Param at m.parts[0].w"]),
        (reshaped, ["m.parts[0].w: float32[3] -> float32[2]"]),
        (tagged, ["m.parts[1].tag: static 3 -> static 0"]),
        (added, ["m.parts[1].more: a new Part -> nothing"]),
        (deleted, ["m.parts[1].b: nothing -> the BatchStat at m.parts[1].b"]),
        (tied, ["m.parts[0].w: the Param at m.parts[1].w -> the Param at m.parts[0].w"]),
        (noted, ["m.parts[0].w.note: 2 -> nothing"]),
        (
            swapped,
            [
                "m.parts[0]: the Part at m.parts[1] -> the Part at m.parts[0]",
                "m.parts[1]: the Part at m.parts[0] -> the Part at m.parts[1]",
            ],
        ),
    ],
)
def test_branches_that_change_an_argument_differently(change: Callable[[Any], None], places: list[str]):
    with pytest.raises(BranchError) as caught:
        nnx.cond(jnp.array(True), change, lambda m: None, Model())
    assert list(caught.value.at) == places


@pytest.mark.parametrize(
    ("true_fun", "false_fun", "place"),
    [
        (lambda m: nnx.Param(m.w[...]), lambda m: nnx.Cache(m.w[...]), "a new Param of float32[2] -> a new Cache of "),
        (lambda m: m, lambda m: Part(), "the Part at m -> a new Part"),
        (lambda m: m.w, lambda m: m.b, "the Param at m.w -> the BatchStat at m.b"),
        (lambda m: m.w[...], lambda m: m.w, "float32[2] -> the Param at m.w"),
        (lambda m: "a", lambda m: "b", "static 'a' -> static 'b'"),
    ],
)
def test_branches_that_return_something_else(
    true_fun: Callable[[Any], Any], false_fun: Callable[[Any], Any], place: str
):
    with pytest.raises(BranchError) as caught:
        nnx.cond(jnp.array(True), true_fun, false_fun, Part())
    assert caught.value.at[0].startswith(f"output: {place}")


LOOPS: dict[str, Callable[..., Any]] = {
    "scan": lambda body, m, **mode: nnx.scan(
        lambda m, _: (body(m), m)[::-1], in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0), **mode
    )(m, jnp.ones(2)),
    "while_loop": lambda body, m, **mode: nnx.while_loop(lambda m: False, lambda m: (body(m), m)[1], m, **mode),
    "fori_loop": lambda body, m, **mode: nnx.fori_loop(0, 2, lambda i, m: (body(m), m)[1], m, **mode),
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("change", "places"),
    [
        (reshaped, ["carry.parts[0].w: float32[2] -> float32[3]"]),
        (tagged, ["carry.parts[1].tag: static 0 -> static 3"]),
        (added, ["carry.parts[1].more: nothing -> Part"]),
        (deleted, ["carry.parts[1].b: BatchStat -> nothing"]),
        (swapped, ["carry.parts[0]: Part -> another Part", "carry.parts[1]: Part -> another Part"]),
        (noted, ["carry.parts[0].w.note: nothing -> 2"]),
    ],
)
def test_a_carry_that_changes(loop: str, change: Callable[[Any], None], places: list[str]):
    with pytest.raises(CarryError) as caught:
        LOOPS[loop](change, Model())
    assert list(caught.value.at) == places


@pytest.mark.parametrize("loop", LOOPS)
def test_a_static_attribute_of_a_carry_that_changes_in_tree_mode(loop: str):
    with pytest.raises(CarryError) as caught:
        LOOPS[loop](tagged, Model(), graph=False)
    assert caught.value.at == ("carry.parts[1].tag: static 0 -> static 3",)


def test_the_forward_function_of_a_custom_vjp_returns_what_the_function_returns():
    @nnx.custom_vjp
    def f(m: Any) -> Any:
        return {"out": m.w[...].sum()}

    f.defvjp(lambda m: ({"out": nnx.Param(m.w[...])}, None), lambda res, g: (g,))
    with pytest.raises(StructureError, match=r"at: output.out: float32\[\] -> a new Param of float32\[2\]"):
        nnx.grad(lambda m: f(m)["out"])(Part())
