"""scan, while_loop, fori_loop, map and associative_scan: the same as JAX's, with records carried and stacked."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from weft import BatchStat, Carry, Param, axes, nnx
from weft.core.errors import AxisError, CarryError

XS = jnp.arange(4.0)


class Cell(weft.Module):
    weight: jax.Array
    state: Annotated[jax.Array, BatchStat]
    activation: Callable[[jax.Array], jax.Array] = jnp.tanh
    name: str = "cell"
    dtype: Any = jnp.float32
    rate: Any = 0.5

    def __call__(self, x: Any) -> Any:
        y = self.activation(self.weight * x + self.state * self.rate)
        return y, self.replace(state=y.astype(self.dtype))


def make_cell() -> Cell:
    return Cell(jnp.array(0.3), jnp.array(1.0))


def plain_step(weight: Any, state: Any, x: Any) -> Any:
    y = jnp.tanh(weight * x + state * 0.5)
    return y, y


def plain_scan(reverse: bool = False) -> Any:
    return lax.scan(lambda c, x: plain_step(0.3, c, x), jnp.array(1.0), XS, reverse=reverse)


def step(cell: Any, x: Any) -> Any:
    y, cell = cell(x)
    return cell, y


# --- scan --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"unroll": 2}, {"unroll": True}, {"length": 4}], ids=str)
def test_scan_carries_a_record_and_stacks_outputs(options: Any):
    cell, ys = weft.scan(step, **options)(make_cell(), XS)
    state, wanted = plain_scan(options.get("reverse", False))
    np.testing.assert_allclose(ys, wanted, rtol=1e-6)
    np.testing.assert_allclose(cell.state, state, rtol=1e-6)
    assert (cell.activation, cell.name, cell.dtype, cell.rate) == (jnp.tanh, "cell", jnp.float32, 0.5)


@pytest.mark.parametrize(
    ("in_axes", "order"),
    [((Carry, 0, None), "cxn"), ((0, Carry, None), "xcn"), ((None, 0, Carry), "nxc"), ((0, None, Carry), "xnc")],
)
@pytest.mark.parametrize("out_axes", [(Carry, 0), (0, Carry)])
def test_the_carry_may_stand_anywhere(in_axes: Any, order: str, out_axes: Any):
    def f(*args: Any) -> Any:
        by_name = dict(zip(order, args, strict=True))
        y, cell = by_name["c"](by_name["x"] * by_name["n"]["scale"])
        return (cell, y) if out_axes[0] is Carry else (y, cell)

    values = {"c": make_cell(), "x": XS, "n": {"scale": jnp.array(2.0), "name": "scale"}}
    out = weft.scan(f, in_axes=in_axes, out_axes=out_axes)(*(values[name] for name in order))
    cell, ys = out if out_axes[0] is Carry else out[::-1]
    state, wanted = lax.scan(lambda c, x: plain_step(0.3, c, 2 * x), jnp.array(1.0), XS)
    np.testing.assert_allclose(ys, wanted, rtol=1e-6)
    np.testing.assert_allclose(cell.state, state, rtol=1e-6)


@pytest.mark.slow
@given(
    st.lists(st.sampled_from([0, 1, -1, -2, None]), min_size=1, max_size=3).filter(lambda axes: set(axes) != {None}),
    st.sampled_from([0, 1, -1]),
)
def test_scanned_and_stacked_axes_may_be_any(in_axes: Any, out_axis: int):
    xs = [jnp.arange(9.0).reshape(3, 3) + i for i in range(len(in_axes))]
    total, ys = weft.scan(
        lambda c, *xs: (c + sum(x.sum() for x in xs), sum(x.sum(0) if x.ndim == 2 else x for x in xs)),
        in_axes=(Carry, *in_axes),
        out_axes=(Carry, out_axis),
    )(0.0, *xs)
    slices = [
        [x if axis is None else jnp.take(x, i, axis) for i in range(3)] for x, axis in zip(xs, in_axes, strict=True)
    ]
    rows = [sum(x.sum(0) if x.ndim == 2 else x for x in row) for row in zip(*slices, strict=True)]
    np.testing.assert_allclose(ys, jnp.stack(rows, out_axis))
    np.testing.assert_allclose(total, sum(x.sum() for row in slices for x in row))


def test_axes_by_kind_scan_over_stacked_layers():
    layers = Cell(jnp.array([0.1, 0.2, 0.3]), jnp.zeros(3))
    by_kind = axes({Param: 0, BatchStat: 0})

    def layer(x: Any, cell: Any) -> Any:
        y, cell = cell(x)
        return y, cell

    y, after = weft.scan(layer, in_axes=(Carry, by_kind), out_axes=(Carry, 0))(jnp.array(1.0), layers)
    wanted, states = lax.scan(lambda x, c: plain_step(c[0], c[1], x), 1.0, (layers.weight, layers.state))
    np.testing.assert_allclose(y, wanted, rtol=1e-6)
    np.testing.assert_allclose(after.state, states, rtol=1e-6)
    np.testing.assert_allclose(after.weight, layers.weight)


def test_one_argument_may_be_carried_in_part_and_broadcast_in_part():
    by_kind = axes({BatchStat: Carry, Param: None})
    out_kind = axes({BatchStat: Carry, Param: None})
    cell, ys = weft.scan(step, in_axes=(by_kind, 0), out_axes=(out_kind, 0))(make_cell(), XS)
    state, wanted = plain_scan()
    np.testing.assert_allclose(ys, wanted, rtol=1e-6)
    np.testing.assert_allclose(cell.state, state, rtol=1e-6)


def test_scan_by_length_alone_and_by_name():
    total, ys = weft.scan(lambda c: (c + 1, c), in_axes=(Carry,), length=3)(0)
    assert (int(total), ys.tolist()) == (3, [0, 1, 2])
    total, _ = weft.scan(lambda carry, x: (carry + x, None))(carry=0.0, x=XS)
    assert float(total) == 6.0


@pytest.mark.parametrize("scan", [weft.scan, nnx.scan])
def test_a_default_before_an_argument_by_name_has_the_axis_of_its_position(scan: Any):
    def step(carry: Any, flag: Any = 2.0, x: Any = None) -> Any:
        return carry + x * flag, carry

    carry = Carry if scan is weft.scan else nnx.Carry
    total, _ = scan(step, in_axes=(carry, None, 0), out_axes=(carry, 0))(0.0, x=jnp.arange(3.0))
    assert float(total) == 6.0


def test_a_step_that_returns_a_list_is_told_of_the_tuple():
    with pytest.raises(weft.errors.CarryError, match=r"2 values in a tuple, .* and returned a list of 2 values"):
        weft.scan(lambda carry, x: [carry, x])(0.0, jnp.arange(3.0))


def test_without_a_carry_scan_maps():
    ys = weft.scan(lambda x: {"y": x * 2, "name": "y"}, in_axes=(0,), out_axes=0)(XS)
    np.testing.assert_allclose(ys["y"], XS * 2)
    assert ys["name"] == "y"


def test_scan_of_no_steps():
    carry, ys = weft.scan(step)(make_cell(), jnp.zeros((0,)))
    assert ys.shape == (0,)
    assert float(carry.state) == 1.0


def test_scan_is_differentiable_like_jax():
    def loss(cell: Any) -> Any:
        return weft.scan(step)(cell, XS)[1].sum()

    gradient = weft.grad(loss)(make_cell())
    wanted = jax.grad(lambda w: lax.scan(lambda c, x: plain_step(w, c, x), jnp.array(1.0), XS)[1].sum())(0.3)
    np.testing.assert_allclose(gradient.weight, wanted, rtol=1e-5)


def test_a_broadcast_leaf_is_returned_as_it_was_or_carried_or_stacked():
    cell, config = make_cell(), {"scale": jnp.array(2.0)}
    out = weft.scan(lambda c, x, n: (c, x, n), in_axes=(Carry, 0, None), out_axes=(Carry, 0, None))(cell, XS, config)
    assert out[2]["scale"] is config["scale"]
    with pytest.raises(AxisError, match="out_axes gives None to an output that the function has computed") as caught:
        weft.scan(
            lambda c, x, n: (c, x, {"scale": n["scale"] + 1}), in_axes=(Carry, 0, None), out_axes=(Carry, 0, None)
        )(cell, XS, config)
    assert "at: output[2].scale: " in str(caught.value)
    assert "carry it (Carry), or stack it (an axis)" in str(caught.value)


def test_scan_and_its_function_keep_name_and_docs():
    @weft.scan(reverse=True)
    def fold(c: Any, x: Any) -> Any:
        """Folds."""
        return c, x

    assert (fold.__name__, fold.__doc__) == ("fold", "Folds.")


# --- one trace for repeated eager calls, and nothing kept --------------------------------------------------------


def test_eager_loops_called_again_are_not_traced_again(traces: Any):
    scanned = weft.scan(traces(step))
    for _ in range(4):
        scanned(make_cell(), XS)
    # JAX traces a scan's body more than once to fix the weakness of types, but never again for the same call.
    first = traces.count
    scanned(make_cell(), XS)
    assert traces.count == first <= 2


@pytest.mark.parametrize("name", ["fori_loop", "while_loop", "lax_map", "associative_scan", "cond", "switch"])
def test_eager_calls_of_one_closure_are_not_traced_again(name: str, traces: Any):
    offset = jnp.array(1.0)
    f = traces(lambda *args: args[-1] + offset)
    g = traces(lambda x: (x < 3).all() & (offset > 0))
    run = {
        "fori_loop": lambda: weft.fori_loop(0, 3, f, XS),
        "while_loop": lambda: weft.while_loop(g, f, XS),
        "lax_map": lambda: weft.lax_map(f, XS),
        "associative_scan": lambda: weft.associative_scan(f, XS),
        "cond": lambda: weft.cond(True, f, f, XS),
        "switch": lambda: weft.switch(1, [f, f], XS),
    }[name]
    run()
    first = traces.count
    assert first > 0
    for _ in range(3):
        run()
    assert traces.count == first


@pytest.mark.slow
def test_closures_given_to_loops_are_not_kept():
    def run(i: int) -> None:
        big = jnp.ones((321, i + 1))
        weft.fori_loop(0, 2, lambda i, c: c + big.sum(), 0.0)
        weft.cond(True, lambda: big.sum(), lambda: 0.0)
        weft.lax_map(lambda x: x + big.sum(), XS)

    for i in range(3):
        run(i)
    gc.collect()
    assert [a for a in jax.live_arrays() if a.shape[:1] == (321,)] == []


def test_closures_over_tracers_do_not_leak(checking_leaks: Any):
    def f(x: Any) -> Any:
        y = weft.fori_loop(0, 3, lambda i, c: c + x, x)
        y = weft.while_loop(lambda c: (c < x + 10).all(), lambda c: c + x + 1, y)
        y = weft.cond(x.sum() > 0, lambda: y * x, lambda: y)
        y = weft.switch(1, [lambda v: v + x, lambda v: v - x], y)
        y = weft.lax_map(lambda v: v + x.sum(), y)
        _, y = weft.scan(lambda c, v: (c + x.sum(), v))(0.0, y)
        return weft.associative_scan(lambda a, b: a + b + 0 * x.sum(), y)

    with checking_leaks():
        weft.jit(f)(XS)
        weft.grad(lambda x: weft.remat(lambda x: weft.scan(lambda c, v: (c * x.sum(), v))(1.0, x)[0])(x))(XS)


# --- while and fori ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [-1.0, 0.0, 3.0])
def test_while_loop_is_that_of_jax(limit: float):
    out = weft.while_loop(
        lambda t: t["cell"].state < limit,
        lambda t: {**t, "n": t["n"] + 1, "cell": t["cell"].replace(state=t["cell"].state + 0.5)},
        {"n": 0, "cell": make_cell(), "name": "loop"},
    )
    wanted = lax.while_loop(lambda c: c[1] < limit, lambda c: (c[0] + 1, c[1] + 0.5), (0, 1.0))
    assert int(out["n"]) == wanted[0]
    np.testing.assert_allclose(out["cell"].state, wanted[1])
    assert (out["name"], out["cell"].activation) == ("loop", jnp.tanh)


@pytest.mark.parametrize("bounds", [(0, 3), (2, 3), (3, 3), (3, 0)])
@pytest.mark.parametrize("traced", [False, True])
def test_fori_loop_is_that_of_jax_with_both_kinds_of_bounds(bounds: Any, traced: bool):
    loop_bounds = tuple(map(jnp.asarray, bounds)) if traced else bounds
    out = weft.fori_loop(*loop_bounds, lambda i, cell: cell(i + 0.0)[1], make_cell())
    wanted = lax.fori_loop(*bounds, lambda i, c: plain_step(0.3, c, i + 0.0)[1], jnp.array(1.0))
    np.testing.assert_allclose(out.state, wanted, rtol=1e-6)
    assert out.name == "cell"


def test_fori_loop_with_int_bounds_differentiates_in_reverse():
    def run(w: Any) -> Any:
        return weft.fori_loop(0, 3, lambda i, cell: cell(i + 1.0)[1], make_cell().replace(weight=w)).state

    wanted = jax.grad(lambda w: lax.fori_loop(0, 3, lambda i, c: plain_step(w, c, i + 1.0)[1], jnp.array(1.0)))(0.3)
    np.testing.assert_allclose(weft.grad(run)(jnp.array(0.3)), wanted, rtol=1e-5)
    np.testing.assert_allclose(jax.grad(run)(jnp.array(0.3)), wanted, rtol=1e-5)


def test_fori_loop_unrolls():
    jaxpr = jax.make_jaxpr(lambda x: weft.fori_loop(0, 3, lambda i, c: c * 2, x, unroll=True))(1.0)
    wanted = jax.make_jaxpr(lambda x: lax.fori_loop(0, 3, lambda i, c: c * 2, x, unroll=True))(1.0)
    assert [eqn.params["unroll"] for eqn in jaxpr.eqns] == [eqn.params["unroll"] for eqn in wanted.eqns] != []


def test_loops_of_a_carry_without_arrays():
    assert weft.fori_loop(0, 3, lambda i, c: c, {"name": "n", "none": None}) == {"name": "n", "none": None}


# --- map and associative_scan ------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [None, 1, 2, 3, 8])
def test_map_is_that_of_jax(batch_size: int | None):
    cells = Cell(jnp.arange(4.0), jnp.ones(4))
    y, after = weft.lax_map(lambda cell: cell(2.0), cells, batch_size=batch_size)
    wanted, _ = lax.map(lambda c: plain_step(c[0], c[1], 2.0), (cells.weight, cells.state))
    np.testing.assert_allclose(y, wanted, rtol=1e-6)
    np.testing.assert_allclose(after.state, wanted, rtol=1e-6)
    assert after.name == "cell"


@pytest.mark.parametrize(
    ("size", "reverse", "axis"),
    [(1, False, 0), (1, True, -1), (2, True, 0), (2, False, 1), (5, False, 0), (5, True, 1), (5, False, -1)],
)
def test_associative_scan_is_that_of_jax(size: int, reverse: bool, axis: int):
    shape = (size, 2) if axis == 0 else (2, size)
    elems = {"a": jnp.arange(2.0 * size).reshape(shape) + 1, "b": jnp.ones(shape), "name": "pair", "op": jnp.multiply}

    def combine(x: Any, y: Any) -> Any:
        return {**x, "a": x["op"](x["a"], y["a"]), "b": x["b"] * y["a"] + y["b"]}

    scanned = weft.associative_scan(combine, elems, reverse=reverse, axis=axis)

    @jax.jit  # compiled as one: each operation would be compiled on its own
    def plain(a: Any, b: Any) -> Any:
        return lax.associative_scan(
            lambda x, y: (x[0] * y[0], x[1] * y[0] + y[1]), (a, b), reverse=reverse, axis=axis % 2
        )

    wanted = plain(elems["a"], elems["b"])
    np.testing.assert_allclose(scanned["a"], wanted[0], rtol=1e-5)
    np.testing.assert_allclose(scanned["b"], wanted[1], rtol=1e-5)
    assert (scanned["name"], scanned["op"]) == ("pair", jnp.multiply)


# --- errors ------------------------------------------------------------------------------------------------------

DRIFTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "shape": (lambda c: c.replace(state=jnp.ones(2)), "carry.state: float32[] -> float32[2]"),
    "dtype": (lambda c: c.replace(state=c.state.astype(int)), "carry.state: float32[] -> int32[]"),
    "static": (lambda c: c.replace(name="other"), "carry.name: static 'cell' -> static 'other'"),
    "function": (lambda c: c.replace(activation=jnp.sin), "carry.activation: static tanh -> static sin"),
    "number": (lambda c: c.replace(rate=c.rate + 1), "carry.rate: static 0.5 -> static 1.5"),
    "static to array": (lambda c: c.replace(rate=c.state), "carry.rate: static 0.5 -> float32[]"),
    "structure": (lambda c: c.replace(state=[c.state]), "carry.state: float32[] -> list"),
    "lost": (lambda c: c.replace(state=None), "carry.state: float32[] -> None"),
}
LOOPS: dict[str, Callable[[Any], Any]] = {
    "scan": lambda f: weft.scan(lambda c, x: (f(c), x))(make_cell(), XS),
    "while_loop": lambda f: weft.while_loop(lambda c: True, f, make_cell()),
    "while_loop of a bound": lambda f: weft.while_loop(lambda c: True, f, make_cell(), max_steps=3),
    "fori_loop": lambda f: weft.fori_loop(0, 3, lambda i, c: f(c), make_cell()),
}


@pytest.mark.parametrize("drift", DRIFTS)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_carry_that_drifts_is_named_before_and_after(loop: str, drift: str):
    f, line = DRIFTS[drift]
    with pytest.raises(CarryError) as caught:
        LOOPS[loop](f)
    loop = loop.split()[0]
    assert f"the carry of {loop} changes from one iteration to the next" in str(caught.value)
    assert f"at: {line}\n" in str(caught.value)
    assert f"inside: {loop}" in str(caught.value)


# The first carry, the one returned, and whether JAX takes the pair (as a Python number takes the other's dtype).
TYPES = [
    (0, jnp.float32(1), True),
    (0, jnp.int8(1), True),
    (0.0, jnp.bfloat16(1), True),
    (0.0, 1j, True),
    (0, 1.0, True),
    (jnp.float32(0), 1.0, True),
    (0.0, jnp.int32(1), False),
    (jnp.float32(0), 1, False),
    (jnp.int32(0), 1.0, False),
    (True, 1, False),
    (jnp.int32(0), True, False),
]


@pytest.mark.parametrize(("first", "after", "agree"), TYPES)
@pytest.mark.parametrize("loop", ["scan", "while_loop", "while_loop of a bound"])
def test_weakly_typed_carries_are_taken_as_jax_takes_them(loop: str, first: Any, after: Any, agree: bool):
    def run(library: Any, scan: Any) -> Any:
        if loop == "scan":
            return scan(lambda c, x: (after, x))[0]
        options = {"max_steps": 20} if library is weft and loop != "while_loop" else {}
        return library.while_loop(lambda c: False, lambda c: after, first, **options)

    if agree:
        wanted = run(lax, lambda f: lax.scan(f, first, XS))
        assert run(weft, lambda f: weft.scan(f)(first, XS)).dtype == wanted.dtype
        return
    with pytest.raises(TypeError, match="must have equal types"):
        run(lax, lambda f: lax.scan(f, first, XS))
    with pytest.raises(CarryError, match=f"the carry of {loop.split()[0]} changes"):
        run(weft, lambda f: weft.scan(f)(first, XS))


def test_a_scan_over_another_number_of_carries():
    with pytest.raises(CarryError, match="the carry of scan changes"):
        weft.scan(lambda c, x: (c, c, x), out_axes=(Carry, Carry, 0))(1.0, XS)


def test_associative_scan_of_another_make():
    with pytest.raises(CarryError, match="the carry of associative_scan changes") as caught:
        weft.associative_scan(lambda a, b: {"x": a["x"] > b["x"]}, {"x": XS})
    assert "carry.x: float32[2] -> bool[2]" in str(caught.value)


@pytest.mark.parametrize(
    ("condition", "fragment"),
    [(lambda c: jnp.ones(2) > 0, r"not bool\[2\]"), (lambda c: (True, False), "not bool"), (lambda c: "x", "no array")],
)
def test_a_condition_that_is_no_scalar(condition: Any, fragment: str):
    with pytest.raises(CarryError, match=f"must be one boolean scalar, {fragment}|must be one boolean scalar, not"):
        weft.while_loop(condition, lambda c: c, 1.0)
    with pytest.raises(CarryError, match="must be one boolean scalar"):
        weft.while_loop(condition, lambda c: c, 1.0, max_steps=3)


@pytest.mark.parametrize(
    ("run", "fragment"),
    [
        (lambda: weft.scan(step)(make_cell()), "in_axes has 2 entries for 1 arguments"),
        (lambda: weft.scan(lambda c: (c, c), in_axes=(Carry,))(1.0), "scan has nothing to scan over"),
        (lambda: weft.scan(step, length=3)(make_cell(), XS), "differ from the requested size, 3"),
        (
            lambda: weft.scan(lambda c, x: (c, x))(1.0, {"a": XS, "b": jnp.ones(3)}),
            "x.b: axis 0 of shape (3,) has size 3",
        ),
        (lambda: weft.scan(step, in_axes=(Carry, 1))(make_cell(), XS), "x: axis 1 of shape (4,)"),
        (lambda: weft.lax_map(lambda x: x, {"a": XS, "b": jnp.ones(3)}), "x.b: axis 0 of shape (3,) has size 3"),
        (lambda: weft.lax_map(lambda x: x, "nothing"), "lax_map has nothing to map over"),
        (lambda: weft.associative_scan(jnp.add, ()), "associative_scan has no elements"),
        (lambda: weft.associative_scan(jnp.add, XS, axis=1), "axis 1 of shape (4,)"),
    ],
)
def test_axes_that_do_not_fit(run: Any, fragment: str):
    with pytest.raises(AxisError) as caught:
        run()
    assert fragment in str(caught.value)


def test_a_part_of_the_carry_that_goes_is_said_once():
    mlp = weft.MLP(2, 2, 2, key=jax.random.key(0))
    with pytest.raises(weft.errors.CarryError) as caught:
        weft.while_loop(lambda carry: False, lambda carry: {"mlp": None}, {"mlp": mlp})
    assert caught.value.at == ("carry.mlp: MLP -> None",)
    with pytest.raises(weft.errors.CarryError) as caught:
        weft.while_loop(lambda carry: False, lambda carry: 1, mlp)
    assert caught.value.at == ("carry: MLP -> int32[]",)
