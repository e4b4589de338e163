"""Values come out of, and perturbations go into, every transform and pair of transforms that JAX has."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core.primitives import closed_call_p
from jax.sharding import PartitionSpec
from weft.core.edge import _jax, equations
from weft.core.errors import DifferentiationError, StructureError
from weft.core.records.kinds import BatchStat, Intermediate, Kind
from weft.core.sowing.capturing import CaptureError, capture, name_scope, perturb, perturbations, sow

pytestmark = pytest.mark.wide

X = jnp.array([1.0, 2.0, 3.0])


def see(value: Any, name: str = "h") -> Any:
    return sow(name, value)


def check(actual: Any, expected: Any) -> None:
    """Equal trees, with numbers and lists in place of arrays; tuples are tuples."""
    assert jax.tree.structure(jax.tree.map(lambda _: 0, actual)) == jax.tree.structure(
        jax.tree.map(lambda _: 0, expected, is_leaf=lambda node: isinstance(node, list))
    )
    leaves = jax.tree.leaves(expected, is_leaf=lambda node: isinstance(node, list))
    for got, want in zip(jax.tree.leaves(actual), leaves, strict=True):
        np.testing.assert_allclose(got, np.asarray(want), rtol=1e-5, atol=1e-6)


def custom_vjp(body: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function whose custom derivative is 100."""
    fun = jax.custom_vjp(body)
    fun.defvjp(lambda x: (fun(x), None), lambda _, ct: (100.0 * ct,))
    return fun


def custom_jvp(body: Callable[[Any], Any]) -> Callable[[Any], Any]:
    fun = jax.custom_jvp(body)
    fun.defjvp(lambda primals, tangents: (fun(primals[0]), 100.0 * tangents[0]))
    return fun


def double(x: Any) -> Any:
    return see(2 * x) + 1


# Each wraps a scalar function and applies it to the scalar 3.0 once, and says how the value comes out.
ONCE: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "plain": lambda f: f,
    "jit": jax.jit,
    "remat": jax.checkpoint,
    "remat_policy": lambda f: jax.checkpoint(f, policy=jax.checkpoint_policies.everything_saveable),
    "custom_vjp": custom_vjp,
    "custom_jvp": custom_jvp,
    "cond": lambda f: lambda x: lax.cond(x > 0, f, lambda x: x, x),
    "cond_false": lambda f: lambda x: lax.cond(x < 0, lambda x: x, f, x),
    "switch": lambda f: lambda x: lax.switch(2, [lambda x: x, lambda x: -x, f], x),
    "platform_dependent": lambda f: lambda x: lax.platform_dependent(x, default=f),
    "while": lambda f: lambda x: lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, f(c[1])), (0, x))[1],
    "closed_call": lambda f: lambda x: closed_call(f, x),
}
# And these add a leading axis of length 1.
STACKED: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "scan": lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0],
    "scan_xs": lambda f: lambda x: lax.scan(lambda c, a: (c, f(a)), x, x[None])[1][0],
    "fori": lambda f: lambda x: lax.fori_loop(0, 1, lambda _, c: f(c), x),
    "map": lambda f: lambda x: lax.map(f, x[None])[0],
    "vmap": lambda f: lambda x: jax.vmap(f)(x[None])[0],
    "vmap_constant": lambda f: lambda x: jax.vmap(lambda _: f(x), axis_size=1)(jnp.zeros(1))[0],
}
WRAPPERS = ONCE | STACKED
# Every wrapper around and inside of the ones that treat values most differently; all pairs would take minutes.
PAIRS = sorted(
    {pair for a in WRAPPERS for b in ("plain", "remat", "cond", "scan") for pair in ((a, b), (b, a))}
    | {(a, b) for a in ("jit", "custom_vjp", "while", "vmap") for b in ("jit", "custom_vjp", "while", "vmap")}
)
# `while` has no reverse-mode derivative.
REVERSIBLE_PAIRS = [pair for pair in PAIRS if "while" not in pair]


def closed_call(fun: Callable[[Any], Any], x: Any) -> Any:
    params = {"call_jaxpr": jax.make_jaxpr(fun)(jax.ShapeDtypeStruct(x.shape, x.dtype))}
    return closed_call_p.bind(x, **closed_call_p.get_bind_params(params))[0]


