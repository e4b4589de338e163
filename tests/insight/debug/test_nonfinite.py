"""`weft.debug.nonfinite`: planted faults are told at their line, and right programs are left alone."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import weft
from weft import nnx

from .faults import FAULTS, RIGHT, X


def line_of(name: str) -> int:
    source, start = inspect.getsourcelines(sys.modules[FAULTS[name][0].__module__])
    around = FAULTS[name][0].__code__.co_firstlineno
    lines = [i for i, line in enumerate(source, start or 1) if line.rstrip().endswith("# here")]
    if name in ("in_custom_jvp", "in_custom_vjp"):
        return max(i for i in lines if i < around)
    return min(i for i in lines if i > around)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_told_at_its_line(name: str):
    function, fragments = FAULTS[name]
    (argument,) = function.__defaults__
    with pytest.raises(weft.errors.NonFiniteError) as caught:
        weft.debug.nonfinite(weft.jit(function))(argument)
    text = str(caught.value)
    assert f"faults.py:{line_of(name)}:" in text, text
    for fragment in fragments:
        assert fragment in text, text


@pytest.mark.parametrize("name", RIGHT)
def test_no_alarm_in_a_right_program(name: str):
    (argument,) = RIGHT[name].__defaults__
    step = weft.debug.nonfinite(weft.jit(RIGHT[name]))
    step(argument)
    step(argument)


class Layer(weft.Module):
    w: jax.Array

    def __call__(self, x):
        return jnp.log(x * self.w)


class Net(weft.Module):
    layers: list[Layer]

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_record_is_told_by_its_path_with_what_the_value_reaches():
    net = Net([Layer(jnp.full(4, 20.0)), Layer(jnp.full(4, 3.0))])

    @weft.jit
    def step(net, xs):
        value, gradient = weft.value_and_grad(lambda net: weft.vmap(net)(xs).sum())(net)
        return value, jax.tree.map(lambda p, g: p - g, net, gradient)

    with pytest.raises(FloatingPointError) as caught:
        weft.debug.nonfinite(step)(net, jnp.ones((3, 4)).at[1, 2].set(0.0))
    text = str(caught.value)
    assert "at: Net.layers[0] (Layer.__call__)" in text
    assert "inside: jit > vmap(example 1 of 3)" in text
    assert "inputs: x * self.w f32[3,4] min 0 max 20, 1 of 12 are 0" in text
    assert "reaches: the loss (output[0]); 2 Params: output[1].layers[0].w, output[1].layers[1].w" in text


def test_objects_of_nnx_are_told_by_the_paths_of_their_variables():
    class Scale(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.ones(4))

        def __call__(self, x):
            return jnp.log(self.w * x)

    @nnx.jit
    def step(model, x):
        gradient = nnx.grad(lambda model: model(x).sum())(model)
        model.w[...] = model.w[...] - gradient.w[...] / x

    model = Scale()
    with pytest.raises(weft.errors.NonFiniteError) as caught:
        weft.debug.nonfinite(step)(model, X)
    assert "reaches: model.w" in str(caught.value)


BIG, ZEROS = jnp.full((4, 2), 3e38), jnp.zeros((4, 2))
LAYERS = {
    "linear": (lambda: weft.Linear(2, 3, key=jax.random.key(0)), BIG, "dense/linear.py", "dot_general(x, kernel"),
    "norm": (lambda: weft.LayerNorm(2, epsilon=0.0), ZEROS, "norms/moments.py", "rsqrt("),
    "nnx norm": (lambda: nnx.LayerNorm(2, epsilon=0.0, rngs=nnx.Rngs(0)), ZEROS, "norms/moments.py", "rsqrt("),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_wefts_is_told_at_the_line_of_its_maths(name: str):
    make, x, file, text = LAYERS[name]
    with pytest.raises(weft.errors.NonFiniteError) as caught:
        weft.debug.nonfinite(nnx.jit(lambda layer, x: layer(x)))(make(), x)
    at = next(line for line in str(caught.value).splitlines() if line.startswith("  at: "))
    assert file in at, at
    assert text in at, at
    assert "called at" in at, at
    assert "test_nonfinite.py:" in at, at


def test_a_loss_is_named_only_where_it_is_the_only_scalar_that_is_differentiated():
    def step(w, aux):
        (loss, metric), gradient = jax.value_and_grad(lambda w: ((y := jnp.log(w).sum()), y * 2), has_aux=True)(w)
        return (loss, metric, gradient) if aux else (loss, gradient)

    for aux, text in ((False, "reaches: the loss (output[0]), output[1]"), (True, "reaches: output[0], output[1]")):
        with pytest.raises(weft.errors.NonFiniteError) as caught:
            weft.debug.nonfinite(weft.jit(lambda w, aux=aux: step(w, aux)))(X)
        assert text in str(caught.value)


def test_a_loop_under_the_context_is_looked_at_before_the_block_is_left():
    step = weft.jit(lambda x: x * 1e20)

    def train():
        x = jnp.ones(2)
        with weft.debug.nonfinite():
            for _ in range(2):
                x = step(x)

    with pytest.raises(weft.errors.NonFiniteError, match="overflow"):
        train()


def test_donated_arguments_are_copied_only_where_asked():
    step = weft.jit(lambda x: jnp.log(x), donate_argnums=0)
    with pytest.raises(weft.errors.NonFiniteError, match="keep_donated=True"):
        weft.debug.nonfinite(step)(jnp.zeros(3))
    with pytest.raises(weft.errors.NonFiniteError, match="log of 0"):
        weft.debug.nonfinite(step, keep_donated=True)(jnp.zeros(3))


def test_an_argument_that_is_not_finite_is_named():
    with pytest.raises(weft.errors.NonFiniteError, match="an argument is not finite before the call") as caught:
        weft.debug.nonfinite(weft.jit(lambda model: model["w"] * 2))({"w": X / 0})
    assert "at: model.w" in str(caught.value)


def test_an_infinity_that_is_written_down_is_an_alarm_where_it_reaches_an_output():
    with pytest.raises(weft.errors.NonFiniteError, match="written into the program"):
        weft.debug.nonfinite(weft.jit(lambda x: jnp.where(x > 0, x, -jnp.inf)))(X)


def test_what_is_expected_hides_no_other_fault():
    def step(x):
        return weft.debug.expected(jnp.log(x)), jnp.log(x - 1)

    with pytest.raises(weft.errors.NonFiniteError, match="log of"):
        weft.debug.nonfinite(weft.jit(step))(X)


def test_finite_values_whose_sum_overflows_are_no_alarm_and_hide_no_fault():
    lowest = jnp.finfo(jnp.float32).min
    step = weft.debug.nonfinite(weft.jit(lambda x: (jnp.where(x > 0, lowest, lowest / x), jnp.float16(300) * x)))
    for _ in range(3):
        masked, _ = step(jnp.ones(400))
    assert jnp.isfinite(masked).all()
    with pytest.raises(weft.errors.NonFiniteError, match=r"div of .* by 0 gives -inf"):
        step(jnp.ones(400).at[7].set(0.0))


def test_shards_of_a_mesh_and_the_environment():
    program = """
import jax, jax.numpy as jnp, weft
from jax.sharding import AxisType, PartitionSpec as P
mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
f = jax.shard_map(lambda x: jax.lax.psum(jnp.log(x), "data"), mesh=mesh, in_specs=P("data"), out_specs=P())
try:
    weft.jit(f)(jnp.ones(8).at[5].set(0.0))
except weft.errors.NonFiniteError as error:
    print(error)
"""
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "WEFT_DEBUG_NONFINITE": "1", "PATH": ""}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert "log of 0 gives -inf" in run.stdout, run.stderr
    assert "shard_map > shard 2 of 4" in run.stdout


def test_no_file_takes_the_place_of_a_public_name():
    """A file `nonfinite.py` stood for `weft.debug.nonfinite` once `expected` had been imported from it."""
    files = {file.stem for file in Path(weft.debug.__file__).parent.glob("*.py")}
    assert not files & set(weft.debug.__all__)
    assert len(files) > 4
