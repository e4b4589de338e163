"""The second run of a call: what it compiles and shows, and how it begins in loops and processes of both layers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pytest
import weft
from weft import nnx


def operations(folder: Path) -> dict[str, int]:
    """The number of operations in each program that JAX has compiled, by file name."""
    return {file.name: len(re.findall(r"\b(?:stablehlo|chlo)\.\w+", file.read_text())) for file in folder.iterdir()}


def test_the_second_run_compiles_nothing_larger_than_one_loop_body(tmp_path: Path):
    def body(total, x):
        for _ in range(20):
            x = jnp.sin(x) * 1.5
        return total + jnp.log(x - x), None

    def before(x):
        for i in range(60):
            x = jnp.cos(x) + i
        return x

    step = weft.debug.nonfinite(weft.jit(lambda xs: jax.lax.scan(body, 0.0, before(xs))[0]))
    jax.config.update("jax_dump_ir_to", str(tmp_path))
    try:
        with pytest.raises(weft.errors.NonFiniteError, match="iteration 0 of 6"):
            step(jnp.ones(6))
    finally:
        jax.config.update("jax_dump_ir_to", None)
    sizes = operations(tmp_path)
    (turn,) = (size for name, size in sizes.items() if "jit_turn" in name)
    *others, whole = sorted(sizes.values())
    assert turn <= others[-1] < turn + 20  # a scan that is compiled alone is its body, and what counts its turns
    assert whole > 3 * others[-1]


def test_a_terminal_shows_the_second_run_and_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    step = weft.debug.nonfinite(weft.jit(lambda x: jnp.log(x) * 2))

    def shown() -> str:
        with pytest.raises(weft.errors.NonFiniteError):
            step(jnp.zeros(2))
        output = capsys.readouterr()
        assert not output.out
        return output.err

    assert shown() == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes any stream for a terminal then
    step(jnp.ones(2))
    assert capsys.readouterr() == ("", "")
    assert "looking for what is not finite" in shown()


class Model(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.full(3, 2.0))

    def __call__(self, x):
        return jnp.sqrt(self.w * x)


def object_step():
    model = Model()
    optimizer = nnx.Optimizer(model, optax.sgd(1.0), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x):
        loss, gradient = nnx.value_and_grad(lambda model: model(x).sum())(model)
        optimizer.update(model, gradient)
        return loss

    return lambda: step(model, optimizer, jnp.ones(3)), "Model (Model.__call__)", "the loss"


class Record(weft.Module):
    w: jax.Array

    def __call__(self, x):
        return jnp.sqrt(self.w * x)


def record_step():
    states = [Record(jnp.full(3, 2.0))]

    @weft.jit
    def step(model, x):
        loss, gradient = weft.value_and_grad(lambda model: model(x).sum())(model)
        return loss, jax.tree.map(lambda w, g: w - g, model, gradient)

    def call():
        loss, states[0] = step(states[0], jnp.ones(3))
        return loss

    return call, "Record (Record.__call__)", "the loss"


@pytest.mark.parametrize("make", [object_step, record_step])
def test_a_block_around_a_training_loop_tells_the_first_step_that_went_wrong(make):
    call, at, reaches = make()
    calls: list[None] = []

    def train():
        with weft.debug.nonfinite():
            for _ in range(20):
                call()
                calls.append(None)

    # By steps of the root's gradient, w is 2, 1.6, 1.2, 0.7, 0.2 and -1.
    with pytest.raises(weft.errors.NonFiniteError, match="sqrt of -") as caught:
        train()
    assert f"at: {at}" in str(caught.value)
    assert f"reaches: {reaches}" in str(caught.value)
    assert 5 <= len(calls) <= 8  # at most two calls are on their way while their outputs are looked at


def test_a_block_around_a_loop_that_is_right_says_nothing_and_changes_nothing():
    for make in (object_step, record_step):
        plain, _, _ = make()
        expected = [float(plain()) for _ in range(4)]
        call, _, _ = make()
        with weft.debug.nonfinite():
            assert [float(call()) for _ in range(4)] == expected


@pytest.mark.slow
def test_the_environment_looks_at_calls_of_nnx_in_the_whole_process():
    program = """
import jax.numpy as jnp
from weft import errors, nnx
class Model(nnx.Module):
    def __init__(self):
        self.head = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    def __call__(self, x):
        return jnp.log(self.head(x))
@nnx.jit
def step(model, x):
    return model(x).sum()
try:
    step(Model(), jnp.zeros((1, 2)))
except errors.NonFiniteError as error:
    print(error)
"""
    for value, told in (("1", True), (None, False)):
        environment = {k: v for k, v in os.environ.items() if k != "WEFT_DEBUG_NONFINITE"}
        environment |= {"WEFT_DEBUG_NONFINITE": value} if value else {}
        run = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert ("log of 0 gives -inf" in run.stdout) == told, run.stderr
        assert ("Model (Model.__call__)" in run.stdout) == told
