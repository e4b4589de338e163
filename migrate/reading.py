"""Reads a file with libcst: its syntax tree, the positions of nodes, and the meaning of names."""

from __future__ import annotations

from functools import cached_property

import libcst as cst
from libcst import metadata
from libcst.metadata import ParentNodeProvider, PositionProvider, QualifiedNameProvider, QualifiedNameSource

from .project import Source

# Nodes that bind or unbind their `target`.
_BINDING = (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.CompFor, cst.NamedExpr, cst.Del)


class Reader:
    """A file's syntax tree, with libcst's metadata."""

    def __init__(self, source: Source):
        self.source = source
        # libcst copies the tree, in case a node occurs twice in it; a tree that was just parsed has no such node.
        self._wrapper = metadata.MetadataWrapper(source.module, unsafe_skip_copy=True)
        self.module = self._wrapper.module
        self._positions = self._wrapper.resolve(PositionProvider)
        self._parents = self._wrapper.resolve(ParentNodeProvider)
        self._names = self._wrapper.resolve(QualifiedNameProvider)

    @cached_property
    def nodes(self) -> list[cst.CSTNode]:
        """All nodes, in the order of the text."""
        ordered: list[cst.CSTNode] = []
        # A stack instead of recursion: deeply nested expressions would reach Python's recursion limit.
        pending: list[cst.CSTNode] = [self.module]
        while pending:
            node = pending.pop()
            ordered.append(node)
            pending += reversed(node.children)
        return ordered

    def line(self, node: cst.CSTNode) -> int:
        """Returns the line on which a node starts."""
        return self._positions[node].start.line

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Returns the parent of a node."""
        return self._parents.get(node)

    def around(self, node: cst.CSTNode) -> list[cst.CSTNode]:
        """Returns the ancestors of a node, the parent first."""
        ancestors: list[cst.CSTNode] = []
        while (above := self.parent(node)) is not None:
            ancestors.append(above)
            node = above
        return ancestors

    def in_import(self, node: cst.CSTNode) -> bool:
        """Whether a name is a part of an import statement."""
        return any(isinstance(above, (cst.Import, cst.ImportFrom)) for above in self.around(node)[:6])

    def imported(self, node: cst.CSTNode) -> set[str]:
        """Returns the dotted names of imports to which a name or an attribute may refer."""
        names = self._names.get(node, ())
        # libcst computes qualified names lazily for some nodes.
        names = names() if callable(names) else names
        return {name.name for name in names if name.source is QualifiedNameSource.IMPORT}

    @cached_property
    def stored(self) -> set[str]:
        """Names that the file binds in any scope, other than by an import."""
        bound: set[str] = set()
        for node in self.nodes:
            if isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.Param)):
                bound.add(node.name.value)
            elif isinstance(node, _BINDING):
                bound |= {name.value for name in names_in(node.target)}
            elif isinstance(node, cst.AsName) and not isinstance(self.parent(node), cst.ImportAlias):
                bound |= {name.value for name in names_in(node.name)}
            elif isinstance(node, (cst.Global, cst.Nonlocal)):
                bound |= {item.name.value for item in node.names}
            elif isinstance(node, (cst.MatchAs, cst.MatchStar)) and node.name is not None:
                bound.add(node.name.value)
        return bound

    def is_docstring(self, node: cst.CSTNode) -> bool:
        """Whether a string is a statement by itself."""
        return isinstance(self.parent(node), cst.Expr)


def names_in(node: cst.CSTNode) -> list[cst.Name]:
    """Returns the names that a target binds; attributes and subscripts bind none."""
    if isinstance(node, cst.Name):
        return [node]
    if isinstance(node, (cst.Tuple, cst.List)):
        return [name for element in node.elements for name in names_in(element.value)]
    if isinstance(node, cst.StarredElement):
        return names_in(node.value)
    return []


def dotted(node: cst.CSTNode | None) -> str:
    """Returns the text `a.b.c` of a name or attribute; empty for any other node."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        below = dotted(node.value)
        return f"{below}.{node.attr.value}" if below else ""
    return ""


def names_of(node: cst.ImportFrom) -> list[str]:
    """Returns the names that a `from` import takes from its module; `["*"]` for a star."""
    return ["*"] if isinstance(node.names, cst.ImportStar) else [dotted(alias.name) for alias in node.names]


def as_node(name: str) -> cst.Name | cst.Attribute:
    """Makes an expression from a dotted name."""
    first, *rest = name.split(".")
    node: cst.Name | cst.Attribute = cst.Name(first)
    for part in rest:
        node = cst.Attribute(node, cst.Name(part))
    return node


def comments_in(node: cst.CSTNode) -> list[str]:
    """Returns the comments inside a node."""
    own = [node.value] if isinstance(node, cst.Comment) else []
    return own + [text for child in node.children for text in comments_in(child)]
