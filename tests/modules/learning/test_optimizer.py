"""Optimizer: what it moves, what it takes from a successor, what it refuses, and where it can go."""

from __future__ import annotations

from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import weft
from hypothesis import given
from hypothesis import strategies as st
from weft import BatchStat, Cache, LoRAParam, Param
from weft.filters import All, Inside, Maybe, Not, PathContains

pytestmark = pytest.mark.slow


class Net(weft.Module):
    hidden: weft.Linear
    norm: weft.BatchNorm
    out: weft.Linear

    def __call__(self, x):
        with weft.thread(self) as t:
            return t.done(t.out(jax.nn.relu(t.norm(t.hidden(x)))))


def net(seed: int = 0) -> Net:
    first, second = jax.random.split(jax.random.key(seed))
    return Net(weft.Linear(3, 4, key=first), weft.BatchNorm(4), weft.Linear(4, 1, key=second))


X = jnp.arange(12.0).reshape(4, 3) / 12
Y = X.sum(axis=1, keepdims=True)


def loss(model: Net, x: Any, y: Any) -> Any:
    prediction, model = model(x)
    return jnp.mean((prediction - y) ** 2), model


def gradients(model: Net, **options: Any) -> Any:
    return weft.value_and_grad(loss, has_aux=True, **options)(model, X, Y)


def step(model: Any, opt: Any, x: Any = X, y: Any = Y) -> Any:
    (value, new), gradient = weft.value_and_grad(loss, has_aux=True, wrt=opt.wrt)(model, x, y)
    model, opt = opt.update(model, gradient, state_of=new, value=value)
    return model, opt, value


def same(a: Any, b: Any) -> bool:
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


TRANSFORMATIONS = {
    "sgd": optax.sgd(0.1),
    "adam": optax.adam(0.1),
    "chain": optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(0.1)),
    "schedule": optax.sgd(optax.cosine_decay_schedule(0.1, 10)),
    "injected": optax.inject_hyperparams(optax.adam)(0.1),
    "factored": optax.adafactor(0.1),
    "schedule_free": optax.contrib.schedule_free_sgd(0.1),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_parameters_move_as_optax_moves_them(name: str):
    transformation = TRANSFORMATIONS[name]
    model, opt = net(), weft.Optimizer(net(), transformation)
    parameters = weft.tree.select(model, Param)
    state = transformation.init(parameters)
    for _ in range(3):
        (_, new), gradient = gradients(model)
        updates, state = transformation.update(gradient, state, parameters)
        parameters = optax.apply_updates(parameters, updates)
        model, opt = opt.update(model, gradient, state_of=new)
        assert same(weft.tree.select(model, Param), parameters)
        assert same(opt.optax_state, state)
    assert int(opt.step) == 3


def test_statistics_come_from_the_successor_and_parameters_do_not():
    model, opt = net(), weft.Optimizer(net(), optax.sgd(0.1))
    (_, new), gradient = gradients(model)
    perturbed = jax.tree.map(lambda leaf: leaf + 1, new)
    moved, _ = opt.update(model, gradient, state_of=perturbed)
    assert same(moved.norm.mean, perturbed.norm.mean)
    assert same(
        weft.tree.select(moved, Param), jax.tree.map(lambda p, g: p - 0.1 * g, weft.tree.select(model, Param), gradient)
    )


def test_without_a_successor_everything_else_stays():
    model, opt = net(), weft.Optimizer(net(), optax.sgd(0.1))
    moved, _ = opt.update(model, gradients(model)[1])
    assert moved.norm.mean is model.norm.mean


