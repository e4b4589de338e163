"""Sources: the file and line where a parameter, a field or a return is annotated. Only errors ask."""

from __future__ import annotations

import ast
import inspect
import textwrap
from types import CodeType
from typing import Any

from weft.core.caches import cached_by
from weft.core.callers import shorten
from weft.typecheck.matching.bindings import Slot


def locate(slot: Slot) -> str:
    """`file:line` of a slot's annotation; of its function or class if it cannot be told; empty if neither can."""
    owner = slot.owner
    if owner is None:
        return ""
    if isinstance(owner, type):
        for base in owner.__mro__:
            if slot.name in vars(base).get("__annotations__", {}):
                return _place(base, slot.name)
        return _place(owner, slot.name)
    # By its code: what is kept must not keep a function's closure alive.
    function = inspect.unwrap(owner)
    code = getattr(function, "__code__", function)
    return _place(code, "return" if slot.role in ("return", "yield") else slot.name)


@cached_by("class or code, and name")
def _place(owner: Any, name: str) -> str:
    try:
        file = inspect.getsourcefile(owner) or inspect.getfile(owner)
    except (TypeError, OSError):  # built in, or typed at a prompt
        return ""
    try:
        lines, first = inspect.getsourcelines(owner)
        line = first + _line_in("".join(lines), name) - 1
    except (OSError, SyntaxError, TypeError):
        if not isinstance(owner, CodeType):
            return shorten(file)
        line = owner.co_firstlineno
    return f"{shorten(file)}:{line}"


def _line_in(source: str, name: str) -> int:
    """The line of a field, a parameter or the return annotation in the source of its class or function."""
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
    for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if one is not None and one.arg == name:
            return one.lineno
    return definition.lineno
