"""Exported training steps of both layers: another process goes on with them, with weft or with NumPy arrays alone."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import weft
from weft import nnx
from weft.errors import StructureError

X, Y = jnp.ones((4, 2)), jnp.zeros((4, 1))

PROGRAM = """
    import sys
    from pathlib import Path
    import jax, jax.numpy as jnp, optax, weft
    from weft import nnx

    class Record(weft.Module):
        layers: tuple
        norm: weft.BatchNorm
        streams: weft.Keys
        act: object = lambda x: jax.nn.gelu(2 * x)

        def __call__(self, x):
            with weft.thread(self) as t:
                first, last = t.layers
                x = t.norm(self.act(first(x)).astype(jnp.float32)).astype(jnp.bfloat16)
                x = x + 0.01 * jax.random.normal(t.streams("noise"), x.shape, jnp.bfloat16)
                return t.done(last(x))

    def loss(net, x, y):
        prediction, net = net(x)
        return jnp.mean((prediction - y) ** 2), net

    @weft.jit
    def step(carry, x, y):
        net, opt = carry
        value, net, opt = opt.minimize(loss, net, x, y)
        return value, (net, opt)

    def record(tx):
        keys = jax.random.split(jax.random.key(0), 2)
        make = lambda key, n, m: weft.Linear(n, m, key=key, param_dtype=jnp.bfloat16)
        net = Record((make(keys[0], 2, 3), make(keys[1], 3, 1)), weft.BatchNorm(3), weft.Keys(jax.random.key(1)))
        return net, weft.Optimizer(net, tx)

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.layers = nnx.List([nnx.Linear(2, 3, param_dtype=jnp.bfloat16, rngs=rngs), nnx.BatchNorm(3, rngs=rngs)])
            self.rest = nnx.Sequential(nnx.Dropout(0.5, rngs=rngs), nnx.Linear(3, 1, rngs=rngs), lambda x: 2 * x)

        def __call__(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.rest(x)

    model = Net(nnx.Rngs(0))
    graphdef, state = nnx.split((model, nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)))

    def update(model, optimizer, x, y):
        value, gradient = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
        optimizer.update(model, gradient)
        return value

    @nnx.jit
    def of_state(state, x, y):
        model, optimizer = nnx.merge(graphdef, state)
        return update(model, optimizer, x, y), nnx.state((model, optimizer))

    @jax.jit
    def of_state_in_plain_jit(state, x, y):
        model, optimizer = nnx.merge(graphdef, state)
        return update(model, optimizer, x, y), nnx.state((model, optimizer))

    @nnx.jit
    def of_objects(pair, x, y):
        return update(*pair, x, y), pair

    x = jax.random.normal(jax.random.key(1), (8, 2))
    y = x.sum(1, keepdims=True)
    schedule = lambda: optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 10)
    transformations = {
        "sgd": optax.sgd(1e-2),
        "chain": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule())),
        "several": {
            weft.filters.All(weft.Param, weft.filters.PathContains("norm")): optax.adam(1e-2),
            ...: optax.lion(1e-3),
        },
        "multi": optax.MultiSteps(optax.adam(1e-2), 2),
        "masked": optax.masked(optax.adam(1e-2), jax.tree.map(lambda a: a.ndim > 1, record(optax.sgd(1.0))[0])),
    }
    cases = {name: (step, record(tx)) for name, tx in transformations.items()}
    cases["state"] = of_state, state
    cases["plain"] = of_state_in_plain_jit, state
    cases["objects"] = of_objects, nnx.merge(graphdef, nnx.clone(state))
    read = sys.argv[2] == "read"
    for name, (function, carry) in cases.items():
        file = Path(sys.argv[1]) / name
        if not read:
            file.write_bytes(weft.export(function)(carry, x, y).serialize())
            continue
        exported = weft.load_exported(file.read_bytes())
        carry = nnx.clone(carry) if name in ("state", "plain", "objects") else carry
        ours = carry
        theirs = nnx.clone(carry) if name in ("state", "plain", "objects") else carry
        for _ in range(4):
            expected, ours = function(ours, x, y)
            value, theirs = exported.call(theirs, x, y)
            assert jnp.allclose(value, expected, rtol=1e-2), (name, value, expected)
        pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
        plain = lambda a: jax.random.key_data(a) if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else a
        same = all(a.dtype == b.dtype and jnp.allclose(plain(a), plain(b), atol=1e-2) for a, b in pairs)
        print(name, same)
