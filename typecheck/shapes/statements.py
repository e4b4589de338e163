"""Finds the names, attributes, loop variables and returned values that each line of a source assigns.

A *statement* here is a simple statement, or the head of a compound one: one look at a frame reads its values. Several
statements on one line count as one, because Python's events are per line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Assigned:
    """A name or attribute that a statement assigns: `x`, `self.w`, or `return` and `yield` for results.

    Attributes:
        path: the name, followed by attributes.
        line, column: its end, with lines from 1 and columns (in bytes) from 0.
    """

    path: tuple[str, ...]
    line: int
    column: int

    @property
    def text(self) -> str:
        """The source text of the name."""
        return ".".join(self.path)


@dataclass
class Statement:
    """The names that some lines assign, in the order of the text."""

    assigned: list[Assigned] = field(default_factory=list)


@dataclass(frozen=True)
class Function:
    """A `def` in the source.

    Attributes:
        name: the qualified name.
        first, line, last: the lines of its first decorator (or `def`), of its `def`, and of its end.
        bare: its parameters without annotations, except `self` and `cls`.
    """

    name: str
    first: int
    line: int
    last: int
    bare: tuple[Assigned, ...]


def definitions(node: ast.AST, scope: str = "") -> Iterator[tuple[str, range]]:
    """The functions and classes in a syntax tree, outermost first: the qualified name and the lines of each."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield f"{scope}{child.name}", range(child.lineno, (child.end_lineno or child.lineno) + 1)
            inner = "." if isinstance(child, ast.ClassDef) else ".<locals>."
            yield from definitions(child, f"{scope}{child.name}{inner}")
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from definitions(child, scope)


class Statements:
    """The statements and functions of a source text.

    Args:
        file: the path, as code objects have it.
        text: the source.

    Raises:
        SyntaxError: if the text is no Python.
    """

    def __init__(self, file: str, text: str):
        self.file = file
        self.text = text
        self.by_line: dict[int, Statement] = {}
        self.functions: list[Function] = []
        for node in ast.parse(text, file).body:
            self._enter(node, "")

    def function_at(self, line: int) -> Function | None:
        """The innermost function around a line, decorators included."""
        around = [function for function in self.functions if function.first <= line <= function.last]
        return max(around, key=lambda function: function.line, default=None)

    def _enter(self, node: ast.stmt, scope: str) -> None:
        """Notes a statement, or a function, and all statements inside it."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._note_function(node, scope)
            inner = f"{scope}{node.name}.<locals>."
        elif isinstance(node, ast.ClassDef):
            inner = f"{scope}{node.name}."
        else:
            self._note(node)
            inner = scope
        for child in _inner_statements(node):
            self._enter(child, inner)

    def _note_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: str) -> None:
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        bare = tuple(
            Assigned((argument.arg,), argument.end_lineno or argument.lineno, argument.end_col_offset or 0)
            for argument in arguments
            if argument.annotation is None and argument.arg not in ("self", "cls")
        )
        last = node.end_lineno or node.lineno
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        self.functions.append(Function(scope + node.name, first, node.lineno, last, bare))

    def _note(self, node: ast.stmt) -> None:
        """Notes which lines assign what, for a simple statement or the head of a compound one."""
        inner = [*_inner_statements(node)]
        last = node.end_lineno or node.lineno
        # The head of a compound statement ends before its body, whose lines are statements of their own.
        if inner:
            last = max(node.lineno, min(node.lineno for node in inner) - 1)
        # Statements that share a line share one entry: the frame is looked at once for both.
        statement = next((self.by_line[line] for line in range(node.lineno, last + 1) if line in self.by_line), None)
        statement = statement or Statement()
        statement.assigned += _assigned(node)
        # All lines of the statement lead to its entry: Python reports whichever of them it runs.
        for line in range(node.lineno, last + 1):
            self.by_line[line] = statement


def _inner_statements(node: ast.stmt) -> Iterator[ast.stmt]:
    for name in ("body", "orelse", "finalbody"):
        yield from getattr(node, name, ())
    for handler in getattr(node, "handlers", ()):
        yield from handler.body
    for case in getattr(node, "cases", ()):
        yield from case.body


def _assigned(node: ast.stmt) -> Iterator[Assigned]:
    """The names that a simple statement, or the head of a compound one, assigns."""
    heads: list[ast.expr | None] = []
    match node:
        case ast.Assign(targets=targets, value=value):
            heads = [value, *targets]
        case ast.AugAssign(target=target, value=value) | ast.AnnAssign(target=target, value=value):
            heads = [value, target]
            # `x: int` without a value assigns nothing.
            if value is None:
                return
        case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
            heads = [value, target]
        case ast.With(items=items) | ast.AsyncWith(items=items):
            heads = [expression for item in items for expression in (item.context_expr, item.optional_vars)]
        case ast.If(test=value) | ast.While(test=value) | ast.Assert(test=value) | ast.Match(subject=value):
            heads = [value]
        case ast.Expr(value=value) | ast.Return(value=value):
            heads = [value]
        case _:
            return
    for head in heads:
        if head is not None:
            yield from _targets(head)
    if isinstance(node, ast.Return) and node.value is not None:
        yield Assigned(("return",), node.end_lineno or node.lineno, node.end_col_offset or 0)


def _targets(node: ast.expr) -> Iterator[Assigned]:
    """The names that an expression assigns, `:=` included; those inside a lambda or comprehension are left out."""
    if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        return
    path = _path(node)
    if path is not None and isinstance(getattr(node, "ctx", None), ast.Store):
        if path == ("_",):
            return  # the name `_` says that the value is not used
        yield Assigned(path, node.end_lineno or node.lineno, node.end_col_offset or 0)
        return
    if isinstance(node, ast.Yield):
        yield Assigned(("yield",), node.end_lineno or node.lineno, node.end_col_offset or 0)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield from _targets(child)
        elif isinstance(child, ast.keyword):
            yield from _targets(child.value)


def _path(node: ast.expr) -> tuple[str, ...] | None:
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        inner = _path(node.value)
        return None if inner is None else (*inner, node.attr)
    return None