def rank(*names: str) -> int:
    return sum(name in STACKED for name in names)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("outer", "inner"), PAIRS)
def test_a_sown_value_comes_out_of_every_pair_of_transforms(outer: str, inner: str):
    fun = WRAPPERS[outer](WRAPPERS[inner](double))
    out, sown = capture(fun)(jnp.array(3.0))
    check(out, 7.0)
    check(sown, {"h": (np.full((1,) * rank(outer, inner), 6.0),)})


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("outer", "inner"), REVERSIBLE_PAIRS)
def test_a_sown_value_comes_out_once_of_a_function_that_differentiates_inside(outer: str, inner: str):
    fun = WRAPPERS[outer](WRAPPERS[inner](double))
    slope = 100.0 if "custom" in outer + inner else 2.0
    out, sown = capture(jax.grad(fun))(jnp.array(3.0))
    check(out, slope)
    check(sown, {"h": (np.full((1,) * rank(outer, inner), 6.0),)})


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("outer", "inner"), REVERSIBLE_PAIRS)
def test_the_gradient_by_a_perturbation_comes_out_of_every_pair_of_transforms(outer: str, inner: str):
    fun = WRAPPERS[outer](WRAPPERS[inner](lambda x: perturb("p", 2 * x) ** 2))
    x = jnp.array(3.0)
    zeros = perturbations(fun)(x)
    shape = (1,) * rank(outer, inner)
    check(zeros, {"p": np.zeros(shape)})
    # A custom rule around the perturbed function is for what flows through its argument, not for the perturbation.
    check(jax.grad(lambda p: capture(fun, perturb=p)(x)[0])(zeros), {"p": np.full(shape, 12.0)})


@pytest.mark.parametrize("name", ONCE | STACKED)
def test_the_derivative_of_a_captured_function_is_that_of_the_function(name: str):
    fun = WRAPPERS[name](lambda x: see(jnp.sin(x)) * x)
    x = jnp.array(3.0)
    differentiate = jax.jacfwd if name == "while" else jax.grad
    check(differentiate(lambda x: capture(fun)(x)[0])(x), differentiate(fun)(x))
    by_sown = differentiate(lambda x: jnp.sum(capture(fun)(x)[1]["h"][0]))(x)
    check(by_sown, np.cos(3.0))


@pytest.mark.parametrize("name", WRAPPERS)
def test_capture_composes_with_transforms_around_it(name: str, checking_leaks: Any):
    fun = capture(WRAPPERS[name](double))
    expected = np.full((1,) * rank(name), 6.0)
    check(jax.jit(fun)(jnp.array(3.0)), (7.0, {"h": (expected,)}))
    check(jax.vmap(fun)(X), (2 * X + 1, {"h": (expected / 3 * X.reshape((3,) + (1,) * rank(name)),)}))
    check(capture(fun)(jnp.array(3.0)), ((7.0, {"h": (expected,)}), {}))
    with checking_leaks():
        check(jax.jit(fun)(jnp.array(3.0))[0], 7.0)


@pytest.mark.parametrize(("reverse", "unroll"), [(False, 1), (True, 1), (False, 3), (True, 2)])
def test_scan_stacks_in_the_order_of_its_outputs(reverse: bool, unroll: int):
    def fun(xs: Any) -> Any:
        return lax.scan(lambda c, x: (see(c + x), c), 0.0, xs, reverse=reverse, unroll=unroll)[0]

    check(capture(fun)(X)[1], {"h": ([6.0, 5.0, 3.0] if reverse else [1.0, 3.0, 6.0],)})


def test_nested_scans_stack_outermost_first():
    def fun(xs: Any) -> Any:
        inner = lambda a: lax.scan(lambda c, b: (c, see(10 * a + b)), 0.0, xs)[1].sum()  # noqa: E731
        return lax.map(inner, xs)

    check(capture(fun)(X)[1], {"h": ([[11.0, 12, 13], [21, 22, 23], [31, 32, 33]],)})


@pytest.mark.parametrize("limit", [10.0, 1.0])
def test_while_gives_the_last_value_or_zeros_and_the_last_predicate(limit: float):
    def fun(x: Any) -> Any:
        return lax.while_loop(lambda c: see(c, "test") < limit, lambda c: see(c + 4, "body"), x)

    ran = limit > 1
    check(
        capture(fun)(jnp.array(1.0)), (13.0 if ran else 1.0, {"body": (13.0 * ran,), "test": (13.0 if ran else 1.0,)})
    )