"""


@pytest.mark.slow
def test_another_process_trains_with_the_step_that_was_written(tmp_path: Path):
    def run(seed: str, action: str) -> str:
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path), action]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("1", "write") == ""
    cases = ("sgd", "chain", "several", "multi", "masked", "state", "plain", "objects")
    assert run("2", "read").splitlines() == [f"{case} True" for case in cases]


# A process that serves: JAX and NumPy are there, but not weft and what it is built on.
SERVING = """
    import importlib.abc, sys

    class Refusing(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in ("weft", "equinox", "jaxtyping", "optax", "flax"):
                raise ImportError(f"{name} is not installed here")

    sys.meta_path.insert(0, Refusing())
    import jax, numpy as np
    import ml_dtypes  # NumPy's bfloat16, which JAX brings along

    folder = sys.argv[1]
    program = jax.export.deserialize(open(f"{folder}/step", "rb").read())
    (avals,), _ = jax.tree.unflatten(program.in_tree, program.in_avals)
    with np.load(f"{folder}/arrays.npz") as saved:
        arrays = {path: saved[path].view(avals[path].dtype) for path in avals}
    assert all(type(array) is np.ndarray for array in arrays.values())
    step = jax.jit(program.call)
    for _ in range(3):
        out = step(arrays)
        print(float(out.pop("loss")))
        arrays |= {path: np.asarray(array) for path, array in out.items()}
    assert not {"weft", "equinox"} & sys.modules.keys()
    np.savez(f"{folder}/trained.npz", **arrays)
"""


class Noisy(weft.Module):
    """Of all that a training step holds: bfloat16, statistics, keys, and an activation without a name."""

    first: weft.Linear
    norm: weft.BatchNorm
    streams: weft.Keys
    act: Any = lambda x: jax.nn.gelu(2 * x)

    def __call__(self, x: Any) -> Any:
        with weft.thread(self) as t:
            x = t.norm(self.act(t.first(x)).astype(jnp.float32))
            return t.done(x + 0.1 * jax.random.normal(t.streams("noise"), x.shape))


@pytest.mark.slow
def test_a_process_without_weft_trains_on_numpy_arrays_alone(tmp_path: Path):
    layer = weft.Linear(2, 1, key=jax.random.key(0), param_dtype=jnp.bfloat16)
    net = Noisy(layer, weft.BatchNorm(1), weft.Keys(jax.random.key(1)))
    opt, ema = weft.Optimizer(net, optax.adamw(1e-2)), jax.tree.map(lambda a: a, weft.tree.select(net, weft.Param))

    def loss(net: Any, x: Any, y: Any) -> Any:
        prediction, net = net(x)
        return jnp.mean((prediction - y) ** 2), net

    @weft.jit
    def step(net: Any, opt: Any, ema: Any, x: Any, y: Any) -> Any:
        value, net, opt = opt.minimize(loss, net, x, y)
        ema = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, ema, weft.tree.select(net, weft.Param))
        return {"loss": value, "net": net, "opt": opt, "ema": ema}

    x = jax.random.normal(jax.random.key(2), (4, 2))
    exported = weft.export(step)(net, opt, ema, x, Y)
    (tmp_path / "step").write_bytes(exported.serialize())
    np.savez(tmp_path / "arrays.npz", **exported.flatten(net, opt, ema, x, Y))
    losses: list[float] = []
    for _ in range(3):
        value, net, opt, ema = (step(net, opt, ema, x, Y)[name] for name in ("loss", "net", "opt", "ema"))
        losses.append(float(value))
    command = [sys.executable, "-c", textwrap.dedent(SERVING), str(tmp_path)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose([float(line) for line in done.stdout.split()], losses, rtol=1e-2)
    with np.load(tmp_path / "trained.npz") as saved:
        trained = dict(saved)
    here = exported.flatten(net, opt, ema, x, Y)
    assert sorted(trained) == sorted(here)
    for path, array in here.items():
        actual = trained[path].view(array.dtype).astype(np.float32)
        np.testing.assert_allclose(actual, np.asarray(array, np.float32), atol=2e-2, err_msg=path)
    assert any(array.dtype == jnp.bfloat16 for array in here.values())


def linear(tx: Any) -> Any:
    net = weft.Linear(2, 1, key=jax.random.key(0))
    return net, weft.Optimizer(net, tx)


def loss(net: Any, x: Any, y: Any) -> Any:
    return jnp.mean((net(x) - y) ** 2)


@pytest.fixture(scope="module")
def exported() -> Any:
    step = weft.jit(lambda net, opt, x, y: opt.minimize(loss, net, x, y))
    return weft.load_exported(weft.export(step)(*linear(optax.adam(1e-2)), X, Y).serialize())


def test_a_step_refuses_an_optimizer_that_does_something_else(exported: Any):
    net, opt = linear(optax.adam(1e-3))
    with pytest.raises(StructureError, match=r"opt\.transformation.*step_size: -0\.01, not -0\.001"):
        exported.call(net, opt, X, Y)
    net, opt = linear(optax.adam(1e-2))
    exported.call(net, opt, X, Y)


def test_an_optimizer_from_a_step_goes_on_by_itself(exported: Any):
    own = linear(optax.adam(1e-2))
    _, net, opt = exported.call(*own, X, Y)
    assert opt.transformation is own[1].transformation
    value, _, successor = opt.minimize(loss, net, X, Y)
    assert (float(value), int(successor.step)) == (float(exported.call(net, opt, X, Y)[0]), 2)


def test_what_is_written_into_a_state_and_returned_is_not_lost():
    graphdef, state = nnx.split(nnx.BatchNorm(2, rngs=nnx.Rngs(0)))

    def run(state: Any, x: Any, returned: bool) -> Any:
        norm = nnx.merge(graphdef, state)
        return (norm(x), nnx.state(norm)) if returned else norm(x)

    step = nnx.jit(run, static_argnums=2)
    _, new = weft.export(step)(state, X, True).call(state, X)
    assert new["mean"][...].tolist() != state["mean"][...].tolist()
    with pytest.raises(StructureError, match=r"changes its arguments' objects(.|\n)*mean"):
        weft.export(step)(state, X, False)
