"""The program of a failure: at most ten lines that show it without weft, by plain JAX or by jaxtyping.

A program is written from the arguments of the failing trial and is not run. It is meant for a fresh process, since
jaxtyping's import hook has to be installed before the package that it checks is imported.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from weft.typecheck.arguments.builder import Unbuildable
from weft.typecheck.arguments.stand_ins import complains
from weft.typecheck.modes import mode
from weft.typecheck.proofs.trial import Target, Trial, one_at_a_time, only_built
from weft.typecheck.proofs.writing import LOADED, Unwritable, Writer

_MOST_LINES = 10


class Program(NamedTuple):
    """The text of a program; an empty text with the reason why there is none."""

    text: str
    reason: str = ""


def program_of(
    target: Target, trial: Trial, dims: Mapping[str, Any] | None = None, *, by_weft: bool = False
) -> Program:
    """The program of a failing trial.

    Args:
        target: the function whose trial failed.
        trial: the failing trial with the smallest sizes.
        dims: sizes that are fixed.
        by_weft: whether jaxtyping would not see the violation: the program then calls the function, and a comment says
            which value is wrong.
    """
    if target.instead is not None:
        return Program("", "the failure depends on arrays from outside of the function")
    if target.axes:
        return Program("", "the function runs under a named axis")
    with one_at_a_time, mode("off"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            builder = target.builder(trial.assignment, dims, lenient=bool(trial.unsaid.unsatisfied), is_written=True)
            writer = Writer(builder, checks_calls=complains(trial.error))
            lines = _lines(writer, target, trial, by_weft, *target.prepare(builder))
        except (Unwritable, Unbuildable) as reason:
            return Program("", str(reason))
        except Exception as error:  # raised while the arguments were made
            return Program("", f"making its arguments raises {type(error).__name__}")
    return Program("\n".join(lines)) if len(lines) <= _MOST_LINES else Program("", "it needs more than ten lines")


def _lines(
    writer: Writer,
    target: Target,
    trial: Trial,
    by_weft: bool,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> list[str]:
    plain = reached = inspect.unwrap(function)
    if inspect.iscoroutinefunction(plain):
        raise Unwritable("jaxtyping checks the coroutine, and not what it returns")
    if plain is only_built:
        name, call = "", writer.expression(args[0])
    else:
        name = writer.named(plain)
        first, *attributes = name.split(".")
        reached = functools.reduce(getattr, attributes, writer.names.get(first, plain))
        # A bound class method has its class already.
        is_bound = inspect.ismethod(reached)
        call = writer.call(reached if is_bound else plain, name, args[1:] if is_bound else args, kwargs)
    violation = next(iter(trial.violations), None)
    before: list[str] = []
    if violation is None:
        pass
    elif by_weft:
        call += f"  # {violation.message}"
    elif violation.place[:2] == (target.file, target.line) and name:
        # jaxtyping cannot decorate what `jit` has made of a function, so the program decorates the function as written.
        wrappers = ".__wrapped__" * _number_of_wrappers(reached)
        call = f"jaxtyped(typechecker=beartype)({name}{wrappers}){call.removeprefix(name)}"
        before = ["from beartype import beartype", "from jaxtyping import jaxtyped"]
    else:
        # Only the module of the annotation is hooked: the import hook may refuse another module of the package.
        module = (_module_of(violation.file) or plain.__module__).removeprefix(LOADED)
        before = ["import jaxtyping", f'jaxtyping.install_import_hook("{module}", "beartype.beartype")']
    local = sorted(writer.names.keys() - writer.modules.keys())
    # A name that no import statement reaches gets a comment, so that a reader does not search for the import.
    made = [line for _, lines in writer.definitions.values() for line in lines]
    lines = [*before, *writer.imports(), *made, *(f"# {one} is defined inside a function" for one in local), call]
    text = "\n".join(lines)
    imports = [f"import {module}" for module in ("jax",) if f"{module}." in text]
    imports += ["import jax.numpy as jnp"] if "jnp." in text else []
    return [*imports, *dict.fromkeys(lines)]


def _module_of(file: str) -> str:
    """The name of the module that was loaded from a file; empty if there is none."""
    for name, module in [*sys.modules.items()]:
        # `__dict__` is read, since an entry of `sys.modules` may be None, or a lazy module that loads itself when any
        # other attribute is read.
        if (getattr(module, "__dict__", None) or {}).get("__file__") == file and name != "__main__":
            return name
    return ""


def _number_of_wrappers(function: Any) -> int:
    count = 0
    while hasattr(function, "__wrapped__"):
        function, count = function.__wrapped__, count + 1
    return count
