"""Sources: finds the file and line of an annotated parameter, field or return; only errors need them."""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from types import CodeType
from typing import Any

from weft.core.caches import cached_by
from weft.core.frames import shorten
from weft.typecheck.matching.bindings import Slot


def locate(slot: Slot) -> str:
    """`file:line` of a slot's annotation, or of its function or class if the line is unknown; "" without a file."""
    owner = slot.owner
    if owner is None:
        return ""
    if isinstance(owner, type):
        # The annotation stands in the class of the hierarchy that declares the field.
        for base in owner.__mro__:
            if slot.name in vars(base).get("__annotations__", {}):
                return _place(base, slot.name)
        return _place(owner, slot.name)
    # The cache is by code: with functions as keys it would keep their closures, and arrays in them, alive.
    function = inspect.unwrap(owner)
    code = getattr(function, "__code__", function)
    return _place(code, "return" if slot.role in ("return", "yield") else slot.name)


@cached_by("class or code, and name")
def _place(owner: Any, name: str) -> str:
    """The file and line of the annotation of a name in a class or function, or of the definition's own first line."""
    try:
        file = inspect.getsourcefile(owner) or inspect.getfile(owner)
    except (TypeError, OSError):  # a builtin, or a definition typed at the prompt
        return ""
    try:
        lines, first = inspect.getsourcelines(owner)
        line = first + _line_in("".join(lines), name) - 1
    # Without readable source a function still knows its first line.
    except (OSError, SyntaxError, TypeError):
        if not isinstance(owner, CodeType):
            return shorten(file)
        line = owner.co_firstlineno
    return f"{shorten(file)}:{line}"


def only_return(file: str, line: int) -> tuple[int, str] | None:
    """The line and source of the expression of a function's only `return`, for the function defined at a line.

    None for a function with several returns, or an expression over several lines.
    """
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # the file has changed, or is a notebook's cell with magics
        return None
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if line in (node.lineno, *(decorator.lineno for decorator in node.decorator_list)):
            # The returns of functions inside are not the function's own.
            scopes = (child for child in ast.walk(node) if child is not node and isinstance(child, _SCOPES))
            inner = {id(part) for scope in scopes for part in ast.walk(scope)}
            returns = [part for part in ast.walk(node) if isinstance(part, ast.Return) and id(part) not in inner]
            value = returns[0].value if len(returns) == 1 else None
            if value is None or value.lineno != value.end_lineno or isinstance(value, ast.Tuple):
                return None
            # `col_offset` counts bytes, which differ from characters after any letter outside ASCII.
            text = linecache.getline(file, value.lineno).encode()[value.col_offset : value.end_col_offset].decode()
            return value.lineno, text
    return None


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def _line_in(source: str, name: str) -> int:
    """The line of a field, parameter or return annotation in the source of its class or function, counted from 1."""
    definition = ast.parse(textwrap.dedent(source)).body[0]
    if isinstance(definition, ast.ClassDef):
        for node in definition.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
                return node.lineno
        return definition.lineno
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
        return 1
    if name == "return" and definition.returns is not None:
        return definition.returns.lineno
    arguments = definition.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if argument is not None and argument.arg == name:
            return argument.lineno
    return definition.lineno
