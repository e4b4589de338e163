"""Docstrings as the site shows them: a doctest is a block of code that runs as copied, and what is raised is a list.

An example in a docstring uses names of its own file. The page has none of these, so the block begins with the imports
that the example needs. `tests/test_doctests.py` runs every example with these imports and nothing else.
"""

from __future__ import annotations

import ast
import builtins
import doctest
import functools
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import griffe
import weft

# A doctest goes on to the next empty line, as `doctest` has it.
DOCTEST = re.compile(r"^( *)>>> (?:.*\n?)(?:^ *\S.*\n?)*", re.MULTILINE)
LATER = re.compile(r"^(Raises|Returns) (\([^)]*\)):\n((?:(?: {4}.*)?\n)*(?: {4}.*)?)", re.MULTILINE)
ENTRY = re.compile(r"^ {4}(\w[\w, ]*): ", re.MULTILINE)
# Where users import names from, and the names of the modules that stand there for another one.
NAMESPACES = (
    "weft", "weft.filters", "weft.tree", "weft.metrics", "weft.ops", "weft.debug", "weft.errors", "weft.typecheck",
    "weft.nnx",
)  # fmt: skip


@functools.cache
def namespaces() -> dict[str, ModuleType]:
    """The public modules of this version, by the names that users write."""
    modules: dict[str, ModuleType] = {}
    for name in NAMESPACES:
        try:
            modules[name] = importlib.import_module(name)
        except ModuleNotFoundError:  # not all of them are in every version
            continue
    return modules


def names_needed(sources: Iterable[str]) -> list[str]:
    """The names that statements use and do not bind, builtins among them.

    >>> names_needed(["x = jnp.ones(n)", "print(x)"])
    ['jnp', 'n', 'print']
    """
    used: set[str] = set()
    bound: set[str] = set()
    for node in (node for source in sources for node in ast.walk(ast.parse(source))):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                bound |= {alias.asname or alias.name.partition(".")[0] for alias in aliases}
            case ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case _:
                pass
    return sorted(used - bound)


def import_of(name: str, module: ModuleType) -> str | None:
    """The statement that imports a name which an example in a module uses, as a user would write it."""
    public = namespaces()
    # What a file of weft.nnx calls `Linear` is nnx's.
    order = sorted(public, key=lambda namespace: not f"{module.__name__}.".startswith(f"{namespace}."))
    value = vars(module).get(name)
    if value is None and not hasattr(builtins, name):
        value = getattr(public["weft"], name, None)
    for namespace in order:
        if public[namespace] is value:
            parent, _, short = namespace.rpartition(".")
            return f"from {parent} import {short}" if parent else f"import {namespace}"
    for namespace in order:
        if (
            value is not None
            and name in getattr(public[namespace], "__all__", ())
            and getattr(public[namespace], name) is value
        ):
            return f"from {namespace} import {name}"
    for statement in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            for alias in statement.names:
                if (alias.asname or alias.name) == name:
                    kind = ast.Import([alias]) if isinstance(statement, ast.Import) else None
                    return ast.unparse(kind or ast.ImportFrom(statement.module, [alias], statement.level))
    return f"from {module.__name__} import {name}" if name in vars(module) else None


def imports_of(sources: Iterable[str], module: ModuleType) -> list[str]:
    """The imports that examples in a module's docstrings need, those of one module in one line."""
    statements = {statement for name in names_needed(sources) if (statement := import_of(name, module))}
    together: dict[str, list[str]] = {}
    for statement in sorted(statements):
        origin, _, name = statement.partition(" import ")
        together.setdefault(origin if name else statement, []).extend([name] if name else [])
    lines = [f"{origin} import {', '.join(names)}" if names else origin for origin, names in together.items()]
    return sorted(lines, key=lambda line: (line.startswith("from"), "weft" in line, line))


def shown(text: str, module: ModuleType | None = None) -> str:
    """A docstring with its doctests fenced, the first of them with the imports of all."""
    sources = [example.source for example in doctest.DocTestParser().get_examples(text)] if module else []
    imports: Iterator[str] = iter([*map(">>> {}".format, imports_of(sources, module) if module else [])])

    def fence(match: re.Match[str]) -> str:
        indent, body = match.group(1), match.group(0).rstrip("\n")
        lines = [f"{indent}{line}" for line in imports]  # used up by the first block
        return "\n".join([f"{indent}```pycon", *lines, body, f"{indent}```", ""])

    def listed(match: re.Match[str]) -> str:
        return f"**{match.group(1)}** {match.group(2)}:\n\n" + ENTRY.sub(r"- `\1`: ", match.group(3))

    return LATER.sub(listed, DOCTEST.sub(fence, text))


def takes_nothing(thing: object) -> bool:
    """Whether a thing is a record without fields: no `__init__` is written that a page could show the signature of."""
    return inspect.isclass(thing) and issubclass(thing, weft.Module) and not inspect.signature(thing).parameters


class Examples(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            module = importlib.import_module(obj.module.path) if ">>> " in obj.docstring.value else None
            obj.docstring.value = shown(obj.docstring.value, module)
            if isinstance(obj, griffe.Class) and module is not None and takes_nothing(getattr(module, obj.name, None)):
                obj.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(), parent=obj))
