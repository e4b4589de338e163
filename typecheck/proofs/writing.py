"""Writing a call as a program that anybody can run: imports, and the arguments as expressions."""

from __future__ import annotations

import builtins
import dataclasses
import enum
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from keyword import iskeyword
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from weft.core.records.leaves import is_array
from weft.typecheck.arguments.builder import Builder, key_dtype
from weft.typecheck.arguments.enumerations import name_of_item
from weft.typecheck.language.annotations import Anything, CallableOf
from weft.typecheck.proofs.trial import only_built

_MOST_LINES = 10
# What the name of a module begins with that is loaded from a file by its path, being no part of a package.
LOADED = "weft_check_"
# What the first lines of a program may call something.
_TAKEN = (
    *("jax", "jnp", "np", "jaxtyping", "jaxtyped", "beartype"),
    *("importlib", "runpy", "own", "inside", "stand_in", "made"),
)


class Unwritable(Exception):
    """There is no short expression for a value."""


class Writer:
    """Writes the program of one call.

    Attributes:
        builder: that made the values; it knows how records were constructed.
        names: what the names of the program stand for.
        checks_calls: whether what stands for a callable has to check what it is called with.
        made: the lines that define such, by what they stand for.
        modules: of each that is imported, the module, and what it is called there.
    """

    builder: Builder

    def __init__(self, *, checks_calls: bool) -> None:
        self.checks_calls = checks_calls
        self.made: list[tuple[Any, str, list[str]]] = []
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
        made = (line for _, _, lines in self.made for line in lines)
        lines = ["import jax", "import jax.numpy as jnp", *checks, *bound, *made]
        apart = self.names.keys() - self.modules.keys() - vars(builtins).keys()
        lines += [f"# {name} is defined inside a function" for name in sorted(apart)]
        if len(lines) >= _MOST_LINES:
            raise Unwritable("it needs more than ten lines")
        return "\n".join([*lines, call if computing else f"jax.eval_shape(lambda: {call})"])

    def imports(self) -> Iterator[str]:
        """The lines that import what is named, for whoever runs the program in the folder that its modules start from.

        A tutorial's `01_attention.py` has a name that no `import` statement takes.
        """
        for module in dict.fromkeys(module for module, _ in self.modules.values()):
            own = {name: called for name, (one, called) in self.modules.items() if one == module}
            told = module.removeprefix(LOADED)
            is_file = told != module and "." in told
            if not is_file and all(part.isidentifier() and not iskeyword(part) for part in told.split(".")):
                named = (n if n == called else f"{called} as {n}" for n, called in own.items())
                yield f"from {told} import {', '.join(named)}"
                continue
            yield f"import {'runpy' if is_file else 'importlib'}"
            yield "own = " + (f'runpy.run_path("{told}.py")' if is_file else f'vars(importlib.import_module("{told}"))')
            values = ", ".join(f'own["{called}"]' for called in own.values())
            yield f"{', '.join(own)} = {values}"

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
        stands_for = next((spec for one, spec in self.builder.stand_ins if one is value), None)
        if stands_for is not None:
            return self.stand_in(value, stands_for)
        item = name_of_item(value)
        if item is not None:
            return f"{self.named(item[0])}.{item[1]}"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self.instance(value)
        if isinstance(value, type) or inspect.isfunction(value):
            return self.named(value)
        raise Unwritable(f"a {type(value).__name__} is not made by a short expression")

    def instance(self, value: Any) -> str:
        """An instance of a dataclass; a line of its own makes one without arrays, for its class may compute them."""
        known = next((name for one, name, _ in self.made if one is value), None)
        if known is not None:
            return known
        given = {name: getattr(value, name) for name in _taken_by_class(value)}
        written = [f"{name}={self.expression(one)}" for name, one in given.items()]
        call = f"{self.named(type(value))}({', '.join(written)})"
        if not _has_own_init(type(value)) or any(map(is_array, jax.tree.leaves(given))):
            return call
        self.made.append((value, f"made{len(self.made) or ''}", [f"made{len(self.made) or ''} = {call}"]))
        return self.made[-1][1]

    def array(self, value: jax.ShapeDtypeStruct) -> str:
        """An array of a shape and dtype."""
        if value.dtype == key_dtype():
            return f"jax.random.split(jax.random.key(0), {value.shape})" if value.shape else "jax.random.key(0)"
        return f'jnp.ones({value.shape}, "{value.dtype}")'

    def stand_in(self, value: Callable[..., Any], spec: CallableOf) -> str:
        """A function in place of a callable: it returns what it is given first, or what it does for nothing."""
        if self.checks_calls and spec.parameters:
            return self.checking(value, spec, spec.parameters)
        if isinstance(spec.returns, Anything):
            return "lambda x, *_: x"
        return f"lambda *_: {self.returned(value)}"

    def returned(self, stand_in: Callable[..., Any]) -> str:
        """What a stand-in returns that is called with nothing."""
        return self.expression(jax.tree.map(_as_shape, stand_in()))

    def checking(self, value: Callable[..., Any], spec: CallableOf, parameters: tuple[Any, ...]) -> str:
        """The name of a function that is checked by jaxtyping, and is defined by lines of its own."""
        for known, name, _ in self.made:
            if known is value:
                return name
        written = {f"x{number}": str(one) for number, one in enumerate(parameters)}
        same = [name for name, one in zip(written, parameters, strict=True) if one == spec.returns]
        returns = same or (["x0"] if isinstance(spec.returns, Anything) else [self.returned(value)])
        asked = ", ".join(f"{name}: {one}" for name, one in written.items())
        kinds = sorted({kind for one in written.values() for kind in _KINDS.findall(one)})
        name = f"stand_in{len(self.made) or ''}"
        definition = f"def {name}({asked}): return {returns[0]}"
        checks = ["from beartype import beartype", f"from jaxtyping import {', '.join((*kinds, 'jaxtyped'))}"]
        try:
            exec("\n".join([*checks[1:], definition]), {"jnp": jnp, "jax": jax})
        except Exception:
            raise Unwritable("it needs a callable whose annotation is not written as it is read") from None
        lines = [*(() if self.made else checks), "@jaxtyped(typechecker=beartype)", definition]
        self.made.append((value, name, lines))
        return name

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


