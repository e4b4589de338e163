"""The program of a failure: at most ten lines that show it without weft, by plain JAX or by jaxtyping.

A program is written from the arguments of the failing trial, as Python expressions with the imports that they need. It
is not run. It is meant for a fresh process, since jaxtyping's import hook has to be installed before the package that
it checks is imported.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import itertools
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from keyword import iskeyword
from typing import Any, NamedTuple

import jax
import numpy as np
from weft.core.edge.names import is_generated
from weft.core.records.leaves import is_array
from weft.typecheck.arguments.builder import Builder, Unbuildable, random_keys
from weft.typecheck.arguments.enumerations import name_of_item
from weft.typecheck.arguments.stand_ins import complains
from weft.typecheck.language.annotations import Anything, CallableOf
from weft.typecheck.modes import mode
from weft.typecheck.proofs.tracing import Target, one_at_a_time, only_built
from weft.typecheck.proofs.trial import Trial

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
    """The lines of a program: imports, definitions, and the call, under jaxtyping if that has to see the violation."""
    plain = reached = inspect.unwrap(function)
    if inspect.iscoroutinefunction(plain):
        raise Unwritable("jaxtyping checks the coroutine, and not what it returns")
    if plain is only_built:
        name = ""
        call = writer.expression(args[0])
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
        wrappers = ""
        while hasattr(reached, "__wrapped__"):
            reached, wrappers = reached.__wrapped__, f"{wrappers}.__wrapped__"
        call = f"jaxtyped(typechecker=beartype)({name}{wrappers}){call.removeprefix(name)}"
        before = ["from beartype import beartype", "from jaxtyping import jaxtyped"]
    else:
        # Only the module of the annotation is hooked: the import hook may refuse another module of the package.
        module = (_module_of(violation.file) or plain.__module__).removeprefix(LOADED)
        before = ["import jaxtyping", f'jaxtyping.install_import_hook("{module}", "beartype.beartype")']
    local = sorted(writer.names.keys() - writer.modules.keys())
    # A name that no import statement reaches gets a comment, so that a reader does not search for the import.
    made = [line for _, lines in writer.definitions.values() for line in lines]
    lines = [*before, *writer.imports(), *made, *(f"# {name} is defined inside a function" for name in local), call]
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


# The prefix of names of modules that `weft check` has loaded by a file's path, outside of any package.
LOADED = "weft_check_"
# Names that every program may use: an imported function of the same name gets a number.
_TAKEN = ("jax", "jnp", "jaxtyping", "jaxtyped", "beartype", "runpy", "own", "stand_in")
# Names of jaxtyping in the text of an annotation, which a program has to import.
_KINDS = re.compile(r"\b[A-Z]\w*(?=\[)|\bArray\b|\bPRNGKeyArray\b")


class Unwritable(Exception):
    """No short expression makes a value; the message says which."""


class Writer:
    """Writes values as expressions, and collects the names, imports and definitions that these need.

    Attributes:
        builder: the builder that made the values, which knows the constructor calls of the records among them.
        checks_calls: whether a stand-in for a callable has to check its arguments.
        names: the object that each name of the program refers to.
        modules: for each imported name its module, and its name there.
        definitions: the lines that define each stand-in, by the stand-in's name.
    """

    def __init__(self, builder: Builder, *, checks_calls: bool) -> None:
        self.builder, self.checks_calls = builder, checks_calls
        self.names: dict[str, Any] = {}
        self.modules: dict[str, tuple[str, str]] = {}
        self.definitions: dict[str, tuple[Any, list[str]]] = {}

    def imports(self) -> Iterator[str]:
        """The import lines, for a reader who runs the program in the folder that the modules' names start from."""
        for module in dict.fromkeys(module for module, _ in self.modules.values()):
            own = {name: called for name, (home, called) in self.modules.items() if home == module}
            dotted = module.removeprefix(LOADED)
            is_file = dotted != module and "." in dotted  # `v1.2.py`
            if not is_file and all(part.isidentifier() and not iskeyword(part) for part in dotted.split(".")):
                yield f"from {dotted} import " + ", ".join(
                    name if name == called else f"{called} as {name}" for name, called in own.items()
                )
                continue
            # A tutorial's `01_attention.py` has a name that no `import` statement takes.
            yield "import runpy"
            yield f"own = runpy.run_path({dotted + '.py'!r})" if is_file else f"own = runpy.run_module({dotted!r})"
            yield f"{', '.join(own)} = {', '.join(f'own[{called!r}]' for called in own.values())}"

    def call(self, called: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """A call as an expression; arguments that equal the defaults are left out."""
        try:
            defaults = {
                parameter.name: parameter.default for parameter in inspect.signature(called).parameters.values()
            }
        except (TypeError, ValueError):  # a builtin has no signature
            defaults = {}
        rest = list(args)
        for default in reversed(list(defaults.values())[: len(rest)]):
            if len(rest) > len(defaults) or rest[-1] is not default:
                break
            rest.pop()
        written = [self.expression(value) for value in rest]
        for keyword, value in kwargs.items():
            if defaults.get(keyword, inspect.Parameter.empty) is not value:
                written.append(f"{keyword}={self.expression(value)}")
        return f"{name}({', '.join(written)})"

    def named(self, thing: Any) -> str:
        """The name of a function or class, which the program imports."""
        module, qualname = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
        if not isinstance(module, str) or not isinstance(qualname, str):
            raise Unwritable(f"{thing!r} has no name")
        parts = qualname.split(".")
        attribute: Any = sys.modules.get(module)
        for part in parts:
            attribute = inspect.getattr_static(attribute, part, None)
            attribute = getattr(attribute, "__func__", attribute)
        is_global = attribute is not None and inspect.unwrap(attribute) is inspect.unwrap(thing)
        first, value = (parts[0], getattr(sys.modules[module], parts[0])) if is_global else (parts[-1], thing)
        if not first.isidentifier():
            raise Unwritable(f"{qualname} has no name of its own")
        # Two modules of a package may each have a class of one name: the program imports the second as `Name2`.
        candidates = itertools.chain([first], (f"{first}{number}" for number in itertools.count(2)))
        name = next(
            candidate
            for candidate in candidates
            if candidate not in _TAKEN and self.names.get(candidate, value) is value
        )
        if module != "builtins":
            self.names[name] = value
        if is_global and module != "builtins":
            self.modules[name] = module, first
        return ".".join([name, *parts[1:]]) if is_global else name

    def expression(self, value: Any) -> str:
        """A Python expression whose value is equal to the given one.

        Raises:
            Unwritable: if there is no short expression.
        """
        for classes, write in _EXPRESSIONS:
            if isinstance(value, classes):
                return write(self, value)
        # By identity: the builder knows with which arguments it made this very record, while its fields may have been
        # computed.
        for made, cls, args, kwargs in self.builder.calls:
            if made is value:
                return self.call(cls, self.named(cls), args, kwargs)
        for stand_in, spec in self.builder.stand_ins:
            if stand_in is value:
                return self._stand_in(stand_in, spec)
        if (item := name_of_item(value)) is not None:
            return f"{self.named(item[0])}.{item[1]}"
        if isinstance(value, type) or inspect.isfunction(value):
            return self.named(value)
        if dataclasses.is_dataclass(value):
            fields = {name: getattr(value, name) for name in _arguments_of_class(value)}
            return self.call(type(value), self.named(type(value)), (), fields)
        raise Unwritable(f"a {type(value).__name__} is not made by a short expression")

    def array(self, value: jax.ShapeDtypeStruct) -> str:
        """An expression for an array of ones of the same shape, or for random keys."""
        # Values do not matter to a shape, but a random key has to be made by `jax.random`: its dtype takes no
        # `jnp.ones`.
        if value.dtype == random_keys()[0].dtype:
            return f"jax.random.split(jax.random.key(0), {value.shape})" if value.shape else "jax.random.key(0)"
        return f'jnp.ones({value.shape}, "{value.dtype}")'

    def items(self, value: tuple[Any, ...] | list[Any]) -> str:
        """An expression for a tuple, a named tuple, or a list."""
        inside = ", ".join(map(self.expression, value))
        if isinstance(value, list):
            return f"[{inside}]"
        if type(value) is tuple:
            return f"({inside}{',' * (len(value) == 1)})"
        return f"{self.named(type(value))}({inside})"

    def _stand_in(self, value: Callable[..., Any], spec: CallableOf) -> str:
        """An expression for a callable: a function that returns its first argument, or an array as annotated."""
        returned = "x" if isinstance(spec.returns, Anything) else ""
        if not self.checks_calls or not spec.parameters:
            return "lambda x, *_: x" if returned else f"lambda *_: {self._returned(value)}"
        for name, (stand_in, _) in self.definitions.items():
            if stand_in is value:
                return name
        annotations = [str(parameter) for parameter in spec.parameters]
        same = [f"x{number}" for number, parameter in enumerate(spec.parameters) if parameter == spec.returns]
        # A `lambda` has no annotations. Only a function with some lets jaxtyping refuse a call with other shapes.
        name = f"stand_in{len(self.definitions) or ''}"
        asked = ", ".join(f"x{number}: {annotation}" for number, annotation in enumerate(annotations))
        body = same[0] if same else "x0" if returned else self._returned(value)
        kinds = sorted({kind for annotation in annotations for kind in _KINDS.findall(annotation)} | {"jaxtyped"})
        lines = ["from beartype import beartype", f"from jaxtyping import {', '.join(kinds)}"]
        lines += ["@jaxtyped(typechecker=beartype)", f"def {name}({asked}): return {body}"]
        self.definitions[name] = value, lines
        return name

    def _returned(self, stand_in: Callable[..., Any]) -> str:
        """An expression for the value that a stand-in returns when it is called without arguments."""
        shapes = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if is_array(leaf) else leaf, stand_in()
        )
        return self.expression(shapes)


