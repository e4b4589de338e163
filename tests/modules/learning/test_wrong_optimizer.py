"""What an optimizer is given that belongs to another model, and complex parameters, shardings and hyperparameters."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import weft
from weft.errors import ConfigError, DifferentiationError, DonatedError, StructureError, TraceLevelError

KEY, X = jax.random.key(0), jnp.ones((3, 4))


def loss(model: Any, x: Any = X) -> Any:
    return jnp.mean(model(x) ** 2)


def linear(out: int) -> Any:
    return weft.Linear(4, out, key=KEY)


# --- complex parameters -----------------------------------------------------------------------------------------------

START, GOAL = jnp.array([1 + 1j, 2 - 1j]), 3 + 4j
ELEMENTWISE = {"sgd": optax.sgd(0.1), "momentum": optax.sgd(0.05, momentum=0.9), "adam": optax.adam(0.1)}


def distance(model: Any) -> Any:
    return jnp.sum(jnp.abs(model["z"] - GOAL) ** 2)


def distance_of_pairs(model: Any) -> Any:
    return jnp.sum((model["re"] - GOAL.real) ** 2 + (model["im"] - GOAL.imag) ** 2)


def trained(of: Any, model: Any, transformation: Any, by_hand: bool = False) -> Any:
    opt = weft.Optimizer(model, transformation)
    for _ in range(20):
        if by_hand:
            model, opt = opt.update(model, weft.grad(of)(model))
        else:
            _, model, opt = opt.minimize(of, model)
    return model


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize("by_hand", [False, True], ids=["minimize", "update"])
def test_complex_parameters_move_as_pairs_of_real_ones(name: str, by_hand: bool):
    transformation = ELEMENTWISE[name]
    # Adam's second moment of a complex number is that of its length, unless optax splits it.
    split = optax.contrib.split_real_and_imaginary(transformation)
    model = trained(distance, {"z": START}, split if name == "adam" else transformation, by_hand)
    pairs = trained(distance_of_pairs, {"re": START.real, "im": START.imag}, transformation)
    np.testing.assert_allclose(model["z"], pairs["re"] + 1j * pairs["im"], rtol=1e-4)


@pytest.mark.parametrize(
    "transformation",
    [optax.adam(0.1), optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)), {...: optax.rmsprop(0.1)}],
    ids=["adam", "clipped", "by filter"],
)
def test_the_loss_of_complex_parameters_falls(transformation: Any):
    assert distance(trained(distance, {"z": START}, transformation)) < 0.5 * distance({"z": START})


# --- another model ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: optax.sgd(0.1), lambda: optax.adam(0.1), lambda: optax.adafactor(0.1)])
@pytest.mark.parametrize("made_for", [1, 2])
@pytest.mark.parametrize("wrap", [lambda step: step, weft.jit], ids=["eager", "jit"])
def test_an_optimizer_of_other_shapes_is_refused(make: Any, made_for: int, wrap: Any):
    transformation = make()
    step = wrap(lambda opt, model: opt.minimize(loss, model))
    step(weft.Optimizer(linear(8), transformation), linear(8))
    with pytest.raises(
        StructureError, match=rf"model.kernel is of shape \(4, 8\), it was of \(4, {made_for}\)"
    ) as caught:
        step(weft.Optimizer(linear(made_for), transformation), linear(8))
    assert "at: model.bias is of shape (8,), it was of" in str(caught.value)
    # The compiled step for one shape does not serve another.
    step(weft.Optimizer(linear(made_for), transformation), linear(made_for))


def test_a_reordered_list_and_real_in_the_place_of_complex_are_refused():
    models = [linear(2), linear(4)]
    opt = weft.Optimizer(models, optax.sgd(0.1))
    with pytest.raises(StructureError, match=r"model\[0\].kernel is of shape \(4, 4\), it was of \(4, 2\)"):
        opt.update(models[::-1], models)
    opt = weft.Optimizer({"z": START}, optax.adam(0.1))
    with pytest.raises(StructureError, match=r"model.z is of dtype float32, it was of complex64"):
        opt.update({"z": START.real}, {"z": START.real})
    with pytest.raises(StructureError, match=r"grad.z is of dtype float32, the parameter of complex64"):
        opt.update({"z": START}, {"z": START.real})
    # A model in another precision is the same model.
    opt = weft.Optimizer(linear(2), optax.adam(0.1))
    opt.minimize(loss, weft.tree.cast(linear(2), jnp.bfloat16))


def test_swapped_arguments_are_told_where_one_of_them_is_known():
    model = linear(2)
    opt = weft.Optimizer(model, optax.sgd(0.1))
    gradient = weft.grad(loss)(model)
    swapped = pytest.raises(StructureError, match="the gradient is in the place of the model")
    with swapped:
        opt.update(gradient, model)
    with swapped:
        weft.jit(lambda opt, model: opt.update(weft.grad(loss)(model), model))(opt, model)
    # A gradient from a compiled function is unknown, but the model is the optimizer's.
    unknown = jax.jit(jax.grad(loss))(model)
    with swapped:
        opt.update(unknown, model)
    after, opt = opt.update(model, unknown)
    with swapped:
        opt.update(unknown, after)
    opt.update(after, jax.tree.map(lambda g: 2 * g, gradient))
    opt.update(weft.tree.copy(gradient), weft.tree.copy(model))  # on purpose


# --- raw errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", [jnp.argmax, lambda y: (y > 0).all(), lambda y: (jnp.argmax(y), 1), lambda y: 1])
def test_a_loss_without_a_gradient_is_refused(of: Any):
    opt = weft.Optimizer(linear(2), optax.sgd(0.1))
    with pytest.raises(DifferentiationError, match=r"returns a real number, but this one returned ~?(int32|bool)\[\]"):
        opt.minimize(lambda model: of(model(X)), linear(2))
    with pytest.raises(DifferentiationError, match="returns a real number, but this one returned complex64"):
        weft.grad(lambda model: model(X).sum() + 1j)(linear(2))
    with pytest.raises(DifferentiationError, match="returns one scalar"):
        opt.minimize(lambda model: (), linear(2))


class Two(weft.Module):
    first: Any
    second: Any

    def __call__(self, x: Any) -> Any:
        return self.second(self.first(x))


def test_a_donated_record_says_by_its_path_where_it_was_donated():
    model = Two(linear(4), linear(4))
    opt = weft.Optimizer(model, optax.adam(0.1))

    @weft.jit(donate_argnums=(0, 1))
    def step(model: Any, opt: Any) -> Any:
        return opt.minimize(loss, model)

    _, after, _ = step(model, opt)
    with pytest.raises(DonatedError, match=r"(?s)at: Two.first.kernel: float32\[4,4\].*donated in a call of .*step"):
        model(X)
    with pytest.raises(DonatedError, match=r"(?s)at: Optimizer.state\[0\].mu.first.*and \d more"):
        opt.minimize(loss, after)


# What reads the arrays of a donated stack of two layers, and the path under which the error names its weights.
READING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "apply": (lambda gone: weft.at(gone).layers.kernel.apply(jnp.abs), "Stack.layers.kernel"),
    "apply, of records": (lambda gone: weft.at(gone, weft.Linear).apply(weft.QuantizedLinear), "Stack.layers.kernel"),
    "set, of an index": (lambda gone: weft.at(gone).layers.kernel[0].set(1.0), "Stack.layers.kernel"),
    "one layer": (lambda gone: gone[1], "Stack.layers.kernel"),
    "one layer, selected": (lambda gone: weft.at(gone)[1].kernel.apply(jnp.abs), "Stack.layers.kernel"),
    "quantize": (weft.quantize, "Stack.layers.kernel"),
    "a constructor": (lambda gone: weft.QuantizedLinear(gone.layers), "argument 0.kernel"),
}


@pytest.mark.parametrize(("read", "path"), READING.values(), ids=READING)
def test_what_edits_a_donated_record_says_by_its_path_where_it_was_donated(read: Callable[[Any], Any], path: str):
    gone = weft.Stack(lambda key: weft.Linear(2, 2, key=key), 2, key=jax.random.key(0))

    @weft.jit(donate_argnums=0)
    def step(model: Any) -> Any:
        return weft.tree.map(lambda w: w + 1, model)

    step(gone)
    with pytest.raises(DonatedError, match=rf"(?s)at: {path}: float32\[2,2,2\].*donated in a call of .*step"):
        read(gone)


def test_a_member_of_a_donated_ensemble_is_named():
    gone = weft.Ensemble(lambda key: weft.Linear(2, 2, key=key), 2, key=jax.random.key(0))
    weft.jit(lambda model: weft.tree.map(lambda w: w + 1, model), donate_argnums=0)(gone)
    with pytest.raises(DonatedError, match=r"at: Ensemble\.members\.kernel"):
        gone[0]


def test_aliased_donation_leaves_nothing_in_the_log(capfd: Any):
    model = linear(4)
    step = weft.jit(lambda a, b: (a.kernel + 1, b.kernel + 1), donate_argnums=0)
    with pytest.raises(weft.AliasError, match=r"at: a.kernel and b.kernel"):
        step(model, model)
    assert capfd.readouterr().err == ""


def test_a_traced_rate_in_a_transformation_is_told_where_it_is_used():
    models = weft.vmap(lambda key: weft.Linear(4, 2, key=key))(jax.random.split(KEY, 3))
    step = weft.vmap(lambda opt, model: opt.minimize(loss, model)[0])
    opts = weft.vmap(lambda model, rate: weft.Optimizer(model, optax.adam(rate)))(models, jnp.arange(3.0))
    with pytest.raises(TraceLevelError, match=r"traced value of a vmap or jit that has ended(.|\n)*inject_hyperparams"):
        step(opts, models)
    injected = optax.inject_hyperparams(optax.adam)
    opts = weft.vmap(lambda model, rate: weft.Optimizer(model, injected(rate)))(models, jnp.arange(3.0))
    assert step(opts, models).shape == (3,)


@pytest.mark.parametrize("around", [lambda inner: inner, lambda inner: optax.chain(optax.clip(1.0), inner)])
def test_a_mask_that_is_taken_for_a_schedule_is_refused(around: Any):
    model = linear(2)
    mask = weft.tree.mask(model, weft.filters.PathContains("kernel"))
    for callable_mask in (mask, lambda params: jax.tree.map(lambda p: p.ndim > 1, params)):
        with pytest.raises(ConfigError, match=r'(?s)at: mask.*static_args=\("mask",\)'):
            weft.Optimizer(model, around(optax.inject_hyperparams(optax.adamw)(0.1, mask=callable_mask)))
    right = optax.inject_hyperparams(optax.adamw, static_args=("mask",))
    schedule = optax.cosine_decay_schedule(0.1, 10)
    weft.Optimizer(model, around(right(schedule, mask=mask))).minimize(loss, model)


# --- hyperparameters --------------------------------------------------------------------------------------------------

INJECTED = optax.inject_hyperparams(optax.sgd)(0.5)
ROUTES: dict[str, tuple[Any, Any]] = {
    "alone": (INJECTED, lambda node: node.state),
    "in a chain": (optax.chain(optax.clip(1.0), INJECTED), lambda node: node.state[1]),
    "masked": (optax.masked(INJECTED, {"w": True}), lambda node: node.state.inner_state),
    "one of several": (
        optax.multi_transform({"a": INJECTED}, {"w": "a"}),
        lambda node: node.state.inner_states["a"].inner_state,
    ),
}


@pytest.mark.parametrize("name", ROUTES)
def test_a_hyperparameter_is_read_and_set_without_a_retrace(name: str):
    transformation, route = ROUTES[name]
    model = {"w": jnp.zeros(2)}
    opt = weft.Optimizer(model, transformation)
    traces: list[int] = []

    @weft.jit
    def step(model: Any, opt: Any, rate: Any = None) -> Any:
        traces.append(1)
        if rate is not None:
            opt = route(weft.at(opt)).hyperparams["learning_rate"].set(rate)
        return opt.minimize(lambda model: model["w"].sum(), model)

    assert float(route(opt).hyperparams["learning_rate"]) == 0.5
    _, model, opt = step(model, opt)
    smaller = route(weft.at(opt)).hyperparams["learning_rate"].apply(lambda rate: rate / 10)
    assert jax.tree.structure(smaller) == jax.tree.structure(opt)
    _, after, _ = step(model, smaller)
    np.testing.assert_allclose(after["w"] - model["w"], -0.05, rtol=1e-5)
    assert len(traces) == 1
    for rate in (0.25, 0.125):
        _, after, changed = step(model, opt, jnp.asarray(rate, jnp.float32))
        np.testing.assert_allclose(after["w"] - model["w"], -rate, rtol=1e-5)
        assert float(route(changed).hyperparams["learning_rate"]) == rate
    assert len(traces) == 2


def test_checkpoints_describe_the_state_by_paths_alone(tmp_path: Any):
    # Files that were written when the state was dicts, and files of other releases of optax, go on loading.
    from weft.modules.checkpoints.configuration import configuration

    opt = weft.Optimizer({"w": jnp.zeros(2)}, ROUTES["in a chain"][0])
    told = configuration(opt)
    assert told["state"] == told["state[1]"] == told["state[1].hyperparams"] == {"name": "builtins:dict"}
    weft.save_checkpoint(tmp_path / "opt", opt)
    same = weft.load_checkpoint(tmp_path / "opt", opt)
    assert jax.tree.structure(same) == jax.tree.structure(opt)


# --- shardings --------------------------------------------------------------------------------------------------------

SHARDED = """
    import jax, jax.numpy as jnp, optax, weft
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def put(tree, matrix, vector):
        specs = {2: matrix, 1: vector, 0: P()}
        return jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, specs[x.ndim])), tree)

    class Net(weft.Module):
        dense: weft.Linear
        norm: weft.BatchNorm

        def __call__(self, x):
            with weft.thread(self) as t:
                return t.done(t.norm(t.dense(x)))

    def loss(net, x):
        y, net = net(x)
        return jnp.mean(y**2), net

    def step(net, opt, x):
        return opt.minimize(loss, net, x)[1:]

    net = Net(weft.Linear(8, 8, key=jax.random.key(0)), weft.BatchNorm(8))
    x = jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, P("data")))
    for transformation in (optax.adam(0.1), optax.MultiSteps(optax.sgd(0.1, momentum=0.9), 2)):
        opt = put(weft.Optimizer(net, transformation), P("model", "data"), P("data"))
        for own in ((P("data", "model"), P("model")), (P(), P())):
            before = (put(net, *own), opt)
            for run in (step, weft.jit(step), jax.jit(step)):
                for new, old in zip(jax.tree.leaves(run(*before, x)), jax.tree.leaves(before), strict=True):
                    assert new.sharding.is_equivalent_to(old.sharding, new.ndim), (own, new.sharding, old.sharding)
    average = put(weft.tree.copy(net.dense), P("model"), P("data"))
    new = weft.jit(weft.tree.ema)(average, put(net.dense, P("data", "model"), P("model")), 0.9)
    for now, was in zip(jax.tree.leaves(new), jax.tree.leaves(average), strict=True):
        assert now.sharding.is_equivalent_to(was.sharding, now.ndim), (now.sharding, was.sharding)
    batched = weft.jit(weft.vmap(lambda average, dense: weft.tree.ema(average, dense, 0.9)))
    batched(put(jnp.ones((4, 8)), P("data"), P()), put(jnp.ones((4, 8)), P("model"), P()))
    print("all keep their own")
"""


@pytest.mark.slow
def test_on_an_automatic_mesh_arrays_keep_their_own_shardings(monkeypatch: Any):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(SHARDED)], capture_output=True, text=True)
    assert done.stdout == "all keep their own\n", done.stderr[-2000:]
