"""What a function's source shows of its parameters: compared strings and numbers, keys that are read, stubs.

Where an annotation says only `str` or `dict[str, ...]`, these are the values that callers pass. A function without
source shows nothing.
"""

from __future__ import annotations

import ast
import dis
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from weft.core.caches import cached_by


def strings_compared(function: Callable[..., Any] | None, name: str) -> tuple[str, ...]:
    """The strings that a parameter is compared with, looked up among, or matched against, in order."""
    expressions: list[ast.expr] = []
    for node in _nodes(function):
        if isinstance(node, ast.Compare):
            # Both sides: `if mode == "sum"` and `if "sum" == mode` are both written.
            sides = [node.left, *node.comparators]
            if any(_is_name(side, name) for side in sides):
                expressions += sides
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict) and _is_name(node.slice, name):
            expressions += [key for key in node.value.keys if key is not None]
        elif isinstance(node, ast.Match) and _is_name(node.subject, name):
            patterns = (part for case in node.cases for part in ast.walk(case.pattern))
            expressions += [part.value for part in patterns if isinstance(part, ast.MatchValue)]
    return tuple(dict.fromkeys(text for one in expressions for text in _strings(one)))


def keys_read(function: Callable[..., Any] | None, name: str) -> tuple[str, ...]:
    """The strings by which a parameter is indexed, in order."""
    keys: list[ast.expr] = []
    for node in _nodes(function):
        if isinstance(node, ast.Subscript) and _is_name(node.value, name):
            keys.append(node.slice)
    return tuple(dict.fromkeys(text for one in keys for text in _strings(one)))


def numbers_compared(function: Callable[..., Any] | None) -> frozenset[int]:
    """The integers that a value in the body is compared with or divided by; numbers of axes are left out."""
    numbers = [number for axes, number in _compared(function) if not axes]
    for node in _nodes(function):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            numbers += _integers(node.right)
    return frozenset(number for number in numbers if 1 <= number <= _LARGEST)


def ranks_compared(function: Callable[..., Any] | None) -> frozenset[int]:
    """The integers that a number of axes (`ndim`) is compared with in the body."""
    return frozenset(one for axes, one in _compared(function) if axes and 0 <= one <= _MOST_AXES)


def _compared(function: Callable[..., Any] | None) -> Iterator[tuple[bool, int]]:
    """The integers in comparisons, each with whether the comparison is about a number of axes (`ndim`)."""
    for node in _nodes(function):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            axes = any(isinstance(side, ast.Attribute) and side.attr == "ndim" for side in sides)
            yield from ((axes, number) for side in sides for number in _integers(side))


def _integers(node: ast.expr) -> list[int]:
    several = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return [one.value for one in several if isinstance(one, ast.Constant) and type(one.value) is int]


# Among the names that a function reads: it looks whether something is a part of a constant text.
IN_A_TEXT = "in a text"


@cached_by("code")
def names_read(code: CodeType) -> frozenset[str]:
    """The names of variables and attributes whose values a function looks at, with those of functions inside of it.

    An assignment of a parameter to an attribute of the same name, as in a constructor, only keeps the value.
    """
    loaded, names, before = list[str](), set[str](), None
    for instruction in dis.get_instructions(code):
        argument = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
        if instruction.opname.startswith("LOAD") and instruction.opname != "LOAD_CONST":
            loaded += (name for name in argument if isinstance(name, str))
        elif instruction.opname == "STORE_ATTR" and loaded[-2:-1] == [instruction.argval]:
            del loaded[-2:]
        elif instruction.opname == "CONTAINS_OP" and type(before) is str:
            names.add(IN_A_TEXT)
        before = instruction.argval
        names.update(loaded[:-2])
        del loaded[:-2]
    inner = (names_read(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset({*names, *loaded}).union(*inner)


def is_stub(function: Any) -> bool:
    """Whether a function leaves its body to subclasses: it only raises, or is empty and promises a result."""
    if not inspect.isfunction(function):
        return False
    # An empty method without a promised result, such as a hook `def on_end(self): ...`, is complete as it is.
    promises = function.__annotations__.get("return") not in (None, "None")
    return _raises_only(function.__code__) or (promises and _is_empty(function.__code__))


@cached_by("code")
def _raises_only(code: CodeType) -> bool:
    operations = (instruction.opname for instruction in dis.get_instructions(code))
    return code.co_names[:1] == ("NotImplementedError",) and not any(name.startswith("RETURN") for name in operations)


@cached_by("code")
def _is_empty(code: CodeType) -> bool:
    if any(instruction.opname not in _OF_NOTHING for instruction in dis.get_instructions(code)):
        return False
    try:
        # A function that returns None has the same bytecode as an empty one, so only the source tells the two apart.
        written = ast.parse(textwrap.dedent(inspect.getsource(code))).body[0]
    except (OSError, TypeError, SyntaxError):
        return False
    return isinstance(written, ast.FunctionDef | ast.AsyncFunctionDef) and all(
        isinstance(one, ast.Pass) or (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
        for one in written.body
    )


# The instructions of a function without statements, in every supported version of Python.
_OF_NOTHING = frozenset({"RESUME", "NOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST", "COPY_FREE_VARS"})


# Arrays of more axes are not tried.
_MOST_AXES = 5
# A comparison with a larger number is about memory, and a trial at such a size would need that memory.
_LARGEST = 4096


def _strings(node: ast.expr) -> Iterator[str]:
    for element in node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]:
        if isinstance(element, ast.Constant) and isinstance(element.value, str):
            yield element.value


def _is_name(node: ast.expr, name: str) -> bool:
    """Whether an expression is the name itself, or a method call on it without arguments, such as `mode.lower()`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
        node = node.func.value
    return isinstance(node, ast.Name) and node.id == name


def _nodes(function: Callable[..., Any] | None) -> tuple[ast.expr | ast.Match, ...]:
    """The expressions and `match` statements in a function's source, in source order."""
    code = getattr(function, "__code__", None)
    return () if code is None else _nodes_of(code)


@cached_by("code")
def _nodes_of(code: CodeType) -> tuple[ast.expr | ast.Match, ...]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):
        return ()
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.expr | ast.Match)]
    return tuple(sorted(nodes, key=lambda node: (node.lineno, node.col_offset)))