def test_a_cast_inside_the_loss_never_reaches_the_masters():
    def low_precision(model: Net, x: Any) -> Any:
        model = weft.tree.update(model, jax.tree.map(lambda p: p.astype(jnp.bfloat16), weft.tree.select(model, Param)))
        y, model = model(x.astype(jnp.bfloat16))
        return y.astype(jnp.float32).mean(), model

    model = net()
    opt = weft.Optimizer(model, optax.set_to_zero())
    (_, new), gradient = weft.value_and_grad(low_precision, has_aux=True)(model, X)
    assert new.hidden.kernel.dtype == jnp.bfloat16
    moved, _ = opt.update(model, gradient, state_of=new)
    assert same(weft.tree.select(moved, Param), weft.tree.select(model, Param))
    assert not same(moved.norm.mean, model.norm.mean)


def test_low_precision_parameters_keep_their_dtype():
    model = jax.tree.map(lambda p: p.astype(jnp.bfloat16), weft.Linear(2, 2, key=jax.random.key(0)))
    opt = weft.Optimizer(model, optax.sgd(jnp.float32(0.1)))
    moved, _ = opt.update(model, jax.tree.map(lambda p: jnp.ones(p.shape, jnp.float32), model))
    assert {leaf.dtype for leaf in jax.tree.leaves(moved)} == {jnp.dtype(jnp.bfloat16)}


def test_each_parameter_is_moved_by_the_first_filter_that_matches():
    model = net()
    by_filter = {Inside("out"): optax.sgd(1.0), PathContains("bias"): optax.set_to_zero(), ...: optax.sgd(0.1)}
    opt = weft.Optimizer(model, by_filter)
    _, gradient = gradients(model)
    moved, opt = opt.update(model, gradient)
    rate = {"hidden.kernel": 0.1, "hidden.bias": 0, "norm.scale": 0.1, "norm.bias": 0, "out.kernel": 1, "out.bias": 1}
    for path, factor in rate.items():
        layer, name = path.split(".")
        was, now, slope = (getattr(getattr(tree, layer), name) for tree in (model, moved, gradient))
        np.testing.assert_allclose(now, was - factor * slope, err_msg=path)
    assert len(opt.optax_state) == 3


def test_a_dict_of_transformations_passes_extra_arguments_to_those_that_take_them():
    model = net()
    plateau = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=1, accumulation_size=1))
    opt = weft.Optimizer(model, {Inside("out"): plateau, ...: optax.sgd(0.1)})
    _, gradient = gradients(model)
    for _ in range(4):
        _, opt = opt.update(model, gradient, value=jnp.array(1.0))
    assert float(opt.optax_state[0][-1].scale) < 1


def test_a_parameter_that_no_filter_matches_is_named():
    with pytest.raises(weft.errors.FilterError, match="no filter matches these leaves") as caught:
        weft.Optimizer(net(), {Inside("out"): optax.sgd(1.0), Inside("norm"): optax.sgd(1.0)})
    assert "at: hidden.kernel: Param" in str(caught.value)


def test_a_filter_that_matches_no_parameter_is_named():
    with pytest.raises(weft.errors.FilterError, match="these filters match no leaf: LoRAParam"):
        weft.Optimizer(net(), optax.sgd(0.1), wrt=LoRAParam)
    with pytest.raises(weft.errors.FilterError, match=r"these filters match no leaf: Inside\('outt'\)"):
        weft.Optimizer(net(), {Inside("outt"): optax.sgd(1.0), ...: optax.sgd(1.0)})
    weft.Optimizer(net(), {Maybe(LoRAParam): optax.sgd(1.0), ...: optax.sgd(1.0)})


@pytest.mark.parametrize(
    ("model", "transformation", "fix"),
    [
        (optax.sgd(0.1), {"w": jnp.ones(2)}, "the model comes first"),
        ({"w": jnp.ones(2)}, optax.adam, r"call it: adam\(...\)"),
        ({"w": jnp.ones(2)}, {...: optax.adam}, r"call it: adam\(...\)"),
    ],
)
def test_what_is_no_transformation_is_refused_with_the_fix(model: Any, transformation: Any, fix: str):
    with pytest.raises(weft.errors.ConfigError, match=f"takes a transformation of optax(.|\n)*{fix}"):
        weft.Optimizer(model, transformation, wrt=...)


