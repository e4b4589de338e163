"""Guards: statements by which a program refuses arguments on purpose, and the line that raised an error.

A `raise` or `assert` in the program's own package, `eqx.error_if`, and the checks of chex and beartype ask for
something that annotations cannot express. Such a refusal states a precondition and is no fault of the program.

A guard may test the numbers in arrays: `if jnp.any(x <= 0): raise`. A trace knows shapes alone, so JAX raises where
Python asks whether a traced number is true. `GuardPasser` lets the trace continue as if the guard passes: arguments
that a guard refuses are no matter of the contract. So the proof is about arguments that pass, and its report says so.
Any other decision by a number stays an error. Guards pass in the outermost trace only, and in functions that no
transform wraps. Inside a `jit` or `vmap` of the program's own the same statement raises whatever the numbers are.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import textwrap
import traceback
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

from weft.core.caches import cached_by
from weft.core.edge import _tracers, names
from weft.typecheck.proofs.frames import is_installed, is_of_library, is_transforms, is_users

_RAISES = re.compile(r"(^|[:;]\s*)(raise|assert)\b")
_CHECKS = re.compile(r"\b(error_if|branched_error_if|die_if_unbearable|checkify\.check|chex\.assert_\w+)\(")
_CHECKERS = re.compile(r"/(equinox/_errors|chex/|beartype/)")


def raised_at(error: BaseException, own: frozenset[str]) -> tuple[tuple[str, int], str]:
    """The user's innermost line in a traceback, and the guard that raised: `guard at FILE:LINE: TEXT` or ""."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if is_users(frame.filename, own)]
    place = (users[-1].filename, users[-1].lineno or 0) if users else ("", 0)
    # A guard may stand in a module that is not judged itself: a helper of the same package refuses on its behalf.
    of_package = [n for n, frame in enumerate(frames) if frame in users or is_packages(frame.filename, own)]
    if not of_package:
        return place, ""
    last, inner = frames[of_package[-1]], frames[of_package[-1] + 1 :]
    text = last.line or ""
    # Only the innermost frame is a `raise`; a line that merely calls what raises, such as JAX, refuses nothing itself.
    by_statement = not inner and _RAISES.search(text)
    by_checker = inner and (_CHECKS.search(text) or _CHECKERS.search(inner[-1].filename))
    if not by_statement and not by_checker:
        return place, ""
    if text.startswith("raise"):  # the condition of a bare `raise` is the `if` on the line before
        before = linecache.getline(last.filename, (last.lineno or 0) - 1).strip()
        text = before.rstrip(":") if before.startswith(("if ", "elif ")) else text
    return place, f"guard at {Path(last.filename).name}:{last.lineno}: {text}"


def is_refused_by_library(error: Exception | None) -> bool:
    """Whether a `raise` statement of an installed package, or of equinox, raised an error, not Python itself."""
    frames = traceback.extract_tb(None if error is None else error.__traceback__)
    return bool(frames) and is_of_library(error) and _RAISES.search(frames[-1].line or "") is not None


def is_packages(file: str, own: frozenset[str]) -> bool:
    """Whether a file is one of `own`, or lies in the same package and in no virtual environment inside of it."""
    if file in own:
        return True
    # Every file of a package that is itself installed lies in an environment, so there that says nothing.
    return any(file.startswith(top) and (is_installed(top) or not is_installed(file)) for top in _packages(own))


@cached_by("files")
def _packages(own: frozenset[str]) -> tuple[str, ...]:
    """The outermost folders of the packages that these files are in."""
    tops: list[str] = []
    for folder in (Path(name).parent for name in sorted(own)):
        top = None
        while (folder / "__init__.py").exists() and folder != folder.parent:
            top, folder = folder, folder.parent
        tops += [f"{top}/"] if top is not None else []
    return tuple(tops)


class GuardPasser:
    """Answers a trace's questions about traced numbers so that guards pass, and records these guards.

    Args:
        own: files that count as the user's, wherever they are.

    Attributes:
        passed: the guards in order, each as `guard at FILE:LINE: TEXT`.
        ended: whether JAX's errors are raised again from now on.
    """

    def __init__(self, own: frozenset[str]):
        self.own = own
        self.passed: dict[str, None] = {}
        self.ended = False

    def going_on(self) -> AbstractContextManager[None]:
        """A context in which traced numbers pass the guards of the program's own package."""
        return _tracers.truth_of_tracers(self._answer)

    def _answer(self, frame: FrameType) -> bool | None:
        """The truth value of a traced number with which the guard that asks for it passes; None if no guard asks."""
        file = frame.f_code.co_filename
        if file.endswith(names.INITIALISERS_FILE):
            return True  # JAX's initialisers ask whether a product of sizes is not 0; no size of a trial is
        if (
            self.ended
            or not _tracers.is_outermost_trace()
            or not (is_users(file, self.own) or is_packages(file, self.own))
        ):
            return None
        statements: list[ast.stmt] = []
        for each in _statements(frame.f_code):
            asks = each.test if isinstance(each, ast.If | ast.Assert) else each  # of a call, the whole statement
            if each.lineno <= frame.f_lineno <= (asks.end_lineno or each.lineno):
                statements.append(each)
        answers = {answer for each in statements for answer in _asked(each, frame.f_globals)}
        # If a line has two statements, or two numbers that would have to differ, nothing tells which of them asks.
        if len(statements) != 1 or len(answers) != 1 or None in answers:
            return None
        line = statements[0].lineno
        self.passed[f"guard at {Path(file).name}:{line}: {linecache.getline(file, line).strip().rstrip(':')}"] = None
        return answers.pop()


