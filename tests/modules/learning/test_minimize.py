"""Optimizer.minimize: gradient and update in one step, with the successor taken from what the loss returns."""

from __future__ import annotations

from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib
import pytest
import weft


class Counting(weft.Module):
    """A model with state, whose parameters are cast inside."""

    weight: jax.Array
    count: Annotated[jax.Array, weft.Cache]

    def __call__(self, x: Any) -> Any:
        return x @ self.weight, self.replace(count=self.count + 1)


def make_counting() -> Counting:
    return Counting(jnp.ones(2), jnp.array(0))


X = jnp.array([1.0, 2.0])
LOSSES = {
    "value": (lambda model: weft.drop_successor(model(X))[0], 3.0, 0),
    "value, aux": (lambda model: (weft.drop_successor(model(X))[0], "aux"), (3.0, "aux"), 0),
    "value, successor": (lambda model: model(X), 3.0, 1),
    "value, aux, successor": (
        lambda model: (weft.drop_successor(model(X))[0], {"n": 1}, model(X)[1]),
        (3.0, {"n": 1}),
        1,
    ),
    "value and a cast successor": (lambda model: model.replace(weight=model.weight.astype("bfloat16"))(X), 3.0, 1),
}


@pytest.mark.parametrize("form", LOSSES)
@pytest.mark.parametrize("wrap", [lambda step: step, weft.jit], ids=["eager", "jit"])
def test_minimize_moves_parameters_and_keeps_what_the_loss_changed(form: str, wrap: Any):
    loss, value, count = LOSSES[form]
    model = make_counting()
    step = wrap(lambda opt, model: opt.minimize(loss, model))
    actual, after, opt = step(weft.Optimizer(model, optax.sgd(0.5)), model)
    assert jax.tree.map(lambda x: x if isinstance(x, str) else float(x), actual) == value
    assert (after.weight.tolist(), after.weight.dtype) == ([0.5, 0.0], jnp.float32)
    assert (int(after.count), int(opt.step)) == (count, 1)


def test_minimize_differentiates_what_the_optimizer_moves():
    model = {"a": jnp.ones(2), "b": jnp.ones(2)}
    opt = weft.Optimizer(model, optax.sgd(1.0), wrt=weft.filters.Inside("b"))
    _, after, _ = opt.minimize(
        lambda model, scale, *, shift: (model["a"] * model["b"] * scale + shift).sum(), model, 2, shift=1
    )
    assert (after["a"].tolist(), after["b"].tolist()) == ([1.0, 1.0], [-1.0, -1.0])


SEARCH = optax.lbfgs(linesearch=optax.scale_by_backtracking_linesearch(5))


class Pair(weft.Module):
    first: Counting
    second: Counting

    def __call__(self, x: Any) -> Any:
        y, first = self.first(x)
        z, second = self.second(x)
        return (y - 1) ** 2 + (z * y - 2) ** 2, Pair(first, second)


@pytest.mark.parametrize(
    "transformation",
    [
        SEARCH,
        {weft.filters.Inside("first"): SEARCH, ...: optax.sgd(0.01)},
        optax.polyak_sgd(),
        optax.MultiSteps(SEARCH, 1),
    ],
    ids=["a line search", "a line search of some", "polyak", "accumulated"],
)
@pytest.mark.parametrize("debug", [False, True])
def test_minimize_gives_the_loss_to_what_looks_at_it(transformation: Any, debug: bool):
    model = Pair(make_counting(), make_counting())
    opt = weft.Optimizer(model, transformation)
    with weft.debug.debug_successors(debug):
        step = weft.jit(lambda opt, model: opt.minimize(lambda model, x: model(x), model, X))
        before, model, opt = step(opt, model)
        after, model, opt = step(opt, model)
    assert after < before
    # Once a step, whatever a search has tried.
    assert (int(model.first.count), int(model.second.count)) == (2, 2)


def sam(opaque: bool) -> Any:
    adversary = optax.chain(optax.contrib.normalize(), optax.sgd(0.05))
    return optax.contrib.sam(optax.sgd(0.1), adversary, opaque_mode=opaque)


@pytest.mark.parametrize("opaque", [False, True], ids=["sam", "opaque sam"])
@pytest.mark.parametrize(
    "around",
    [
        optax.chain,
        lambda inner: optax.chain(optax.identity(), optax.chain(inner)),
        lambda inner: optax.named_chain(("first", optax.identity()), ("second", inner)),
        lambda inner: optax.MultiSteps(inner, 1),
        lambda inner: {weft.Param: optax.chain(inner)},
    ],
    ids=["chain", "chain of chains", "named_chain", "MultiSteps", "by filter"],
)
def test_what_takes_no_value_inside_of_what_hands_one_on_is_not_given_it(around: Any, opaque: bool):
    def run(transformation: Any) -> Any:
        model = weft.Linear(3, 1, key=jax.random.key(0))
        opt = weft.Optimizer(model, transformation)
        step = weft.jit(lambda opt, model, x: opt.minimize(lambda m, x: jnp.mean((m(x) - 1) ** 2), model, x))
        for _ in range(4):
            _, model, opt = step(opt, model, jnp.eye(3))
        return model

    alone, inside = run(sam(opaque)), run(around(sam(opaque)))
    assert jnp.allclose(alone.kernel, inside.kernel, atol=1e-6)
    assert not jnp.allclose(alone.kernel, weft.Linear(3, 1, key=jax.random.key(0)).kernel)


def test_minimize_names_what_is_no_scalar_and_what_may_be_the_successor():
    model = make_counting()
    opt = weft.Optimizer(model, optax.sgd(1.0))
    with pytest.raises(weft.WeftError):
        opt.minimize(lambda model: model.weight, model)
    with pytest.raises(weft.SuccessorError, match="it may be the successor or a value"):
        opt.minimize(lambda model: (model, model(X)[0]), model)
