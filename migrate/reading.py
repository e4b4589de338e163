"""One file with what libcst knows of it: where a node is, and what a name means."""

from __future__ import annotations

from functools import cached_property

import libcst as cst
from libcst import metadata
from libcst.metadata import ParentNodeProvider, PositionProvider, QualifiedNameProvider, QualifiedNameSource

from .project import Source

# What binds or unbinds its target.
_BINDING = (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.CompFor, cst.NamedExpr, cst.Del)


class Reader:
    """A file's syntax tree and its metadata."""

    def __init__(self, source: Source):
        self.source = source
        # The tree is read once and edited through new nodes, so the copy that protects it is not needed.
        self._wrapper = metadata.MetadataWrapper(source.module, unsafe_skip_copy=True)
        self.module = self._wrapper.module
        self._positions = self._wrapper.resolve(PositionProvider)
        self._parents = self._wrapper.resolve(ParentNodeProvider)
        self._names = self._wrapper.resolve(QualifiedNameProvider)

    @cached_property
    def nodes(self) -> list[cst.CSTNode]:
        """Every node, in the order of the text."""
        found: list[cst.CSTNode] = []
        ahead: list[cst.CSTNode] = [self.module]
        while ahead:
            node = ahead.pop()
            found.append(node)
            ahead += reversed(node.children)
        return found

    def line(self, node: cst.CSTNode) -> int:
        """The line that a node starts on."""
        return self._positions[node].start.line

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The node around a node."""
        return self._parents.get(node)

    def around(self, node: cst.CSTNode) -> list[cst.CSTNode]:
        """The nodes around a node, from the inside out."""
        found: list[cst.CSTNode] = []
        while (above := self.parent(node)) is not None:
            found.append(above)
            node = above
        return found

    def imported(self, node: cst.CSTNode) -> set[str]:
        """What a name or an attribute may mean, of what the file imports: dotted names."""
        names = self._names.get(node, ())
        names = names() if callable(names) else names
        return {one.name for one in names if one.source is QualifiedNameSource.IMPORT}

    @cached_property
    def stored(self) -> set[str]:
        """Names that are bound otherwise than by an import, in any scope."""
        found: set[str] = set()
        for node in self.nodes:
            if isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.Param)):
                found.add(node.name.value)
            elif isinstance(node, _BINDING):
                found |= {one.value for one in names_in(node.target)}
            elif isinstance(node, cst.AsName) and not isinstance(self.parent(node), cst.ImportAlias):
                found |= {one.value for one in names_in(node.name)}
            elif isinstance(node, (cst.Global, cst.Nonlocal)):
                found |= {one.name.value for one in node.names}
            elif isinstance(node, (cst.MatchAs, cst.MatchStar)) and node.name is not None:
                found.add(node.name.value)
        return found

    def is_docstring(self, node: cst.CSTNode) -> bool:
        """Whether a string stands alone as a statement."""
        return isinstance(self.parent(node), cst.Expr)


def names_in(node: cst.CSTNode) -> list[cst.Name]:
    """The names that a target binds; attributes and subscripts bind none."""
    if isinstance(node, cst.Name):
        return [node]
    if isinstance(node, (cst.Tuple, cst.List)):
        return [name for element in node.elements for name in names_in(element.value)]
    if isinstance(node, cst.StarredElement):
        return names_in(node.value)
    return []


def dotted(node: cst.CSTNode | None) -> str:
    """`a.b.c` of names and attributes; empty for anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        below = dotted(node.value)
        return f"{below}.{node.attr.value}" if below else ""
    return ""


def names_of(node: cst.ImportFrom) -> list[str]:
    """What an import takes from its module; a star is `*`."""
    return ["*"] if isinstance(node.names, cst.ImportStar) else [dotted(alias.name) for alias in node.names]


def as_node(name: str) -> cst.Name | cst.Attribute:
    """A dotted name as an expression."""
    first, *rest = name.split(".")
    node: cst.Name | cst.Attribute = cst.Name(first)
    for part in rest:
        node = cst.Attribute(node, cst.Name(part))
    return node


def comments_in(node: cst.CSTNode) -> list[str]:
    """The comments inside of a node."""
    own = [node.value] if isinstance(node, cst.Comment) else []
    return own + [text for child in node.children for text in comments_in(child)]
