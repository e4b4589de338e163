"""Finds the origin of an equation in the source: file, line, expression, module path, and what it differentiates."""

from __future__ import annotations

import ast
import contextlib
import linecache
from dataclasses import dataclass

from jax.extend.core import JaxprEqn
from weft.core.edge import _jax
from weft.core.edge.names import MAPPED
from weft.core.frames import owner_of, shorten

# The files of JAX whose frames are between a function that binds a primitive and the rule of a derivative.
_PLUMBING = ("interpreters/ad.py", "core.py", "traceback_util.py", "partial_eval.py", "batching.py", "pjit.py")
_PLUMBING += ("api.py", "linear_util.py", "profiler.py", "source_info_util.py")
_TOOLS = frozenset(("machinery", "contracts", "jax", "equinox", "frozen"))


@dataclass(frozen=True)
class Place:
    """The place in the source at which an equation was traced.

    Attributes:
        where: file, line and source text.
        text: the innermost expression of the user's that it was traced for.
        derived: the primitive whose derivative rule made the equation, or nothing.
        is_backward: whether only the backward pass reads what the equation gives.
    """

    where: str
    text: str
    derived: str
    is_backward: bool = False


def place_of(eqn: JaxprEqn, is_differentiated: bool = False) -> Place:
    """Returns the place of an equation, from its traceback. For `is_differentiated` see `_derived`."""
    lines = _jax.lines_of(eqn)
    # Frames of JAX and of weft's interpreter are on every traceback, and tell users nothing.
    outside = [i for i, (file, *_) in enumerate(lines) if owner_of(file) not in _TOOLS]
    if not outside:
        return Place("", "", "")
    first = outside[0]
    file, _, number, column, end = lines[first]
    source = linecache.getline(file, number)
    # Columns of a traceback count bytes of UTF-8, not characters.
    text = (source.encode()[column:end].decode(errors="replace") if end > column else source).strip()
    where = f"{shorten(file)}:{number}: {text}"
    users = next((i for i in outside if owner_of(lines[i][0]) == "user"), None)
    # In a layer of weft or in optax the line alone does not help: the caller's line in the user's code is shown, too.
    if users is not None and owner_of(file) != "user":
        where += f", called at {shorten(lines[users][0])}:{lines[users][2]}"
    return Place(where, text, _derived(eqn.primitive.name, text, lines[:first], is_differentiated))


def count_own_maps(eqn: JaxprEqn) -> int:
    """The number of `vmap`s around an equation that functions of JAX's opened themselves, as `jnp.linalg.inv` does."""
    lines, count = _jax.lines_of(eqn), 0
    for i, (_, function, *_) in enumerate(lines):
        if function.endswith(MAPPED):
            caller = next((file for file, *_ in lines[i + 1 :] if not file.endswith(_PLUMBING)), "")
            count += owner_of(caller) == "jax"
    return count


def _derived(name: str, text: str, inner: list[tuple[str, str, int, int, int]], is_differentiated: bool) -> str:
    """Returns the primitive that an equation is the derivative of; empty if the equation is no derivative.

    Args:
        name: the equation's own primitive.
        text: the source text of the expression.
        inner: the frames inside of the expression, innermost first.
        is_differentiated: whether the equation is in a derivative. JAX differentiates the body of a loop or a branch
            as a jaxpr, and gives each new equation the traceback of the equation that it was derived from.
    """
    rules = [i for i, (file, function, *_) in enumerate(inner) if _is_derivation(file, function)]
    if not rules and not is_differentiated:
        return ""
    # The first frame outside of the rule and of JAX's internals is the function that bound the primitive, such as
    # `log`.
    rest = (function for file, function, *_ in inner[rules[0] if rules else 0 :] if not _is_plumbing(file))
    derived = next(rest, "").lstrip("_")
    # A function that JAX compiles itself has no frame in the traceback, but its name is in the user's text.
    if not _jax.has_derivative(derived):
        derived = _called(text)
    # A rule binds the differentiated primitive directly, and calls functions to bind any other: more than one frame
    # inside of the rule's call means that the equation is new.
    is_new = bool(rules) and sum(not _is_plumbing(file) for file, *_ in inner[: rules[0]]) > 1
    return derived if (is_new or not _binds(derived, name)) and _jax.has_derivative(derived) else ""


def _binds(function: str, primitive: str) -> bool:
    """Whether a function binds a primitive. Their names may differ: `dot` binds `dot_general`, `**` `integer_pow`."""
    return primitive == function or primitive.startswith(f"{function}_") or primitive.endswith(f"_{function}")


def _is_derivation(file: str, function: str) -> bool:
    return (file.endswith("interpreters/ad.py") and function == "process_primitive") or function.endswith(
        ("JVPTrace.process_primitive", "LinearizeTrace.process_primitive")
    )


def _is_plumbing(file: str) -> bool:
    return owner_of(file) != "jax" or file.endswith(_PLUMBING)


def _called(text: str) -> str:
    """Returns the name of the primitive that an expression most likely binds.

    >>> _called("jnp.log(x)"), _called("x / y"), _called("x[0]")
    ('log', 'div', 'subscript')
    """
    node = _expression(text)
    if isinstance(node, ast.BinOp):
        return _OPERATORS.get(type(node.op).__name__, type(node.op).__name__.lower())
    if isinstance(node, ast.Call):
        return getattr(node.func, "attr", getattr(node.func, "id", "call"))
    return type(node).__name__.lower() if node else ""


def _expression(text: str) -> ast.expr | None:
    """Parses an expression; None if the text is only a part of one."""
    with contextlib.suppress(SyntaxError):
        return ast.parse(text.strip(), mode="eval").body


_OPERATORS = {"Mult": "mul", "MatMult": "dot_general"}


def argument_names(text: str, count: int, primitive: str) -> list[str]:
    """Returns the source texts of an expression's operands; empty unless they are the `count` inputs of a primitive.

    >>> argument_names("jnp.log(p)", 1, "log"), argument_names("x / (y + 1)", 2, "div")
    (['p'], ['x', 'y + 1'])
    >>> argument_names("jax.nn.softmax(x, -1)", 2, "sub"), argument_names("f(", 1, "f")
    ([], [])
    """
    node, operands = _expression(text), list[ast.expr]()
    # A function such as softmax binds many primitives, whose inputs are not its arguments.
    if not _binds(_called(text), primitive):
        return []
    if isinstance(node, ast.Call):
        operands = list(node.args)
        # In a method call such as `x.sum(0)` the object is an operand.
        if isinstance(node.func, ast.Attribute) and len(operands) < count:
            operands.insert(0, node.func.value)
    elif isinstance(node, ast.BinOp):
        operands = [node.left, node.right]
    # A number is a literal of the equation. If the equation has an input in its place, that is another value: the
    # derivative of `x ** y` has the exponent less 1.
    names = [ast.unparse(operand) for operand in operands if not _is_number(operand)]
    return names if len(names) == count else []


def _is_number(operand: ast.expr) -> bool:
    return isinstance(operand.operand if isinstance(operand, ast.UnaryOp) else operand, ast.Constant)
