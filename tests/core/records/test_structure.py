"""What is part of a record's structure, and how its fields are declared and changed."""

from __future__ import annotations

import abc
import dataclasses
import functools
import inspect
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from jaxtyping import Array, Float
from weft import ContractError
from weft.core.errors import FrozenError, StaticError
from weft.errors import DifferentiationError

T = TypeVar("T")


class Box(weft.Module, Generic[T]):
    value: T


def test_the_type_argument_of_a_constructor_is_no_part_of_the_structure():
    typed, plain = Box[jax.Array](jnp.ones(2)), Box(jnp.ones(2))
    assert jax.tree.structure(typed) == jax.tree.structure(plain)
    assert typed.__orig_class__ == Box[jax.Array]
    assert weft.fori_loop(0, 2, lambda i, box: Box(box.value * 2), typed).value.tolist() == [4, 4]


class Sized:
    @functools.cached_property
    def size(self) -> int:
        return 3


class Mixed(weft.Module, Sized):
    weight: jax.Array


def test_an_inherited_cached_property_is_no_part_of_the_structure():
    record = Mixed(jnp.ones(2))
    before = jax.tree.structure(record)
    assert record.size == 3
    assert jax.tree.structure(record) == before


@pytest.mark.parametrize(
    "assign",
    [
        lambda record: setattr(record, "__name__", "wrapped"),
        lambda record: setattr(record, "cache", 1),
        lambda record: record.__dict__.update(cache=1),
    ],
)
def test_a_constructor_sets_no_attribute_that_is_no_field(assign):
    class Record(weft.Module):
        weight: jax.Array

        def __init__(self):
            self.weight = jnp.ones(2)
            assign(self)

    with pytest.raises(FrozenError, match="has no field"):
        Record()


# --- changing a field ------------------------------------------------------------------------------------------------


def as_floats(value: Any) -> jax.Array:
    return jnp.asarray(value, jnp.float32)


class Converted(weft.Module):
    weight: jax.Array = eqx.field(converter=as_floats)

    def assigned(self, value: Any) -> Any:
        with weft.thread(self) as t:
            t.weight = value
            return t.done(None)[1]


class OfEquinox(eqx.Module):
    weight: jax.Array = eqx.field(converter=as_floats)


class Model(weft.Module):
    ours: Converted
    theirs: OfEquinox


