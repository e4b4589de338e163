"""What `weft check` starts in a process of its own: a script whose calls are recorded, or one call that is described.

A request is JSON in the last argument; what was recorded goes to the file that it names, whatever the script does, and
what the script prints to standard error.

    {"run": ["train.py", "--steps", "3"], "packages": ["pkg"], "aliases": {}, "roots": [], "to": file}
    {"call": "pkg.layers.attend(f32[3,4], n=2)", "roots": [], "to": file}
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from weft.core.errors import WeftError
from weft.typecheck.recording.recorder import Recorder
from weft.typecheck.recording.scripts import ProgramError, run_program
from weft.typecheck.recording.structures import Encoder, Node, Opaque


class CallError(WeftError, ValueError):
    """An expression that describes no call."""


def main() -> int:
    """Answers the request, and returns the exit code: 2 where the call or the script cannot be used at all."""
    request = json.loads(sys.argv.pop())
    sys.path += request["roots"]
    os.dup2(2, 1)
    if "call" in request:
        try:
            calls = dict([described(request["call"])])
        except CallError as error:
            Path(request["to"]).write_text(json.dumps({"error": error.what}))
            return 2
        (name,) = calls
        file = getattr(sys.modules[name.partition(":")[0]], "__file__", None)
        Path(request["to"]).write_text(json.dumps({"calls": calls, "file": file}))
        return 0
    recorder = Recorder(request["packages"], request["aliases"]).install()
    is_checked = "__main__" in request["aliases"]
    answer: dict[str, Any] = {"calls": recorder.calls}
    try:
        run_program(request["run"], recorder.decorated if is_checked else None)
    except ProgramError as error:
        answer = {"error": error.what}
        return 2
    finally:
        for module in recorder.missed():
            print(f"{module}: its calls were not recorded: another import hook has loaded it", file=sys.stderr)
        Path(request["to"]).write_text(json.dumps(answer))
    return 0


class _Dtype:
    """`f32[3, 4]`: an array without numbers."""

    def __init__(self, name: str):
        self.dtype = jnp.dtype(name)

    def __getitem__(self, shape: Any) -> jax.ShapeDtypeStruct:
        sizes = shape if isinstance(shape, tuple) else (shape,)
        if any(type(size) is not int or size < 0 for size in sizes):
            raise ValueError(f"{sizes} is no shape: sizes are integers from 0 on")
        return jax.ShapeDtypeStruct(sizes, self.dtype)


# What JAX calls dtypes where it prints shapes.
_SHORT = {
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"{short}{bits}": f"{name}{bits}" for short, name in (("i", "int"), ("u", "uint")) for bits in (8, 16, 32, 64)},
    "bf16": "bfloat16",
    "c64": "complex64",
    "c128": "complex128",
    "b1": "bool",
}
_NAMES: dict[str, Any] = {"jax": jax, "jnp": jnp, "np": np, **{short: _Dtype(name) for short, name in _SHORT.items()}}


def described(expression: str) -> tuple[str, list[Node]]:
    """The call that an expression describes: the function's name, and the structure of its arguments. It is not made.

    Args:
        expression: a call of a function or method, by its dotted name; arguments may use `jax`, `jnp`, `np`, what is
            named by its module, and `f32[3,4]` for an array.

    Raises:
        CallError: in one line, if it is no call, or a part of it cannot be evaluated.

    >>> described("jax.nn.relu(f32[3,4])")[1]
    [{'args': [{'array': 'float32', 'shape': [3, 4]}], 'kwargs': {}}]
    """
    try:
        call = ast.parse(expression.strip(), mode="eval").body
    except SyntaxError as error:
        raise CallError(f"{expression!r} is no expression: {error.msg}") from None
    if not isinstance(call, ast.Call):
        raise CallError(f"{expression!r} is no call of a function")
    names = dict(_NAMES)
    try:
        names |= dict(_imported(call))
        function = eval(ast.unparse(call.func), names)
        call.func = ast.Name("__weft_given__", ast.Load())
        given = {**names, "__weft_given__": lambda *args, **kwargs: (args, kwargs)}
        args, kwargs = eval(ast.unparse(call), given)
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise CallError(f"{expression!r}: {type(error).__name__}: {first}") from None
    function, args = _unbound(function, args)
    _check_arguments(expression, function, args, kwargs)
    encoder = Encoder()
    try:
        node = {
            "args": [encoder.node(one) for one in args],
            "kwargs": {name: encoder.node(one) for name, one in kwargs.items()},
        }
    except Opaque as reason:
        raise CallError(f"{expression!r}: an argument cannot be written down: {reason}") from None
    plain = inspect.unwrap(function)
    if not hasattr(plain, "__qualname__"):
        raise CallError(f"{expression!r}: what is called is no function of Python's")
    return f"{plain.__module__}:{plain.__qualname__}", [node]


def _check_arguments(expression: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of C's
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise CallError(f"{expression!r}: {error}") from None


def _unbound(function: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """A method as a function of its instance."""
    if hasattr(function, "__func__") and hasattr(function, "__self__"):
        return function.__func__, (function.__self__, *args)
    if not inspect.isroutine(function) and not hasattr(function, "__wrapped__") and not isinstance(function, type):
        return type(function).__call__, (function, *args)
    return function, args


def _imported(tree: ast.AST) -> Iterator[tuple[str, Any]]:
    """The modules that dotted names begin with, imported as far as they are modules."""
    for node in ast.walk(tree):
        parts: list[str] = []
        part: Any = node
        while isinstance(part, ast.Attribute):
            parts.append(part.attr)
            part = part.value
        if not isinstance(part, ast.Name) or part.id in _NAMES:
            continue
        yielded, name = False, part.id
        for attribute in ["", *reversed(parts)]:
            name = f"{name}.{attribute}" if attribute else name
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                    raise
                break
            if not yielded:
                yielded = True
                yield part.id, sys.modules[part.id]


if __name__ == "__main__":
    sys.exit(main())
