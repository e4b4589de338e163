"""Guards on the numbers in arrays, such as `if jnp.any(x <= 0): raise`: a trace goes on as where they pass.

A trace knows shapes alone, so JAX raises where Python asks whether a traced number is true. Where all that depends on
it is whether the program refuses its arguments, the answer is known: what a guard refuses is no matter of the contract.
So the proof is one of the arguments that pass, and says so. What is decided otherwise by a number stays an error.

Only in the outermost trace, and of what no transform was taken off: inside a `jit` or `vmap` of the program's own the
same statement raises whatever it is given, and that is for JAX to say.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

from weft.core.caches import cached_by
from weft.core.edge import _tracers, names
from weft.typecheck.proofs.guards import is_packages
from weft.typecheck.proofs.whose import is_transforms, is_users


class Passing:
    """The guards that numbers were taken to pass, in a trace.

    Args:
        own: files that count as the user's, wherever they are.

    Attributes:
        passed: each as `guard at FILE:LINE: TEXT`, in order.
        ended: whether numbers pass no more, whatever asks.
    """

    def __init__(self, own: frozenset[str]):
        self.own = own
        self.passed: dict[str, None] = {}
        self.ended = False

    def going_on(self) -> AbstractContextManager[None]:
        """While this lasts, traced numbers pass the guards of the program's own."""
        return _tracers.truth_of_tracers(self._answer)

    def _answer(self, frame: FrameType) -> bool | None:
        """What a number has to be so that the guard that asks for it passes; None if no guard asks."""
        file = frame.f_code.co_filename
        if file.endswith(names.INITIALISERS_FILE):
            return True  # a product of sizes, of which none is 0
        if (
            self.ended
            or not _tracers.is_outermost_trace()
            or not (is_users(file, self.own) or is_packages(file, self.own))
        ):
            return None
        found = [one for one in _statements(frame.f_code) if one.lineno <= frame.f_lineno <= _last_line(one)]
        answers = {answer for one in found for answer in _asked(one, frame.f_globals)}
        if len(found) != 1 or len(answers) != 1 or None in answers:
            return None
        line = found[0].lineno
        self.passed[f"guard at {Path(file).name}:{line}: {linecache.getline(file, line).strip().rstrip(':')}"] = None
        return answers.pop()


def is_transformed(function: Any) -> bool:
    """Whether a function is called through a transform, as far as `__wrapped__` tells."""
    inner = getattr(function, "__wrapped__", None)
    while inner is not None:
        if not isinstance(function, staticmethod | classmethod):
            code = getattr(function, "__code__", None)
            if not isinstance(function, FunctionType) or code is None or is_transforms(code.co_filename):
                return True
        function, inner = inner, getattr(inner, "__wrapped__", None)
    return False


# ------------------------------------------------------------------------------- what a guard asks for, by its source


@cached_by("code")
def _statements(code: CodeType) -> tuple[ast.stmt, ...]:
    """The statements of a function that may be guards, at their lines: `if`, `assert`, and calls."""
    if code.co_name.startswith("<"):
        return ()
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return ()
    ast.increment_lineno(tree, max(first, 1) - 1)
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.If | ast.Assert | ast.Expr))


def _last_line(statement: ast.stmt) -> int:
    """The last line of what a statement asks for."""
    asks = statement.test if isinstance(statement, ast.If | ast.Assert) else statement
    return asks.end_lineno or statement.lineno


def _asked(statement: ast.stmt, names: Mapping[str, Any]) -> set[bool | None]:
    """What each number that a statement asks for has to be so that it does not raise; None if that is not known."""
    guard = _guard_of(statement)
    if guard is not None:
        return _answers(*guard)
    return _asked_by_call(statement.value, names) if isinstance(statement, ast.Expr) else {None}


def _guard_of(statement: ast.stmt) -> tuple[ast.expr, bool] | None:
    """The condition of a guard, without a `not` before it, and how it passes; None for what is no guard."""
    if isinstance(statement, ast.Assert):
        test, passes = statement.test, True
    elif isinstance(statement, ast.If) and _only_raises(statement.body) != _only_raises(statement.orelse):
        test, passes = statement.test, not _only_raises(statement.body)
    else:
        return None
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, passes = test.operand, not passes
    return test, passes


def _asked_by_call(call: ast.expr, names: Mapping[str, Any]) -> set[bool | None]:
    """The same of a call of a function that raises by one of its arguments: `errorif(not finite, ...)`."""
    function = names.get(call.func.id) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else None
    if not isinstance(call, ast.Call) or not isinstance(function, FunctionType):
        return {None}
    given = dict(zip(function.__code__.co_varnames, call.args, strict=False))
    given |= {one.arg: one.value for one in call.keywords if one.arg is not None}
    asking = [name for name, value in given.items() if any(isinstance(one, _DECIDING) for one in ast.walk(value))]
    guards = [guard for one in _statements(function.__code__) if (guard := _guard_of(one)) is not None]
    passing = {passes for test, passes in guards if isinstance(test, ast.Name) and [test.id] == asking}
    return {answer for passes in passing for answer in _answers(given[asking[0]], passes)} or {None}


def _only_raises(block: list[ast.stmt]) -> bool:
    """Whether a block of statements ends in a `raise`, and is left in no other way."""
    leaving = ast.Return | ast.Break | ast.Continue | ast.Yield | ast.YieldFrom
    return (
        bool(block)
        and isinstance(block[-1], ast.Raise)
        and not any(isinstance(one, leaving) for statement in block for one in ast.walk(statement))
    )


# What asks whether something is true, or holds what is asked at another time.
_DECIDING = ast.IfExp | ast.BoolOp | ast.Not | ast.NamedExpr | ast.Lambda | ast.comprehension | ast.Await


def _answers(test: ast.expr, wanted: bool) -> set[bool | None]:
    """What each number that a condition asks for has to be so that it is as wanted; None if that is not known."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _answers(test.operand, not wanted)
    if isinstance(test, ast.BoolOp):
        return {answer for one in test.values for answer in _answers(one, wanted)}
    return {None if any(isinstance(one, _DECIDING) for one in ast.walk(test)) else wanted}