def test_only_what_wrt_selects_is_moved():
    model = net()
    opt = weft.Optimizer(model, optax.adam(0.1), wrt=All(Param, Not(Inside("hidden"))))
    moved, opt, _ = step(model, opt)
    assert moved.hidden.kernel is model.hidden.kernel
    assert not same(moved.out, model.out)
    assert opt.optax_state[0].mu.hidden.kernel is None


def test_a_gradient_that_does_not_fit_is_named_by_path():
    model = net()
    opt = weft.Optimizer(model, optax.sgd(0.1))
    part = gradients(model, wrt=Inside("out"))[1]
    with pytest.raises(
        weft.errors.StructureError, match="the gradient does not fit the optimized leaves: Param"
    ) as caught:
        opt.update(model, part)
    assert "at: grad.hidden.kernel is missing" in str(caught.value)
    head = weft.Optimizer(model, optax.sgd(0.1), wrt=Inside("out"))
    with pytest.raises(weft.errors.StructureError, match=r"grad.hidden.kernel is the gradient of no parameter"):
        head.update(model, gradients(model)[1])
    wide = jax.tree.map(lambda leaf: leaf[None], gradients(model)[1])
    with pytest.raises(
        weft.errors.StructureError, match=r"grad.out.bias is of shape \(1, 1\), the parameter of \(1,\)"
    ):
        opt.update(model, wide)


def test_a_successor_of_another_structure_is_named_by_path():
    model = net()
    opt = weft.Optimizer(model, optax.sgd(0.1))
    (_, new), gradient = gradients(model)
    low = weft.tree.update(new, jax.tree.map(lambda s: s.astype(jnp.bfloat16), weft.tree.select(new, BatchStat)))
    with pytest.raises(weft.SuccessorError, match=r"state_of.norm.mean: float32\[4\] -> bfloat16\[4\]"):
        opt.update(model, gradient, state_of=low)
    with pytest.raises(weft.SuccessorError, match="the successor of a Net is a Linear"):
        opt.update(model, gradient, state_of=new.out)
    with pytest.raises(weft.SuccessorError, match=r"state_of.norm.inference: static False -> static True"):
        opt.update(model, gradient, state_of=weft.inference_mode(new))


def test_another_model_is_refused():
    opt = weft.Optimizer(net(), optax.sgd(0.1))
    linear = weft.Linear(2, 2, key=jax.random.key(0))
    with pytest.raises(weft.errors.StructureError, match="the model has other parameters") as caught:
        opt.update(linear, linear)
    assert "at: model.hidden.kernel is no parameter there" in str(caught.value)
    assert "at: model.kernel was none there" in str(caught.value)


def test_integers_cannot_be_optimized():
    with pytest.raises(weft.errors.DifferentiationError, match=r"model.n: ~?int32\[\]"):
        weft.Optimizer({"w": jnp.ones(2), "n": jnp.array(1)}, optax.sgd(0.1), wrt=...)


def test_one_array_in_two_places_is_refused_by_both_paths():
    model = net()
    tied = {"a": model.hidden, "b": [model.hidden, model.out]}
    with pytest.raises(weft.AliasError, match=r"model.b\[0\]: the same Linear as model.a"):
        weft.Optimizer(tied, optax.sgd(0.1))
    untied = weft.tree.copy(tied)
    opt = weft.Optimizer(untied, optax.sgd(0.1))
    with pytest.raises(weft.AliasError, match=r"model.b\[0\]: the same Linear as model.a"):
        opt.update(tied, untied)
    # What the optimizer does not move may be shared.
    weft.Optimizer(tied, optax.sgd(0.1), wrt=Inside("b"))


def test_the_mode_of_the_model_may_change_between_updates():
    model = net()
    opt = weft.Optimizer(weft.inference_mode(model), optax.adam(0.1))
    model, opt, _ = step(model, opt)
    model, opt, _ = step(weft.inference_mode(model), opt)
    assert model.norm.inference


