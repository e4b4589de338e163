"""What annotations are made of, and what forms say of classes with fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple, TypedDict

import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float, PyTree
from weft import Module, nnx
from weft.typecheck import Batched, Dims
from weft.typecheck.language.annotations import ANYTHING, ArrayOf, RecordOf, holds_arrays
from weft.typecheck.language.forms import form_of, has_own_dims
from weft.typecheck.language.reading import read
from weft.typecheck.language.signatures import names_in, shapes_in


class Record(Module):
    weight: Float[Array, "n m"]


class Pair(NamedTuple):
    x: Float[Array, "n"]
    y: Float[Array, "k"] = jnp.ones(1)


class Options(TypedDict):
    rate: Float[Array, "n"]


@dataclasses.dataclass
class Box:
    inside: Float[Array, "b"]
    size: int = 3


class Dense(nnx.Module):
    kernel: nnx.Param[Float[Array, "i o"]]

    def __init__(self):
        self.kernel = nnx.Param(jnp.ones((2, 3)))


N = Float[Array, "n"]


@pytest.mark.parametrize(
    ("hint", "parts", "mentions"),
    [
        (N, [], []),
        (N | None, ['Float[Array, "n"]', "None"], ['Float[Array, "n"]', "None"]),
        (dict[str, N], ["str", 'Float[Array, "n"]'], ["str", 'Float[Array, "n"]']),
        (tuple[N, int], ['Float[Array, "n"]', "int"], ['Float[Array, "n"]', "int"]),
        (PyTree[N, "T"], ['Float[Array, "n"]'], ['Float[Array, "n"]']),
        (Batched[Record, "depth"], ["Record"], ["Record"]),
        (Callable[[int], N], [], ["int", 'Float[Array, "n"]']),
        (Callable[..., N], [], ['Float[Array, "n"]']),
        (Iterator[N], [], ['Float[Array, "n"]', "Any", "Any"]),
        (Record, [], []),
    ],
    ids=str,
)
def test_an_annotation_tells_its_parts(hint, parts, mentions):
    spec = read(hint)
    assert list(map(str, spec.parts)) == parts
    assert list(map(str, spec.mentions)) == mentions


@pytest.mark.parametrize("hint", [N | None, tuple[N, N], list[N], dict[str, N], PyTree[N, "S T"], Batched[N, "d"]])
def test_an_annotation_is_rebuilt_of_changed_parts(hint):
    spec = read(hint)
    assert spec.rebuilt(lambda part: part) == spec
    assert set(spec.rebuilt(lambda part: ANYTHING).parts) == {ANYTHING}


def test_links_reach_the_records_inside():
    spec = read(Annotated[dict[str, list[Record] | None], Dims("n=width")])
    (record,) = (part for part in spec.walk() if isinstance(part, RecordOf))
    assert str(record) == "Record(n=width)"


def test_arrays_are_found_wherever_a_value_may_hold_them():
    assert all(map(holds_arrays, map(read, (N, list[N] | None, PyTree, Record, dict[str, Pair]))))
    assert not any(map(holds_arrays, map(read, (int, list[int], Callable[[int], N], Iterator[N], None))))


def test_names_are_those_of_the_scope():
    assert names_in(read(tuple[Batched[N, "d"], Pair, Record])) == {"d", "n", "k"}
    assert list(map(str, shapes_in(read(list[Record]), lambda _: True))) == ["n m"]
    assert all(isinstance(part, ArrayOf) for part in read(N).walk())


@pytest.mark.parametrize(
    ("value", "form", "own"),
    [
        (Record(jnp.ones((2, 3))), "module", True),
        (Dense(), "object", True),
        (Pair(jnp.ones(2)), "namedtuple", False),
        (Box(jnp.ones(2)), "dataclass", False),
    ],
    ids=lambda one: type(one).__name__,
)
def test_instances_are_read_and_made_by_their_form(value, form, own):
    cls = type(value)
    form_of_class = form_of(cls)
    assert form_of_class is not None
    assert (form_of_class.name, has_own_dims(cls), form_of_class.plain) == (form, own, not own)
    again = form_of_class.make(cls, form_of_class.values(value))
    assert type(again) is cls
    assert form_of_class.values(again).keys() == form_of_class.values(value).keys()


def test_a_typed_dict_is_a_form_too_and_other_classes_are_none():
    assert form_of(Options) is read(Options).form
    assert form_of(int) is form_of(dict) is form_of(tuple) is None
