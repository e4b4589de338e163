"""Every hint as data, from objects and from strings."""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import typing
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Optional, Self, TypedDict

import jax
import pytest
import typing_extensions
from jaxtyping import Array, Float, Float32, Int, Key, PyTree, Shaped
from weft import Module
from weft.errors import AnnotationError
from weft.typecheck import Batched, Dims
from weft.typecheck.language.annotations import RecordOf, Unresolved
from weft.typecheck.language.reading import Scope, read
from weft.typecheck.language.signatures import fields_of, signature_of

if TYPE_CHECKING:
    from somewhere import Missing


class Linear(Module):
    weight: Float[Array, "out in"]


class Point(NamedTuple):
    x: Float[Array, "n"]


class Options(TypedDict, total=False):
    rate: float


@dataclasses.dataclass
class Box:
    inside: Float[Array, "n"] | None = None


T = typing.TypeVar("T", bound=Float[Array, "n"])
Width = typing.NewType("Width", int)


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (Float[Array, "a b"], 'Float[Array, "a b"]'),
        (Array, 'Shaped[Array, "..."]'),
        (Key[Array, ""], 'Key[Array, ""]'),
        (Float32[Float[Array, "b"], "a"], 'Float32[Array, "a b"]'),
        (Shaped[Array, "..."], 'Shaped[Array, "..."]'),
        (Float[Array, "n"] | Int[Array, "n"] | None, 'Float[Array, "n"] | Int[Array, "n"] | None'),
        (Optional[int], "int | None"),  # noqa: UP045
        (PyTree[Float[Array, "?n"], "S T"], "PyTree[Float[Array, \"?n\"], 'S T']"),
        (PyTree, "PyTree[Any]"),
        (tuple[int, ...], "tuple[int, ...]"),
        (tuple[int, str], "tuple[int, str]"),
        (tuple[()], "tuple[()]"),
        (typing.Tuple[()], "tuple[()]"),  # noqa: UP006
        *((bare, str(read(bare.__origin__, Scope()))) for bare in (typing.List, typing.Tuple)),  # noqa: UP006
        (list[Linear], "list[Linear]"),
        (dict[str, Float[Array, "n"]], 'dict[str, Float[Array, "n"]]'),
        (Batched[Linear, "layers"], 'Batched[Linear, "layers"]'),
        (Annotated[list[Linear], Dims("in=width out=4*width")], "list[Linear(in=width out=4*width)]"),
        (abc.Callable[[int], Float[Array, ""]], 'Callable[[int], Float[Array, ""]]'),
        (abc.Callable[..., Any], "Callable[..., Any]"),
        (abc.Iterator[int], "Iterator[int]"),
        (abc.Generator[int, str, bytes], "Generator[int]"),
        (typing.Awaitable[int], "Awaitable[int]"),
        (Literal["a", 2], "Literal['a', 2]"),
        (Self, "Linear"),
        (T, 'Float[Array, "n"]'),
        (Width, "int"),
        (Any, "Any"),
        (type[int], "type[int]"),
        ("list[Linear]", "list[Linear]"),
        (list["Linear"], "list[Linear]"),
        ("Nowhere", "Nowhere"),
    ],
)
def test_a_hint_is_read(hint, text):
    assert str(read(hint, Scope(globals(), {}, Linear))) == text


@pytest.mark.parametrize(
    ("cls", "form"), [(Linear, "module"), (Point, "namedtuple"), (Options, "typeddict"), (Box, "dataclass")]
)
def test_classes_with_fields_are_records(cls, form):
    spec = read(cls)
    assert spec == RecordOf(cls)
    assert spec.form.name == form


def test_array_like_is_a_union_of_arrays_and_numbers():
    assert str(read(Float[jax.typing.ArrayLike, ""])).startswith('Float[Array, ""] | Float[ndarray, ""]')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Float[Array, 'a,b']", "cannot read the annotation \"Float[Array, 'a,b']\""),
        ("Float[Array, 'a b+']", "cannot read the dim 'b+' in the shape 'a b+'"),
        ("Float[Array", "cannot read the annotation 'Float[Array'"),
        ("Batched[Linear]", "Batched takes a type and a shape"),
        ("Annotated[Linear, Dims('in')]", "cannot read the link 'in' in Dims('in'): write it as child=parent"),
    ],
)
def test_a_hint_that_makes_no_sense_gives_one_line(text, message):
    with pytest.raises(AnnotationError) as caught:
        read(text, Scope(globals()))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_of_the_type_checker_only_hides_nothing_else():
    def function(x: Float[Array, "n"], y: Missing) -> Missing: ...

    x, y = signature_of(function).parameters
    assert str(x.annotation) == 'Float[Array, "n"]'
    assert y.annotation == Unresolved("Missing", "name 'Missing' is not defined")


def test_strings_see_locals_closures_and_their_own_class():
    from jaxtyping import UInt8 as Local

    class Node(Module):
        value: Local[Array, "n"]
        next: Node | None

        def push(self, value: Local[Array, "n"]) -> Self: ...

    value, following = fields_of(Node)
    assert str(value.annotation) == 'UInt8[Array, "n"]'
    assert str(following.annotation) == "Node | None"
    signature = signature_of(Node.push, Node)
    assert [str(one.annotation) for one in signature.parameters] == ["Any", 'UInt8[Array, "n"]']
    assert signature.returns == RecordOf(Node)


def test_the_function_and_the_parameter_are_named_in_the_error():
    def function(x: Float[Array, "n,"]): ...

    with pytest.raises(AnnotationError, match=r"function, x: cannot read the annotation"):
        signature_of(function)


class Alias:
    """As `type Tree = tuple[Tree, ...]` makes it, whose syntax Python 3.11 cannot read."""

    @property
    def __value__(self) -> Any:
        return tuple[self, ...]  # pyright: ignore[reportInvalidTypeArguments, reportInvalidTypeForm]


def test_a_type_alias_of_itself_ends_there():
    assert str(read(Alias())) == "tuple[Any, ...]"


def test_a_type_alias_of_another_library_is_read_with_its_arguments():
    item = typing.TypeVar("item")
    pair = typing_extensions.TypeAliasType("pair", tuple[item, item], type_params=(item,))
    assert str(read(pair[Float[Array, "n"]])) == 'tuple[Float[Array, "n"], Float[Array, "n"]]'
