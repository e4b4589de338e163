"""Programs that show a failure without weft: plain JAX, or jaxtyping with beartype, in at most ten lines.

`program_of` writes one from the arguments of the failing trial and runs it, on shapes alone (`jax.eval_shape`). A
failure whose program runs through is none that anybody else could see; what becomes of it, the prover says.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import enum
import inspect
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from weft.core.records.leaves import is_array
from weft.typecheck.arguments.builder import Builder, Unbuildable, key_dtype
from weft.typecheck.arguments.enumerations import name_of_item
from weft.typecheck.arguments.stand_ins import complains
from weft.typecheck.language.annotations import Anything
from weft.typecheck.modes import mode
from weft.typecheck.proofs.reshapes import REFUSED
from weft.typecheck.proofs.trial import Target, Trial, one_at_a_time, only_built
from weft.typecheck.proofs.violations import Violation

_MOST_LINES = 10
# What the first lines of a program may call something.
_TAKEN = ("jax", "jnp", "np", "jaxtyping", "jaxtyped", "beartype", "importlib", "inside")


class Unwritable(Exception):
    """There is no short expression for a value."""


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
    writer = _Writer(checks_calls=complains(trial.error))
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
        return dataclasses.replace(_tried(text, writer.names, trial), plain=plain)


def _hooked(
    writer: _Writer,
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
    hook = "import jaxtyping", f'jaxtyping.install_import_hook("{module}", "beartype.beartype")'
    forms = [Form(writer.program(function, args, kwargs, hook), module)]
    if _is_plain(module, violated.function):
        called = f"inside.{violated.function}"
        decorated = (
            "import importlib",
            "from beartype import beartype",
            "from jaxtyping import jaxtyped",
            f'inside = importlib.import_module("{module}")',
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


def _tried(text: str, names: Mapping[str, Any], trial: Trial) -> Program:
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    try:
        exec(compile("\n".join(lines), "<program>", "exec"), dict(names))
    except Exception as raised:
        message = (str(raised).strip().splitlines() or [""])[0]
        if not trial.violations:
            same = type(raised).__name__ == type(trial.error).__name__
            return Program(text, same, "" if same else f"it ends with {type(raised).__name__}: {message}")
        part = "return value" if trial.violations[0].where == "return" else "parameters"
        if "Type-check error" not in message or part in message:
            return Program(text, "Type-check error" in message, f"it ends with {type(raised).__name__}: {message}")
        return Program(text, False, f"jaxtyping with beartype refuses its arguments: {message}")
    if str(trial.error).startswith(REFUSED):
        return Program(text)  # JAX looks at this as it compiles, and what runs here are shapes alone
    return Program(text, False, "it runs through")


class _Writer:
    """Writes values as expressions.

    Attributes:
        builder: that made the values; it knows how records were constructed.
        names: what the names of the program stand for.
        checks_calls: whether what stands for a callable has to check what it is called with, as no short one does.
        modules: of each that is imported, the module, and what it is called there.
    """

    builder: Builder

    def __init__(self, *, checks_calls: bool) -> None:
        self.checks_calls = checks_calls
        self.names: dict[str, Any] = {}
        self.modules: dict[str, tuple[str, str]] = {}

    def program(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        checks: tuple[str, ...] = (),
        *,
        own: bool = False,
        computing: bool = False,
    ) -> str:
        """The text of a call; after the lines that have others checked, or checked by jaxtyping on its `own`; of shapes
        alone if not `computing`."""
        plain = inspect.unwrap(function)
        if plain is only_built:
            plain, called, written = type(args[0]), "", ""
            call = self.expression(args[0])
        else:
            called = self.named(plain)
            reached = _reached(called, self.names, function)
            if inspect.ismethod(reached):  # a class method, whose name stands for it with its class
                written = ", ".join(self.arguments(reached, args[1:], kwargs))
            else:
                written = ", ".join(self.arguments(plain, args, kwargs))
            call = f"{called}({written})"
        bound = self.imports()
        if own:
            # As it was written: jaxtyping cannot decorate what `jit` has made of it.
            written_as = called + ".__wrapped__" * _wrappers(_reached(called, self.names, function))
            call = f"jaxtyped(typechecker=beartype)({written_as})({written})"
            checks = "from beartype import beartype", "from jaxtyping import jaxtyped"
        lines = ["import jax", "import jax.numpy as jnp", *checks, *bound]
        apart = self.names.keys() - self.modules.keys() - vars(builtins).keys()
        lines += [f"# {name} is defined inside a function" for name in sorted(apart)]
        if len(lines) >= _MOST_LINES:
            raise Unwritable("it needs more than ten lines")
        return "\n".join([*lines, call if computing else f"jax.eval_shape(lambda: {call})"])

    def imports(self) -> Iterator[str]:
        """The imports of what is named, a line for each module."""
        for module in dict.fromkeys(module for module, _ in self.modules.values()):
            own = [(name, called) for name, (one, called) in self.modules.items() if one == module]
            yield f"from {module} import {', '.join(n if n == called else f'{called} as {n}' for n, called in own)}"

    def arguments(self, called: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
        """The arguments of a call; what is the default anyway is left out, at the end and among the named ones."""
        try:
            defaults = {one.name: one.default for one in inspect.signature(called).parameters.values()}
        except (TypeError, ValueError):  # something builtin, which has no signature
            defaults = {}
        given = list(args)
        for default in reversed(list(defaults.values())[: len(given)]):
            if len(given) > len(defaults) or given[-1] is not default:
                break
            given.pop()
        named = {name: one for name, one in kwargs.items() if defaults.get(name, inspect.Parameter.empty) is not one}
        return [*map(self.expression, given), *(f"{name}={self.expression(one)}" for name, one in named.items())]

    def named(self, thing: Any) -> str:
        """The name of a function or class, imported."""
        module, qualname = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
        if not isinstance(module, str) or not isinstance(qualname, str):
            raise Unwritable(f"{thing!r} has no name")
        parts = qualname.split(".")
        found: Any = sys.modules.get(module)
        for part in parts:
            found = inspect.getattr_static(found, part, None)
            found = getattr(found, "__func__", found)
        reached = found is not None and inspect.unwrap(found) is inspect.unwrap(thing)
        called, value = (parts[0], getattr(sys.modules.get(module), parts[0], None)) if reached else (parts[-1], thing)
        if not called.isidentifier():
            raise Unwritable(f"{qualname} has no name of its own")
        # Two packages, or two modules of one, may have a class of the same name: the second is imported as another.
        others = (f"{called}{number}" for number in itertools.count(2))
        name = next(one for one in itertools.chain([called], others) if self._is_free(one, value))
        self.names[name] = value
        if reached and module != "builtins":
            self.modules[name] = module, called
        return ".".join([name, *parts[1:]]) if reached else name

    def _is_free(self, name: str, value: Any) -> bool:
        """Whether a name of the program stands for a value, or for nothing yet."""
        return self.names.get(name, value) is value and name not in _TAKEN

    def expression(self, value: Any) -> str:
        """An expression that makes a value.

        Raises:
            Unwritable: if there is none.
        """
        for classes, write in _EXPRESSIONS:
            if isinstance(value, classes):
                return write(self, value)
        known = next((one for one in self.builder.calls if one[0] is value), None)
        if known is not None:
            _, _, call, args, kwargs = known
            named = self.named(getattr(call, "__func__", call))
            return f"{named}({', '.join(self.arguments(call, args, kwargs))})"
        stands_for = next((returns for one, returns in self.builder.stand_ins if one is value), None)
        if stands_for is not None and not self.checks_calls:
            return self.stand_in(value, stands_for)
        item = name_of_item(value)
        if item is not None:
            return f"{self.named(item[0])}.{item[1]}"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [one.name for one in dataclasses.fields(value) if one.init]
            given = [f"{name}={self.expression(getattr(value, name))}" for name in names]
            return f"{self.named(type(value))}({', '.join(given)})"
        if isinstance(value, type) or inspect.isfunction(value):
            return self.named(value)
        raise Unwritable(f"a {type(value).__name__} is not made by a short expression")

    def array(self, value: jax.ShapeDtypeStruct) -> str:
        """An array of a shape and dtype."""
        if value.dtype == key_dtype():
            return f"jax.random.split(jax.random.key(0), {value.shape})" if value.shape else "jax.random.key(0)"
        return f'jnp.ones({value.shape}, "{value.dtype}")'

    def stand_in(self, value: Callable[..., Any], returns: Any) -> str:
        """A function that returns what it is given first, or what one returns that is called with nothing."""
        if isinstance(returns, Anything):
            return "lambda x, *_: x"
        return f"lambda *_: {self.expression(jax.tree.map(_as_shape, value()))}"

    def mapping(self, value: Mapping[Any, Any]) -> str:
        """A dict."""
        return f"{{{', '.join(f'{key!r}: {self.expression(one)}' for key, one in value.items())}}}"

    def items(self, value: tuple[Any, ...] | list[Any]) -> str:
        """A tuple, a named one too, or a list."""
        inside = ", ".join(map(self.expression, value))
        if isinstance(value, list):
            return f"[{inside}]"
        if type(value) is not tuple:
            return f"{self.named(type(value))}({inside})"
        return f"({inside}{',' * (len(value) == 1)})"


def _as_shape(leaf: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if is_array(leaf) else leaf


def _reached(called: str, names: Mapping[str, Any], function: Any) -> Any:
    """What the name of a function stands for in its module, with the transforms and checkers around it."""
    first, *rest = called.split(".")
    found = names.get(first, function)
    for part in rest:
        found = getattr(found, part)
    return found


def _wrappers(function: Any) -> int:
    count = 0
    while hasattr(function, "__wrapped__"):
        function, count = function.__wrapped__, count + 1
    return count


_EXPRESSIONS: tuple[tuple[Any, Callable[[_Writer, Any], str]], ...] = (
    (jax.ShapeDtypeStruct, _Writer.array),
    (enum.Enum, lambda writer, one: f"{writer.named(type(one))}.{one.name}"),
    (np.dtype, lambda writer, one: f'jnp.dtype("{one}")'),
    ((type(None), bool, int, float, complex, str, bytes), lambda writer, one: repr(one)),
    (slice, lambda writer, one: f"slice({', '.join(map(writer.expression, (one.start, one.stop, one.step)))})"),
    ((tuple, list), _Writer.items),
    (dict, lambda writer, one: writer.mapping(one)),
)