def test_gradients_accumulate_by_optax():
    model = net()
    opt = weft.Optimizer(model, optax.MultiSteps(optax.sgd(0.1), every_k_schedule=2))
    _, gradient = gradients(model)
    first, opt = opt.update(model, gradient)
    assert same(first, model)
    second, opt = opt.update(first, gradient)
    np.testing.assert_allclose(second.out.kernel, model.out.kernel - 0.1 * gradient.out.kernel, rtol=1e-6)


def test_line_searches_see_the_model():
    model = net()
    opt = weft.Optimizer(model, optax.lbfgs(linesearch=optax.scale_by_backtracking_linesearch(5)))

    def value_of(model: Net) -> Any:
        assert isinstance(model, Net)
        return weft.drop_successor(loss(model, X, Y))[0]

    before = value_of(model)
    for _ in range(2):
        value, gradient = weft.value_and_grad(value_of)(model)
        model, opt = opt.update(model, gradient, value=value, grad=gradient, value_fn=value_of)
    assert value_of(model) < before


def test_labels_and_masks_may_be_records():
    model = net()
    parameters = weft.tree.select(model, Param)
    labels = jax.tree.map(lambda leaf: "matrix" if leaf.ndim == 2 else "rest", parameters)
    mask = jax.tree.map(lambda leaf: leaf.ndim == 2, parameters)
    _, gradient = gradients(model)
    groups = {"matrix": optax.sgd(1.0), "rest": optax.set_to_zero()}
    moved, _ = weft.Optimizer(model, optax.multi_transform(groups, labels)).update(model, gradient)
    assert same(moved.out.kernel, model.out.kernel - gradient.out.kernel)
    assert same(moved.out.bias, model.out.bias)
    frozen = optax.chain(optax.masked(optax.set_to_zero(), mask), optax.sgd(1.0))
    moved, _ = weft.Optimizer(model, frozen).update(model, gradient)
    assert same(moved.out.kernel, model.out.kernel)
    assert same(moved.out.bias, model.out.bias - gradient.out.bias)
    # The same by optax alone.
    raw = optax.multi_transform(groups, labels)
    updates, _ = raw.update(gradient, raw.init(parameters), parameters)
    assert same(updates.out.kernel, -gradient.out.kernel)


@pytest.fixture(scope="module")
def trained() -> tuple[Net, Any, Any]:
    # Momentum and not Adam, which turns rounding of small gradients into steps of full size.
    model, opt = net(), weft.Optimizer(net(), optax.sgd(0.1, momentum=0.9))
    for _ in range(3):
        model, opt, value = step(model, opt)
    return model, opt, value


def close(a: Any, b: Any) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    # A bias in front of a norm has a gradient of zero: what is left of it is rounding, of the size of its terms.
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), a, b)


def test_a_compiled_step_may_be_donated_model_and_optimizer(trained: Any):
    compiled = weft.jit(step, donate_argnums=(0, 1))
    model = net()
    opt = weft.Optimizer(model, trained[1].transformation)
    for _ in range(3):
        model, opt, value = compiled(model, opt)
    close((model, opt, value), trained)


def test_no_state_shares_a_buffer_with_the_model():
    # The slow weights of lookahead, and those that schedule-free averages, start as the model's own.
    model = net()
    opt = weft.Optimizer(model, optax.contrib.schedule_free_sgd(0.1))
    weft.jit(step, donate_argnums=(0, 1))(model, opt)


def test_it_is_carried_by_scan(trained: Any):
    @weft.scan(in_axes=(weft.Carry, 0), out_axes=(weft.Carry, 0))
    def run(carry: Any, _: Any) -> Any:
        *carry, value = step(*carry)
        return tuple(carry), value

    model = net()
    (model, opt), values = run((model, weft.Optimizer(model, trained[1].transformation)), jnp.arange(3))
    close((model, opt, values[-1]), trained)