def test_fori_loop_of_unknown_length_is_a_while_loop():
    def fun(n: Any) -> Any:
        return lax.fori_loop(0, n, lambda i, c: see(c + i), 0)

    check(capture(fun)(jnp.array(4)), (6, {"h": (6,)}))


def test_cond_gives_zeros_for_what_was_not_taken_and_shares_what_branches_have_in_common():
    def fun(pred: Any, x: Any) -> Any:
        def yes(x: Any) -> Any:
            sow("taken", True)
            return see(x) + jnp.sum(see(x, "yes"))

        return lax.cond(pred, yes, lambda x: see(-x) * see(7, "no"), x)

    fun = capture(fun)
    check(fun(True, X)[1], {"h": (X,), "no": (0,), "taken": (True,), "yes": (X,)})
    check(fun(False, X)[1], {"h": (-X,), "no": (7,), "taken": (False,), "yes": (0 * X,)})


def test_switch_keeps_different_shapes_under_one_name_apart():
    def fun(x: Any) -> Any:
        return lax.switch(1, [lambda x: see(x), lambda x: x * see(x[0]), lambda x: see(x) * see(x)], x)

    check(capture(fun)(X)[1], {"h": (0 * X, 1.0, 0 * X)})


def test_a_mapped_predicate_gives_each_example_what_it_took():
    def fun(x: Any) -> Any:
        return lax.cond(x > 1.5, lambda x: see(x, "yes"), lambda x: see(-x, "no"), x)

    check(capture(jax.vmap(fun))(X)[1], {"no": ([-1.0, 0, 0],), "yes": ([0.0, 2, 3],)})

    def loop(x: Any) -> Any:
        return lax.while_loop(lambda c: c < 3, lambda c: see(c + 1), x)

    check(capture(jax.vmap(loop))(X)[1], {"h": ([3.0, 3, 0],)})


def test_vmap_puts_the_mapped_axis_in_front():
    def fun(x: Any, y: Any) -> Any:
        see((x, y), "both")
        return see(x.sum() + y.sum())

    matrix = jnp.arange(6.0).reshape(3, 2)
    _, sown = capture(jax.vmap(fun, in_axes=(1, None)))(matrix, X)
    check(sown, {"both": ((matrix.T, jnp.stack([X, X])),), "h": ([12.0, 15.0],)})
    _, sown = capture(jax.vmap(lambda x: jax.vmap(lambda y: fun(x, y))(matrix)))(X[:2])
    assert sown["h"][0].shape == (2, 3)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.checkpoint, jax.jit])
def test_what_a_loop_does_not_change_is_still_stacked_when_differentiated_inside(wrap: Any):
    def fun(x: Any) -> Any:
        def body(c: Any, a: Any) -> Any:
            see(x * 2, "invariant")
            see(5.0, "constant")
            return c * see(jnp.sin(x * a)), None

        return lax.scan(wrap(body), 1.0, X)[0]

    _, sown = capture(jax.grad(fun))(jnp.array(2.0))
    check(sown, {"invariant": ([4.0] * 3,), "constant": ([5.0] * 3,), "h": (np.sin(2 * X),)})


def test_while_inside_remat_is_seen_once_when_differentiated_inside():
    @jax.checkpoint
    def fun(x: Any) -> Any:
        n = lax.while_loop(lambda n: n < 3, lambda n: see(n + 1, "n"), 0)
        return jnp.sin(x) * n

    check(capture(jax.grad(fun))(jnp.array(0.0)), (3.0, {"n": (3,)}))


@pytest.mark.parametrize(
    "differentiate",
    [
        lambda f: lambda x: jax.vjp(f, x)[0],
        lambda f: lambda x: jax.jvp(f, (x,), (x,))[0],
        lambda f: lambda x: jax.linearize(f, x)[0],
        lambda f: jax.hessian(f),
        lambda f: jax.jacfwd(f),
        lambda f: jax.value_and_grad(f),
    ],
)
def test_every_kind_of_differentiation_keeps_the_primal_value(differentiate: Any):
    _, sown = capture(differentiate(lambda x: jnp.sin(see(2 * x))))(jnp.array(3.0))
    assert len(sown["h"]) == 1
    assert np.all(np.asarray(sown["h"][0]) == 6.0)


