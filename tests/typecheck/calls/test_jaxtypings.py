"""What programs that were written for jaxtyping's own checker rely on, by whatever door weft checks them."""

import importlib
import re
import sys
import textwrap
from types import SimpleNamespace

import jax.numpy as jnp
import pytest
import weft
from weft import ContractError
from weft.errors import AnnotationError
from weft.typecheck import contract, install_import_hook

CLASSES = """
import dataclasses
import typing

import equinox as eqx
import jax.numpy as jnp
import weft
from jaxtyping import Array, Float, PyTree, print_bindings


@dataclasses.dataclass
class Sized:
    value: int
    x: Float[Array, "{value}"]


class Converted(BASE):
    x: Float[Array, "3"] = eqx.field(converter=jnp.asarray)
"""
FUNCTIONS = """
def nested(x: PyTree[PyTree[Float[Array, "a"]]]):
    return x


def of_records(x: PyTree[PyTree[Converted]]):
    return x


@typing.no_type_check
def unchecked(x: Float[Array, "a b"]):
    return x


def agrees(x: Float[Array, "a b"], y):
    return isinstance(y, Float[Array, "b a"])


def binds(x: Float[Array, "a b"], y, z):
    assert isinstance(y, Float[Array, "b c"])
    return isinstance(z, Float[Array, "c a"])


def alone(x: Float[Array, "?n"]):
    return x


def under_two(x: PyTree[PyTree[Float[Array, "?n"], "S"], "T"]):
    return x


def without_structure(x: PyTree[Float[Array, "?n"]]):
    return x


def leaves(x: PyTree[Float[Array, "?n"], "T"], y: PyTree[Float[Array, "?n"], "T"]):
    return x


def asks_beside(x: PyTree[Float[Array, "?n ?*rest"], "T"], *rest: Float[Array, "*batch d"], y=None):
    return isinstance(y, Float[Array, "*batch d"])


def printed(x: Float[Array, "a b"]):
    print_bindings()
"""


def by_hook(functions: str):
    """All of it, in a package under the import hook."""
    with install_import_hook("for_jaxtyping"):
        return importlib.import_module("for_jaxtyping")


def by(checker):
    """Each function for itself, and the dataclass under `contract`: nothing else sees one that is not given to it."""

    def wrapped(functions: str):
        package = importlib.import_module("for_jaxtyping")
        checked = {name: checker(getattr(package, name)) for name in re.findall(r"def (\w+)", functions)}
        return SimpleNamespace(**{**vars(package), "Sized": contract(package.Sized), **checked})

    return wrapped


def by_method(functions: str):
    """Each function as the method of a record."""
    package = importlib.import_module("for_jaxtyping")
    methods = textwrap.indent(re.sub(r"def (\w+)\(", r"def \1(self, ", functions), "    ")
    exec(f"class Record(weft.Module):\n{methods}", vars(package))
    names = re.findall(r"def (\w+)", functions)
    record = package.Record()
    return SimpleNamespace(
        **{**vars(package), "Sized": contract(package.Sized), **{name: getattr(record, name) for name in names}}
    )


# Classes of equinox's are under contract by the hook alone; weft's are at every door.
DOORS = {"hook": by_hook, "contract": by(contract), "jit": by(weft.jit), "method": by_method}


@pytest.fixture(scope="module", params=DOORS)
def package(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("written_for_jaxtyping")
    base = "eqx.Module" if request.param == "hook" else "weft.Module"
    (folder / "for_jaxtyping.py").write_text(CLASSES.replace("BASE", base) + FUNCTIONS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield DOORS[request.param](FUNCTIONS)
    del sys.modules["for_jaxtyping"]


a = jnp.ones


def test_a_size_in_braces_reads_another_field(package):
    package.Sized(3, a(3))
    with pytest.raises(ContractError, match=r"should be f32\[\{value\}=3\], and is f32\[4\]"):
        package.Sized(3, a(4))


def test_a_field_is_checked_as_its_converter_left_it(package):
    assert package.Converted([1.0, 2.0, 3.0]).x.shape == (3,)
    with pytest.raises(ContractError, match=r"should be f32\[3\], and is f32\[2\]"):
        package.Converted([1.0, 2.0])


def test_a_tree_of_trees_is_a_tree(package):
    package.nested([a(3), (a(3),)])
    with pytest.raises(ContractError, match=r"x\[1\]"):
        package.nested([a(3), a(4)])


def test_the_leaves_of_a_tree_of_trees_may_be_records(package):
    record = package.Converted([1.0, 2.0, 3.0])
    package.of_records({"one": record, "more": [record, (record,)]})
    with pytest.raises(ContractError, match=r"x\.more\[1\] of \S*of_records should be Converted, and is (int 1|i32)"):
        package.of_records({"one": record, "more": [record, 1]})


def test_no_type_check_is_respected(package):
    assert package.unchecked(3) == 3


def test_isinstance_in_a_body_sees_and_binds_the_dims_of_the_call(package):
    assert package.agrees(a((2, 3)), a((3, 2)))
    assert not package.agrees(a((2, 3)), a((3, 4)))
    assert package.binds(a((2, 3)), a((3, 5)), a((5, 2)))
    assert not package.binds(a((2, 3)), a((3, 5)), a((4, 2)))


def test_what_a_leaf_binds_is_not_told_to_a_body(package):
    trees = {"one": a((3, 2)), "two": a(4)}
    assert package.asks_beside(trees, a((2, 5)), y=a((2, 5)))
    assert not package.asks_beside(trees, a((2, 5)), y=a((3, 5)))


def test_a_dim_of_leaves_is_one_of_a_trees(package):
    package.leaves([a(3), a(4)], [a(3), a(4)])
    with pytest.raises(ContractError, match=r"y\[1\]"):
        package.leaves([a(3), a(4)], [a(3), a(5)])
    with pytest.raises(AnnotationError, match=r"\?n.*; here none is around it"):
        package.alone(a(3))
    with pytest.raises(AnnotationError, match=r"\?n.*; here none is around it"):
        package.without_structure([a(3)])
    with pytest.raises(AnnotationError, match=r"\?n.*; here two are around it"):
        package.under_two([a(3)])


def test_the_dims_of_a_running_call_are_printed(package, capsys):
    package.printed(a((2, 3)))
    assert "a=2\nb=3" in capsys.readouterr().out
