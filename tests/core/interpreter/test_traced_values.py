"""A value that Python needs and a trace does not have: the error names the argument, and the ways out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft import nnx


class Net(weft.Module):
    weight: jax.Array
    train: jax.Array

    def __call__(self, x: Any) -> Any:
        return x if self.train else self.weight

    def named(self, x: Any) -> Any:
        return x if self.train else self.weight


NET, X = Net(jnp.ones(3), jnp.array(True)), jnp.ones(3)

# What is called; JAX's error; fragments of weft's.
CASES: dict[str, tuple[Callable[[], Any], type[Exception], list[str]]] = {
    "a bool": (
        lambda: weft.jit(lambda net, x, train: x if train else -x)(NET, X, True),
        jax.errors.TracerBoolConversionError,
        [
            "depends on `train`, and that is traced",
            "at: train: bool[]",
            'jit with static_argnames="train"',
            "weft.cond",
        ],
    ),
    "a bool by name": (
        lambda: weft.jit(lambda x, *, train: x if train else -x)(X, train=True),
        jax.errors.TracerBoolConversionError,
        ["depends on `train`", "inside: jit"],
    ),
    "a bool in a dict": (
        lambda: weft.jit(lambda state: state["x"] if state["train"] else 0)({"x": X, "train": True}),
        jax.errors.TracerBoolConversionError,
        ["depends on `state.train`", "make state.train an argument of its own"],
    ),
    "a value computed from two": (
        lambda: weft.jit(lambda net, x: 1 if (net.weight * x).sum() > 0 else 2)(NET, X),
        jax.errors.TracerBoolConversionError,
        ["depends on `net.weight`, `x`", "at: net.weight: float32[3]", "fix: choose by value with jnp.where"],
    ),
    "an int of a range": (
        lambda: weft.jit(lambda x, n: [x for _ in range(n)])(X, 3),
        jax.errors.TracerIntegerConversionError,
        ["depends on `n`", 'static_argnames="n"', "read it off a shape"],
    ),
    "an int of a shape": (
        lambda: weft.jit(lambda x, n: jnp.ones(n) * x)(1.0, 3),
        TypeError,
        ["depends on `n`", "Shapes must be 1D sequences", 'static_argnames="n"'],
    ),
    "a float": (
        lambda: weft.jit(lambda x, scale: x * float(scale))(X, 3.0),
        jax.errors.ConcretizationTypeError,
        ["depends on `scale`"],
    ),
    "NumPy": (
        lambda: weft.jit(lambda x: np.asarray(x))(X),
        jax.errors.TracerArrayConversionError,
        ["depends on `x`", "use jax.numpy where NumPy is called"],
    ),
    "a mask": (
        lambda: weft.jit(lambda x, limit: x[x > limit])(X, 0.5),
        jax.errors.NonConcreteBooleanIndexError,
        ["depends on `x`, `limit`", "jnp.nonzero(mask, size=...)"],
    ),
    "a record that is the function": (
        lambda: weft.jit(NET)(X),
        jax.errors.TracerBoolConversionError,
        ["depends on `self.train`"],
    ),
    "a record's method": (
        lambda: weft.jit(NET.named)(X),
        jax.errors.TracerBoolConversionError,
        ["depends on `self.train`"],
    ),
    "a record's field": (
        lambda: weft.jit(lambda net, x: net(x))(NET, X),
        jax.errors.TracerBoolConversionError,
        ["depends on `net.train`", "test_traced_values.py"],
    ),
    "what is closed over, of the jit outside": (
        lambda: weft.jit(lambda train, y: weft.jit(lambda x: x if train else -x)(y))(True, X),
        jax.errors.TracerBoolConversionError,
        ["depends on `train`", "inside: jit"],
    ),
    "what is closed over, in a vmap": (
        lambda: weft.jit(lambda train, y: weft.vmap(lambda x: x if train else -x)(y))(True, X),
        jax.errors.TracerBoolConversionError,
        ["depends on `train`"],
    ),
    "an example of a vmap": (
        lambda: weft.vmap(lambda x: x if x else -x)(X),
        jax.errors.TracerBoolConversionError,
        ["depends on `x`", "at: x: float32[]", "inside: vmap(size=3)"],
    ),
    "what is differentiated in a jit": (
        lambda: weft.jit(lambda x: weft.grad(lambda w: w if w > 0 else -w)(x))(1.0),
        jax.errors.TracerBoolConversionError,
        ["depends on `w`", "inside: jit > grad"],
    ),
    "a carry": (
        lambda: weft.scan(lambda c, x: (c if c > 0 else -c, x))(1.0, X),
        jax.errors.TracerBoolConversionError,
        ["depends on `c`", "inside: scan(length=3)"],
    ),
    "a slice": (
        lambda: weft.scan(lambda c, batch: (c, c) if batch["y"] > 0 else (-c, c))(1.0, {"y": X}),
        jax.errors.TracerBoolConversionError,
        ["depends on `batch.y`"],
    ),
    "an operand": (
        lambda: weft.cond(True, lambda c: 1.0 if c else 0.0, lambda c: 1.0, 1.0),
        jax.errors.TracerBoolConversionError,
        ["depends on `c`", "inside: cond"],
    ),
    "a while_loop": (
        lambda: weft.while_loop(lambda c: c < 3, lambda c: c + (1 if c else 0), 1),
        jax.errors.TracerBoolConversionError,
        ["depends on `c`", "inside: while_loop"],
    ),
    "remat": (
        lambda: weft.remat(lambda x, train: x if train else -x)(X, True),
        jax.errors.TracerBoolConversionError,
        ["depends on `train`", "remat with static_argnums"],
    ),
    "eval_shape": (
        lambda: weft.eval_shape(lambda x, train: x if train else -x, X, True),
        jax.errors.TracerBoolConversionError,
        ["depends on `train`"],
    ),
    "an NNX object": (
        lambda: nnx.jit(lambda count, x: x if count[...] > 0 else -x)(nnx.Param(jnp.ones(())), X),
        jax.errors.TracerBoolConversionError,
        ["depends on `count`"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_argument_is_named_and_the_ways_out(name: str):
    run, theirs, fragments = CASES[name]
    with pytest.raises(weft.errors.TracedValueError) as caught:
        run()
    # Who catches JAX's error catches this one.
    assert isinstance(caught.value, theirs)
    message = str(caught.value)
    for fragment in fragments:
        assert fragment in message
    assert "groups[" not in message


INNER: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda body: weft.vmap(body)(X),
    "jit": lambda body: weft.jit(body)(X),
    "cond": lambda body: weft.cond(X.sum() > 0, body, lambda x: x, X),
    "nnx.vmap": lambda body: nnx.vmap(body)(X),
}


@pytest.mark.parametrize("inner", INNER)
def test_the_argument_of_an_outer_transform_is_named_whatever_runs_inside(inner: str):
    with pytest.raises(weft.errors.TracedBoolError, match="depends on `flag`"):
        weft.jit(lambda unused, flag: INNER[inner](lambda x: x if flag else -x))(1.0, True)


def test_inside_of_a_transform_an_error_names_no_argument_of_another_one():
    def caught(flag: Any) -> Any:
        with pytest.raises(jax.errors.TracerBoolConversionError) as error:
            weft.vmap(lambda element: element if flag else -element)(X)
        assert "element" not in str(error.value)
        return X

    weft.jit(caught)(True)


def test_what_depends_on_no_argument_is_left_to_jax():
    def from_nowhere(x: Any) -> Any:
        return x if jax.lax.optimization_barrier(jnp.array(True)) else -x

    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        weft.jit(from_nowhere)(X)
    assert not isinstance(caught.value, weft.WeftError)


def test_a_function_may_catch_it_itself():
    def branches(x: Any) -> Any:
        try:
            return 1.0 if x > 0 else 2.0
        except jax.errors.TracerBoolConversionError:
            return x

    assert float(weft.jit(branches)(3.0)) == 3.0


@pytest.mark.parametrize("error", [TypeError("mine"), IndexError("mine")])
def test_a_users_own_error_passes(error: Exception):
    def fails(x: Any) -> Any:
        raise error

    with pytest.raises(type(error), match="mine") as caught:
        weft.jit(fails)(X)
    assert caught.value is error