def test_a_cotangent_can_be_sown_in_a_backward_rule():
    @jax.custom_vjp
    def fun(x: Any) -> Any:
        return x

    fun.defvjp(lambda x: (x, None), lambda _, ct: (see(ct, "cotangent"),))
    check(capture(jax.grad(lambda x: 5 * fun(x)))(1.0)[1], {"cotangent": (5.0,)})
    loop = jax.grad(lambda x: lax.scan(lambda c, a: (c + a * fun(x), None), 0.0, X)[0])
    check(capture(loop)(1.0)[1], {"cotangent": ([1.0, 2.0, 3.0],)})


def test_perturbations_through_control_flow_match_hand_written_gradients():
    def fun(x: Any) -> Any:
        def body(c: Any, a: Any) -> Any:
            c = lax.cond(a > 1.5, lambda c: c * perturb("big", a), lambda c: c + perturb("small", a), c)
            return c, None

        return lax.scan(body, perturb("start", x), X)[0]

    # ((x + 1) * 2) * 3
    x = jnp.array(1.0)
    zeros = perturbations(fun)(x)
    gradient = jax.jit(jax.grad(lambda p: capture(fun, perturb=p)(x)[0]))(zeros)
    check(gradient, {"start": 6.0, "big": [0.0, 6.0, 4.0], "small": [6.0, 0.0, 0.0]})


def test_perturbations_under_a_mapped_predicate_reach_what_was_taken():
    def fun(x: Any) -> Any:
        return lax.cond(x > 1.5, lambda x: perturb("yes", x) ** 2, lambda x: 7 * perturb("no", x), x)

    gradient = jax.grad(lambda p: capture(jax.vmap(fun), perturb=p)(X)[0].sum())(perturbations(jax.vmap(fun))(X))
    check(gradient, {"no": [7.0, 0, 0], "yes": [0.0, 4, 6]})


def test_a_perturbation_may_be_other_than_zero_and_is_added():
    fun = lambda x: see(perturb("p", (x, 2 * x)))[1].sum()  # noqa: E731
    out, sown = capture(fun, perturb={"p": (X, np.ones(3, np.float32))})(X)
    check((out, sown), (15.0, {"h": ((2 * X, 2 * X + 1),)}))


def test_while_loops_perturb_every_iteration_alike():
    fun = lambda x: lax.while_loop(lambda c: c < 10, lambda c: c * perturb("p", 2.0), x)  # noqa: E731
    run = lambda p: capture(fun, perturb={"p": p})(jnp.array(1.0))[0]  # noqa: E731
    check(jax.jvp(run, (0.0,), (1.0,)), (16.0, 32.0))
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work for"):
        jax.grad(run)(0.0)


@pytest.mark.parametrize("custom", [custom_vjp, custom_jvp])
def test_a_custom_rule_holds_for_arguments_and_not_for_perturbations_in_the_body(custom: Any):
    inner = custom(lambda x: perturb("inside", x * x))
    fun = lambda x: inner(perturb("argument", x)) * 2  # noqa: E731
    x = jnp.array(3.0)
    gradient = jax.grad(lambda p: capture(fun, perturb=p)(x)[0])
    check(gradient(perturbations(fun)(x)), {"argument": 200.0, "inside": 2.0})


def test_the_gradient_by_a_perturbation_in_a_custom_rule_can_be_differentiated():
    fun = custom_vjp(lambda x: perturb("p", x * x) ** 2)
    by_perturbation = lambda x: jax.grad(lambda p: capture(fun, perturb=p)(x)[0])(perturbations(fun)(x))["p"]  # noqa: E731
    check(jax.grad(by_perturbation)(jnp.array(3.0)), 12.0)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_a_custom_rule_spares_a_body_that_has_no_derivative(wrap: Any):
    fun = wrap(custom_vjp(lambda x: see(jax.pure_callback(lambda x: 2 * x, x, x))))
    gradient, sown = jax.grad(capture(fun), has_aux=True)(jnp.array(3.0))
    check((gradient, sown), (100.0, {"h": (6.0,)}))


