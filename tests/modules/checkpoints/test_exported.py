"""`weft.export`: programs over flat dicts of arrays, and what weft puts around them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft import nnx

X = jnp.ones(3)


def shifted(x: Any) -> Any:
    return x + 1


LAYER = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
SHARED = nnx.graphdef(nnx.Sequential(LAYER, LAYER))


def normed(state: Any, x: Any) -> Any:
    norm = nnx.merge(nnx.graphdef(nnx.BatchNorm(3, rngs=nnx.Rngs(0))), state)
    return norm(x), nnx.state(norm)


class Net(weft.Module):
    weight: jax.Array
    activation: Any = jax.nn.relu
    heads: int = 3
    after: Any = shifted
    name: str = weft.static(default="net")
    layers: Any = ()
    unset: Any = None

    def __call__(self, x: Any) -> Any:
        return self.activation(x * self.weight) * self.heads, self.replace(weight=self.weight + 1)


class Result(NamedTuple):
    y: Any
    nothing: Any = None


def make() -> Net:
    return Net(jnp.full(3, 2.0), layers=(jax.nn.gelu, jnp.ones(3), {"scale": jnp.ones(()), "kind": "a"}))


def reloaded(exported: weft.Exported, **options: Any) -> weft.Exported:
    return weft.load_exported(exported.serialize(), **options)


# ---- the program ------------------------------------------------------------------------------------------------


def test_a_program_takes_and_gives_flat_dicts_keyed_by_path():
    exported = weft.export(lambda net, *rest, by: (net(rest[1] * by), {"more": [rest[0]]}))(make(), 1.0, X, by=2)
    flat = exported.flatten(make(), 1.0, X, by=2)
    paths = ["net.weight", "net.layers[1]", "net.layers[2].scale", "args[0]", "args[1]", "by"]
    assert sorted(flat) == sorted(paths)
    program = jax.export.deserialize(exported.serialize())
    out = program.call({path: np.asarray(value, jnp.result_type(value)) for path, value in flat.items()})
    assert sorted(out) == sorted(
        ["[0][0]", "[0][1].weight", "[0][1].layers[1]", "[0][1].layers[2].scale", "[1].more[0]"]
    )
    assert out["[0][0]"].tolist() == [12.0] * 3


def test_an_array_that_is_returned_by_itself_is_called_output():
    exported = weft.export(lambda x: x + 1)(X)
    assert list(jax.export.deserialize(exported.serialize()).call({"x": X})) == ["output"]
    assert reloaded(exported).call(X).tolist() == [2.0] * 3


def test_paths_are_those_of_checkpoints(tmp_path: Any):
    from safetensors.numpy import load_file

    model = {"layer": weft.Linear(3, 2, key=jax.random.key(0), param_dtype=jnp.bfloat16), "keys": jax.random.key(1)}
    weft.save_checkpoint(tmp_path / "model", {"model": model})
    exported = weft.export(lambda model, x: model["layer"](x))(model, X)
    out = jax.export.deserialize(exported.serialize()).call({**load_file(tmp_path / "model"), "x": np.ones(3, "f4")})
    np.testing.assert_array_equal(out["output"], model["layer"](X))


def test_random_keys_are_their_data_in_the_program_and_keys_around_it():
    keys = jax.random.split(jax.random.key(0, impl="rbg"))
    exported = weft.export(lambda keys: (jax.random.fold_in(keys[0], 1), keys))(keys)
    assert exported.program.in_avals[0].dtype == jnp.uint32
    new, same = reloaded(exported).call(keys)
    assert new == jax.random.fold_in(keys[0], 1)
    assert (same == keys).all()
    assert exported.flatten(jax.eval_shape(lambda: keys))["keys"].shape == (2, 4)


def test_sizes_may_be_symbols_and_platforms_others():
    rows = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 3"), jnp.float32)
    exported = reloaded(weft.export(make(), platforms=["tpu", "cpu"])(rows))
    assert exported.program.platforms == ("tpu", "cpu")
    assert exported.call(jnp.ones((5, 3)))[0].shape == (5, 3)


def test_an_exported_function_can_be_differentiated():
    exported = weft.export(weft.jit(lambda net, x: weft.drop_successor(net(x))[0]))(make(), X)
    for loaded in (exported, weft.load_exported(exported.serialize(vjp_order=1))):
        gradient = weft.grad(lambda net, loaded=loaded: loaded.call(net, X).sum())(make())
        assert gradient.weight.tolist() == [3.0] * 3


def test_static_arguments_are_not_passed_again():
    step = weft.jit(
        lambda net, mode, x, *, scale: weft.drop_successor(net(x))[0] * len(mode) * scale,
        static_argnums=1,
        static_argnames="scale",
    )
    assert reloaded(weft.export(step)(make(), "two", X, scale=2)).call(make(), X).tolist() == [36.0] * 3


def test_a_record_or_method_that_is_the_function_is_baked_in():
    layer = weft.Linear(3, 2, key=jax.random.key(0))
    for function in (layer, layer.__call__, weft.jit(layer)):
        exported = reloaded(weft.export(function)(X))
        np.testing.assert_allclose(exported.call(X), layer(X), rtol=1e-6)


# ---- what is put around it --------------------------------------------------------------------------------------


def test_a_successor_has_the_callers_configuration():
    y, net = reloaded(weft.export(lambda net, x: net(x))(make(), X)).call(make(), X)
    assert y.tolist() == [6.0] * 3
    assert isinstance(net, Net)
    assert (net.weight.tolist(), net.heads, net.after, net.layers[0]) == ([3.0] * 3, 3, shifted, jax.nn.gelu)


def test_outputs_in_containers_come_as_they_were():
    out = {"a": [X, None, ()], "b c": {1: (X, {}), 2: {(2, "c"): X}}}
    outputs = reloaded(weft.export(lambda x: jax.tree.map(lambda a: a * x, out))(X)).call(X)
    assert jax.tree.structure(outputs) == jax.tree.structure(out)


def test_a_record_that_no_argument_is_like_comes_as_a_dict_or_as_it_is_told():
    exported = weft.export(lambda x: (Result(x), Net(x, heads=4)))(X)
    outputs = reloaded(exported).call(X)
    assert jax.tree.map(jnp.shape, outputs) == (
        {"y": (3,), "nothing": None},
        {"weight": (3,), "layers": (), "unset": None},
    )
    like = jax.eval_shape(lambda: (Result(X), Net(X, heads=4)))
    result, net = reloaded(exported, out=like).call(X)
    assert (type(result), type(net), net.heads) == (Result, Net, 4)
    with pytest.raises(
        weft.errors.StructureError, match=r"at: \[0\]\.nothing\n  fix: pass a tree of the output's structure"
    ):
        reloaded(exported, out=(Result(X, X), Net(X)))


@pytest.mark.parametrize(
    ("net", "fragment"),
    [
        (make().replace(heads=4), "net.heads: 3, not 4"),
        (make().replace(after=lambda x: x + 1), "net.after: "),
        (
            make().replace(layers=(jax.nn.gelu, X, {"scale": jnp.ones(()), "kind": "b"})),
            "net.layers[2].kind: 'a', not 'b'",
        ),
        (make().replace(unset=X), "net.unset: None, not float32[3]"),
        ({"weight": X}, "net: "),
        (make().replace(weight=None), "net.weight: float32[3], not None"),
    ],
)
def test_arguments_that_are_otherwise_configured_are_refused_by_path(net: Any, fragment: str):
    exported = reloaded(weft.export(lambda net, x: net.weight * x)(make(), X))
    with pytest.raises(weft.errors.StructureError) as caught:
        exported.call(net, X)
    assert fragment in str(caught.value)
    assert "fix: make them as the process did that exported it" in str(caught.value)
    assert exported.call(make(), X).tolist() == [2.0] * 3


def test_arguments_that_are_missing_or_too_many_are_refused_by_path():
    exported = weft.export(lambda net, x: net.weight * x)(make(), X)
    with pytest.raises(weft.errors.StructureError, match=r"at: x: float32\[3\], not nothing"):
        exported.call(make())
    with pytest.raises(weft.errors.StructureError, match=r"at: y: nothing, not float32\[3\]"):
        exported.call(make(), X, y=X)


def test_static_values_in_arguments_are_compared():
    exported = reloaded(weft.export(lambda d: d["w"])({"w": X, "name": "d"}))
    assert exported.call({"w": X, "name": "d"}).tolist() == [1.0] * 3
    with pytest.raises(weft.errors.StructureError, match=r"d\.name: 'd', not 'e'"):
        exported.call({"w": X, "name": "e"})


# ---- errors -----------------------------------------------------------------------------------------------------


class Alike:
    """A key of a dict that is printed as another one is."""

    def __init__(self, number: int):
        self.number = number

    def __lt__(self, other: Any) -> bool:
        return self.number < other.number

    def __repr__(self) -> str:
        return "Alike"


class Named(weft.Module):
    x: Any
    name: Any


@pytest.mark.parametrize(
    ("function", "argument", "message", "fix", "mended"),
    [
        (
            lambda x: (x, "y"),
            X,
            r"a static value outside of a Module cannot be exported\n  at: output\[1\]: 'y'",
            "return it in a Module",
            (lambda x: Named(x, "y"), X),
        ),
        (
            lambda d: sum(d.values()),
            {Alike(1): X, Alike(2): X},
            "two arrays have the same path",
            "rename a key",
            (lambda d: sum(d.values()), {1: X, 2: X}),
        ),
        (
            nnx.jit(lambda model, x=X[:2]: model(x)),
            nnx.Sequential(LAYER, LAYER),
            r"objects that share a Variable(.|\n)*layers\[0\]\.kernel\.value and model\.layers\[1\]\.kernel\.value",
            "split them before, which",
            (nnx.jit(lambda state, x=X[:2]: nnx.merge(SHARED, state)(x)), nnx.state(nnx.Sequential(LAYER, LAYER))),
        ),
        (
            nnx.jit(lambda norm, x=X[None]: norm(x)),
            nnx.BatchNorm(3, rngs=nnx.Rngs(0)),
            r"changes its arguments' objects cannot be exported\n(.|\n)*at: norm\.mean",
            "split them, and return",
            (nnx.jit(lambda state, x=X[None]: normed(state, x)), nnx.state(nnx.BatchNorm(3, rngs=nnx.Rngs(0)))),
        ),
    ],
    ids=["static output", "one path", "a shared Variable", "a Variable that is written to"],
)
def test_what_cannot_be_exported_is_named_and_can_be_as_the_fix_says(
    function: Any, argument: Any, message: str, fix: str, mended: Any
):
    with pytest.raises(weft.WeftError, match=f"{message}(.|\n)*fix: {fix}"):
        weft.export(function)(argument)
    function, argument = mended
    out = reloaded(weft.export(function)(argument)).call(argument)
    same = jax.tree.map(jnp.allclose, jax.tree.leaves(out), jax.tree.leaves(function(argument)))
    assert all(same)


def test_one_array_in_two_places_is_an_error_where_it_would_be_split():
    tied = {"a": X, "b": X}
    with pytest.raises(weft.AliasError):
        weft.export(weft.jit(lambda d: weft.grad(lambda d: (d["a"] * d["b"]).sum())(d)))(tied)
    assert weft.export(lambda d: d["a"] * d["b"])(tied).call(tied).tolist() == [1.0] * 3


@pytest.mark.parametrize(
    "change", [lambda data: data[:-1], lambda data: b"", lambda data: data.partition(b'{"param')[0]]
)
def test_what_is_no_exported_function_of_wefts_is_refused(change: Any):
    data = weft.export(lambda x: x)(X).serialize()
    with pytest.raises(
        weft.errors.StructureError, match=r"not a function that weft exported(.|\n)*pass the bytes of weft.export\("
    ):
        weft.load_exported(change(data))
    assert weft.load_exported(data).call(X).tolist() == [1.0] * 3


def test_jax_export_says_who_exports_functions_of_records():
    with pytest.raises(weft.errors.StructureError, match=r"weft\.export\(function\)"):
        jax.export.export(weft.jit(lambda net, x: net(x)))(make(), X)


def test_a_function_of_records_is_lowered_for_other_platforms():
    lowered = (
        weft.jit(lambda net, x: weft.drop_successor(net(x))[0]).trace(make(), X).lower(lowering_platforms=("tpu",))
    )
    assert "stablehlo" in lowered.as_text()