def test_it_survives_a_checkpoint(trained: Any, tmp_path: Any):
    model, opt, _ = trained
    weft.save_checkpoint(tmp_path / "state", (model, opt))
    fresh = net(1)
    like = (fresh, weft.Optimizer(fresh, opt.transformation))
    loaded, loaded_opt = weft.load_checkpoint(tmp_path / "state", like)
    assert same((loaded, loaded_opt), (model, opt))
    close(step(loaded, loaded_opt), step(model, opt))


def test_it_maps_over_an_ensemble():
    models = weft.vmap(lambda seed: jax.tree.map(lambda p: p * (1 + seed), net()))(jnp.arange(3.0))
    opts = weft.vmap(lambda model: weft.Optimizer(model, optax.sgd(0.1, momentum=0.9)))(models)
    models, opts, values = weft.vmap(step)(models, opts)
    assert values.shape == (3,)
    alone = jax.tree.map(lambda leaf: leaf[1], models)
    member = weft.vmap(lambda seed: jax.tree.map(lambda p: p * (1 + seed), net()))(jnp.arange(1.0, 2.0))
    member = jax.tree.map(lambda leaf: leaf[0], member)
    close(step(member, weft.Optimizer(member, opts.transformation))[0], alone)


def test_its_state_is_of_one_kind_whatever_the_parameters_declare():
    class Adapted(weft.Module):
        base: jax.Array
        low: Annotated[jax.Array, LoRAParam]
        cache: Annotated[jax.Array, Cache]

    model = Adapted(jnp.ones(2), jnp.ones(2), jnp.ones(2))
    opt = weft.Optimizer(model, optax.adam(0.1))
    assert jax.tree.leaves(weft.tree.select(opt, Maybe(weft.filters.Any(Param, Cache)))) == []
    assert len(jax.tree.leaves(weft.tree.select(opt, weft.OptState))) == 6
    kernel = weft.tree.select({"opt": opt}, Inside("opt.state[0].mu.low"))
    assert jax.tree.leaves(kernel)[0].shape == (2,)


def test_equal_optimizers_have_equal_structures():
    transformation = optax.adam(0.1)
    first, second = (weft.Optimizer(net(seed), transformation) for seed in (0, 1))
    assert jax.tree.structure(first) == jax.tree.structure(second)
    narrowed = weft.Optimizer(net(), transformation, wrt=All(Param, Inside("out")))
    assert jax.tree.structure(first) != jax.tree.structure(narrowed)
    groups = {Inside("out"): transformation, ...: transformation}
    first, second = (weft.Optimizer(net(seed), groups) for seed in (0, 1))
    assert jax.tree.structure(first) == jax.tree.structure(second)


def test_containers_and_arrays_may_be_models():
    opt = weft.Optimizer(jnp.ones(2), optax.adam(0.1))
    moved, opt = opt.update(jnp.ones(2), jnp.ones(2))
    np.testing.assert_allclose(moved, 0.9, rtol=1e-4)
    pair = (net(), {"scale": jnp.ones(2), "steps": jnp.zeros((), int)})
    opt = weft.Optimizer(pair, optax.sgd(0.1))
    moved, _ = opt.update(pair, jax.tree.map(jnp.ones_like, weft.tree.select(pair, Param)))
    np.testing.assert_allclose(moved[1]["scale"], 0.9)
    assert moved[1]["steps"] is pair[1]["steps"]


@given(st.lists(st.sampled_from(["hidden", "norm", "out"]), min_size=1, max_size=3, unique=True))
def test_groups_move_what_one_transformation_would_move(layers: list[str]):
    model = net()
    gradient = jax.tree.map(jnp.ones_like, weft.tree.select(model, Param))
    whole, _ = weft.Optimizer(model, optax.sgd(0.5)).update(model, gradient)
    groups: dict[Any, Any] = {Inside(layer): optax.sgd(0.5) for layer in layers}
    if len(layers) < 3:
        groups[...] = optax.sgd(0.5)
    assert same(weft.Optimizer(model, groups).update(model, gradient)[0], whole)
