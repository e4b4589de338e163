"""Module: a frozen dataclass that is a pytree, with static fields that are checked as they are set."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import treescope
import wadler_lindig
import weft
from weft.core.errors import StaticError


class Layer(weft.Module):
    weight: jax.Array
    activation: Callable[..., Any] = jnp.tanh
    sizes: Any = weft.static(default=(1, 2))
    axis: int = weft.static(default=-1, kw_only=True)

    def __call__(self, x: Any) -> Any:
        return self.activation(self.weight * x)

    def grown(self, by: Any) -> Layer:
        return self.replace(weight=self.weight + by)


class Counted(Layer):
    limit: ClassVar[int] = 3


class Written(weft.Module):
    value: jax.Array
    config: Any = weft.static()

    def __init__(self, config: Any, size: int = 2):
        self.value = jnp.ones(size)
        self.config = config


def test_a_module_is_a_frozen_pytree():
    layer = Layer(jnp.ones(2), axis=0)
    assert [leaf.shape for leaf in jax.tree.leaves(eqx.filter(layer, eqx.is_array))] == [(2,)]
    with pytest.raises(dataclasses.FrozenInstanceError):
        layer.weight = jnp.zeros(2)  # pyright: ignore
    assert isinstance(layer, eqx.Module)
    doubled = jax.tree.map(lambda x: x * 2 if eqx.is_array(x) else x, layer)
    np.testing.assert_allclose(doubled.weight, 2.0)
    assert (doubled.axis, doubled.sizes, doubled.activation) == (0, (1, 2), jnp.tanh)


def test_replace_keeps_the_rest():
    layer = Layer(jnp.ones(2))
    replaced = layer.replace(weight=jnp.zeros(2), axis=3)
    assert (replaced.axis, replaced.activation, layer.axis) == (3, jnp.tanh, -1)
    np.testing.assert_allclose(layer.weight, 1.0)
    np.testing.assert_allclose(layer.grown(2).weight, 3.0)
    with pytest.raises(
        AttributeError, match="Layer has no field 'bias'; its fields are weight, activation, sizes, axis"
    ):
        layer.replace(bias=1)
    with pytest.raises(AttributeError, match="Counted has no field 'limit'"):
        Counted(jnp.ones(2)).replace(limit=4)


@pytest.mark.parametrize(
    ("value", "fragment", "place"),
    [
        (jnp.ones(2), r"an array in a static field: float32\[2\]", "Layer.sizes"),
        (np.ones(2), r"an array in a static field: float32\[2\]", "Layer.sizes"),
        ((1, jnp.ones(())), "an array in a static field", "Layer.sizes[1]"),
        ({"a": [jnp.ones(3)]}, "an array in a static field", "Layer.sizes.a[0]"),
        ([1, 2], r"a static value must be hashable, but this list is not: \[1, 2\]", "Layer.sizes"),
        ({"a": 1}, "a static value must be hashable, but this dict is not", "Layer.sizes"),
        ({1}, "a static value must be hashable, but this set is not", "Layer.sizes"),
        (bytearray(b"a"), "a static value must be hashable, but this bytearray is not", "Layer.sizes"),
    ],
)
@pytest.mark.parametrize("how", ["construct", "replace", "__init__"])
def test_what_cannot_be_static_is_refused_by_name(value: Any, fragment: str, place: str, how: str):
    layer = Layer(jnp.ones(2))
    with pytest.raises(StaticError, match=fragment) as caught:
        {
            "construct": lambda: Layer(jnp.ones(2), sizes=value),
            "replace": lambda: layer.replace(sizes=value),
            "__init__": lambda: Written(value),
        }[how]()
    where = place.replace("Layer.sizes", "Written.config") if how == "__init__" else place
    assert f"at: {where}\n" in str(caught.value)
    assert "fix: " in str(caught.value)


def test_a_tracer_in_a_static_field_is_refused():
    with pytest.raises(StaticError, match=r"a traced array in a static field: float32\[\]"):
        jax.jit(lambda x: Layer(x, sizes=x))(jnp.float32(1))


@pytest.mark.parametrize("value", [None, 1, "relu", (1, "a", (2,)), frozenset({1}), jnp.float32, jnp.tanh, len])
def test_what_is_hashable_may_be_static(value: Any):
    layer = Layer(jnp.ones(2), sizes=value)
    assert jax.tree.structure(layer) == jax.tree.structure(Layer(jnp.zeros(3), sizes=value))
    assert layer.sizes == value


def test_methods_are_trees_and_keep_names_and_docs():
    class Documented(weft.Module):
        weight: jax.Array

        def scaled(self, x: Any) -> Any:
            """Scales."""
            return self.weight * x

        def _private(self) -> Any:
            return self.weight

        @property
        def size(self) -> int:
            return self.weight.size

        @staticmethod
        def make(size: int) -> Documented:
            return Documented(jnp.ones(size))

        @classmethod
        def empty(cls) -> Documented:
            return cls(jnp.ones(0))

    record = Documented.make(3)
    assert (record.scaled.__name__, record.scaled.__doc__) == ("scaled", "Scales.")
    assert len(jax.tree.leaves(record.scaled)) == 1
    assert (record.size, Documented.empty().size, record._private().shape) == (3, 0, (3,))
    assert float(jax.jit(lambda f, x: f(x))(record.scaled, 2.0)[0]) == 2.0


def test_subclasses_override_and_call_up():
    class Child(Layer):
        bias: Any = 1.0

        def __call__(self, x: Any) -> Any:
            return super().__call__(x) + self.bias

    child = Child(jnp.zeros(2), axis=2)
    np.testing.assert_allclose(child(1.0), 1.0)
    assert [field.name for field in dataclasses.fields(child)] == ["weight", "activation", "sizes", "axis", "bias"]


def test_records_are_copied_and_pickled():
    layer = Layer(jnp.ones(2), abs, axis=1)
    for duplicate in (copy.copy(layer), copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert jax.tree.structure(duplicate) == jax.tree.structure(layer)
        np.testing.assert_allclose(duplicate.weight, layer.weight)


def test_an_abstract_field_or_method_must_be_given():
    class Abstract(weft.Module):
        size: eqx.AbstractVar[int]

    with pytest.raises(TypeError, match="abstract"):
        Abstract()  # pyright: ignore


def _halved(x: Any) -> Any:
    return x / 2


def test_a_function_that_is_a_fields_default_is_itself():
    class Net(weft.Module):
        weight: jax.Array
        after: Callable[..., Any] = _halved

    net = Net(jnp.ones(2))
    assert net.after is _halved
    assert float(net.after(3.0)) == 1.5
    assert jax.tree.structure(net) == jax.tree.structure(Net(jnp.ones(2), _halved))


class Printed(weft.Module):
    scale: jax.Array | None
    size: int = weft.static()
    rate: float = weft.static()
    name: str | None = weft.static()
    again: bool = weft.static(default=True)

    def __init__(self, size: int, *, rate: float = 0.5, name: str | None = "a", scale: Any = None):
        self.size, self.rate, self.name, self.scale = size, rate, name, scale


def test_a_record_is_printed_without_what_is_as_it_is_by_default():
    assert repr(Printed(3)) == "Printed(size=3)"
    assert repr(Printed(3, rate=0.25, scale=jnp.ones(2))) == "Printed(scale=f32[2], size=3, rate=0.25)"
    assert repr([Printed(3, name=None).replace(again=False)]) == "[Printed(size=3, name=None, again=False)]"
    everything = "Printed(scale=None, size=3, rate=0.5, name='a', again=True)"
    assert wadler_lindig.pformat(Printed(3), hide_defaults=False) == everything


class PrintedFurther(Printed):
    strides: tuple[int, ...] = weft.static()
    function: Any = weft.static()

    def __init__(self, size: int, *, strides: int = 1, function: Any = None, **options: Any):
        super().__init__(size, **options)
        self.strides, self.function = (strides, strides), function


def test_defaults_are_those_of_base_classes_too_and_one_number_stands_for_each_axis():
    assert repr(PrintedFurther(3)) == "PrintedFurther(size=3)"
    assert repr(PrintedFurther(3, strides=2)) == "PrintedFurther(size=3, strides=(2, 2))"


def test_a_compiled_function_is_printed_without_an_address():
    assert repr(PrintedFurther(3, function=jax.jit(jnp.tanh))) == "PrintedFurther(size=3, function=<function tanh>)"
    assert "(<function relu>, 1)" in repr(PrintedFurther(3, function=(jax.nn.relu, 1)))


def test_treescope_shows_a_records_fields():
    text = treescope.render_to_text(Printed(3, scale=jnp.ones(2)))
    assert text.startswith("Printed(")
    assert all(part in text for part in ("scale=<jax.Array([1., 1.]", "size=3", "name='a'"))


def test_an_arrays_method_on_a_record_tells_of_the_forgotten_successor():
    class Llama(weft.Module):
        count: jax.Array

        def __call__(self, x: Any) -> Any:
            return x, self.replace(count=self.count + 1)

    llama = Llama(jnp.array(0))
    with pytest.raises(AttributeError, match=r"no attribute 'argmax'.*y, llama = llama\(x\)") as error:
        llama(jnp.ones(3))[-1].argmax()
    assert (error.value.name, error.value.obj.count) == ("argmax", 1)
    y, llama = llama(jnp.ones(3))  # as the error advises
    assert y.argmax() == 0
    with pytest.raises(AttributeError, match=r"^'Llama' object has no attribute 'weigth'$"):
        llama.weigth  # noqa: B018
    assert not hasattr(llama, "shape")


def test_an_attribute_error_inside_of_a_property_is_told_as_it_is():
    class Broken(weft.Module):
        weight: jax.Array

        @property
        def size(self):
            return self.weight.no_such_thing

    with pytest.raises(AttributeError, match="no_such_thing"):
        Broken(jnp.ones(2)).size  # noqa: B018


class Incomparable:
    """An option whose comparison raises, as that of some libraries' objects does."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        raise NotImplementedError

    def __repr__(self) -> str:
        return "Incomparable()"


class Optional(weft.Module):
    option: Any = Incomparable()


def test_a_field_that_cannot_be_compared_with_its_default_is_printed():
    assert repr(Optional()) == "Optional()"
    assert repr(Optional(Incomparable())) == "Optional(option=Incomparable())"
