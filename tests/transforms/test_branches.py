"""cond and switch: the same as JAX's, with records and static leaves through the branches, and errors by path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from jax import lax
from weft import nnx
from weft.core.errors import BranchError


class Net(weft.Module):
    weight: jax.Array
    count: jax.Array
    activation: Callable[[jax.Array], jax.Array] = jnp.tanh
    name: str = "net"
    rate: Any = 0.5


def make_net() -> Net:
    return Net(jnp.array([1.0, 2.0]), jnp.array(0))


def up(net: Net, x: Any) -> Any:
    return net.activation(net.weight * x), net.replace(count=net.count + 1)


def down(net: Net, x: Any) -> Any:
    return net.weight * net.rate - x, net


@pytest.mark.parametrize("pred", [True, False, 1, jnp.array(True), jnp.array(False), np.bool_(True)])
def test_cond_is_that_of_jax_and_the_record_threads_through(pred: Any):
    y, after = weft.cond(pred, up, down, make_net(), 3.0)
    wanted, count = lax.cond(
        pred,
        lambda w: (jnp.tanh(w * 3.0), 1),
        lambda w: (w * 0.5 - 3.0, 0),
        make_net().weight,
    )
    np.testing.assert_allclose(y, wanted, rtol=1e-6)
    assert int(after.count) == count
    assert (after.activation, after.name, after.rate) == (jnp.tanh, "net", 0.5)


@pytest.mark.parametrize("index", [-2, 0, 1, 2, 7])
@pytest.mark.parametrize("jitted", [False, True])
def test_switch_is_that_of_jax(index: int, jitted: bool):
    def run(index: Any, net: Any) -> Any:
        return weft.switch(index, [up, down, lambda net, x: (net.weight, net)], net, 3.0)

    y, _ = (weft.jit(run) if jitted else run)(index, make_net())
    w = make_net().weight
    wanted = lax.switch(index, [lambda: jnp.tanh(w * 3.0), lambda: w * 0.5 - 3.0, lambda: w])
    np.testing.assert_allclose(y, wanted, rtol=1e-6)


def test_switch_of_one_branch_and_cond_without_operands():
    assert float(weft.switch(5, [lambda x: x + 1], 1.0)) == 2.0
    assert weft.cond(True, lambda: {"x": 1, "name": "a"}, lambda: {"x": 2, "name": "a"})["x"].item() == 1


def test_branches_under_vmap_become_a_select():
    selected = weft.vmap(lambda p, x: weft.cond(p, lambda x: x + 1, lambda x: x - 1, x))(
        jnp.array([True, False]), jnp.zeros(2)
    )
    assert selected.tolist() == [1.0, -1.0]


def test_both_branches_may_return_an_operand_as_it_was():
    net = make_net()
    _, same = weft.cond(True, down, lambda net, x: (x + net.weight, net), net, 1.0)
    np.testing.assert_allclose(same.weight, net.weight)


@pytest.mark.slow
def test_branches_are_differentiable_like_jax():
    def loss(net: Any, x: Any) -> Any:
        return weft.cond(x > 0, up, down, net, x)[0].sum()

    for x in (1.0, -1.0):
        wanted = jax.grad(lambda w, x=x: (jnp.tanh(w * x) if x > 0 else w * 0.5 - x).sum())(make_net().weight)
        np.testing.assert_allclose(weft.grad(loss)(make_net(), x).weight, wanted, rtol=1e-6)


def test_weak_types_agree_as_in_jax():
    actual = weft.cond(True, lambda x: x, lambda x: 1.0, jnp.float32(2))
    wanted = lax.cond(True, lambda x: x, lambda x: 1.0, jnp.float32(2))
    assert (actual.dtype, actual.weak_type) == (wanted.dtype, wanted.weak_type)


DIFFERENT: dict[str, tuple[Callable[[Any], Any], str]] = {
    "shape": (lambda net: net.replace(weight=jnp.ones(3)), "output.weight: float32[2] -> float32[3]"),
    "dtype": (lambda net: net.replace(count=1.5 * net.count), "output.count: int32[] -> float32[]"),
    "static": (lambda net: net.replace(name="other"), "output.name: static 'net' -> static 'other'"),
    "type of a number": (lambda net: net.replace(rate=1), "output.rate: static 0.5 -> static 1"),
    "function": (lambda net: net.replace(activation=jnp.sin), "output.activation: static tanh -> static sin"),
    "static to array": (lambda net: net.replace(rate=net.weight), "output.rate: static 0.5 -> float32[2]"),
    "lost": (lambda net: net.replace(count=None), "output.count: int32[] -> None"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_branches_that_differ_are_named_with_every_path(name: str):
    branch, line = DIFFERENT[name]
    with pytest.raises(BranchError) as caught:
        weft.cond(True, lambda net: net, branch, make_net())
    assert "true_fun and false_fun of cond do not return the same" in str(caught.value)
    assert f"at: {line}\n" in str(caught.value)
    assert "inside: cond" in str(caught.value)


def test_the_branch_of_a_switch_that_differs_is_named():
    branches = [lambda x: {"y": x}, lambda x: {"y": x * 2}, lambda x: {"y": x, "z": x}]
    with pytest.raises(
        BranchError, match=r"branches\[0\] and branches\[2\] of switch do not return the same"
    ) as caught:
        weft.switch(0, branches, 1.0)
    assert "output.z: nothing -> float32[]" in str(caught.value)


def test_another_record_type_with_the_same_leaves_differs():
    with pytest.raises(BranchError, match="do not return the same"):
        weft.cond(True, lambda x: (x, x), lambda x: [x, x], 1.0)


@pytest.mark.parametrize(
    ("run", "error", "fragment"),
    [
        (
            lambda: weft.cond(jnp.ones(2) > 0, up, down, make_net(), 1.0),
            BranchError,
            r"must be a scalar, not bool\[2\]",
        ),
        (lambda: weft.switch(0, [], 1.0), BranchError, "switch needs at least one branch"),
        (lambda: weft.switch(1.5, [up, down], make_net(), 1.0), TypeError, "(?i)index"),
    ],
)
def test_choices_that_are_no_choice(run: Any, error: Any, fragment: str):
    with pytest.raises(error, match=fragment):
        run()


@pytest.mark.parametrize("pick", [weft.cond, lambda pred, *rest: weft.switch(pred, rest[:2], *rest[2:])])
def test_what_no_branch_changes_is_the_operand_itself(pick: Any):
    def same(m: dict[str, Any]) -> dict[str, Any]:
        return m

    def changed(m: dict[str, Any]) -> dict[str, Any]:
        return {**m, "b": m["b"] + 1}

    def swapped(m: dict[str, Any]) -> dict[str, Any]:
        return {"w": m["b"], "b": m["b"]}

    m = {"w": jnp.arange(2.0), "b": jnp.ones(2)}
    out = pick(1, same, changed, m)
    assert out["w"] is m["w"]
    assert out["b"] is not m["b"]
    out = pick(1, same, swapped, m)
    assert out["w"] is not m["w"]
    assert out["b"] is m["b"]
    assert jax.jit(jax.grad(lambda w: pick(1, same, changed, {**m, "w": w})["w"].sum()))(m["w"]).tolist() == [1.0, 1.0]


def test_a_branch_in_a_scan_hands_on_what_is_the_same_at_every_step():
    def step(total: Any, x: Any, m: dict[str, Any]) -> Any:
        m = weft.cond(x > 0, lambda m: {**m, "name": "m"}, lambda m: {**m, "name": "m"}, m)
        return total + x * m["w"], m

    m = {"w": jnp.float32(2)}
    total, out = weft.scan(step, in_axes=(weft.Carry, 0, None), out_axes=(weft.Carry, None))(0.0, jnp.arange(3.0), m)
    assert (float(total), float(out["w"]), out["name"]) == (6.0, 2.0, "m")


@pytest.mark.parametrize("library", [weft, nnx], ids=["weft", "nnx"])
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda of: of.switch("a", [abs, abs], 1.0),
            BranchError,
            "the index of switch must be an integer scalar, not str 'a'",
        ),
        (lambda of: of.switch(1.0, [abs, abs], 1.0), BranchError, r"an integer scalar, not float\d\d\[\]"),
        (lambda of: of.switch(jnp.arange(2), [abs, abs], 1.0), BranchError, r"an integer scalar, not int\d\d\[2\]"),
        (lambda of: of.cond("a", abs, abs, 1.0), BranchError, "the predicate of cond must be a scalar, not str 'a'"),
        (lambda of: of.cond(None, abs, abs, 1.0), BranchError, "must be a scalar, not None"),
        (lambda of: of.cond(jnp.ones(2), abs, abs, 1.0), BranchError, r"must be a scalar, not float32\[2\]"),
        (
            lambda of: of.fori_loop(0, "a", max, 1.0),
            weft.errors.CarryError,
            "a bound of fori_loop must be a scalar, not str 'a'",
        ),
    ],
)
def test_what_chooses_or_counts_is_refused_by_its_name(library, call, error, words):
    with pytest.raises(error, match=words):
        call(library)