def test_infinite_outputs_of_a_custom_rule_stay_infinite_when_perturbed():
    fun = custom_vjp(lambda x: perturb("p", x) - jnp.inf)
    check(capture(fun, perturb={"p": 0.0})(jnp.array(1.0))[0], -np.inf)


def test_modes_say_what_a_name_holds():
    def fun(mode: Any) -> None:
        for i in range(2):
            sow("h", i, mode=mode)

    check(capture(fun)("append")[1], {"h": (0, 1)})
    check(capture(fun)("clobber")[1], {"h": 1})
    check(capture(lambda: sow("h", 1.0, mode="strict"))()[1], {"h": 1.0})


def test_only_takes_what_it_names_and_leaves_the_rest_to_an_outer_capture():
    class Mine(Intermediate):
        pass

    def fun(x: Any) -> Any:
        sow("a", x, kind=Mine)
        sow("b", x, kind=BatchStat)
        return lax.cond(True, lambda: sow("c", x), lambda: x)

    def names(only: Any) -> list[list[str]]:
        (_, inner), outer = capture(capture(fun, only=only))(1.0)
        return [list(inner), list(outer)]

    by_name: Callable[[str, type[Kind]], bool] = lambda name, kind: name == "b" and kind is BatchStat  # noqa: E731
    assert names("a") == [["a"], ["b", "c"]]
    assert names(Intermediate) == [["a", "c"], ["b"]]
    assert names(["c", BatchStat]) == [["b", "c"], ["a"]]
    assert names(by_name) == [["b"], ["a", "c"]]
    assert names(None) == [["a", "b", "c"], []]
    assert list(capture(fun, only="a")(1.0)[1]) == ["a"]


def test_an_outer_capture_perturbs_what_an_inner_one_leaves():
    fun = lambda x: perturb("p", x) * 2  # noqa: E731
    outer = lambda x: capture(fun)(x)[0]  # noqa: E731
    assert list(perturbations(outer)(X)) == ["p"]
    check(capture(outer, perturb={"p": X})(X)[0], 4 * X)


def test_scopes_prefix_names_in_functions_that_jit_has_seen_before():
    @jax.jit
    def block(x: Any) -> Any:
        return perturb("p", sow("h", x))

    def fun(x: Any) -> Any:
        for name in "ab":
            with name_scope(name), name_scope("in"):
                x = block(x)
        return x

    check(fun(X), X)
    assert list(capture(fun)(X)[1]) == ["a/in/h", "b/in/h"]
    assert list(perturbations(fun)(X)) == ["a/in/p", "b/in/p"]


def test_arguments_and_outputs_may_hold_anything():
    class Layer(eqx.Module):
        weight: jax.Array
        act: Callable[[Any], Any]
        name: str = "layer"

    def fun(layer: Layer, n: int, *, flag: str) -> Any:
        assert n == 3
        assert flag == "yes"
        return sow("layer", layer).act(layer.weight), layer, n, None, flag

    layer = Layer(X, jnp.sin)
    out, sown = capture(fun)(layer, 3, flag="yes")
    check(out[0], np.sin(X))
    assert out[1].act is layer.act
    assert out[2:] == (3, None, "yes")
    assert sown["layer"][0].act is layer.act
    assert sown["layer"][0].name == "layer"


def test_typed_keys_and_empty_trees_can_be_sown_anywhere():
    def fun(key: Any) -> Any:
        sow("nothing", {"empty": None})
        return lax.cond(False, lambda k: sow("key", k), lambda k: k, key)

    out, sown = capture(fun)(jax.random.key(1))
    assert jnp.issubdtype(sown["key"][0].dtype, jax.dtypes.prng_key)
    assert sown["nothing"] == ({"empty": None},)
    check(jax.random.key_data(out), jax.random.key_data(jax.random.key(1)))


def test_results_are_arrays_of_the_types_that_the_function_returns():
    out, sown = capture(lambda x: (see(jnp.float16(1)), x))(X.astype(jnp.bfloat16))
    assert (out[0].dtype, out[1].dtype, sown["h"][0].dtype) == (jnp.float16, jnp.bfloat16, jnp.float16)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves((out, sown)))


