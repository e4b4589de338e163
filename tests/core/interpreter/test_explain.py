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
    tracers: list[Any] = []

    def look(x: Any) -> Any:
        tracers.append(x)
        assert isinstance(x, jax.core.Tracer)
        assert not is_dead_tracer(x)

        def inside(y: Any) -> Any:
            # A tracer of the trace around is alive in the one inside.
            assert not is_dead_tracer(x)
            assert not is_dead_tracer(y)
            return y * 2 + x

        return jax.vmap(inside)(jnp.ones(2)) + jax.jit(inside)(x) + jax.grad(lambda y: inside(y).sum())(1.0)

    TRACES[name](look)
    assert tracers
    assert all(map(is_dead_tracer, tracers))
    jax.jit(lambda x: [x, *(pytest.fail("alive") for one in tracers if not is_dead_tracer(one))])(X)


def leaves_of(tree: Any) -> Callable[[], Any]:
    return lambda: list(iter_leaves(tree))


@pytest.mark.parametrize("error", [ValueError("other"), RuntimeError("other"), KeyError("donated")])
def test_other_errors_pass_by(error: Exception):
    explain(error, leaves_of({"x": X}))


def test_an_error_of_wefts_own_is_left_as_it_is():
    explain(weft.errors.DonatedError("an array was deleted"), lambda: pytest.fail("looked"))


def test_nothing_is_blamed_that_is_in_order():
    explain(RuntimeError("Array has been deleted"), leaves_of({"x": X}))


def test_a_deleted_array_is_named():
    gone = X + 1
    gone.delete()
    with pytest.raises(DonatedError, match=r"at: layers\[1\]\.x: float32\[2\]\n") as caught:
        explain(RuntimeError("Array has been deleted"), leaves_of({"layers": [X, {"x": gone}]}))
    assert "fix: use the successor" in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("name", TRACES)
def test_escaped_tracers_are_named_by_any_transform(name: str):
    tracers: list[Any] = []
    TRACES[name](lambda x: tracers.append(x) or x)
    net = {"w": X, "name": "net", "stolen": tracers[0]}

    def read(net: Any) -> Any:
        return net["w"].sum() + net["stolen"].sum()

    for transform in (weft.jit, weft.grad, weft.remat, lambda f: weft.vmap(f, in_axes=None, axis_size=2)):
        with pytest.raises(TraceLevelError, match="a tracer escaped from a transform that has ended") as caught:
            transform(read)(net)
        assert "at: net.stolen: float32[" in str(caught.value)
        assert "return the value from the transformed function" in str(caught.value)


def test_an_escaped_tracer_is_named_by_errors_that_are_not_about_escaping():
    tracers: list[Any] = []
    jax.jit(lambda x: tracers.append(x) or x)(X)
    with pytest.raises(TraceLevelError, match="at: stolen: float32"):
        weft.jit(lambda x, stolen: x + hash(stolen))(X, tracers[0])


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


def test_a_donated_array_is_told_in_which_call_it_went_and_few_of_many_are_listed():
    @weft.jit(donate_argnums=0)
    def step(model: Any, x: Any) -> Any:
        return [array + x for array in model]

    @weft.jit(donate_argnums=0)
    def double(model: Any) -> Any:
        return [array * 2 for array in model]

    for _ in range(4):  # by the way of a first call, and the quick one
        model = [jnp.ones(3) * X[0] for _ in range(30)]
        successor = step(model, 1.0)
        double(successor)
        for use, place in ((model, "step"), (successor, "double")):
            with pytest.raises(DonatedError) as caught:
                weft.jit(lambda x: jax.tree.map(jnp.sin, x))({"model": use})
            lines = str(caught.value).splitlines()
            assert lines[1:6] == [f"  at: x.model[{i}]: float32[3]" for i in range(5)]
            assert lines[6] == "  at: and 25 more"
            # No line: a plan serves calls of several lines, and to note each would cost every call.
            assert lines[7] == f"  at: donated in a call of {place}"
            assert len(lines) == 9


def test_an_array_that_was_given_away_by_others_is_told_of_no_call():
    gone = X + 1
    weft.jit(lambda x: x + 1, donate_argnums=0)(X + 2)
    gone.delete()
    with pytest.raises(DonatedError) as caught:
        weft.jit(lambda x: x + 1)(gone)
    assert "donated to" not in str(caught.value).replace("were donated to an earlier call", "")


@pytest.mark.parametrize(
    "call",
    [
        lambda shape: weft.jit(lambda x: x["x"] + 1)({"x": shape}),
        lambda shape: weft.vmap(lambda x: x["x"] + 1)({"x": shape}),
        lambda shape: weft.grad(lambda x: (x["y"] * x["x"]).sum())({"x": shape, "y": X}),
        lambda shape: weft.remat(lambda x: x["x"] + 1)({"x": shape}),
        lambda shape: weft.scan(lambda carry, x: (carry, carry["x"]))({"x": shape}, X),
        lambda shape: weft.while_loop(lambda x: False, lambda x: x, {"x": shape}),
        lambda shape: weft.cond(True, lambda x: x, lambda x: x, {"x": shape}),
    ],
    ids=["jit", "vmap", "grad", "remat", "scan", "while_loop", "cond"],
)
def test_a_shape_that_is_computed_with_is_told_by_its_path(call: Any):
    with pytest.raises(TraceLevelError, match="a ShapeDtypeStruct has a shape and no values") as caught:
        call(jax.ShapeDtypeStruct((2,), "float32"))
    assert ".x: float32[2]\n" in str(caught.value)
    assert "groups[" not in str(caught.value)
    assert weft.eval_shape(lambda x: x + 1, jax.ShapeDtypeStruct((2,), "float32")).shape == (2,)


def times(x: Any, n: Any) -> Any:
    return weft.fori_loop(0, n, lambda i, y: x * y, x).sum()


def times_bounded(x: Any, n: Any) -> Any:
    state = weft.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, x * s[1]), (0, x), max_steps=8)
    return state[1].sum()


@pytest.mark.parametrize("around", [lambda f: f, weft.jit, weft.remat], ids=["alone", "jit", "remat"])
def test_a_loop_without_a_bound_in_reverse_is_told_how_to_be_bounded(around: Any):
    with pytest.raises(
        weft.errors.DifferentiationError, match="a loop whose number of steps is known only when it runs"
    ) as caught:
        weft.grad(around(times))(X, jnp.array(3))
    assert "weft.while_loop(cond, body, init, max_steps=...)" in caught.value.fix
    assert isinstance(caught.value, ValueError)
    assert weft.grad(around(times_bounded))(X, jnp.array(3)).tolist() == (4 * X**3).tolist()
    assert weft.grad(lambda x: times(x, 3))(X).tolist() == (4 * X**3).tolist()


@pytest.mark.parametrize("option", ["in_shardings", "out_shardings"])
def test_a_sharding_that_does_not_fit_is_told_without_lanes(option: str):
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
    options = {option: jax.NamedSharding(mesh, jax.P(None, "data"))}
    with pytest.raises(
        weft.errors.MeshError, match="an array cannot lie as in_shardings or out_shardings say"
    ) as caught:
        weft.jit(lambda x: {"y": x["x"] + 1}, **options)({"x": X})
    assert "rank at least 2, but was applied to a value of rank 1" in caught.value.at[0]
    assert "[0]" not in str(caught.value)
    weft.jit(lambda x: {"y": x["x"] + 1}, **{option: None})({"x": X})
