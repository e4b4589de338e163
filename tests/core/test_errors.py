"""The error classes, and the make of their messages."""

from __future__ import annotations

import pytest
from weft.core import errors
from weft.core.errors import WeftError
from weft.core.frames import open_frame

BUILTINS = {
    "StructureError": ValueError,
    "FilterError": ValueError,
    "AliasError": ValueError,
    "AxisError": ValueError,
    "StaticError": TypeError,
    "FrozenError": AttributeError,
    "SurgeryError": AttributeError,
    "SuccessorError": TypeError,
    "CarryError": TypeError,
    "BranchError": TypeError,
    "DifferentiationError": TypeError,
    "MissingRuleError": ValueError,
    "PairError": ValueError,
    "DonatedError": RuntimeError,
    "MeshError": ValueError,
    "TraceLevelError": TypeError,
    "TracedValueError": TypeError,
    "TracedBoolError": TypeError,
    "TracedIntegerError": TypeError,
    "TracedArrayError": TypeError,
    "TracedMaskError": IndexError,
    "CheckError": RuntimeError,
    "KeyReuseError": RuntimeError,
    "MissingExtraError": ModuleNotFoundError,
    "ForeignObjectError": TypeError,
    "NonFiniteError": FloatingPointError,
}


@pytest.mark.parametrize("name", BUILTINS)
def test_each_error_is_also_the_builtin_one_would_expect(name: str):
    error = getattr(errors, name)
    assert issubclass(error, WeftError)
    assert issubclass(error, BUILTINS[name])


def test_the_table_is_complete():
    defined = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, WeftError)}
    assert defined - {"WeftError"} == set(BUILTINS)


def test_a_message_says_what_where_and_what_to_do():
    with open_frame("jit"), open_frame("scan", length=3):
        error = WeftError("it broke", at=["a.b", "c: 1 -> 2"], fix="mend it")
    assert str(error) == "it broke\n  at: a.b\n  at: c: 1 -> 2\n  fix: mend it\n  inside: jit > scan(length=3)"
    assert (error.what, error.at, error.fix) == ("it broke", ("a.b", "c: 1 -> 2"), "mend it")


def test_one_place_may_be_a_string_and_all_but_what_is_optional():
    assert str(WeftError("it broke", at="x")) == "it broke\n  at: x"
    assert str(WeftError("it broke")) == "it broke"


@pytest.mark.parametrize(
    ("name", "article"),
    [("Affine", "an"), ("Un", "an"), ("Embed", "an"), ("MLP", "an"), ("Unit", "a"), ("Linear", "a"), ("GRUCell", "a")],
)
def test_an_error_has_the_article_of_the_class_that_it_names(name: str, article: str):
    error = errors.StructureError(f"a {name} cannot be changed", fix=f"make a {name}")
    assert str(error) == f"{article} {name} cannot be changed\n  fix: make {article} {name}"
