"""Errors of JAX about one array are said again with the path of that array among the arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import weft
from jax import lax
from weft.core.edge._tracers import is_dead_tracer
from weft.core.errors import AliasError, DonatedError, TraceLevelError
from weft.core.interpreter.explain import explain
from weft.core.records.leaves import iter_leaves

X = jnp.array([1.0, 2.0])

# Each runs a function of one array under a trace.
TRACES: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "jit": lambda f: jax.jit(f)(X),
    "vmap": lambda f: jax.vmap(f)(X),
    "grad": lambda f: jax.grad(lambda x: f(x).sum())(X),
    "jvp": lambda f: jax.jvp(f, (X,), (X,)),
    "linearize": lambda f: jax.linearize(f, X),
    "scan": lambda f: lax.scan(lambda c, x: (c, f(x)), 0, X),
    "remat": lambda f: jax.checkpoint(f)(X),
    "eval_shape": lambda f: jax.eval_shape(f, X),
    "cond": lambda f: lax.cond(True, f, f, X),
}


@pytest.mark.parametrize("name", TRACES)
def test_a_tracer_is_alive_in_its_trace_and_dead_after_it(name: str):
    # Whether a tracer is dead is read off JAX's private names: if this fails, see `core/edge/_tracers.py`.
    kept: list[Any] = []

    def look(x: Any) -> Any:
        kept.append(x)
        assert isinstance(x, jax.core.Tracer)
        assert not is_dead_tracer(x)

        def inside(y: Any) -> Any:
            # A tracer of the trace around is alive in the one inside.
            assert not is_dead_tracer(x)
            assert not is_dead_tracer(y)
            return y * 2 + x

        return jax.vmap(inside)(jnp.ones(2)) + jax.jit(inside)(x) + jax.grad(lambda y: inside(y).sum())(1.0)

    TRACES[name](look)
    assert kept
    assert all(map(is_dead_tracer, kept))
    jax.jit(lambda x: [x, *(pytest.fail("alive") for one in kept if not is_dead_tracer(one))])(X)


def leaves_of(tree: Any) -> Callable[[], Any]:
    return lambda: list(iter_leaves(tree))


@pytest.mark.parametrize("error", [ValueError("other"), RuntimeError("other"), KeyError("donated")])
def test_other_errors_pass_by(error: Exception):
    explain(error, leaves_of({"x": X}))


def test_an_error_of_wefts_own_is_left_as_it_is():
    explain(weft.DonatedError("an array was deleted"), lambda: pytest.fail("looked"))


def test_nothing_is_blamed_that_is_in_order():
    explain(RuntimeError("Array has been deleted"), leaves_of({"x": X}))


def test_a_deleted_array_is_named():
    gone = X + 1
    gone.delete()
    with pytest.raises(DonatedError, match=r"at: layers\[1\]\.x\n") as caught:
        explain(RuntimeError("Array has been deleted"), leaves_of({"layers": [X, {"x": gone}]}))
    assert "fix: use the successor" in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("name", TRACES)
def test_escaped_tracers_are_named_by_any_transform(name: str):
    kept: list[Any] = []
    TRACES[name](lambda x: kept.append(x) or x)
    net = {"w": X, "name": "net", "stolen": kept[0]}

    def read(net: Any) -> Any:
        return net["w"].sum() + net["stolen"].sum()

    for transform in (weft.jit, weft.grad, weft.remat, lambda f: weft.vmap(f, in_axes=None, axis_size=2)):
        with pytest.raises(TraceLevelError, match="a tracer escaped from a transform that has ended") as caught:
            transform(read)(net)
        assert "at: net.stolen: float32[" in str(caught.value)
        assert "return the value from the transformed function" in str(caught.value)


def test_an_escaped_tracer_is_named_by_errors_that_are_not_about_escaping():
    kept: list[Any] = []
    jax.jit(lambda x: kept.append(x) or x)(X)
    with pytest.raises(TraceLevelError, match="at: stolen: float32"):
        weft.jit(lambda x, stolen: x + hash(stolen))(X, kept[0])


def test_an_array_that_is_donated_under_two_names_is_named():
    same = X + 1
    step = weft.jit(lambda a, b: (a + 1, b + 1), donate_argnums=(0, 1))
    with pytest.raises(AliasError, match="at: a and b"):
        step(same, same)


def test_an_interrupt_stays_one_where_jax_makes_another_error_of_it():
    error = ValueError("Exception raised while checking equality of metadata fields of pytree")
    error.__cause__ = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        explain(error, list)
