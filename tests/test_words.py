"""Names say what a value is: no function uses a filler (`found`, `given`, `other`) as a name for more than a line.

A name *lives longer than a line* if a function binds it on one line (as a parameter, or by an assignment, a loop or a
comprehension) and uses it on a later one. A comprehension on a single line may use any name, and so may attributes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# All folders with Python files of the project's own.
ROOMS = [
    "core",
    "transforms",
    "modules",
    "nnx",
    "typecheck",
    "insight",
    "migrate",
    "examples",
    "benchmarks",
    "docs",
    "tests",
]
FILLERS = frozenset(
    [
        "one",
        "other",
        "found",
        "held",
        "kept",
        "given",
        "left",
        "near",
        "taken",
        "what",
        "it",
        "apart",
        "beside",
        "sideways",
    ]
)
# A function called `_itself` returns its argument, which the name says, but not what for.
ENDINGS = ("_itself",)
# Python's own name for the second operand of an operator (`__eq__`, `__add__`), parameters that flax.nnx's public
# functions name so, and the public name of a part of every error; each with the functions that may use it.
CONVENTIONS = {"other": ("__", "copy_from", "diff", "with_matching_outer_index"), "what": ("__init__",)}


def long_lived_fillers(source: str) -> Iterator[tuple[int, str]]:
    """The lines and names of fillers that a function binds on a line and uses on a later one."""
    tree = ast.parse(source)
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    ]
    for function in functions:
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and is_filler(function.name):
            yield function.lineno, function.name
        names = [*_names(function)]
        bound = {name: line for line, name, is_bound in reversed(names) if is_bound and is_filler(name)}
        for name, first in bound.items():
            is_convention = getattr(function, "name", "").startswith(CONVENTIONS.get(name, ("-",)))
            if not is_convention and any(used == name and line > first for line, used, _ in names):
                yield first, name


def is_filler(name: str) -> bool:
    is_sentence = name.startswith("test_")
    return name.strip("_") in FILLERS or (name.endswith(ENDINGS) and not is_sentence)


def _names(function: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """The names in a function, in the order of lines: line, name, and whether the line binds it."""
    names = [(node.lineno, node.arg, True) for node in ast.walk(function) if isinstance(node, ast.arg)]
    nodes = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    names += [(node.lineno, node.id, isinstance(node.ctx, ast.Store)) for node in nodes]
    return iter(sorted(names))


@pytest.mark.parametrize("room", ROOMS)
def test_no_filler_is_the_name_of_anything_that_lives_longer_than_a_line(room: str):
    places = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / room).rglob("*.py"))
        for line, name in sorted(set(long_lived_fillers(path.read_text())))
    ]
    assert not places, "name these by what they are:\n" + "\n".join(places)


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "tests"])
def test_nothing_is_called_one(room: str):
    places = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / room).rglob("*.py"))
        for line, name, _ in _names(ast.parse(path.read_text()))
        if name == "one"
    ]
    assert not places, "in comprehensions and lambdas, too, a name says what a value is:\n" + "\n".join(places)


@pytest.mark.parametrize(
    ("source", "fillers"),
    [
        ("def f(one):\n    return one", [(1, "one")]),
        ("def f(x):\n    found = x\n    return found", [(2, "found")]),
        ("def f(x):\n    for other in x:\n        g(other)", [(2, "other")]),
        ("def f(x):\n    return [one for one in x]", []),
        ("def f(x):\n    found = x", []),
        ("def value_itself(x):\n    return x", [(1, "value_itself")]),
        ("def test_a_value_is_itself(x):\n    assert x", []),
        ("found = 1", []),
        ("def __eq__(self, other):\n    return self.x == other.x", []),
        ("def __add__(self, other):\n    return self.x + other.x", []),
        ("def add(self, other):\n    return self.x + other.x", [(1, "other")]),
        ("def f(founder):\n    return founder.found", []),
    ],
)
def test_the_check_knows_what_lives_longer_than_a_line(source: str, fillers: list[tuple[int, str]]):
    assert list(long_lived_fillers(source)) == fillers


# ---- words ----------------------------------------------------------------------------------------------------------


def class_names() -> Iterator[tuple[str, Path]]:
    for room in ("core", "transforms", "modules", "nnx", "typecheck", "insight", "migrate"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    yield node.name, path.relative_to(ROOT)


def words_of(name: str) -> set[str]:
    """The words of a name in camel case or with underscores, in lower case."""
    return {word.lower() for word in re.findall("[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)}


def own_words() -> list[set[str]]:
    """The words of each row of the table of weft's own words."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| (.*?) \|", page.partition("| weft says |")[2].partition("\n\n")[0], re.MULTILINE)
    return [set(re.findall("[a-z]+", row.lower())) - {"weft", "module"} for row in rows[1:]]


def test_a_new_word_in_the_name_of_a_class_is_the_fields_or_explained():
    words = {*(ROOT / "tests" / "terms.txt").read_text().split()}.union(*own_words())
    unknown = [f"{path}: {name}: {word}" for name, path in class_names() for word in words_of(name) - words]
    # The way out: a term of the field, which tests/terms.txt then has; or a row in docs/architecture.md.
    assert not unknown, "words of weft's own that no page explains:\n" + "\n".join(unknown)


def test_the_page_of_words_is_short_and_of_today():
    rows = own_words()
    assert len(rows) <= 35
    paths = [path for room in ROOMS[:7] for path in (ROOT / room).rglob("*.py")]
    trees = [ast.parse(path.read_text()) for path in paths]
    defined = [
        node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    names = set().union(*map(words_of, defined))
    stale = [row for row in rows if not any(word in names or f"{word}s" in names for word in row)]
    assert not stale


def test_every_term_is_used():
    terms = (ROOT / "tests" / "terms.txt").read_text().split()
    used = {word for name, _ in class_names() for word in words_of(name)}
    assert terms == sorted({*terms} & used), "tests/terms.txt has terms that no class uses, or is not sorted"