def is_transformed(function: Any) -> bool:
    """Whether a transform wraps a function, as far as its `__wrapped__` attributes tell."""
    inner = getattr(function, "__wrapped__", None)
    while inner is not None:
        if not isinstance(function, staticmethod | classmethod):
            # A decorator of the program's own is plain Python, under which a guard still decides at run time; JAX's
            # wrappers are compiled objects, or functions in files of transforms.
            code = getattr(function, "__code__", None)
            if not isinstance(function, FunctionType) or code is None or is_transforms(code.co_filename):
                return True
        function, inner = inner, getattr(inner, "__wrapped__", None)
    return False


# ------------------------------------------------------------------------------- what a guard asks for, by its source


@cached_by("code")
def _statements(code: CodeType) -> tuple[ast.stmt, ...]:
    """The statements of a function that may be guards: each `if`, each `assert` and each call, with its line."""
    if code.co_name.startswith("<"):
        return ()
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return ()
    # The parser counts lines from the function's first one, a frame from the file's.
    ast.increment_lineno(tree, max(first, 1) - 1)
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.If | ast.Assert | ast.Expr))


def _asked(statement: ast.stmt, names: Mapping[str, Any]) -> set[bool | None]:
    """The truth values that numbers in a statement must have so that it does not raise; None where that is unknown."""
    guard = _guard_of(statement)
    if guard is not None:
        return _answers(*guard)
    return _asked_by_call(statement.value, names) if isinstance(statement, ast.Expr) else {None}


def _guard_of(statement: ast.stmt) -> tuple[ast.expr, bool] | None:
    """The condition of a guard without its `not`s, and the value with which the guard passes; None if it is none."""
    if isinstance(statement, ast.Assert):
        test, passes = statement.test, True
    # An `if` whose two branches both raise, or both go on, decides something else than whether the arguments are
    # refused.
    elif isinstance(statement, ast.If) and _only_raises(statement.body) != _only_raises(statement.orelse):
        test, passes = statement.test, not _only_raises(statement.body)
    else:
        return None
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, passes = test.operand, not passes
    return test, passes


def _asked_by_call(call: ast.expr, names: Mapping[str, Any]) -> set[bool | None]:
    """The truth values that numbers in a call must have so that the called function does not raise; None if unknown.

    Only functions whose guard tests one argument are known: `errorif(not jnp.isfinite(x).all(), ...)`.
    """
    function = names.get(call.func.id) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else None
    if not isinstance(call, ast.Call) or not isinstance(function, FunctionType):
        return {None}
    passed = dict(zip(function.__code__.co_varnames, call.args, strict=False))
    passed |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    asking = [name for name, value in passed.items() if any(isinstance(node, _DECIDING) for node in ast.walk(value))]
    guards = [guard for statement in _statements(function.__code__) if (guard := _guard_of(statement)) is not None]
    passing = {passes for test, passes in guards if isinstance(test, ast.Name) and [test.id] == asking}
    return {answer for passes in passing for answer in _answers(passed[asking[0]], passes)} or {None}


def _only_raises(block: list[ast.stmt]) -> bool:
    """Whether a block of statements ends in a `raise`, and is left in no other way."""
    leaving = ast.Return | ast.Break | ast.Continue | ast.Yield | ast.YieldFrom
    return (
        bool(block)
        and isinstance(block[-1], ast.Raise)
        and not any(isinstance(node, leaving) for statement in block for node in ast.walk(statement))
    )


# Expressions that ask for a truth value themselves, or whose parts run at another time.
_DECIDING = ast.IfExp | ast.BoolOp | ast.Not | ast.NamedExpr | ast.Lambda | ast.comprehension | ast.Await


def _answers(test: ast.expr, wanted: bool) -> set[bool | None]:
    """The truth values that numbers in a condition must have so that the condition is `wanted`; None where unknown."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _answers(test.operand, not wanted)
    if isinstance(test, ast.BoolOp):
        return {answer for value in test.values for answer in _answers(value, wanted)}
    return {None if any(isinstance(node, _DECIDING) for node in ast.walk(test)) else wanted}
