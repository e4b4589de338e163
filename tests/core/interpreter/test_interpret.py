"""The interpreter, with a rule of the tests' own: what it hands to JAX, what it keeps, and how it is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import weft
from weft.core.interpreter.interpret import QUICK_PLANS, Interpreted, interpret
from weft.core.interpreter.rides import Axis
from weft.core.interpreter.rules import Lift, Rule
from weft.core.interpreter.values import VALUES
from weft.core.records.storage import Bound, Static, same_static, unwrapped
from weft.transforms.compilation import bind


class Net(weft.Module):
    weight: jax.Array
    activation: Callable[..., Any] = jnp.tanh
    rate: float = 0.5

    def __call__(self, x: Any) -> Any:
        return self.activation(self.weight * x) * self.rate


LIFTS: list[Any] = []


def lift(lifted: Lift[str]) -> Any:
    LIFTS.append(lifted)

    def run(extra: Any, *groups: Any) -> Any:
        return lifted.bodies[0](groups)

    return run


def plain(**options: Any) -> Rule[str]:
    return Rule("plain", lift, **options)


def make(rule: Rule[str], *functions: Callable[..., Any]) -> Interpreted[str]:
    LIFTS.clear()
    return interpret(rule, VALUES)(functions, "options")


def test_a_rule_sees_lanes_of_arrays_and_options():
    ride = {"by": 0}
    rule = plain(arrive=lambda options, call: (None, tuple(ride["by"] for _ in call[1]), None))
    run = make(rule, lambda net, x: (net(x), net))
    y, net = run((Net(jnp.ones(2)), 3.0), {})
    (lifted,) = LIFTS
    assert lifted.lanes == (Axis(0),)
    assert lifted.options == "options"
    assert (net.activation, net.rate) == (jnp.tanh, 0.5)
    assert y.shape == (2,)


def test_one_lift_for_each_crossing():
    run = make(plain(arrive=lambda options, call: (None,) * 3), lambda net, x: net)
    for _ in range(3):
        run((Net(jnp.ones(2)), 1.0), {})
        run((Net(jnp.ones(5)), 2.0), {})
    assert len(LIFTS) == 1
    for call in ((Net(jnp.ones(2), rate=1.0), 1.0), (Net(jnp.ones(2)), "x"), (Net(jnp.ones(2), jnp.sin), 1.0)):
        run(call, {})
    assert len(LIFTS) == 4


def test_extra_and_prepare_reach_the_lifted_function():
    seen: list[Any] = []

    def lift(lifted: Any) -> Any:
        def run(extra: Any, *groups: Any) -> Any:
            seen.append(extra)
            return lifted.bodies[0](groups)

        return run

    run = interpret(Rule("plain", lift), VALUES)((lambda x: x,), None)
    run((1.0,), {}, extra="extra")
    run((1.0,), {}, prepare=lambda boundary, crossing, call, values: (boundary.name, len(crossing.rides), values))
    assert seen == ["extra", ("values", 1, [1.0])]


def test_finish_makes_the_result():
    def lift(lifted: Any) -> Any:
        return lambda extra, *groups: (*lifted.bodies[0](groups), "more")

    rule = Rule("plain", lift, finish=lambda out, finish: (out, finish.more, finish.options, finish.values))
    out, more, options, values = interpret(rule, VALUES)((lambda x: {"x": x},), "options")((2.0,), {})
    assert (out, more, options, values) == ({"x": 2.0}, ("more",), "options", [2.0])


def test_check_refuses_before_anything_runs():
    def check(options: Any, call: Any, leaves: Any, rides: Any) -> None:
        raise weft.errors.AxisError("no", at=[str(leaf.path) for leaf in leaves])

    run = make(plain(check=check), lambda x: pytest.fail("ran"))
    with pytest.raises(weft.errors.AxisError, match="at: \\('x', 'a'\\)"):
        run(({"a": 1.0},), {})
    assert LIFTS == []


def test_the_quick_way_keeps_few_plans_and_the_latest_first():
    run = make(plain(quick=True), lambda xs: xs)
    for n in range(QUICK_PLANS + 3):
        for _ in range(2):
            run(([1.0] * n,), {})
    assert len(run.memory.quick) == QUICK_PLANS
    assert run(([1.0] * (QUICK_PLANS + 1),), {}) == [1.0] * (QUICK_PLANS + 1)
    assert len(run.memory.quick[0][0].crossing.rides) == QUICK_PLANS + 1


def test_rules_are_equal_to_themselves_alone():
    assert plain() != plain()
    assert len({plain(), plain()}) == 2


@pytest.mark.parametrize("name", ["__call__", "scaled"])
def test_a_records_method_as_the_function_crosses_as_a_tree(name: str):
    class Scaled(Net):
        def scaled(self, x: Any) -> Any:
            return self(x)

    run = make(plain(), getattr(Scaled(jnp.ones(2)), name))
    assert run((1.0,), {}).shape == (2,)
    assert len(LIFTS[0].crossing.rides) == 2


# --- values that ride in the tree definition ---------------------------------------------------------------------


def test_static_is_told_apart_by_type_and_rides_without_leaves():
    assert Static(1) == Static(1)
    assert Static(1) != Static(1.0)
    assert Static(1) != Static(True)
    assert Static(1) != 1
    assert jax.tree.leaves(Static("x")) == []
    assert hash(Static((1, 2))) == hash(Static((1, 2)))
    assert repr(Static("x")) == "'x'"
    assert same_static("a", "a")
    assert not same_static(0, False)


def test_bound_stands_for_its_tree():
    bound = bind({"w": jnp.ones(2), "name": "net"})
    assert isinstance(bound, Bound)
    assert bound.value["name"] == "net"
    assert unwrapped(bound)["w"] is bound.value["w"]
    assert unwrapped(Static(3)) == 3
    assert unwrapped([1]) == [1]
    assert jax.tree.map(lambda x: x * 2, bound).value["w"].tolist() == [2.0, 2.0]
