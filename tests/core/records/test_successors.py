"""Successors: what may follow what, how it is put in place, and to which record it belongs."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import weft
from weft.core import Module
from weft.core.errors import SuccessorError
from weft.core.records.leaves import iter_leaves
from weft.core.records.successors import check_successor, is_alike, with_part


class Point(NamedTuple):
    x: jax.Array
    y: jax.Array


class Record(Module):
    points: list[Point]
    table: dict


class Plain(eqx.Module):
    record: Record


def tree():
    return Plain(Record([Point(jnp.zeros(1), jnp.zeros(2))], OrderedDict(a=(jnp.zeros(3),))))


PLACES = [
    (("record", "points", 0, 0), lambda tree: tree.record.points[0].x),
    (("record", "points", 0, 1), lambda tree: tree.record.points[0].y),
    (("record", "table", "a", 0), lambda tree: tree.record.table["a"][0]),
]


@pytest.mark.parametrize(("path", "find"), PLACES)
def test_a_part_is_replaced_and_everything_else_is_shared(path, find):
    before, value = tree(), jnp.ones(5)
    after = with_part(before, path, value)
    assert find(after) is value
    assert jax.tree.structure(after) == jax.tree.structure(before)
    others = [leaf for leaf in jax.tree.leaves(before) if leaf is not find(before)]
    assert all(any(leaf is kept for kept in jax.tree.leaves(after)) for leaf in others)


def test_a_misfit_in_a_namedtuple_is_named_by_its_field():
    before = Point(jnp.zeros(1), jnp.zeros(2))
    with pytest.raises(SuccessorError, match=r"at: p.y: float32\[2\] -> float32\[3\]\n") as error:
        check_successor(before, Point(jnp.zeros(1), jnp.zeros(3)), "p")
    assert "p.x" not in str(error.value)


def test_the_leaves_of_a_namedtuple_have_paths_of_their_own():
    assert [leaf.path for leaf in iter_leaves(tree().record.points)] == [(0, "x"), (0, "y")]


@pytest.mark.parametrize("value", [jnp.zeros(2), jax.ShapeDtypeStruct((2,), jnp.float32)])
def test_arrays_follow_arrays_of_the_same_shape_and_dtype(value):
    check_successor(jnp.ones(2), value, "a")


def test_a_missing_array_is_named():
    with pytest.raises(SuccessorError, match=r"p.y: float32\[2\] -> None"):
        check_successor(Point(jnp.zeros(1), jnp.zeros(2)), Point(jnp.zeros(1), None), "p")


class Foreign(eqx.Module):
    weight: jax.Array
    size: int = eqx.field(static=True, default=1)


class Around(Module):
    weight: jax.Array
    rows: Any
    foreign: Foreign
    rate: float = 0.5


ALIKE = [
    ("other numbers", {"weight": jnp.zeros(2)}, True),
    ("another array in a list", {"rows": [jnp.ones(3), jnp.ones(())]}, True),
    ("another shape", {"weight": jnp.zeros(3)}, False),
    ("another dtype", {"weight": jnp.zeros(2, int)}, False),
    ("a shorter list", {"rows": [jnp.ones(3)]}, False),
    ("a tuple for a list", {"rows": (jnp.ones(3), jnp.ones(()))}, False),
    ("another configuration", {"rate": 0.25}, False),
    ("a static field that is equal and of another type", {"foreign": Foreign(jnp.ones(1), True)}, False),
]


@pytest.mark.parametrize(("changes", "alike"), [row[1:] for row in ALIKE], ids=[row[0] for row in ALIKE])
def test_what_is_told_to_be_alike_at_a_glance_is_what_may_follow(changes, alike):
    before = Around(jnp.ones(2), [jnp.zeros(3), jnp.zeros(())], Foreign(jnp.ones(1)))
    after = before.replace(**changes)
    assert is_alike(before, after) is alike
    if alike:
        check_successor(before, after, "here")
    else:
        with pytest.raises(SuccessorError):
            check_successor(before, after, "here")


class Net(weft.Module):
    norm: weft.BatchNorm
    out: weft.Linear

    def __init__(self, key: Any):
        self.norm, self.out = weft.BatchNorm(4), weft.Linear(4, 4, key=key)

    def __call__(self, x: Any) -> Any:
        with weft.thread(self) as t:
            return t.done(t.out(t.norm(x)))

    def taught(self, x: Any, teacher: Net) -> Any:
        y, _ = self(x)
        y, teacher = teacher(y)
        return y, teacher

    def learning(self, x: Any, teacher: Net) -> Any:
        y, student = self(x)
        return weft.drop_successor(teacher(y))[0], student


class Both(weft.Module):
    student: Net
    teacher: Net

    def wrong(self, x: Any) -> Any:
        with weft.thread(self) as t:
            return t.done(t.student.taught(x, t.teacher))

    def right(self, x: Any) -> Any:
        with weft.thread(self) as t:
            return t.done(t.student.learning(x, t.teacher))


STUDENT, TEACHER = Net(jax.random.key(1)), Net(jax.random.key(2))
X = jax.random.normal(jax.random.key(0), (32, 4)) + 5
OPT = weft.Optimizer(STUDENT, optax.sgd(0.0))
OF_TEACHER = "(?i)it has the parameters of .*teacher"


def distil(student: Net, teacher: Net, x: Any) -> Any:
    p, _ = student(x)
    q, teacher = teacher(x * 10)
    return jnp.mean((p - q) ** 2), teacher


def own(student: Net, teacher: Net, x: Any) -> Any:
    p, student = student(x)
    return jnp.mean((p - teacher(x * 10)[0]) ** 2), student


@pytest.fixture(autouse=True)
def lose_successors() -> Iterator[None]:
    """The losses here drop a successor, as the mistakes do that they show."""
    with weft.debug.debug_successors(False):
        yield


@pytest.mark.parametrize("wrap", [lambda step: step, weft.jit], ids=["eager", "jit"])
def test_minimize_does_not_take_the_teacher_for_the_successor(wrap: Any):
    for loss in (distil, lambda student, teacher, x: distil(student, teacher=teacher, x=x)):
        with pytest.raises(SuccessorError, match="it has the parameters of argument teacher, and none of its"):
            wrap(lambda student, teacher, loss=loss: OPT.minimize(loss, student, teacher, X))(STUDENT, TEACHER)
    with pytest.raises(SuccessorError, match=OF_TEACHER):
        wrap(lambda student: OPT.minimize(lambda student, x: distil(student, TEACHER, x), student, X))(STUDENT)
    _, after, _ = wrap(lambda student, teacher: OPT.minimize(own, student, teacher, X))(STUDENT, TEACHER)
    np.testing.assert_allclose(after.norm.mean, STUDENT(X)[1].norm.mean, rtol=1e-5)


@pytest.mark.parametrize("wrap", [lambda step: step, weft.jit], ids=["eager", "jit"])
def test_an_update_does_not_take_the_teachers_state(wrap: Any):
    def step(loss: Any, student: Net, teacher: Net) -> Any:
        (_, new), grad = weft.value_and_grad(loss, has_aux=True)(student, teacher, X)
        return OPT.update(student, grad, state_of=new)

    with pytest.raises(SuccessorError, match=r"it has the parameters of another Net, .*\n  at: state_of"):
        wrap(lambda student, teacher: step(distil, student, teacher))(STUDENT, TEACHER)
    after, _ = wrap(lambda student, teacher: step(own, student, teacher))(STUDENT, TEACHER)
    np.testing.assert_allclose(after.norm.mean, STUDENT(X)[1].norm.mean, rtol=1e-5)


def test_a_block_does_not_take_another_part_for_the_successor():
    both = Both(STUDENT, TEACHER)
    with pytest.raises(SuccessorError, match=r"it has the parameters of argument 1, .*\n  at: Both.student.taught"):
        both.wrong(X)
    _, after = both.right(X)
    np.testing.assert_allclose(after.student.norm.mean, STUDENT(X)[1].norm.mean, rtol=1e-5)
    np.testing.assert_array_equal(after.teacher.norm.mean, TEACHER.norm.mean)


class Taught(weft.Module):
    net: Net

    def __call__(self, x: Any, other: Taught, *, wrong: bool) -> Any:
        y, net = (other if wrong else self).net(x)
        return y, self.replace(net=net) if not wrong else other.replace(net=net)


@pytest.mark.parametrize("around", ["stack", "ensemble", "residual", "wrapped"])
def test_a_combinator_does_not_take_an_argument_for_the_successor(around: str):
    argument = Taught(TEACHER)

    def make(key: Any) -> Taught:
        return Taught(Net(key))

    layer: Any = {
        "stack": lambda: weft.Stack(make, 2, key=jax.random.key(3)),
        "ensemble": lambda: weft.Ensemble(make, 2, key=jax.random.key(3)),
        "residual": lambda: weft.Residual(Taught(STUDENT)),
        "wrapped": lambda: weft.Frozen(Taught(STUDENT)),
    }[around]()
    with pytest.raises(SuccessorError, match="it has the parameters of argument"):
        layer(X, argument, wrong=True)
    _, after = layer(X, argument, wrong=False)
    assert type(after) is type(layer)


def test_a_loop_does_not_carry_on_what_it_was_given_beside_the_carry():
    def run(step: Any) -> Any:
        return weft.scan(step, in_axes=(weft.Carry, None, 0), out_axes=(weft.Carry, 0))(STUDENT, TEACHER, X[None])

    with pytest.raises(SuccessorError, match=r"the parameters of argument teacher, .*\n  at: carry\n"):
        run(lambda student, teacher, x: distil(student, teacher, x)[::-1])
    with pytest.raises(SuccessorError, match=OF_TEACHER):
        weft.scan(lambda student, x: distil(student, TEACHER, x)[::-1])(STUDENT, X[None])
    with pytest.raises(SuccessorError, match=OF_TEACHER):
        weft.fori_loop(0, 2, lambda _, student: distil(student, TEACHER, X)[1], STUDENT)
    with pytest.raises(SuccessorError, match=OF_TEACHER):
        weft.while_loop(lambda _: False, lambda student: distil(student, TEACHER, X)[1], STUDENT)
    after, _ = run(lambda student, teacher, x: own(student, teacher, x)[::-1])
    np.testing.assert_allclose(after.norm.mean, STUDENT(X)[1].norm.mean, rtol=1e-5)


def test_what_is_carried_may_follow_another_carry():
    def step(carry: Any, x: Any) -> Any:
        online, _ = carry
        return (online(x)[1], online), None

    (online, target), _ = weft.scan(step)((STUDENT, TEACHER), X[None])
    np.testing.assert_array_equal(target.out.kernel, online.out.kernel)


def test_a_copy_of_the_others_parameters_is_taken_as_the_fix_says():
    def adopt(student: Net, teacher: Net, x: Any) -> Any:
        value, teacher = distil(student, teacher, x)
        return value, jax.tree.map(jnp.copy, teacher)

    _, after, _ = OPT.minimize(adopt, STUDENT, TEACHER, X)
    np.testing.assert_allclose(after.norm.mean, TEACHER(X * 10)[1].norm.mean, rtol=1e-5)


def test_a_model_that_is_cast_in_the_loss_keeps_its_state():
    def loss(student: Net, teacher: Net, x: Any) -> Any:
        return own(jax.tree.map(lambda a: a * 1, student), teacher, x)

    _, after, _ = OPT.minimize(loss, STUDENT, TEACHER, X)
    np.testing.assert_allclose(after.norm.mean, STUDENT(X)[1].norm.mean, rtol=1e-5)


def test_a_teacher_that_shares_a_part_with_the_model_is_told_from_it():
    teacher = weft.at(STUDENT).out.bias.set(jnp.ones(4))
    with pytest.raises(SuccessorError, match=OF_TEACHER):
        OPT.minimize(distil, STUDENT, teacher, X)
    OPT.minimize(own, STUDENT, teacher, X)


def test_a_step_that_leads_back_to_itself_by_a_partial_application_is_searched_once():
    class Total(Module):
        n: jax.Array

    def make_step():
        def step(total, x):
            assert again.func is step
            return total.replace(n=total.n + x), None

        again = functools.partial(step)
        return step

    total, _ = weft.scan(make_step())(Total(jnp.array(0.0)), jnp.ones(3))
    assert total.n == 3