def test_jit_keeps_its_name_and_donation_inside_a_capture():
    @jax.jit
    def plain(x: Any) -> Any:
        return see(x * 2)

    donating = jax.jit(lambda x: see(x * 2), donate_argnums=0)
    text = str(jax.make_jaxpr(capture(lambda x: plain(x) + donating(x)))(X))
    assert "name=plain" in text
    assert "donated_invars=(True,)" in text


def test_closed_over_tracers_may_be_sown_and_captured():
    def fun(x: Any) -> Any:
        return capture(lambda: lax.map(lambda a: see(a * x), X).sum())()

    check(jax.jit(fun)(2.0), (12.0, {"h": (2 * X,)}))
    check(jax.grad(lambda x: fun(x)[1]["h"][0].sum())(2.0), 6.0)
    check(jax.vmap(fun)(X)[1], {"h": (jnp.outer(X, X),)})


def hlo(fun: Callable[..., Any]) -> str:
    text = jax.jit(fun).lower(X).compile().as_text()
    assert text is not None
    return re.sub(r", metadata=\{[^}]*\}|HloModule \S+,|FileNames.*?\n\n|(?s:\nFileNames.*)", "", text)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.grad, jax.vmap])
def test_outside_a_capture_nothing_is_left_in_the_program(wrap: Any):
    def model(mark: Any, plant: Any) -> Any:
        def fun(x: Any) -> Any:
            body = jax.checkpoint(lambda c, a: (mark("h", plant("p", jnp.sin(c * a))), mark("a", a)))
            return jnp.sum(lax.scan(body, jnp.sum(x), X)[0])

        return fun

    tagged, bare = wrap(model(sow, perturb)), wrap(model(lambda _, value: value, lambda _, value: value))
    assert hlo(tagged) == hlo(bare)
    assert str(jax.make_jaxpr(tagged)(X)) == str(jax.make_jaxpr(bare)(X))
    value = object()
    assert sow("h", value) is value
    assert perturb("p", value) is value


def test_a_function_traced_outside_a_capture_is_traced_again_inside_and_the_other_way_round():
    fun = jax.jit(lambda x: see(x * 2))
    fun(X)
    assert list(capture(fun)(X)[1]) == ["h"]
    assert "tag" not in str(jax.make_jaxpr(fun)(X))
    check(fun(X), 2 * X)


def test_a_second_call_compiles_nothing():
    loop = lambda c, a: (c + see(a * 2), None)  # noqa: E731
    fun = capture(jax.jit(lambda x: lax.scan(loop, 0.0, x)[0]))
    fun(X)
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    fun(X)
    jax.monitoring.unregister_event_duration_listener(listen)
    assert compiled == []


def test_caches_let_go_of_what_they_have_seen():
    def run() -> weakref.ref[Any]:
        array = jnp.arange(4.0)
        capture(lambda x: lax.map(lambda a: see(a + array.sum()), x))(X)
        return weakref.ref(array)

    reference = run()
    jax.clear_caches()
    gc.collect()
    assert reference() is None


def test_captures_in_eight_threads_do_not_see_each_other():
    def run(i: int) -> Any:
        def fun(x: Any) -> Any:
            with name_scope(f"thread{i}"):
                return lax.scan(lambda c, a: (c + see(a * i), None), 0.0, x)[0]

        return [capture(fun)(X) if j % 2 else (fun(X), None) for j in range(4)]

    with ThreadPoolExecutor(8) as pool:
        for i, results in enumerate(pool.map(run, range(8))):
            for j, (out, sown) in enumerate(results):
                check(out, 6.0 * i)
                if j % 2:
                    check(sown, {f"thread{i}/h": (i * X,)})


def in_linear_solve(x: Any) -> Any:
    return lax.custom_linear_solve(lambda v: see(2 * v, "deep"), x, lambda _, b: b / 2, lambda _, b: b / 2)


def in_shard_map(x: Any) -> Any:
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = PartitionSpec("i")
    return jax.shard_map(lambda v: see(2 * v, "deep"), mesh=mesh, in_specs=spec, out_specs=spec)(x)


