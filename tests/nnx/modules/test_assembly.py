"""Objects that are put together at once are those that JAX makes one by one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from weft import nnx
from weft.core.edge import trees
from weft.nnx.modules.packed import ObjectRebuilder, OnlyJaxRebuilds, assembly_of
from weft.nnx.variable.packed import is_boxed


class Layer(nnx.Module):
    def __init__(self, size: int, **more: Any):
        self.w = nnx.Param(jnp.ones(size), note=f"of {size}")
        self.size = size
        for name, value in more.items():
            setattr(self, name, value)


class Named(Layer):
    # What an object has goes past the setters of its class.
    @property
    def name(self) -> str:
        return "from the class"


def tied() -> Layer:
    layer = Layer(2)
    return Layer(1, one=layer, other=layer)


MODELS = {
    "one": lambda: Layer(2),
    "alike": lambda: nnx.List([Layer(n) for n in range(1, 6)]),
    "of several classes": lambda: nnx.List(
        [Layer(1), Named(1), nnx.Linear(1, 1, rngs=nnx.Rngs(0)), nnx.Dict(a=Layer(3))]
    ),
    "attributes of another order": lambda: nnx.List([Layer(1, a=1, b=2), Layer(1, b=2, a=1)]),
    "nothing as data": lambda: Layer(1, bias=nnx.data(None), inner=Layer(2, bias=nnx.data(None))),
    "data here, static there": lambda: nnx.List([Layer(1, x=nnx.data(None)), Layer(1, x=None)]),
    "static values": lambda: nnx.List([Layer(1, f=f, sizes=(1, 2)) for f in (jnp.sin, jnp.cos)]),
    "empty": lambda: Layer(1, a=nnx.List([]), b=nnx.Dict()),
    "tied": tied,
    "random": lambda: nnx.Sequential(nnx.BatchNorm(2, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(1))),
    "names that are no words": lambda: nnx.Dict({"a b": Layer(1), "if": Layer(2), "'": Layer(3)}),
}


def shown(value: Any) -> Any:
    """All that there is of an object, down to the identities of what is not made anew."""
    if isinstance(value, nnx.Variable):
        return type(value), id(value), value.get_metadata()
    if isinstance(value, nnx.Pytree):
        return type(value), [(name, shown(part)) for name, part in vars(value).items()]
    return value


@pytest.mark.parametrize("name", MODELS)
def test_an_assembly_makes_what_jax_makes(name: str):
    variables, definition = trees.flatten(MODELS[name](), is_boxed)
    expected = definition.unflatten(variables)
    made = ObjectRebuilder(expected).around(variables)
    nnx.graphdef(made)
    made.added_later = 1
    expected.added_later = 1
    assert shown(made) == shown(expected)
    assert jax.tree.structure(made) == jax.tree.structure(expected)
    assert nnx.graphdef(made) == nnx.graphdef(expected)
    assert repr(made) == repr(expected)


def test_what_it_makes_is_new_each_time():
    variables, definition = trees.flatten(nnx.List([Layer(2, note=nnx.Dict(a=Layer(1)))]), is_boxed)
    assembly = ObjectRebuilder(definition.unflatten(variables))
    first, second = assembly.around(variables), assembly.around(variables)
    first[0].size = 5
    del first[0].note["a"]
    assert second[0].size == 2
    assert isinstance(second[0].note["a"], Layer)


def test_what_jax_alone_can_make_is_left_to_it():
    model = Layer(1, pair=nnx.data((Layer(1), Layer(2))))
    with pytest.raises(OnlyJaxRebuilds):
        ObjectRebuilder(model)
    assert assembly_of(model) is None


def test_a_long_chain_of_objects_is_left_to_jax():
    model = Layer(1)
    for _ in range(300):
        model = Layer(1, inner=model)
    deep = model
    for _ in range(300):
        deep = Layer(1, inner=deep)
    assert assembly_of(nnx.List([Layer(1) for _ in range(9)])) is not None
    # Whether Python's stack is long enough for it is not for this test to say; that it is no error is.
    assembly_of(deep)


@pytest.mark.parametrize("count", [3, 12])
def test_a_plain_jit_returns_the_model_at_each_step(count: int):
    model = nnx.List([Layer(2, act=jnp.tanh) for _ in range(count)])

    @jax.jit
    def step(model: Any) -> Any:
        return jax.tree.map(lambda x: x + 1, model)

    for n in range(8):
        model = step(model)
        assert [float(layer.w[0]) for layer in model] == [n + 2.0] * count
        assert model[count - 1].act is jnp.tanh
    model.append(Layer(2, act=jnp.tanh))
    assert len(step(model)) == count + 1
