"""The words of contract errors: they are part of the interface."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import textwrap
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from jax.sharding import PartitionSpec
from jaxtyping import Array, ArrayLike, Float, Int, Key, Shaped
from weft import ContractError, Module
from weft.typecheck import check, contract
from weft.typecheck.matching.words import in_words, short_dtype

from ..layers import MLP, linear


def failure(call) -> ContractError:
    with pytest.raises(ContractError) as caught:
        call()
    return caught.value


WEIGHT = '    weight: Float[Array, "out in"]'
X = '    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:'


def test_the_whole_message():
    class Block(Module):
        mlp: list[MLP]

        def __call__(self, x: Float[Array, "n width"]) -> Float[Array, "n width"]:
            return self.mlp[1](x)

    block = Block([MLP(linear(8, 4), linear(4, 8)), MLP(linear(8, 5), linear(5, 8))])
    origin = 'field Linear.weight: Float[Array, "out in"] is f32[8,5]'
    text = str(failure(lambda: weft.jit(lambda block, x: block(x))(block, jnp.ones((2, 4)))))
    layers, lines = os.path.join("tests", "typecheck", "layers.py"), inspect.getsource(sys.modules[MLP.__module__])
    weight, x = (lines.splitlines().index(line) + 1 for line in (WEIGHT, X))
    assert text == textwrap.dedent(f"""\
        argument x of MLP.__call__ should be f32[*batch,width=5], and is f32[2,4]
          at: in Block.mlp[1] (MLP)
          at: x: Float[Array, "*batch width"] ({layers}:{x})
          where: width = 5 from field MLP.up.in, {origin} ({layers}:{weight})
          inside: jit""")


def test_verbose_says_every_name(monkeypatch):
    @contract
    def function(x: Float[Array, "n m"], y: Float[Array, "m"]): ...

    assert "also:" not in str(failure(lambda: function(jnp.ones((2, 3)), jnp.ones(4))))
    monkeypatch.setenv("WEFT_TYPECHECK_VERBOSE", "1")
    text = str(failure(lambda: function(jnp.ones((2, 3)), jnp.ones(4))))
    assert 'where: m = 3 from argument x of function: Float[Array, "n m"] is f32[2,3]' in text
    assert 'also: n = 2 from argument x of function: Float[Array, "n m"] is f32[2,3]' in text


@pytest.mark.parametrize(
    ("annotations", "values", "fix"),
    [
        ({"x": Float[Array, "b"]}, [jnp.ones((4, 1))], "its last axis has size 1: drop it with x[..., 0]"),
        ({"x": Float[Array, "b 1"]}, [jnp.ones(4)], "it lacks the last axis of size 1: add it with x[..., None]"),
        ({"x": Float[Array, "b n"]}, [jnp.ones(4)], "the axis 'b' is missing: add it with x[None]"),
        ({"x": Float[Array, "n"]}, [jnp.ones((4, 3))], "this per-example function was given a batch"),
        ({"x": Float[Array, ""]}, [jnp.ones(4)], 'or annotate the batch axis ("batch")'),
        (
            {"x": Float[Array, "n"], "w": Float[Array, "n m"], "y": Float[Array, "m"]},
            [jnp.ones(2), jnp.ones((3, 2)), jnp.ones(3)],
            "its axes look transposed: w.transpose(1, 0) fits",
        ),
        (
            {"w": Float[Array, "n m"], "x": Float[Array, "n"]},
            [jnp.ones((3, 2)), jnp.ones(2)],
            "argument w of shape [3, 2] looks transposed: its transpose fits 'n m' with n=2",
        ),
        (
            {"x": Float[Array, "n c h w"], "y": Float[Array, "c h w"]},
            [jnp.ones((2, 3, 4, 5)), jnp.ones((4, 5, 3))],
            "its axes look transposed: y.transpose(2, 0, 1) fits",
        ),
        ({"x": Float[Array, "n"], "y": Float[Array, "n"]}, [jnp.ones(3), jnp.ones(1)], "write '#n'"),
        ({"x": Int[Array, "n"]}, [jnp.ones(3)], "cast it with x.astype(...)"),
        ({"x": Float[Array, ""]}, [jax.random.key(0)], "it is a random key; draw from it"),
        ({"key": Key[Array, ""]}, [jax.random.PRNGKey(0)], "make a typed key with jax.random.key(seed)"),
        ({"x": Float[Array, "n"]}, [np.ones(3)], "convert it with jnp.asarray(x), or annotate ArrayLike"),
        ({"x": Float[Array, "n"]}, [None], "if it may be missing, annotate it `... | None`"),
        ({"x": Float[Array, "n"], "y": Float[Array, "n"]}, [jnp.ones(3), jnp.ones(4)], None),
    ],
)
def test_common_slips_have_a_fix(annotations, values, fix):
    names = ", ".join(annotations)
    namespace: dict = {}
    exec(f"def function({names}): ...", namespace)
    function = namespace["function"]
    function.__annotations__ = annotations
    error = failure(lambda: contract(function)(*values))
    assert (error.fix is None) == (fix is None)
    assert fix is None or fix in error.fix


class Affine(weft.Module):
    weight: Float[Array, "out in"]
    bias: Float[Array, "out"] | None


@pytest.mark.parametrize("ride", [0, weft.Carry, PartitionSpec("data")])
def test_a_record_of_axes_is_made_of_the_record_that_it_is_for(ride):
    error = failure(lambda: Affine(ride, None))
    assert error.fix.startswith(f"for a record of axes or specs, write axes({{...: {ride!r}}})")


def test_the_ways_to_make_a_record_of_axes():
    models = jax.vmap(lambda w: Affine(w * jnp.ones((2, 3)), None))(jnp.arange(4.0))
    x = jnp.ones((4, 3))
    wanted = jnp.arange(4.0)[:, None] * 3 * jnp.ones((4, 2))
    for prefix in (weft.axes({...: 0}), models.replace(weight=0), jax.tree.map(lambda _: 0, models)):
        assert jnp.array_equal(weft.vmap(lambda m, x: m.weight @ x, in_axes=(prefix, 0))(models, x), wanted)


def test_the_successor_that_was_forgotten():
    @contract
    def stateful(x: Float[Array, "n"]) -> tuple[Float[Array, "n"], int]:
        return x

    error = failure(lambda: stateful(jnp.ones(2)))
    assert error.fix == "a stateful function returns its value and its successor: return y, self"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (jnp.ones((2, 3), "bfloat16"), "bf16[2,3]"),
        (np.ones(2, "uint8"), "numpy u8[2]"),
        (jax.random.key(0), "key<fry>[]"),
        (jnp.array(True), "bool[]"),
        (None, "None"),
        ("a", "str 'a'"),
        ([1], "list"),
    ],
)
def test_values_are_described_in_a_few_words(value, text):
    assert in_words(value) == text


def test_dtypes_have_short_names():
    assert [short_dtype(jnp.dtype(name)) for name in ("float32", "int8", "complex64")] == ["f32", "i8", "c64"]


def test_an_error_is_also_a_type_error():
    assert isinstance(failure(lambda: check(1.0, Shaped[Array, ""])), TypeError)
    check(1.0, Shaped[ArrayLike, ""])


PROGRAM = """
import jax.numpy as jnp
import weft
from jaxtyping import Array, Float

