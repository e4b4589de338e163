"""Which definitions of a package a definition reaches."""

from __future__ import annotations

import ast

import pytest
from weft.typecheck.command.sources import Sources, digest, summary

FILES = {
    "pkg": "from .inner import ops as operations\nfrom .models import *\n",
    "pkg.inner": "",
    "pkg.inner.ops": "def relu(x): return _slope * x\n_slope = 2\ndef other(): ...\n",
    "pkg.models": """
from .inner import ops
from . import inner as inside
import pkg.tables
class Base:
    def clone(self, other: "Base"): return other
class Model(Base):
    def call(self, x): return ops.relu(x)
class Deep(Model): ...
def build(): return Model()
def of_base(base: Base): ...
def quoted(x: "list[Model | None]"): ...
def by_path(x): return pkg.tables.TABLE["relu"](x)
def by_module(name): return getattr(ops, name)
def by_modules_path(name): return getattr(pkg.inner.ops, name)
def deeper(x): return inside.ops.relu(x)
""",
    "pkg.tables": "from .inner.ops import relu as _relu\nTABLE = {'relu': _relu}\ndef apart(): return 1\n",
    "pkg.user": """
import pkg as p
from pkg import operations, build as make
def aliased(): return make()
def attribute(): return p.operations.relu
def reexported(): return p.build()
def shadowed(apart): return apart
def local():
    from .tables import apart as distant
    return distant()
def whole(f): return f(operations)
""",
}


@pytest.fixture(scope="module")
def sources() -> Sources:
    modules = {name: tuple(name.split(".")) for name in FILES}
    packages = ("pkg", "pkg.inner")
    summaries = {name: summary(text, modules[name], name in packages) for name, text in FILES.items()}
    return Sources(modules, summaries, {name: digest((text,)) for name, text in FILES.items()})


RELU = {"relu", "_slope"}
MODEL = {"Model", "Base", "Deep", *RELU}


@pytest.mark.parametrize(
    ("name", "reached"),
    [
        ("pkg.models:Deep", MODEL),  # a base that names itself may be given as any of its subclasses
        ("pkg.models:build", MODEL),
        ("pkg.models:of_base", MODEL),
        ("pkg.models:quoted", MODEL),
        ("pkg.models:by_path", {"TABLE", *RELU}),
        ("pkg.models:by_module", {"other", *RELU}),
        ("pkg.models:by_modules_path", {"other", *RELU}),
        ("pkg.models:deeper", RELU),
        ("pkg.tables:apart", set()),
        ("pkg.user:aliased", {"build", *MODEL}),
        ("pkg.user:attribute", RELU),
        ("pkg.user:reexported", {"build", *MODEL}),
        ("pkg.user:shadowed", set()),
        ("pkg.user:local", {"apart"}),
        ("pkg.user:whole", {"other", *RELU}),
    ],
)
def test_a_definition_reaches_what_its_names_stand_for(sources: Sources, name: str, reached: set[str]):
    file, _, own = name.partition(":")
    assert {node[1] for node in sources.reached([(file, own)])} == {own, *reached}


def test_a_base_brings_no_subclasses_of_its_own():
    texts = {"m": "class Base: ...\nclass One(Base): ...\nclass Two(Base): ...\ndef use(x: Base): ...\n"}
    sources = Sources({"m": ("m",)}, {"m": summary(texts["m"], ("m",), False)}, {"m": ""})
    assert {name for _, name in sources.reached([("m", "One")])} == {"One", "Base"}
    assert {name for _, name in sources.reached([("m", "use")])} == {"use", "One", "Two", "Base"}


TEXT = "import a\n\nX = 1\n\n@wrap(2)\ndef f(x: int = 3): return x\nclass C(B):\n    y: int = 4\n    def m(self): ...\n"


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("return x", "return x + 1", False),
        ("\n\nX", "\n\n# a remark\n\nX", False),
        ("def m(self): ...", "def m(self):\n        import b", False),
        ("return x", "\n    class D(C): ...\n    return x", True),
        ("X = 1", "X = 2", True),
        ("wrap(2)", "wrap(3)", True),
        ("= 3", "= 4", True),
        ("y: int = 4", "y: int = 5", True),
        ("C(B)", "C(B, D)", True),
        ("import a", "import a as b", True),
        ("def m", "def n", True),
        ("import a", "import a\nprint(a)", True),
        ("import a", "import (", True),
    ],
)
def test_the_skeleton_is_all_but_the_bodies_of_functions(old: str, new: str, changes: bool):
    before, after = (summary(text, ("m",), False)["skeleton"] for text in (TEXT, TEXT.replace(old, new, 1)))
    assert (before != after) == changes


def test_lines_are_pythons_own():
    text = "def f():\n    return '\x0c'\n\x0c\ndef g(): ...\n"
    definition = summary(text, ("m",), False)["definitions"]["g"]
    assert definition["spans"] == [[ast.parse(text).body[1].lineno] * 2]
