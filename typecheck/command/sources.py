"""The definitions of a package's files, and which of them a verdict may rest on.

A file is divided into its top-level *definitions* (functions, classes, assigned names) and its *skeleton*: all of it
but the bodies of functions and methods. A definition *reaches* the definitions that its source names, as its file's own
names and imports resolve them, those in turn what they name, and the subclasses of each named class. So an edit inside
of a function reaches the verdicts whose definitions lead to it. What names do not show, such as a function in a
registry, is added from what ran (`inside.note_runs`). The skeletons count for every verdict: they hold decorators,
defaults, constants, imports and bases.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..language.siblings import written

# A definition: its file and name. The name "" stands for the whole file.
Node = tuple[str, str]
# A name, or a name with attributes: `("models", "Model")`.
Chain = tuple[str, ...]

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# What keeps the results of a function for later verdicts of a process: `functools.cache`, `lru_cache`, `memoize`.
_KEEPS = re.compile("cache|memo", re.IGNORECASE)
_CHAIN = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")

_NOTHING: Mapping[str, Any] = {"digest": "", "spans": [], "mentions": [], "bases": [], "keeps": False}
_EMPTY: Mapping[str, Any] = {"imports": {}, "definitions": {}}


def digest(words: Iterable[str]) -> str:
    """The digest of a series of texts."""
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogatepass")).hexdigest()


def summary(text: str, module: Chain, is_package: bool) -> dict[str, Any]:
    """All that is kept of a file, as an object for JSON: its skeleton's digest, its imports and its definitions."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return {"skeleton": digest((text,)), "imports": {}, "definitions": {}}
    lines = text.split("\n")  # `splitlines` counts form feeds, which Python does not
    definitions: dict[str, dict[str, Any]] = {}
    for statement in tree.body:
        first = min((node.lineno for node in getattr(statement, "decorator_list", ())), default=statement.lineno)
        bases = statement.bases if isinstance(statement, ast.ClassDef) else []
        of_bases = {chain for base in bases for chain in _mentions(base)}
        named = {chain for node in ast.iter_child_nodes(statement) if node not in bases for chain in _mentions(node)}
        for name in _names(statement):
            # The lists are the definition's own, as several statements may give one name.
            definition = definitions.setdefault(
                name, {**_NOTHING, "text": "", "spans": [], "mentions": [], "bases": []}
            )
            definition["text"] += "\n".join(lines[first - 1 : statement.end_lineno])
            definition["spans"].append([first, statement.end_lineno])
            definition["mentions"] += sorted(named)
            definition["bases"] += sorted(of_bases)
            definition["keeps"] |= any(_KEEPS.search(part) for chain in _outside(statement) for part in chain)
    for definition in definitions.values():
        definition["digest"] = digest((definition.pop("text"),))
    imports = defaultdict[str, list[Any]](list)
    for node in ast.walk(tree):
        for name, source in _imported(node, module if is_package else module[:-1]):
            imports[name].append(source)
    for statement in tree.body:
        _empty(statement)
    # A search for subclasses reads class statements inside of functions as well (`siblings`).
    skeleton = digest((ast.dump(tree), repr(written(text))))
    return {"skeleton": skeleton, "imports": imports, "definitions": definitions}


def _empty(statement: ast.stmt) -> None:
    """Removes the bodies of a function, or of a class's methods."""
    if isinstance(statement, _FUNCTIONS):
        statement.body = []
    elif isinstance(statement, ast.ClassDef):
        for member in statement.body:
            _empty(member)


def _names(statement: ast.stmt) -> set[str]:
    """The names that a top-level statement defines, in the branches of an `if` as well."""
    if isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
        return {statement.name}
    nodes = [*ast.walk(statement)]
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return (stored | {node.name for node in nodes if isinstance(node, (*_FUNCTIONS, ast.ClassDef))}) - {"__all__"}


def _mentions(node: ast.AST) -> Iterator[Chain]:
    """The names in a piece of code, with their attributes, and those in its texts: annotations, and for `getattr`."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        yield (node.id, *reversed(attributes))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
        yield from (tuple(name.split(".")) for name in _CHAIN.findall(node.value))
    for child in ast.iter_child_nodes(node):
        yield from _mentions(child)


def _outside(statement: ast.stmt) -> Iterator[Chain]:
    """The names in the decorators of functions and methods, or in a statement of another sort."""
    if isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
        for part in statement.decorator_list:
            yield from _mentions(part)
        for member in statement.body if isinstance(statement, ast.ClassDef) else ():
            yield from _outside(member)
    else:
        yield from _mentions(statement)


def _imported(node: ast.AST, package: Chain) -> Iterator[tuple[str, tuple[Chain, str | None]]]:
    """The names that an import statement binds, each with its module, and the name in there."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            whole = tuple(alias.name.split("."))
            yield (alias.asname, (whole, None)) if alias.asname else (whole[0], (whole[:1], None))
    elif isinstance(node, ast.ImportFrom):
        start = package[: len(package) - node.level + 1] if node.level else ()
        for alias in node.names:
            yield alias.asname or alias.name, ((*start, *filter(None, (node.module or "").split("."))), alias.name)