def _taken_by_class(value: Any) -> list[str]:
    """The attributes of an instance that its class takes: its fields, unless it has an `__init__` of its own.

    That one may compute the rest, at other sizes than these; then the program shows what is true of such an instance.
    """
    cls = type(value)
    if not _has_own_init(cls):
        return [one.name for one in dataclasses.fields(value) if one.init]
    parameters = [*inspect.signature(cls.__init__).parameters.values()][1:]
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for one in parameters:
        if one.default is inspect.Parameter.empty and one.kind not in variadic and not hasattr(value, one.name):
            raise Unwritable(f"nothing in a {cls.__name__} says what its class was given for {one.name}")
    return [one.name for one in parameters if one.kind not in variadic and hasattr(value, one.name)]


def _has_own_init(cls: Any) -> bool:
    """Whether somebody has written how instances of a dataclass are made."""
    code = getattr(inspect.unwrap(cls.__init__), "__code__", None)
    return code is not None and code.co_filename != "<string>"


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


_KINDS = re.compile(r"\b[A-Z]\w*(?=\[)|\bArray\b|\bPRNGKeyArray\b")
_EXPRESSIONS: tuple[tuple[Any, Callable[[Writer, Any], str]], ...] = (
    (jax.ShapeDtypeStruct, Writer.array),
    (enum.Enum, lambda writer, one: f"{writer.named(type(one))}.{one.name}"),
    (np.dtype, lambda writer, one: f'jnp.dtype("{one}")'),
    ((type(None), bool, int, float, complex, str, bytes), lambda writer, one: repr(one)),
    (slice, lambda writer, one: f"slice({', '.join(map(writer.expression, (one.start, one.stop, one.step)))})"),
    ((tuple, list), Writer.items),
    (dict, lambda writer, one: writer.mapping(one)),
)
