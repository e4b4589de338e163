"""Exported functions over objects and states of NNX."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft import nnx
from weft.core import AliasError
from weft.errors import StructureError

X = jnp.ones((1, 2))


@pytest.mark.parametrize("mode", [{}, {"graph": False}], ids=["graph", "tree"])
def test_a_function_of_an_object_is_exported_if_it_only_reads(mode: dict[str, Any]):
    @nnx.jit(**mode)
    def run(model: Any, x: Any) -> Any:
        return model(x)

    model = nnx.Sequential(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), nnx.BatchNorm(2, rngs=nnx.Rngs(0)))
    with pytest.raises(StructureError, match=r"layers\[1\]\.mean") as caught:
        weft.export(run)(model, X)
    assert "return nnx.state(model)" in str(caught.value)
    model.eval()
    np.testing.assert_allclose(weft.export(run)(model, X).call(model, X), model(X), rtol=1e-6)


def test_a_function_of_a_state_is_exported():
    graphdef, state = nnx.split(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    exported = weft.export(nnx.jit(lambda state, x: nnx.merge(graphdef, state)(x)))(state, X)
    np.testing.assert_allclose(exported.call(state, X), nnx.merge(graphdef, state)(X), rtol=1e-6)


def test_objects_that_share_a_variable_are_refused_and_their_state_is_not():
    first, second = (nnx.Linear(2, 2, rngs=nnx.Rngs(seed)) for seed in (0, 1))
    second.kernel = first.kernel
    model = nnx.Sequential(first, second)
    with pytest.raises(AliasError, match=r"layers\[0\]\.kernel\.value and model\.layers\[1\]\.kernel\.value"):
        weft.export(nnx.jit(lambda model, x: model(x)))(model, X)
    graphdef, state = nnx.split(model)

    def gradient(state: Any, x: Any) -> Any:
        return nnx.grad(lambda model: model(x).sum())(nnx.merge(graphdef, state))

    exported = weft.export(nnx.jit(gradient))(state, X)
    assert sorted(exported.flatten(state, X)) == [
        "state.layers[0].bias.value", "state.layers[0].kernel.value", "state.layers[1].bias.value", "x",
    ]  # fmt: skip
    kernel = exported.call(state, X)["layers"][0]["kernel"][...]
    np.testing.assert_allclose(kernel, gradient(state, X)["layers"][0]["kernel"][...], rtol=1e-6)


def test_an_object_that_is_otherwise_configured_is_refused():
    exported = weft.export(nnx.jit(lambda model, x: model(x)))(
        nnx.BatchNorm(2, rngs=nnx.Rngs(0), use_running_average=True), X
    )
    with pytest.raises(StructureError, match=r"at: model, .*1e-05, not 0\.5"):
        exported.call(nnx.BatchNorm(2, epsilon=0.5, rngs=nnx.Rngs(0), use_running_average=True), X)


# Of both layers, written and read by two processes that hash texts otherwise.
PROGRAM = """
    import sys
    from pathlib import Path
    import jax, jax.numpy as jnp, weft
    from weft import nnx

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.blocks = nnx.List([nnx.Linear(2, 2, rngs=rngs), nnx.Linear(2, 2, rngs=rngs)])
            self.norm, self.dropout, self.act = nnx.BatchNorm(2, rngs=rngs), nnx.Dropout(0.5, rngs=rngs), nnx.gelu
            self.scale = nnx.Param(jnp.ones(2), units=("m", 1.5), note=None)
        def __call__(self, x):
            for block in self.blocks:
                x = self.act(block(x))
            return self.dropout(self.norm(x)) * self.scale

    class Record(weft.Module):
        layers: dict
        norm: weft.LayerNorm
        act: object = jax.nn.gelu
        def __call__(self, x):
            return self.norm(self.act(self.layers["a"](x)))

    x = jnp.arange(4.0).reshape(2, 2)
    net = Net(nnx.Rngs(0))
    net.eval()
    record = Record({"a": weft.Linear(2, 2, key=jax.random.key(1))}, weft.LayerNorm(2))
    graphdef, state = nnx.split(net.norm)
    cases = {
        "object": (nnx.jit(lambda net, x: net(x)), net),
        "state": (nnx.jit(lambda state, x: nnx.merge(graphdef, state)(x)), state),
        "flat": (jax.jit(lambda flat, x: sum(jax.tree.leaves(flat)).sum() + x), nnx.to_flat_state(state)),
        "record": (weft.jit(lambda record, x: record(x)), record),
    }
    for name, (function, model) in cases.items():
        file = Path(sys.argv[1]) / name
        if file.exists():
            y = weft.load_exported(file.read_bytes()).call(model, x)
            print(name, bool(jnp.allclose(y, function(model, x), atol=1e-6)))
        else:
            file.write_bytes(weft.export(function)(model, x).serialize())
"""


@pytest.mark.slow
def test_another_process_calls_what_was_written(tmp_path: Path):
    program = textwrap.dedent(PROGRAM)

    def run(seed: str) -> str:
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", program, str(tmp_path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("1") == ""
    assert run("2").splitlines() == ["object True", "state True", "flat True", "record True"]