class Sources:
    """The definitions of a package's files, and what each of them reaches.

    Args:
        modules: the dotted name of each file, as a tuple.
        summaries: the `summary` of each file.
        digests: the digest of each file's whole text.
    """

    def __init__(
        self, modules: Mapping[str, Chain], summaries: Mapping[str, Mapping[str, Any]], digests: Mapping[str, str]
    ):
        self._summaries, self._digests = summaries, digests
        self._files = {module: file for file, module in modules.items()}
        self.skeleton = digest(f"{file}\0{each['skeleton']}" for file, each in sorted(summaries.items()))
        self._named = defaultdict[str, set[Node]](set)
        for file, each in summaries.items():
            for name in each["definitions"]:
                self._named[name].add((file, name))
        self._edges: dict[Node, set[Node]] = {}
        self._below = defaultdict[Node, set[Node]](set)
        for file, each in summaries.items():
            for name, definition in each["definitions"].items():
                for base in self._resolved(file, definition["bases"]):
                    self._below[base].add((file, name))

    def __contains__(self, file: str) -> bool:
        return file in self._summaries

    def node(self, file: str, name: str) -> Node:
        """The definition at the top of a qualified name, or the whole file if the file shows none of that name."""
        top = name.partition(".")[0]
        return file, top if top in self._summaries[file]["definitions"] else ""

    def reached(self, roots: Iterable[Node]) -> set[Node]:
        """The definitions that others lead to, these included."""
        # A class that is only a base brings none of its subclasses: its subclasses have each other as siblings.
        pending, whole, nodes = [*roots], set[Node](), set[Node]()
        while pending:
            node = pending.pop()
            if node in whole:
                continue
            whole.add(node)
            if not node[1]:
                pending += self._all(node[0])
            bases = [node]
            while bases:
                base = bases.pop()
                if base not in nodes:
                    nodes.add(base)
                    definition = self._definition(base)
                    if base not in self._edges:
                        self._edges[base] = self._resolved(base[0], definition["mentions"])
                    pending += self._edges[base]
                    bases += self._resolved(base[0], definition["bases"])
            pending += self._below[node]
        return nodes

    def caching(self, nodes: Iterable[Node]) -> set[Node]:
        """The definitions among others whose results a process keeps."""
        return {node for node in nodes if self._definition(node)["keeps"]}

    def digest_of(self, nodes: Iterable[Node]) -> str:
        """The digest of the sources of definitions."""
        return digest(
            f"{file}\0{name}\0{self._definition((file, name))['digest'] if name else self._digests.get(file, '')}"
            for file, name in sorted(nodes)
        )

    def spans(self, node: Node) -> list[list[int]]:
        """The first and last line of each statement that gives a definition."""
        return self._definition(node)["spans"]

    def at(self, file: str, line: int) -> tuple[Node, int] | None:
        """The definition at a line, and the number of its statement; None outside of definitions."""
        for name, definition in self._summaries[file]["definitions"].items():
            for index, (first, last) in enumerate(definition["spans"]):
                if first <= line <= last:
                    return (file, name), index
        return None

    def called(self, name: str) -> list[str]:
        """The files of a name, without their folders."""
        return [file for file in self._summaries if os.path.basename(file) == name]

    def imported(self, module: str, name: str) -> set[Node]:
        """The definitions behind a name of a module."""
        return self._leads_to(tuple(module.split(".")), name, ())

    def _all(self, file: str) -> set[Node]:
        return {(file, name) for name in self._summaries.get(file, _EMPTY)["definitions"]}

    def _definition(self, node: Node) -> Mapping[str, Any]:
        return self._summaries.get(node[0], _EMPTY)["definitions"].get(node[1], _NOTHING)

    def _resolved(self, file: str, chains: Iterable[Chain]) -> set[Node]:
        """The definitions that names in a file stand for."""
        nodes, own = set[Node](), self._summaries.get(file, _EMPTY)
        for start, *attributes in chains:
            if start in own["definitions"]:
                nodes.add((file, start))
            starred = ((module, start) for module, _ in own["imports"].get("*", ()))
            for source, name in [*own["imports"].get(start, ()), *starred]:
                if name:
                    nodes |= self._leads_to(tuple(source), name, ())
                # What is imported may be a module, whose definitions the attributes then name.
                module = self._module((*source, *filter(None, (name,))))
                for attribute in attributes:
                    nodes |= self._leads_to(module, attribute, ())
                    module = self._module((*module, attribute))
                if module in self._files:  # a module as a value: `getattr(models, name)`, `getattr(p.models, name)`
                    nodes |= self._all(self._files[module])
        return nodes

    def _module(self, name: Chain, seen: tuple[Chain, ...] = ()) -> Chain:
        """The name under which a module is known that a package imports from elsewhere: `from .inner import ops`."""
        if name in self._files or len(name) < 2 or name in seen:
            return name
        file = self._files.get(self._module(name[:-1], (*seen, name)), "")
        sources = self._summaries.get(file, _EMPTY)["imports"].get(name[-1], ())
        modules = [self._module((*source, *filter(None, (end,))), (*seen, name)) for source, end in sources]
        return next((module for module in modules if module in self._files), name)

    def _leads_to(self, module: Chain, name: str, seen: tuple[Any, ...]) -> set[Node]:
        """The definitions that a module has under a name, also from where it imports them."""
        file = self._files.get(module)
        if file is None or (module, name) in seen:
            return set()
        summary, seen = self._summaries[file], (*seen, (module, name))
        own = {(file, name)} if name in summary["definitions"] else set[Node]()
        sources = [(tuple(source), end) for source, end in summary["imports"].get(name, ())]
        if not own and not sources and (*module, name) not in self._files:
            return self._named.get(name, own)  # a star import, or a module's `__getattr__`: every one of that name
        return own | {node for source, end in sources if end for node in self._leads_to(source, end, seen)}
