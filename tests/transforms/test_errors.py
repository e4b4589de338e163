"""What bad input gets, in any transform: an error that is weft's and the expected builtin, and nothing half done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft import BatchStat, Cache, Carry, WeftError, axes
from weft.core import errors

X = jnp.array([1.0, 2.0])


class Net(weft.Module):
    weight: jax.Array
    mean: Annotated[jax.Array, BatchStat]
    extra: Any = None


def make_net() -> Net:
    return Net(jnp.ones(2), jnp.zeros(2))


def donated_twice() -> Any:
    step = weft.jit(lambda net: net.replace(mean=net.mean + 1), donate_argnums=0)
    net = make_net()
    step(net)
    return step(net)


def escaped() -> Any:
    leaked: list[Any] = []
    weft.jit(lambda x: leaked.append(x) or x)(X)
    return weft.grad(lambda net: (net.weight * net.extra).sum())(make_net().replace(extra=leaked[0]))


# What is done wrong, the error it gets, the builtin one that it also is, and fragments of its message.
BAD: dict[str, tuple[Callable[[], Any], type[WeftError], type[Exception], tuple[str, ...]]] = {
    "an unhashable static leaf": (
        lambda: weft.vmap(lambda net, x: x, in_axes=(None, 0))(make_net().replace(extra={1, 2}), X),
        errors.StaticError,
        TypeError,
        ("a static value must be hashable", "at: Net.extra", "use a tuple for a list, a frozenset for a set"),
    ),
    "an unhashable static output": (
        lambda: weft.jit(lambda net: net.replace(extra=bytearray(b"a")))(make_net()),
        errors.StaticError,
        TypeError,
        ("a static value must be hashable", "at: Net.extra", "inside: jit"),
    ),
    "axes for a kind that is not there": (
        lambda: weft.vmap(lambda net: net, in_axes=axes({Cache: None, ...: 0}))(make_net()),
        errors.AxisError,
        ValueError,
        ("in_axes: these filters match no leaf: Cache", "at: net.weight: Param", "the kinds here are BatchStat, Param"),
    ),
    "a leaf without an axis": (
        lambda: weft.scan(lambda net, x: (net, x), in_axes=(axes({BatchStat: Carry}), 0))(make_net(), X),
        errors.AxisError,
        ValueError,
        ("in_axes: no filter matches these leaves", "at: net.weight: Param", "end with `...` for the rest"),
    ),
    "sizes that differ": (
        lambda: weft.vmap(lambda net, x: x)(make_net(), jnp.ones(3)),
        errors.AxisError,
        ValueError,
        (
            "inconsistent sizes",
            "at: net.weight: axis 0 of shape (2,) has size 2",
            "at: x: axis 0 of shape (3,) has size 3",
        ),
    ),
    "a carry that drifts": (
        lambda: weft.while_loop(lambda net: True, lambda net: net.replace(mean=net.mean[:1]), make_net()),
        errors.CarryError,
        TypeError,
        ("at: carry.mean: float32[2] -> float32[1]", "inside: while_loop"),
    ),
    "branches that differ": (
        lambda: weft.cond(True, lambda net: net, lambda net: net.replace(extra=net.mean), make_net()),
        errors.BranchError,
        TypeError,
        ("at: output.extra: None -> float32[2]", "inside: cond"),
    ),
    "a gradient of a vector": (
        lambda: weft.jit(weft.grad(lambda net: net.weight))(make_net()),
        errors.DifferentiationError,
        TypeError,
        ("needs a function that returns one scalar, but this one returned float32[2]", "inside: jit > grad"),
    ),
    "a gradient of nothing": (
        lambda: weft.grad(lambda x: x)(3),
        errors.DifferentiationError,
        TypeError,
        ("nothing to differentiate", "at: x: Buffer, ~int32[]"),
    ),
    "a donated record used again": (
        donated_twice,
        errors.DonatedError,
        RuntimeError,
        ("were donated to an earlier call, and are gone", "at: net.mean", "use the successor"),
    ),
    "a tracer that escaped": (
        escaped,
        errors.TraceLevelError,
        TypeError,
        ("a tracer escaped", "at: net.extra: float32[2]", "return the value"),
    ),
    "an array of what JAX has no dtype for": (
        lambda: weft.jit(lambda net: net)(make_net().replace(extra=np.array(["a", "b"]))),
        errors.StaticError,
        TypeError,
        ("JAX has no arrays of these dtypes", "at: net.extra: <U1[2]", "array.tolist()"),
    ),
    "an array of objects, lowered": (
        lambda: weft.jit(lambda net: net).lower(make_net().replace(extra=np.array([None]))),
        errors.StaticError,
        TypeError,
        ("JAX has no arrays of these dtypes", "at: net.extra: object[1]"),
    ),
    "dates that are mapped": (
        lambda: weft.vmap(lambda net, x: x)(make_net(), np.array(["2026-01-01", "2026-01-02"], "datetime64[D]")),
        errors.StaticError,
        TypeError,
        ("JAX has no arrays of these dtypes", "at: x: datetime64[D][2]"),
    ),
    "an argument of one name too many": (
        lambda: weft.vmap(lambda x: x, in_axes={"y": 0})(X),
        errors.AxisError,
        ValueError,
        ("in_axes names arguments that are not there: y", "at: parameters: x"),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_an_error_that_says_what_where_and_what_to_do(name: str):
    run, error, builtin, fragments = BAD[name]
    with pytest.raises(error) as caught:
        run()
    assert isinstance(caught.value, WeftError)
    assert isinstance(caught.value, builtin)
    for fragment in fragments:
        assert fragment in str(caught.value)
    assert "fix: " in str(caught.value)


# A function that fails halfway, under each transform; the frames must be closed and the next call must work.
FAILING: dict[str, Callable[[Any], Any]] = {
    "jit": lambda f: weft.jit(f)(X),
    "grad": lambda f: weft.grad(lambda x: f(x).sum())(X),
    "vjp": lambda f: weft.vjp(f, X)[0],
    "jvp": lambda f: weft.jvp(f, (X,), (X,))[0],
    "vmap": lambda f: weft.vmap(f)(X),
    "scan": lambda f: weft.scan(lambda c, x: (c, f(x)))(0.0, X),
    "map": lambda f: weft.lax_map(f, X),
    "while_loop": lambda f: weft.while_loop(lambda x: False, f, X),
    "fori_loop": lambda f: weft.fori_loop(0, 1, lambda i, x: f(x), X),
    "cond": lambda f: weft.cond(True, f, f, X),
    "remat": lambda f: weft.remat(f)(X),
    "eval_shape": lambda f: weft.eval_shape(f, X),
    "make_jaxpr": lambda f: weft.make_jaxpr(f)(X),
    "checkify": lambda f: weft.checkify(f)(X),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_users_own_error_passes_through_and_leaves_nothing(name: str):
    fails = [True]

    def f(x: Any) -> Any:
        if fails:
            raise KeyError("the user's own")
        return x * 2.0

    run = FAILING[name]
    for _ in range(2):
        with pytest.raises(KeyError, match="the user's own"):
            run(f)
        assert weft.core.frames.current_frames() == ()
    fails.clear()
    run(f)
    assert weft.core.frames.current_frames() == ()


def test_errors_of_jax_pass_through_where_no_argument_is_to_blame():
    with pytest.raises(jax.errors.TracerBoolConversionError):
        weft.jit(lambda x: x if x > 0 else -x)(1.0)
    with pytest.raises(TypeError, match=r"dot_general|incompatible"):
        weft.jit(lambda x: x @ jnp.ones(3))(X)


def test_a_failed_call_changes_nothing_of_its_arguments():
    net = make_net()
    step = weft.jit(lambda net, x: 1 / 0, donate_argnums=0)
    with pytest.raises(ZeroDivisionError):
        step(net, X)
    np.testing.assert_allclose(net.weight, 1.0)