@pytest.mark.parametrize(("fun", "primitive"), [(in_linear_solve, "custom_linear_solve"), (in_shard_map, "shard_map")])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, lambda f: lambda x: lax.cond(True, f, f, x)])
def test_a_tag_where_no_rule_knows_how_to_carry_it_is_an_error(fun: Any, primitive: str, wrap: Any):
    with pytest.raises(CaptureError) as caught:
        capture(wrap(fun))(X)
    assert str(caught.value).startswith(
        f"a tag inside `{primitive}`, out of which capture cannot carry values\n  at: name 'deep'\n"
    )
    check(wrap(fun)(X), fun(X))


def give(value: Any) -> Callable[[], Any]:
    return lambda: capture(lambda x: perturb("p", x), perturb=value)(X)


@pytest.mark.parametrize(
    ("run", "error", "message"),
    [
        (give({}), StructureError, "no perturbation is given for the name 'p'\n"),
        (
            give({"p": X, "q": X}),
            StructureError,
            "the function plants no perturbation named 'q'\n  at: planted: 'p'\n  fix: pass what `perturbations(fun)`",
        ),
        (
            give({"p": X[:2]}),
            StructureError,
            "the perturbation 'p' does not fit the perturbed value\n  at: perturbation: float32[2]\n"
            "  at: value: float32[3]\n",
        ),
        (
            give({"p": (X,)}),
            StructureError,
            "the perturbation 'p' is not a tree like the perturbed value\n  at: perturbation: PyTreeDef((*,))\n",
        ),
        (
            lambda: perturbations(lambda x: perturb("p", x) + perturb("p", x))(X),
            CaptureError,
            "two values are perturbed under the name 'p'\n  fix: give each value a name of its own, or open a "
            "`name_scope`",
        ),
        (
            lambda: capture(lambda x: perturb("p", (x, 1)))(X),
            DifferentiationError,
            "the perturbed value 'p' holds int32[]\n  fix: perturb only the inexact arrays",
        ),
        (
            lambda: capture(lambda: [sow("h", i, mode="strict") for i in range(2)])(),
            CaptureError,
            "the name 'h' is sown 2 times, with mode 'strict'\n  fix: give each value a name of its own, open a",
        ),
        (
            lambda: capture(lambda: [sow("h", 1, mode="append"), sow("h", 1, mode="clobber")])(),
            CaptureError,
            "the name 'h' is sown with several modes: append, clobber\n  fix: use one mode for a name",
        ),
        (
            lambda: capture(lambda: sow("h", 1, mode="last"))(),  # pyright: ignore[reportArgumentType]
            CaptureError,
            "unknown mode 'last' for the sown name 'h'\n  fix: 'append', 'clobber' or 'strict'",
        ),
    ],
)
def test_errors_say_what_is_wrong_with_which_name(run: Callable[[], Any], error: type[Exception], message: str):
    with pytest.raises(error) as caught:
        run()
    assert str(caught.value).startswith(message), str(caught.value)


def test_jax_still_has_what_the_mechanism_reaches_for():
    jaxpr = jax.make_jaxpr(jax.jit(lambda x: x))(X)
    params = jaxpr.eqns[0].params
    assert _jax.jit_p is jaxpr.eqns[0].primitive
    assert equations.extend_jit(params, params["jaxpr"], 1, 1)["out_shardings"] == params["out_shardings"] * 2
    assert {"donated_invars", "in_shardings", "out_shardings", "in_layouts", "out_layouts", "jaxpr"} <= set(params)
    loop = jax.make_jaxpr(lambda x: lax.while_loop(lambda c: c < 3, lambda c: c + 1, x))(1.0)
    assert set(loop.eqns[0].params) == {"cond_nconsts", "cond_jaxpr", "body_nconsts", "body_jaxpr"}
    scan = jax.make_jaxpr(lambda x: lax.scan(lambda c, a: (c, a), 0.0, x))(X)
    counts = {"ft_in", "ft_out"} if "ft_in" in scan.eqns[0].params else {"num_consts", "num_carry"}
    assert set(scan.eqns[0].params) == {"reverse", "length", "jaxpr", "unroll"} | counts
    assert equations.scan_counts(scan.eqns[0].params) == (1, 0)  # a carry that goes through is a constant
    remat = jax.make_jaxpr(jax.checkpoint(jnp.sin))(X)
    assert set(remat.eqns[0].params) == {"jaxpr", "prevent_cse", "differentiated", "policy"}