CHANGES = {
    "replace": lambda m: m.ours.replace(weight=[3, 4]),
    "dataclasses.replace": lambda m: dataclasses.replace(m.ours, weight=[3, 4]),
    "set": lambda m: weft.at(m).ours.weight.set([3, 4]).ours,
    "set in a record of equinox's": lambda m: weft.at(m).theirs.weight.set([3, 4]).theirs,
    "apply": lambda m: weft.at(m, Converted).weight.apply(lambda w: [3, 4]).ours,
    "at, replace": lambda m: weft.at(m, Converted).replace(weight=[3, 4]).ours,
    "a thread": lambda m: m.ours.assigned([3, 4]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_converter_runs_however_a_field_is_changed(change):
    changed = change(Model(Converted([1, 2]), OfEquinox([1, 2]))).weight
    assert isinstance(changed, jax.Array)
    assert (str(changed.dtype), changed.tolist()) == ("float32", [3, 4])


def test_a_converter_does_not_run_for_values_of_tree_functions():
    model = Model(Converted([1, 2]), OfEquinox([1, 2]))
    assert jax.tree.leaves(jax.tree.map(lambda _: True, model)) == [True, True]
    assert weft.tree.select(model, weft.filters.Inside("theirs")).ours.weight is None


# --- declaring a class -----------------------------------------------------------------------------------------------


@runtime_checkable
class Layer(Protocol):
    def __call__(self, x: Any) -> Any: ...

    def twice(self, x: Any) -> Any:
        return self(self(x))


def test_a_record_may_inherit_from_a_protocol():
    class Scale(weft.Module, Layer):
        weight: jax.Array

        def __call__(self, x: Any) -> Any:
            return self.weight * x

    record = Scale(jnp.ones(()) * 3)
    assert isinstance(record, Layer)
    assert isinstance(record, weft.Module)
    assert issubclass(Scale, Layer)
    assert not isinstance(record, Box)
    assert weft.jit(record.twice)(2.0) == 18

    class Abstract(weft.Module, Layer):
        @abc.abstractmethod
        def more(self) -> Any: ...

    with pytest.raises(TypeError, match="abstract"):
        Abstract()


class Sized(Protocol[T]):
    size: T

    def grown(self) -> T: ...


class Part(weft.Module):
    weight: jax.Array

    def twice(self, x: Any) -> Any:
        return "the record's"


class Made(weft.Module):
    weight: jax.Array

    def __init__(self, size: int):
        self.weight = jnp.ones(size)


def test_a_protocol_may_come_before_the_record():
    class Scale(Layer, weft.Module):
        weight: jax.Array
        axis: int = weft.static(default=0)

        def __call__(self, x: Any) -> Any:
            return self.weight * x

    record = Scale(jnp.ones(()) * 3, axis=1)
    assert isinstance(record, Layer)
    assert issubclass(Scale, Layer)
    assert record.axis == 1
    assert weft.jit(record.twice)(2.0) == 18
    assert list(inspect.signature(Scale).parameters) == ["weight", "axis"]
    with pytest.raises(TypeError, match="wait"):
        Scale(jnp.ones(()), wait=2)
    with pytest.raises(TypeError, match="Protocols cannot be instantiated"):
        Layer()


def test_a_protocol_before_a_record_overrides_its_methods_and_not_its_constructor():
    class Ours(Layer, Sized[int], Part):
        size: int = weft.static(default=2)

        def __call__(self, x: Any) -> Any:
            return x + 1

    class Generated(Sized[int], Made):
        pass

    class Below(Ours):
        extra: int = weft.static(default=3)

    assert Ours(jnp.ones(2)).twice(1) == 3
    assert [base for base in Ours.__mro__ if base in (Layer, Sized, Part)] == [Layer, Sized, Part]
    assert Below(jnp.ones(2), 4, 5).twice(1) == 3
    assert Generated(3).weight.shape == (3,)
    assert list(inspect.signature(Generated).parameters) == ["size"]

    class Abstract(Layer, weft.Module):
        @abc.abstractmethod
        def more(self) -> Any: ...

    with pytest.raises(TypeError, match="abstract"):
        Abstract()


def test_what_a_protocol_defines_is_not_abstract_where_it_comes_first():
    class Abstract(weft.Module):
        @abc.abstractmethod
        def twice(self, x: Any) -> Any: ...

    class Concrete(Layer, Abstract):
        def __call__(self, x: Any) -> Any:
            return x + 1

    assert Concrete().twice(1) == 3


def test_fields_may_be_keyword_only():
    class Options(weft.Module, kw_only=True):
        rate: float = 0.1
        weight: jax.Array
        count: ClassVar[int] = 3

    class More(Options):
        name: str

    assert Options(weight=jnp.ones(2)).rate == 0.1
    assert More("a", weight=jnp.ones(2)).name == "a"
    with pytest.raises(TypeError, match="positional argument"):
        Options(0.1, jnp.ones(2))


def test_an_option_of_a_dataclass_that_a_record_has_not_is_refused():
    with pytest.raises(TypeError, match="takes no eq and no order"):

        class Ordered(weft.Module, order=True, eq=True):
            pass


# --- configuration ---------------------------------------------------------------------------------------------------


class Options(weft.Module):
    table: Any


def test_a_record_of_configuration_is_hashed_by_its_values():
    assert hash(Options({"a": [1, 2]})) == hash(Options({"a": [1, 2]}))
    assert len({Options([1]), Options([1]), Options([2])}) == 2
    options = Options([1, 2])
    scaled = weft.jit(lambda x, options: x * len(options.table), static_argnums=1)
    assert [float(scaled(1.0, options)) for _ in range(4)] == [2, 2, 2, 2]
    options.table.append(3)
    assert [float(scaled(1.0, options)) for _ in range(4)] == [3, 3, 3, 3]
    with pytest.raises(TypeError, match="unhashable"):
        hash(Options(jnp.ones(2)))


class Static(weft.Module):
    value: Any = weft.static()


@pytest.mark.parametrize("value", [np.int64(3), np.float32(0.5), np.bool_(True), (np.int32(1), 2), (1, (np.int8(2),))])
def test_a_number_of_numpys_in_a_static_field_is_pythons(value):
    record = Static(value)
    assert record.value == value
    assert not any(isinstance(number, np.generic) for number in jax.tree.leaves(record.value))
    assert Static(0).replace(value=value).value == value


@pytest.mark.parametrize("value", [Options([1]), Options((Options({"a": 1}),))])
def test_a_static_record_holds_nothing_that_can_be_mutated(value):
    with pytest.raises(StaticError, match="must be hashable"):
        Static(value)


def test_a_float_under_grad_is_told_to_be_configuration():
    class Scale(weft.Module):
        weight: float

    with pytest.raises(DifferentiationError, match="nothing to differentiate") as error:
        weft.grad(lambda model, x: model.weight * x)(Scale(2.0), 1.0)
    assert "model.weight: configuration, 2.0" in error.value.at
    assert "jnp.asarray" in error.value.fix


# --- defaults --------------------------------------------------------------------------------------------------------


def of_rank_two() -> jax.Array:
    return jnp.ones((2, 3))


class ByFactory(weft.Module):
    weight: Float[Array, "n"] = dataclasses.field(default_factory=of_rank_two)
    name: str = "a"


class NoArray(weft.Module):
    weight: Float[Array, "n"]
    bias: Float[Array, "n"] = None  # type: ignore[assignment]


class NoRecord(weft.Module):
    inner: ByFactory = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (ByFactory, r"ByFactory.weight should be f32\[n\], and is f32\[2,3\]"),
        (lambda: ByFactory(name="b"), r"ByFactory.weight should be f32\[n\]"),
        (lambda: NoArray(jnp.ones(2)), "NoArray.bias should be Float.*, and is None"),
        (NoRecord, "NoRecord.inner should be ByFactory, and is None"),
    ],
)
def test_a_default_that_breaks_its_annotation_is_told(make, problem):
    with pytest.raises(ContractError, match=problem):
        make()


def test_a_stack_of_records_may_still_be_constructed_of_arrays():
    assert ByFactory(jnp.ones((4, 2))).weight.shape == (4, 2)
    assert weft.vmap(ByFactory)(jnp.ones((4, 2))).weight.shape == (4, 2)