class Linear(weft.Module):
    weight: Float[Array, "out in"]

    def __call__(self, x: Float[Array, "in"]) -> Float[Array, "out"]:
        return self.weight @ x

def apply(layer, x):
    return weft.vmap(layer)(x)

def main():
    weft.jit(apply)(Linear(jnp.ones((3, 5))), jnp.ones((2, 4)))

main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("verbose", [False, True])
def test_the_traceback_is_cut_to_the_users_frames(tmp_path, verbose):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "WEFT_TYPECHECK_VERBOSE": "1" if verbose else ""}
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    files = [line.split('"')[1] for line in done.stderr.splitlines() if line.startswith('  File "')]
    functions = [line.rpartition(" in ")[2] for line in done.stderr.splitlines() if line.startswith('  File "')]
    if verbose:
        assert any("interpret.py" in file for file in files)
    else:
        # Of weft there is only the way to the outermost call.
        assert [name for file, name in zip(files, functions, strict=True) if file == str(program)] == [
            "<module>",
            "main",
            "apply",
        ]
        assert len(files) <= 4
    assert "ContractError: argument x of Linear.__call__ should be f32[in=5], and is f32[4]" in done.stderr


ALIASED = """
import jax
import weft

def loss(layers):
    return sum(layer.kernel.sum() for layer in layers)

def main():
    layer = weft.Linear(2, 2, key=jax.random.key(0))
    weft.grad(loss)([layer, layer])

main()
"""


def test_the_traceback_of_an_alias_error_is_cut_too():
    layer = weft.Linear(2, 2, key=jax.random.key(0))

    def loss(layers):
        return sum(layer.kernel.sum() for layer in layers)

    with pytest.raises(weft.AliasError) as caught:
        weft.grad(loss)([layer, layer])
    error = caught.value
    assert "layers[1]: the same Linear as layers[0]" in str(error)
    files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    # The line here, and the way to the call.
    assert len(files) <= 3
    assert files[0] == Path(__file__)


def test_an_error_that_crossed_a_transform_has_no_notes_of_jax():
    error = failure(lambda: weft.jit(weft.vmap(linear(3, 5)))(jnp.ones((2, 4))))
    assert "JAX_TRACEBACK_FILTERING" not in "".join(traceback.format_exception(error))


def test_the_hook_for_uncaught_errors_is_left_alone():
    failure(lambda: weft.jit(linear(3, 5))(jnp.ones(4)))
    assert "weft" not in sys.excepthook.__module__
