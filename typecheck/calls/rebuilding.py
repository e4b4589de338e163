"""Whether JAX rebuilds an instance: `tree_unflatten` calls the constructor of a dataclass that is a pytree node.

`jax.tree_util.register_dataclass`, `flax.struct.dataclass` and a user's own `tree_unflatten` all run `__init__`, with
what JAX has at that moment: stacks of arrays, in-axes, `None`, `object()`. Such an instance breaks no contract, and the
same fields from the user do. The values cannot tell the two apart, and the call that is running can: the nearest caller
that has handed over to jaxlib (`treedef.unflatten(...)`, a compiled function that returns the instance) is rebuilding.
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

# Python code of JAX's calls the functions that the user gave it: what these construct is constructed by the user.
_JAX = "jax"
# nanobind makes the methods of jaxlib's classes, such as `PyTreeDef.unflatten`.
_COMPILED = ("jaxlib", "nanobind")


def is_rebuilding(frame: FrameType | None) -> bool:
    """Whether jaxlib has called what runs above a frame: asked only of instances whose fields do not fit."""
    while frame is not None:
        # Weft's generated code calls nothing of the user's but constructors, and has no text to read the callee from.
        if frame.f_code.co_filename == GENERATED:
            return True
        is_of_jax = frame.f_globals.get("__name__", "").split(".")[0] == _JAX
        # Properties of the user's objects are not run for this; JAX's flat trees (`self.tree.unflatten`) have one.
        callee = _callee(frame, getattr if is_of_jax else inspect.getattr_static)
        if type(callee).__module__.split(".")[0] in _COMPILED:
            return True
        if is_of_jax:
            return False
        frame = frame.f_back
    return False


def _callee(frame: FrameType, attribute: Callable[[Any, str, None], Any]) -> Any:
    """The object that a frame is calling, or None where the call does not name it: `functions[0](x)`."""
    positions = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    line, end_line, column, end_column = positions
    if line is None or end_line is None or column is None or end_column is None:
        return None
    text = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
    lines = [one.encode() for one in text[line - 1 : end_line]]  # columns count bytes
    if not lines:
        return None
    lines[-1] = lines[-1][:end_column]
    lines[0] = lines[0][column:]
    try:
        call = ast.parse(b"(" + b"".join(lines) + b")", mode="eval").body
    except SyntaxError:  # the file has changed since it was imported
        return None
    return _looked_up(call.func, frame, attribute) if isinstance(call, ast.Call) else None


def _looked_up(name: ast.expr, frame: FrameType, attribute: Callable[[Any, str, None], Any]) -> Any:
    if isinstance(name, ast.Name):
        return frame.f_locals.get(name.id, frame.f_globals.get(name.id))
    if isinstance(name, ast.Attribute):
        return attribute(_looked_up(name.value, frame, attribute), name.attr, None)
    return None


__all__ = ["is_rebuilding"]