def _arguments_of_class(value: Any) -> list[str]:
    """The attributes of a dataclass instance that its class takes: its fields, or the parameters of its `__init__`.

    An `__init__` that somebody wrote may compute the fields at these sizes alone: passing the fields themselves ended
    the program with a TypeError that had nothing to do with the failure.
    """
    cls: Any = type(value)
    code = getattr(inspect.unwrap(cls.__init__), "__code__", None)
    if code is None or is_generated(code):
        return [field.name for field in dataclasses.fields(value) if field.init]
    names: list[str] = []
    for parameter in [*inspect.signature(cls.__init__).parameters.values()][1:]:
        if hasattr(value, parameter.name):
            names.append(parameter.name)
        elif parameter.default is inspect.Parameter.empty and parameter.kind not in _VARIADIC:
            raise Unwritable(f"no attribute of a {cls.__name__} has the value that its class took for {parameter.name}")
    return names


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_EXPRESSIONS: tuple[tuple[Any, Callable[[Writer, Any], str]], ...] = (
    (jax.ShapeDtypeStruct, Writer.array),
    (enum.Enum, lambda writer, value: f"{writer.named(type(value))}.{value.name}"),
    (np.dtype, lambda writer, value: f'jnp.dtype("{value}")'),
    ((type(None), bool, int, float, complex, str, bytes), lambda writer, value: repr(value)),
    (slice, lambda writer, value: f"slice({writer.items((value.start, value.stop, value.step))[1:-1]})"),
    ((tuple, list), Writer.items),
    (
        dict,
        lambda writer, value: f"{{{', '.join(f'{key!r}: {writer.expression(item)}' for key, item in value.items())}}}",
    ),
)
