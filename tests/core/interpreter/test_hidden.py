"""An array that a function hides in an object which is no pytree is refused, and never comes out as a dead tracer."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import weft
from weft import nnx

X = jnp.ones(2)


@dataclasses.dataclass(eq=False)
class Box:
    held: Any


class Slotted:
    __slots__ = ("held",)

    def __init__(self, value: Any):
        self.held = value


class Private:
    __slots__ = "__held"  # one slot, given as a text

    def __init__(self, value: Any):
        self.__held = value


def with_keyword(x: Any) -> Callable[..., Any]:
    def function(y: Any, *, by: Any = x) -> Any:
        return y + by

    return function


def remembering(x: Any) -> Callable[..., Any]:
    def function(y: Any) -> Any:
        return y

    function.memo = x  # pyright: ignore[reportFunctionMemberAccess]
    return function


def with_rule(x: Any) -> Any:
    function = jax.custom_vjp(lambda y: y * 1)
    function.defvjp(lambda y: (y, None), lambda residuals, g: (x * g,))
    return function


HIDING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a dataclass": (Box, "output.held: float32[2]"),
    "slots": (Slotted, "output.held"),
    "a container in it": (lambda x: Box({"a": [x]}), "output.held['a'][0]"),
    "a closure": (lambda x: lambda y: x + y, "output closes over x"),
    "a partial": (lambda x: functools.partial(jnp.add, x), "output.args[0]"),
    "a default": (lambda x: lambda y, x=x: x + y, "output.__defaults__[0]"),
    "a keyword's default": (lambda x: with_keyword(x), "output.__kwdefaults__['by']"),
    "an attribute of a function": (lambda x: remembering(x), "output.memo"),
    "what a jitted function closes over": (lambda x: jax.jit(lambda y: x + y), "output.__wrapped__ closes over x"),
    "what a backward function closes over": (with_rule, "output.bwd[0] closes over x"),
    "a slot that is private": (Private, "output._Private__held"),
    "a bound method of a list": (lambda x: [x].append, "output.__self__[0]"),
    "a method": (lambda x: Box(x).__repr__, "output.__self__.held"),
    "beside an array": (lambda x: (x, Box(x)), "output[1].held"),
}


@pytest.mark.parametrize("name", HIDING)
@pytest.mark.parametrize("jit", [weft.jit, nnx.jit], ids=["records", "objects"])
def test_what_hides_an_array_of_the_trace_is_refused_by_its_place(name: str, jit: Any):
    make, place = HIDING[name]
    with pytest.raises(weft.errors.TraceLevelError, match="a value of type") as caught:
        jit(lambda x: make(x * 2))(X)
    assert place in str(caught.value)
    assert isinstance(caught.value, TypeError)


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "weft.vmap": lambda f: weft.vmap(f)(X),
    "weft.grad": lambda f: weft.grad(lambda x: (x.sum(), f(x)), has_aux=True)(X),
    "weft.eval_shape": lambda f: weft.eval_shape(f, X),
    "nnx.vmap": lambda f: nnx.vmap(f)(X),
    "nnx.remat": lambda f: nnx.remat(f)(X),
    "nnx.eval_shape": lambda f: nnx.eval_shape(f, X),
    "nnx.cond": lambda f: nnx.cond(True, f, f, X),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_no_transform_lets_one_out(name: str):
    with pytest.raises(weft.errors.TraceLevelError, match=r"output.*\.held"):
        WRAPPED[name](lambda x: Box(x * 2))


@pytest.mark.parametrize("lib", [weft, nnx], ids=["records", "objects"])
def test_what_holds_no_array_of_this_trace_passes(lib: Any):
    box = Box(X)
    assert lib.jit(lambda x: (x, box, "text", jnp.tanh))(X)[1] is box

    def outer(x: jax.Array) -> jax.Array:
        # The inner function's own trace ends, and not the one that x is of.
        y, boxed = lib.jit(lambda y: (y, Box(x)))(x)
        return y + boxed.held

    assert jax.jit(outer)(X).tolist() == [2.0, 2.0]
