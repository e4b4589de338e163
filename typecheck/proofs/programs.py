"""Programs that show a failure without weft: plain JAX, or jaxtyping with beartype, in at most ten lines.

`program_of` writes one from the arguments of the failing trial and runs it, on shapes alone (`jax.eval_shape`). A
failure whose program runs through is none that anybody else could see; what becomes of it, `shown` says.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weft.typecheck.arguments.builder import Builder, Unbuildable
from weft.typecheck.arguments.stand_ins import complains
from weft.typecheck.modes import mode
from weft.typecheck.proofs.reshapes import REFUSED
from weft.typecheck.proofs.trial import Target, Trial, one_at_a_time
from weft.typecheck.proofs.violations import Violation, first_line, in_short
from weft.typecheck.proofs.writing import LOADED, Unwritable, Writer


@dataclass(frozen=True)
class Form:
    """A program that has another function than the called one checked.

    Attributes:
        text: the program.
        hooked: the module that it has jaxtyping import; "" if it decorates the function alone.
    """

    text: str
    hooked: str = ""


@dataclass(frozen=True)
class Program:
    """A program that should show a failure.

    Attributes:
        text: the program, or "" where none can be written.
        shows: whether running it did show the failure; None where it was not run.
        why: why it does not, or why there is none.
        plain: the same call without checks, for what only weft refuses.
        forms: the ways to write one that has to be run in a process of its own, the best first.
        is_over: whether it is unknown what it shows, because a limit has ended it.
    """

    text: str = ""
    shows: bool | None = None
    why: str = ""
    plain: str = ""
    forms: tuple[Form, ...] = ()
    is_over: bool = False


def program_of(target: Target, trial: Trial, dims: Mapping[str, Any] | None = None) -> Program:
    """The program for a failing trial, tried out.

    Args:
        target: what failed.
        trial: the smallest trial that shows it.
        dims: sizes that were kept fixed.
    """
    writer = Writer(checks_calls=complains(trial.error))
    violated = trial.violations[0] if trial.violations else None
    others = None if violated is None or violated.place[:2] == (target.file, target.line) else violated
    if target.instead is not None:
        return Program(why="it is about arrays from outside of the function")
    if target.axes:
        return Program(why="it runs under a named axis")
    with one_at_a_time, mode("off"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            writer.builder = Builder(trial.assignment, dims, lenient=bool(trial.bare))
            function, args, kwargs = target.prepare(writer.builder)
            if inspect.iscoroutinefunction(inspect.unwrap(function)):
                return Program(why="jaxtyping checks the coroutine, and not what it returns")
            if others is not None:
                return _hooked(writer, function, args, kwargs, trial, others)
            text = writer.program(function, args, kwargs, own=violated is not None)
        except (Unwritable, Unbuildable) as reason:
            return Program(why=str(reason))
        except Exception as error:  # as it was while its arguments were made
            return Program(why=f"its arguments cannot be made: {type(error).__name__}")
        # Shapes alone do not pass a guard that looks at numbers; whoever runs this may need others than ones.
        plain = writer.program(function, args, kwargs, computing=bool(trial.passing))
        return dataclasses.replace(_tried(text, writer, trial), plain=plain)


def _hooked(
    writer: Writer,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    trial: Trial,
    violated: Violation,
) -> Program:
    """The program for a violation of another function's annotations, which takes a process of its own to run.

    Of its package only the module that holds the annotation is hooked: another one may not be importable so.
    """
    package = inspect.unwrap(function).__module__.partition(".")[0]
    module = _module_of(violated.file) or package
    told = module.removeprefix(LOADED)
    if told != module and "." in told:
        return Program(why=f"no import hook can be told of {told}.py, whose name is that of no module")
    hook = "import jaxtyping", f'jaxtyping.install_import_hook("{told}", "beartype.beartype")'
    forms = [Form(writer.program(function, args, kwargs, hook), module)]
    if _is_plain(module, violated.function):
        called = f"inside.{violated.function}"
        decorated = (
            "import importlib",
            "from beartype import beartype",
            "from jaxtyping import jaxtyped",
            f'inside = importlib.import_module("{told}")',
            f"{called} = jaxtyped(typechecker=beartype)({called})",
        )
        with contextlib.suppress(Unwritable):  # the other one is shorter
            forms.append(Form(writer.program(function, args, kwargs, decorated)))
    refused = f"jaxtyping's import hook refuses the package ({min(trial.bare)})" if trial.bare else ""
    return Program(forms[0].text, False if refused else None, refused, forms=tuple(forms))


def _module_of(file: str) -> str:
    """The module that was made from a file; "" if there is none."""
    for name, module in [*sys.modules.items()]:
        if (getattr(module, "__dict__", None) or {}).get("__file__") == file and name != "__main__":
            return name
    return ""


def _is_plain(module: str, qualname: str) -> bool:
    """Whether a function is one that a decorated one can be put in place of: of a module, or a method of a class."""
    owner: Any = sys.modules.get(module)
    *outer, name = qualname.split(".")
    for part in outer:
        owner = getattr(owner, part, None)
    kept_as = inspect.getattr_static(owner, name, None)
    return inspect.isfunction(getattr(owner, name, None)) and not isinstance(kept_as, (staticmethod, classmethod))


def _tried(text: str, writer: Writer, trial: Trial) -> Program:
    # What the program would import is here already, and a script may have no name to import it by.
    apart = {*writer.imports()}
    lines = (line for line in text.splitlines() if not line.startswith("#") and line not in apart)
    try:
        exec(compile("\n".join(lines), "<program>", "exec"), dict(writer.names))
    except Exception as raised:
        message, said = first_line(raised), in_short(raised)
        if not trial.violations:
            same = type(raised).__name__ == type(trial.error).__name__ or (
                complains(trial.error) and _refuses_stand_in(message)
            )
            return Program(text, same, "" if same else f"it ends with {said}")
        part = "return value" if trial.violations[0].where == "return" else "parameters"
        if "Type-check error" not in message or part in message:
            return Program(text, "Type-check error" in message, f"it ends with {said}")
        return Program(text, False, f"jaxtyping with beartype refuses its arguments: {message}")
    if str(trial.error).startswith(REFUSED):
        return Program(text)  # JAX looks at this as it compiles, and what runs here are shapes alone
    return Program(text, False, "it runs through")


def _refuses_stand_in(message: str) -> bool:
    """Whether jaxtyping says of what stands for a callable that it is called with something else than it takes."""
    return re.match(r"Type-check error whilst checking the parameters of (\S*\.)?stand_in\d*\.", message) is not None
