"""What the checker is told of objects."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from weft import nnx
from weft.core import hooks
from weft.nnx.interop.contracts import LAYER, structure
from weft.typecheck.language.forms import NOTED, layer_of, note_sizes, objects_in, sizes_of_object


class Layer(nnx.Module):
    def __init__(self, n: int, bias: bool = True):
        self.w = nnx.Param(jnp.zeros(n))
        self.activation = lambda x: x
        self.bias = bias


@pytest.mark.parametrize("cls", [Layer, nnx.Linear, nnx.Rngs, nnx.Param])
def test_classes_of_nnx_are_known_by_their_bases(cls: type):
    assert hooks.object_layer(cls) == "weft.nnx.interop.contracts"
    assert layer_of(cls) is LAYER


def test_other_classes_are_not():
    assert hooks.object_layer(dict) is None
    assert layer_of(dict) is None


@pytest.mark.slow
def test_importing_nnx_does_not_load_the_checker():
    code = "import sys; from weft import nnx; print([n for n in sys.modules if n.startswith('weft.typecheck')])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "weft.typecheck.language.forms" not in loaded
    assert "weft.typecheck.arguments.arguments" not in loaded


def test_functions_and_noted_sizes_are_no_structure_but_options_and_shapes_are():
    assert structure(Layer(2)) == structure(Layer(2))
    assert structure(Layer(2)) != structure(Layer(3))
    assert structure(Layer(2)) != structure(Layer(2, bias=False))
    noted = Layer(2)
    note_sizes(noted, {"n": 2})
    assert structure(noted) == structure(Layer(2))


def test_opening_and_closing_keeps_what_is_shared_and_makes_new_objects():
    layer = Layer(2)
    pair = {"a": layer, "b": nnx.List([layer.w])}
    twin = LAYER.closed(jax.tree.map(lambda leaf: leaf, LAYER.opened(pair)))
    assert twin["a"] is not layer
    assert twin["a"].w is twin["b"][0]


def test_noted_sizes_go_through_transforms_and_are_dims():
    layer = Layer(2)
    note_sizes(layer, {"n": 2})
    assert sizes_of_object(nnx.jit(lambda layer: layer)(layer)) == sizes_of_object(layer) == {"n": 2}


def test_a_container_is_not_noted_on():
    items = nnx.Dict(a=1)
    note_sizes(items, {"n": 2})
    assert NOTED not in items


def test_objects_are_found_once_with_their_paths():
    inner = Layer(2)
    outer = nnx.Dict(one=inner, two=nnx.List([inner, Layer(3)]))
    assert [path for path, _ in objects_in(outer, "self")] == ["self", "self.one", "self.two", "self.two[1]"]
