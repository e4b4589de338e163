"""`jax.export` of `weft.jit`: exported functions take the records that they were made for, in other processes too."""

from __future__ import annotations

import enum
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft.core.records.written import read_text, write_text

X = jnp.ones(3)


class Mode(enum.Enum):
    TRAIN = "train"


def shifted(x: Any) -> Any:
    return x + 1


class Net(weft.Module):
    weight: jax.Array
    activation: Any = jax.nn.relu
    heads: int = 3
    eps: float = 1e-6
    dtype: Any = np.dtype("float32")
    mode: Any = Mode.TRAIN
    after: Any = shifted
    name: str = weft.static(default="net")
    layers: Any = ()
    unset: Any = None

    def __call__(self, x: Any) -> Any:
        return self.activation(x * self.weight) * self.heads, self.replace(weight=self.weight + 1)


def make() -> Net:
    return Net(jnp.full(3, 2.0), layers=(jax.nn.gelu, jnp.ones(3), {"scale": jnp.ones(()), "kind": "a"}))


def test_an_exported_function_takes_and_gives_records():
    exported = jax.export.export(weft.jit(lambda net, x, *, by: net(x * by)))(make(), X, by=2)
    y, net = exported.call(make(), X, by=2)
    assert y.tolist() == [12.0] * 3
    assert isinstance(net, Net)
    assert (net.weight.tolist(), net.heads, net.after) == ([3.0] * 3, 3, shifted)
    with pytest.raises(ValueError, match="must have the same pytree structure"):
        exported.call(make().replace(heads=4), X, by=2)


def test_static_arguments_are_not_passed_again():
    step = weft.jit(lambda net, mode, x: weft.drop(net(x))[0] * len(mode), static_argnums=1)
    assert jax.export.export(step)(make(), "two", X).call(make(), X).tolist() == [18.0] * 3


def test_a_record_that_is_the_function_is_baked_in():
    exported = jax.export.export(weft.jit(make()))(jax.ShapeDtypeStruct((3,), jnp.float32))
    assert exported.call(X)[0].tolist() == [6.0] * 3


def test_sizes_may_be_symbols_and_platforms_others():
    rows = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 3"), jnp.float32)
    exported = jax.export.export(weft.jit(make()), platforms=["tpu", "cpu"])(rows)
    assert exported.platforms == ("tpu", "cpu")
    assert exported.call(jnp.ones((5, 3)))[0].shape == (5, 3)


def test_an_exported_function_can_be_differentiated():
    exported = jax.export.export(weft.jit(lambda net, x: weft.drop(net(x))[0]), platforms=["cpu"])(make(), X)
    gradient = jax.grad(lambda net: exported.call(net, X).sum())(make())
    assert gradient.weight.tolist() == [3.0] * 3


def test_what_was_traced_is_lowered_as_before_without_export():
    lowered = weft.jit(lambda net, x: weft.drop(net(x))[0]).trace(make(), X).lower()
    assert lowered.compile()(make(), X).tolist() == [6.0] * 3


@pytest.mark.parametrize(
    ("run", "fragments"),
    [
        (
            lambda: jax.export.export(weft.jit(lambda d: d["w"]))({"w": X, "name": "d"}),
            ["arguments that hold something static outside of a Module", "at: d.name: static 'd'", "static_argnames"],
        ),
        (
            lambda: jax.export.export(weft.jit(lambda x: (x, "y")))(X),
            ["returns something static outside of a Module", "at: output[1]: 'y'"],
        ),
        (
            lambda: written(make().replace(after=object())),
            ["no name leads to it", "defined at the top of a module"],
        ),
    ],
)
def test_what_cannot_be_exported_is_named(run: Any, fragments: list[str]):
    with pytest.raises(weft.StaticError) as caught:
        run()
    for fragment in fragments:
        assert fragment in str(caught.value)


# ---- definitions as text, as `Exported.serialize` asks for it -------------------------------------------------------


def written(tree: Any) -> bytes:
    return write_text(jax.tree.structure(tree), "tree")


@pytest.mark.parametrize(
    "tree",
    [
        make(),
        make().replace(eps=float("nan"), heads=True, name="é\n", layers=(1, 1.0, b"x", frozenset({2, 1}), 1j, None)),
        make().replace(layers=[jax.nn.gelu, {"a": X, "b": (1, [X, "x"])}], activation=jnp.tanh, after=Net),
        ({"net": make(), "n": 1.0}, [weft.Linear(2, 2, key=jax.random.key(0))], None),
    ],
)
def test_a_definition_is_read_as_it_was_written(tree: Any):
    assert read_text(written(tree)) == jax.tree.structure(tree)


@pytest.mark.slow
def test_another_process_reads_what_this_one_wrote(tmp_path: Path):
    (tmp_path / "definition.json").write_bytes(written(make()))
    code = f"""
        import importlib.util, sys
        import jax
        spec = importlib.util.spec_from_file_location({__name__!r}, {__file__!r})
        module = importlib.util.module_from_spec(spec)
        sys.modules[{__name__!r}] = module
        spec.loader.exec_module(module)
        text = open({str(tmp_path / "definition.json")!r}, "rb").read()
        assert module.read_text(text) == jax.tree.structure(module.make())
        print("same")
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.stdout == "same\n", run.stderr


def test_classes_of_one_name_and_equinoxs_own_are_exportable():
    def define() -> Any:
        class Same(weft.Module):
            weight: jax.Array

        return Same

    first, second = define(), define()
    for cls in (first, second):
        exported = jax.export.export(weft.jit(lambda m: m.weight))(cls(X))
        assert exported.call(cls(X)).tolist() == [1.0] * 3
    layer = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    assert jax.tree.structure(layer) == read_text(written(layer))
    assert weft.exportable(eqx.nn.Linear) is eqx.nn.Linear
    assert jax.tree.structure(layer) == read_text(written(layer))


def test_a_function_without_a_name_is_told_from_others():
    def scaled(by: float) -> Any:
        return lambda x: x * by

    def record(function: Any) -> Any:
        return make().replace(after=function)

    read = read_text(written(record(scaled(2.0))))
    assert read == jax.tree.structure(record(scaled(2.0)))
    assert read == read_text(written(record(scaled(2.0))))
    for other in (scaled(3.0), scaled(2), lambda x: x * 2.0, shifted, None, 2.0):
        assert read != jax.tree.structure(record(other)), other
    with pytest.raises(weft.StaticError, match=r"scaled.<locals>.<lambda> was left in the process that exported"):
        read.unflatten([X] * read.num_leaves).after(X)


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        (b'["name", ["weft", "gone"]]', "weft.gone, which this process does not have"),
        (b'["class", "somewhere.Gone"]', "somewhere.Gone, a class that this process has not defined"),
    ],
)
def test_what_the_reading_process_does_not_have_is_named(text: bytes, fragment: str):
    with pytest.raises(weft.StaticError, match=fragment):
        read_text(text)
