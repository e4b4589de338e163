"""Tells whether JAX is rebuilding an instance: `tree_unflatten` calls the constructor of a registered dataclass.

`jax.tree_util.register_dataclass`, `flax.struct.dataclass` and a user's own `tree_unflatten` all run `__init__` with
JAX's placeholders: stacks of arrays, in-axes, `None`, `object()`. Such an instance breaks no contract, although an
instance that the user makes of the same values does. So the running call decides: JAX is rebuilding if the nearest
caller outside Python is jaxlib (`treedef.unflatten(...)`, a compiled function that returns the instance).
"""

from __future__ import annotations

import ast
import inspect
import itertools
import linecache
from collections.abc import Callable
from types import FrameType
from typing import Any

from weft.core.interpreter.codegen import GENERATED

# Instances that the user's functions construct are the user's, also if Python code of JAX calls these functions.
_JAX = "jax"
# The methods of jaxlib's classes, such as `PyTreeDef.unflatten`, are made by nanobind.
_COMPILED = ("jaxlib", "nanobind")


def is_rebuilding(frame: FrameType | None) -> bool:
    """Whether jaxlib called the code above a frame; asked only about instances whose fields do not fit."""
    while frame is not None:
        # Weft's generated code calls constructors only to rebuild, and has no source to read the callee from.
        if frame.f_code.co_filename == GENERATED:
            return True
        is_of_jax = frame.f_globals.get("__name__", "").split(".")[0] == _JAX
        # `getattr_static` runs no properties of the user's; JAX's own trees (`self.tree.unflatten`) need theirs run.
        callee = _callee(frame, getattr if is_of_jax else inspect.getattr_static)
        if type(callee).__module__.split(".")[0] in _COMPILED:
            return True
        if is_of_jax:
            return False
        frame = frame.f_back
    return False


def _callee(frame: FrameType, attribute: Callable[[Any, str, None], Any]) -> Any:
    """The object that a frame is calling; None if the call has no name, as in `functions[0](x)`."""
    # CPython has no public way to the callee of a running call, so it is read from the position of the instruction.
    positions = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    line, end_line, column, end_column = positions
    if line is None or end_line is None or column is None or end_column is None:
        return None
    text = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
    lines = [text_line.encode() for text_line in text[line - 1 : end_line]]  # columns count bytes
    if not lines:
        return None
    # The end is cut first: on a single line, cutting the start would shift the end.
    lines[-1] = lines[-1][:end_column]
    lines[0] = lines[0][column:]
    try:
        call = ast.parse(b"(" + b"".join(lines) + b")", mode="eval").body
    except SyntaxError:  # the file has changed since its import
        return None
    return _looked_up(call.func, frame, attribute) if isinstance(call, ast.Call) else None


def _looked_up(name: ast.expr, frame: FrameType, attribute: Callable[[Any, str, None], Any]) -> Any:
    if isinstance(name, ast.Name):
        return frame.f_locals.get(name.id, frame.f_globals.get(name.id))
    if isinstance(name, ast.Attribute):
        return attribute(_looked_up(name.value, frame, attribute), name.attr, None)
    return None
