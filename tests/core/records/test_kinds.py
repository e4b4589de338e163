"""Kinds, and how fields declare them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft.core.errors import StaticError
from weft.core.records import kinds
from weft.core.records.kinds import (
    BatchStat,
    Buffer,
    Kind,
    LoRAParam,
    Param,
    RngKey,
    RngState,
    Role,
    field_roles,
    kind_of_array,
)

if TYPE_CHECKING:
    from nowhere import Missing  # pyright: ignore


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (jnp.ones(2), Param),
        (jnp.ones(2, jnp.bfloat16), Param),
        (jnp.ones(2, complex), Param),
        (jnp.arange(2), Buffer),
        (jnp.array(True), Buffer),
        (jax.random.key(0), RngKey),
        (np.ones(2), Param),
        (np.int8(1), Buffer),
        (1.0, Param),
        (1j, Param),
        (1, Buffer),
        (True, Buffer),
        (jax.ShapeDtypeStruct((2,), jnp.float16), Param),
    ],
)
def test_the_kind_of_an_array_that_declares_none_is_that_of_its_dtype(value: Any, kind: type[Kind]):
    assert kind_of_array(value) is kind


def test_kinds_nest_as_classes():
    assert issubclass(LoRAParam, Param)
    assert issubclass(kinds.RngCount, RngState)
    assert not issubclass(BatchStat, Param)


class Mine(Kind):
    """A user's own."""


class Layer(weft.Module):
    plain: jax.Array
    mine: Annotated[jax.Array, Mine]
    tagged: Annotated[jax.Array, Buffer, "frozen", "table"]
    optional: Annotated[jax.Array, BatchStat] | None
    inside: list[Annotated[jax.Array, BatchStat]]
    text: Annotated[jax.Array, "not a kind", 3]
    unknown: Missing = None


def test_fields_declare_roles():
    roles = field_roles(Layer)
    assert roles["plain"] == Role()
    assert roles["mine"] == Role(Mine)
    assert roles["tagged"] == Role(Buffer, frozenset({"frozen", "table"}))
    assert roles["optional"].kind is roles["inside"].kind is BatchStat
    assert roles["text"] == Role(None, frozenset({"not a kind"}))
    # One annotation that cannot be resolved does not hide the others.
    assert roles["unknown"] == Role()


class Base(weft.Module):
    value: Annotated[jax.Array, BatchStat]


class Derived(Base):
    other: jax.Array


class Redeclared(Base):
    value: jax.Array


def test_subclasses_inherit_and_redeclare():
    assert field_roles(Derived)["value"].kind is BatchStat
    assert field_roles(Redeclared)["value"].kind is None


def test_the_nearest_kind_holds_and_tags_add_up():
    outer = Role(BatchStat, frozenset({"a"}))
    assert Role(Param, frozenset({"b"})).inside(outer) == Role(Param, frozenset({"a", "b"}))
    assert Role().inside(outer) == outer


def test_two_kinds_on_one_field_are_refused():
    class Two(weft.Module):
        both: tuple[Annotated[jax.Array, BatchStat], Annotated[jax.Array, Buffer]]

    with pytest.raises(StaticError, match="a field has one kind, but this one declares BatchStat, Buffer") as caught:
        field_roles(Two)
    assert "Two.both" in str(caught.value)


def test_a_kind_that_cannot_be_resolved_is_refused():
    class Lost(weft.Module):
        value: Annotated[jax.Array, NotThere] = None  # pyright: ignore

    with pytest.raises(StaticError, match="cannot resolve the annotation") as caught:
        field_roles(Lost)
    assert "Lost.value" in str(caught.value)
    assert "import its names at run time" in str(caught.value)
